"""What the actor is shown of nodes and tasks, as numbers of about 1.

The names below are the order of the columns. Weights were trained for one order and one set of formulas: `SCHEMA` is
the fingerprint of both, and weights of another fingerprint are refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policy.nodes import NodeTable
from policy.observation import Observation
from policy.queue import Rows
from policy.resources import MILLI
from policy.state import State
from policy.windows import STEP_MS, STEPS
from policy.workflows import TaskState
from schemas.records import METRICS, WorkflowClass

CPU, MEMORY, GPU, GPU_MEMORY = range(4)
GIB = 2**30

WINDOW_FEATURES = (*METRICS, *(f"{name}_measured" for name in METRICS))
"""Of a node in one step: the metrics, 0 where nothing was measured, then for each whether it was measured."""

NODE_FEATURES = (
    "cpu",  # log1p(cores)
    "memory",  # log1p(GiB)
    "gpu",  # log1p(devices)
    "gpu_memory",  # log1p(GiB), all devices
    "cpu_free",  # share of the capacity, when the nodes were encoded
    "memory_free",
    "gpu_free",
    "gpu_memory_free",
    "speed",  # log
    "price",  # log1p(price per hour)
    "has_gpu",  # 0 or 1
    "failure_rate",  # of the attempts that ended here, 0 to 1
)

CLASSES = tuple(kind for kind in WorkflowClass if kind != WorkflowClass.UNKNOWN)

GRAPH_FEATURES = (
    "predicted_runtime",  # log1p(s)
    "cpu",  # log1p(cores)
    "memory",  # log1p(GiB)
    "gpu",  # log1p(devices)
    "priority",  # of 10
    "is_critical",  # 0 or 1
    "parent_count",  # log1p
    "child_count",  # log1p
    "rank",  # log1p(s), upward rank
    *(f"is_{kind}" for kind in CLASSES),  # all 0: unknown
)
"""What never changes of a task: the input of the DAG encoder."""

TASK_FEATURES = (
    "remaining_path",  # log1p(s), critical path left in the workflow
    "remaining_work",  # log1p(s), run time left in the workflow
    "attempt",  # log1p
)
"""What changes of a task."""

POOL_FEATURES = (
    "cpu_free",  # mean share over the nodes that are there
    "memory_free",
    "gpu_free",  # over those with GPUs
    "queue_length",  # log1p
)

PAIR_FEATURES = (
    "finish",  # transfers and run time of the row's earliest feasible node, over this node's: 1 is the best
    "cost",  # share of the node * its price * run time, of the row's cheapest feasible node, over this node's
    "free_after",  # smallest share that is left with the task: of cpu, memory, and gpu where it takes some
    "crowding",  # the same, at most the share below which tasks may slow each other down
    "imbalance",  # difference between the shares of cpu and memory that are left with the task
    "gpu_unneeded",  # 1 on a node with GPUs for a task that takes none
    "failure_rate",  # of the attempts that ended on the node, 0 to 1
    "transfer_share",  # of the time to the finish, what the transfers take
    "local_share",  # of the bytes of the task's inputs, those that lie on the node
    "urgent_finish",  # `finish` * the task's upward rank over the workflow's remaining path: 1 where nothing has slack
    "crowded_finish",  # as `finish`, with run times as they may be where the node's cpu is crowded
    "extra_cost",  # price * the time that the node is held longer for the task, over the row's dearest whole run
    "opening",  # 1 on a node that holds nothing yet
    "wishes",  # the task's soft wishes that the node fulfils, -2 to 1
)

ORDER_FEATURES = (
    "remaining_path",  # log1p(s), critical path left in the workflow
    "remaining_work",  # log1p(s), run time left in the workflow
    "rank",  # log1p(s), upward rank
    "predicted_runtime",  # log1p(s)
    "takes_gpu",  # 0 or 1
    "waited",  # 5 minutes, since it became ready; up to a constant
    "workflow_waited",  # 5 minutes, since the workflow was submitted; up to a constant
)
"""By which the tasks of one priority are ordered."""

FORMULAS = 2
"""Grows when a formula changes while the names stay."""


def fingerprint(*names: tuple[str, ...]) -> str:
    """Of the columns' names in their order, and of the formulas behind them."""
    return hashlib.sha256(json.dumps([FORMULAS, STEPS, STEP_MS, *names]).encode()).hexdigest()[:16]


