"""What a node has and a task takes, as whole numbers: sums of them never drift."""

from __future__ import annotations

import numpy as np

from schemas.records import NodeSpec, Task

RESOURCES = ("cpu", "memory", "gpu", "gpu_memory")
"""The R axis: thousandths of a core, bytes, devices, bytes of all devices together."""

Request = tuple[int, int, int, int]
"""An amount of each resource."""

MILLI = 1000


def capacity(spec: NodeSpec) -> Request:
    """What the node has."""
    return (round(spec.cpu * MILLI), spec.memory_bytes, spec.gpu, spec.gpu * spec.gpu_memory_bytes)


def request(task: Task) -> Request:
    """What the task takes while it runs."""
    return (round(task.cpu * MILLI), task.memory_bytes, task.gpu, task.gpu * task.gpu_memory_bytes)


def dominant_share(request_r: np.ndarray, capacity_rn: np.ndarray) -> np.ndarray:
    """The largest share of a node that the request takes.

    request_r   [R] or [R, B]  amounts
    capacity_rn [R, N]         amounts; a resource that a node lacks does not count
    Returns share_n [N] or share_bn [B, N].
    """
    share = np.asarray(request_r)[..., None] / np.maximum(capacity_rn, 1)[:, None, :].reshape(
        capacity_rn.shape[0], *([1] * (np.ndim(request_r) - 1)), capacity_rn.shape[1]
    )
    return share.max(axis=0)
