"""How far each node fulfils a task's soft wishes, as one number for the actor."""

from __future__ import annotations

import numpy as np

from policy.kube import HOSTNAME
from policy.marks import Marks, marks, tolerates
from policy.observation import Observation
from schemas.records import Spread, Task


def has_wishes(seen: Observation) -> bool:
    """Whether any node is marked, or any task wishes anything: otherwise all of it is 0."""
    return bool(seen.state.nodes.derived(marks).soft_taints) or any(
        task.task.preferences or task.task.spread for task in seen.tasks
    )


def wishes(seen: Observation, row: int) -> np.ndarray:
    """wish_n [N] float32, -2 to 1, of one task of the batch.

    The share by weight of its preferences that hold on the node, less 1 on a node with a soft taint that it does not
    tolerate, less the share of its workflow's placed attempts that lie in the node's domain (mean over its spreads).
    """
    known = seen.state.nodes.derived(marks)
    task = seen.tasks[row].task
    wish_n = np.zeros(seen.mask_bn.shape[1], np.float32)
    _prefer(wish_n, known, task)
    for taint, columns in known.soft_taints.items():
        if not any(tolerates(toleration, taint) for toleration in task.tolerations):
            wish_n[columns] -= 1
    np.maximum(wish_n, -1, out=wish_n)
    for spread in task.spread:
        wish_n -= _crowd(seen.siblings_bn[row], known, spread) / len(task.spread)
    return wish_n


def _prefer(wish_n: np.ndarray, known: Marks, task: Task) -> None:
    total = sum(wish.weight for wish in task.preferences)
    for wish in task.preferences:
        for value in set(wish.values):
            wish_n[known.labelled(wish.key, value)] += wish.weight / total


def _crowd(siblings_n: np.ndarray, known: Marks, spread: Spread) -> np.ndarray:
    """Share of the workflow's placed attempts in each node's domain [N]; 0 where the node has none."""
    total = max(int(siblings_n.sum()), 1)
    if spread.topology_key == HOSTNAME:
        return siblings_n / total
    crowd_n = np.zeros(len(siblings_n))
    for columns in known.labels.get(spread.topology_key, {}).values():
        crowd_n[columns] = siblings_n[columns].sum() / total
    return crowd_n