SCHEMA = fingerprint(WINDOW_FEATURES, NODE_FEATURES, GRAPH_FEATURES, TASK_FEATURES, POOL_FEATURES, PAIR_FEATURES)

CROWDED = 0.5
"""Share of a node's cpu above which those that hold it are expected to slow down who comes,"""
SLOWED = 0.4
"""and by how much where the cpu is full."""
WAIT_UNIT_MS = 300_000

_RATES = [METRICS.index("network_bytes_per_s"), METRICS.index("network_latency_p99_s")]
_RATE_UNITS = np.array([1.0, 1e-3], np.float32)  # byte per second, millisecond
_RATE_SCALES = np.array([1 / 20, 1 / 5], np.float32)
_MOST = 2.0

LOG_SECONDS = 1 / 5
LOG_WORK = 1 / 8


def window_features(window_tnm: np.ndarray) -> np.ndarray:
    """The window [T, N, M] of `policy.windows` as the node encoder takes it: window_ntf [N, T, 2M]."""
    steps, nodes, metrics = window_tnm.shape
    window_ntf = np.empty((nodes, steps, 2 * metrics), np.float32)
    value_ntm, measured_ntm = window_ntf[..., :metrics], window_ntf[..., metrics:]
    value_ntm[:] = window_tnm.transpose(1, 0, 2)
    measured_ntm[:] = ~np.isnan(value_ntm)
    value_ntm[..., _RATES] = np.log1p(value_ntm[..., _RATES] / _RATE_UNITS) * _RATE_SCALES
    np.nan_to_num(value_ntm, copy=False, nan=0.0)
    np.minimum(value_ntm, _MOST, out=value_ntm)
    return window_ntf


def node_features(state: State) -> np.ndarray:
    """node_nf [N, len(NODE_FEATURES)] float32, of every node of the pool."""
    nodes = state.nodes
    capacity_rn = nodes.capacity_rn
    free_rn = np.clip(state.ledger.free_rn / np.maximum(capacity_rn, 1), 0, 1)
    return np.stack(
        [
            np.log1p(capacity_rn[CPU] / MILLI) / 3,
            np.log1p(capacity_rn[MEMORY] / GIB) / 5,
            np.log1p(capacity_rn[GPU]),
            np.log1p(capacity_rn[GPU_MEMORY] / GIB) / 4,
            *free_rn,
            np.log(nodes.speed_n),
            np.log1p(nodes.price_n),
            capacity_rn[GPU] > 0,
            state.failure_n,
        ],
        axis=1,
        dtype=np.float32,
        casting="unsafe",
    )


@dataclass(frozen=True, slots=True)
class Graphs:
    """Some DAGs side by side, as their encoder takes them. Axes: G DAGs, T tasks of all of them.

    graph_tf  [T, len(GRAPH_FEATURES)] float32
    edges_2e  [2, E] int64, from and to: each edge both ways, and each task to itself, so that E is never 0
    weight_gt [G, T] float32, how much each task counts in the vector of each DAG; rows sum to 1
    """

    graph_tf: np.ndarray
    edges_2e: np.ndarray
    weight_gt: np.ndarray


def graphs(dags: Sequence[Sequence[TaskState]]) -> Graphs:
    """Each of these groups of tasks of one workflow, with the edges within it."""
    tasks = [task for dag in dags for task in dag]
    edges: list[tuple[int, int]] = []
    first = 0
    for dag in dags:
        if len(dag) > 1:
            edges += _edges(dag, first)
        first += len(dag)
    weight_t = np.array([1 + t.task.priority / 10 + t.task.critical for t in tasks])
    group_t = np.repeat(np.arange(len(dags)), [len(dag) for dag in dags])
    weight_gt = np.zeros((len(dags), len(tasks)), np.float32)
    weight_gt[group_t, np.arange(len(tasks))] = weight_t / np.bincount(group_t, weight_t)[group_t]
    parents, children = np.array(edges, np.int64).reshape(-1, 2).T
    selves = np.arange(len(tasks))
    from_e, to_e = np.concatenate([parents, children, selves]), np.concatenate([children, parents, selves])
    return Graphs(graph_features(tasks), np.stack([from_e, to_e]), weight_gt)


def _edges(dag: Sequence[TaskState], first: int) -> list[tuple[int, int]]:
    """Parent and child, as rows from `first` on; parents outside of the group are left out."""
    row = {task.task.task_id: at for at, task in enumerate(dag, first)}
    return [
        (row[edge.task_id], at)
        for at, task in enumerate(dag, first)
        for edge in task.task.parents
        if row.get(edge.task_id, at) != at
    ]


def graph_features(tasks: Sequence[TaskState]) -> np.ndarray:
    """graph_tf [T, len(GRAPH_FEATURES)] float32."""
    graph_tf = np.array(
        [
            (
                task.task.runtime_s,
                task.task.cpu,
                task.task.memory_bytes / GIB,
                task.task.gpu,
                task.task.priority,
                task.task.critical,
                len(task.task.parents),
                len(task.children),
                task.rank_s,
                *_IS_CLASS[task.workflow.workflow_class],
            )
            for task in tasks
        ]
    ).reshape(len(tasks), len(GRAPH_FEATURES))
    graph_tf[:, _GRAPH_LOGS] = np.log1p(graph_tf[:, _GRAPH_LOGS])
    return (graph_tf * _GRAPH_SCALES).astype(np.float32)


_IS_CLASS = {kind: tuple(float(kind == other) for other in CLASSES) for kind in WorkflowClass}
_GRAPH_LOGS = [GRAPH_FEATURES.index(f) for f in GRAPH_FEATURES[:9] if f not in ("priority", "is_critical")]
_GRAPH_SCALES = np.array([LOG_SECONDS, 1 / 2, 1 / 3, 1, 1 / 10, 1, 1 / 2, 1 / 2, LOG_SECONDS, *(1 for _ in CLASSES)])


def task_features(seen: Observation) -> np.ndarray:
    """task_bf [B, len(TASK_FEATURES)] float32."""
    task_bf = np.array(
        [(t.workflow.path_s, t.workflow.work_s, at) for t, at in zip(seen.tasks, seen.attempts, strict=True)],
        np.float32,
    )
    # What is left of a workflow is kept as a running difference, which may end a little below 0.
    return np.log1p(np.maximum(task_bf, 0)) * _TASK_SCALES


_TASK_SCALES = np.array([LOG_SECONDS, LOG_WORK, 1], np.float32)


def order_features(rows: Rows) -> np.ndarray:
    """order_pk [P, len(ORDER_FEATURES)] float64, of waiting attempts."""
    tasks = rows.tasks
    logs_p4 = np.log1p(np.maximum(np.stack([rows.path_p, rows.work_p, rows.rank_p, rows.runtime_p], axis=1), 0))
    others_p3 = [
        (float(t.request[GPU] > 0), -t.ready_ms / WAIT_UNIT_MS, -t.workflow.submitted_ms / WAIT_UNIT_MS) for t in tasks
    ]
    scales = np.array([LOG_SECONDS, LOG_WORK, LOG_SECONDS, LOG_SECONDS])
    return np.concatenate([logs_p4 * scales, np.array(others_p3).reshape(len(tasks), 3)], axis=1)


def pool_features(seen: Observation, free_3n: np.ndarray) -> np.ndarray:
    """pool_f [len(POOL_FEATURES)] float32; free_3n from `free_shares`."""
    pool_f = np.empty(len(POOL_FEATURES), np.float32)
    pool_f[:-1] = np.vecdot(free_3n, seen.state.nodes.derived(mean_weights))
    pool_f[-1] = math.log1p(len(seen.state.queue)) / 4
    return pool_f


def free_shares(seen: Observation) -> np.ndarray:
    """free_3n [cpu + memory + gpu, N] float32: what is left of each node's capacity, 0 where it has none."""
    return seen.free_rn[:GPU_MEMORY].astype(np.float32) * seen.state.nodes.derived(inverse_capacity)


def inverse_capacity(nodes: NodeTable) -> np.ndarray:
    """inverse_3n [cpu + memory + gpu, N] float32: 1 / capacity, 0 where the node has none."""
    capacity_3n = nodes.capacity_rn[:GPU_MEMORY]
    return np.where(capacity_3n > 0, 1 / np.maximum(capacity_3n, 1), 0).astype(np.float32)


def mean_weights(nodes: NodeTable) -> np.ndarray:
    """weight_3n [cpu + memory + gpu, N] float32: a node's weight in the mean over those that are there and have any."""
    counts_3n = (nodes.capacity_rn[:GPU_MEMORY] > 0) & nodes.is_present_n
    return (counts_3n / np.maximum(counts_3n.sum(axis=1, keepdims=True), 1)).astype(np.float32)
