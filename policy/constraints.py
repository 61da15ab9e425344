"""Which nodes may take a task: the hard constraints, as a mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from policy.marks import tolerates
from policy.nodes import NodeTable
from policy.queue import Kind, kind_of
from policy.resources import RESOURCES, Request
from policy.rules import Rules
from policy.state import State
from policy.workflows import TaskState
from schemas.records import METRICS, Effect, NodeSpec, Task

CPU, MEMORY, GPU, GPU_MEMORY = range(len(RESOURCES))

REASONS = {
    "gone": "gone",
    "stale": "stale",
    "excluded": "excluded",
    "selector": "without the labels asked for",
    "taint": "tainted",
    "device": "too little memory a gpu",
    "cpu": "too little cpu",
    "memory": "too little memory",
    "gpu": "too little gpu",
    "gpu_memory": "too little gpu memory",
    "rule": "refused by a rule",
}
"""Why a node cannot take a task, in the order in which they are looked at: a metric's label, and words for people."""

TASK_FIELDS = (
    "cpu",
    "memory_bytes",
    "gpu",
    "gpu_memory_bytes",
    "runtime_s",
    "priority",
    "critical",
    "image",
    "workflow_class",
    "env",
)
CHANGING_FIELDS = METRICS
NODE_FIELDS = (
    "name",
    "cpu",
    "memory_bytes",
    "gpu",
    "gpu_memory_bytes",
    "speed",
    "price_per_hour",
    "cpu_free",
    "memory_free_bytes",
    "gpu_free",
    "gpu_memory_free_bytes",
    "labels",
    *METRICS,
)
"""What the user's rules can speak of."""

MOST_KEPT = 1000
"""Kinds of tasks whose answers are kept."""


class Constraints:
    """The hard constraints of a pool, with the parts that change rarely kept between decisions."""

    def __init__(self, rules: Sequence[str] = ()) -> None:
        self.rules = Rules(rules, NODE_FIELDS, TASK_FIELDS, changing_fields=CHANGING_FIELDS) if rules else None
        self.follow_metrics = self.rules is not None and self.rules.uses_metrics
        """Whether a rule looks at what is measured: a node may then take a task without any room being made."""
        self._version = -1
        self._static: dict[Kind, np.ndarray] = {}
        self._could: dict[tuple[Kind, Request], bool] = {}

    def mask(self, state: State, tasks: Sequence[TaskState], free_rn: np.ndarray, fresh_n: np.ndarray) -> np.ndarray:
        """mask_bn [B, N]: whether the node may take the task now, on its own.

        free_rn [R, N] what is left on the nodes; fresh_n [N] nodes that are there and report
        """
        request_br = np.array([t.request for t in tasks], np.int64).reshape(len(tasks), len(RESOURCES))
        mask_bn = np.broadcast_to(fresh_n, (len(tasks), len(fresh_n))).copy()
        for resource, free_n in enumerate(np.maximum(free_rn, 0)):
            mask_bn &= request_br[:, resource, None] <= free_n
        plain_n = self.static_mask(state.nodes, PLAIN)
        is_plain_b = [_is_plain(t.task) for t in tasks]
        if not plain_n.all():
            mask_bn[is_plain_b] &= plain_n
        columns = rule_columns(state, free_rn) if self.rules is not None else {}
        for row, task in enumerate(tasks):
            if not is_plain_b[row]:
                mask_bn[row] &= self.static_mask(state.nodes, task.task)
            for node_id in task.excluded_nodes:
                if node_id in state.nodes.index:
                    mask_bn[row, state.nodes.index[node_id]] = False
            if self.rules is not None:
                mask_bn[row] &= self._rules_mask(state, task, columns)[0]
        return mask_bn

    def rejections(self, state: State, task: TaskState, free_rn: np.ndarray, fresh_n: np.ndarray) -> Counter[str]:
        """How many nodes cannot take the task, by the first reason of REASONS that holds."""
        open_n = np.ones(len(state.nodes), bool)
        counts: Counter[str] = Counter()
        for reason, refused_n in self._refusals(state, task, free_rn, fresh_n):
            count = int((open_n & refused_n).sum())
            if count:
                counts[reason] += count
            open_n &= ~refused_n
        return counts

    def rejection(
        self, state: State, task: TaskState, node: int, free_rn: np.ndarray, fresh_n: np.ndarray
    ) -> str | None:
        """Why this node (its column) cannot take the task, the first reason of REASONS that holds; None: it can."""
        refusals = self._refusals(state, task, free_rn, fresh_n)
        return next((reason for reason, refused_n in refusals if refused_n[node]), None)

    def _refusals(
        self, state: State, task: TaskState, free_rn: np.ndarray, fresh_n: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Each reason of REASONS, and the nodes [N] for which it holds."""
        nodes, spec = state.nodes, task.task
        yield "gone", ~nodes.is_present_n
        yield "stale", ~fresh_n
        yield "excluded", np.isin(np.arange(len(nodes)), [nodes.index.get(n, -1) for n in task.excluded_nodes])
        yield "selector", ~selected(nodes.specs, spec)
        yield "taint", ~tolerated(nodes.specs, spec)
        yield "device", ~_device_fits(nodes, spec)
        for resource, name in enumerate(RESOURCES):
            yield name, task.request[resource] > np.maximum(free_rn[resource], 0)
        if self.rules is not None:
            yield "rule", ~self._rules_mask(state, task, rule_columns(state, free_rn))[0]

    def could_ever(self, state: State, task: TaskState) -> bool:
        """Whether some known node could take the task if it were empty, fresh and back."""
        allowed_n = self.static_mask(state.nodes, task.task)
        key = (kind_of(task.task), task.request)
        could = self._could.get(key)
        if could is None:
            if len(self._could) > MOST_KEPT:
                self._could.clear()
            request_r = np.array(task.request)[:, None]
            fits_n = (request_r <= state.nodes.capacity_rn).all(axis=0)
            could = self._could[key] = bool((fits_n & allowed_n).any())
        return could

    def static_mask(self, nodes: NodeTable, task: Task) -> np.ndarray:
        """What depends on the node's specification alone: labels, taints, memory of a GPU."""
        if self._version != nodes.version:
            self._static.clear()
            self._could.clear()
            self._version = nodes.version
        key = kind_of(task)
        mask_n = self._static.get(key)
        if mask_n is None:
            mask_n = selected(nodes.specs, task) & tolerated(nodes.specs, task) & _device_fits(nodes, task)
            if len(self._static) > MOST_KEPT:
                self._static.clear()
            self._static[key] = mask_n
        return mask_n

    def _rules_mask(
        self, state: State, task: TaskState, columns: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        assert self.rules is not None
        workflow = task.workflow
        fields = {name: getattr(task.task, name) for name in TASK_FIELDS[:-2]}
        fields |= {"workflow_class": str(workflow.workflow_class), "env": str(workflow.env)}
        return self.rules.mask(fields, columns, [spec.labels for spec in state.nodes.specs])


PLAIN = Task("", 1.0)


def _is_plain(task: Task) -> bool:
    return not task.node_selector and not task.tolerations and not (task.gpu and task.gpu_memory_bytes)


def rule_columns(state: State, free_rn: np.ndarray) -> dict[str, np.ndarray]:
    """The nodes' fields as the rules see them, each [N]."""
    nodes = state.nodes
    capacity_rn = nodes.capacity_rn
    latest_nm = state.windows.latest(len(nodes))
    return {
        "name": np.array([spec.node_id for spec in nodes.specs]),
        "cpu": capacity_rn[CPU] / 1000,
        "memory_bytes": capacity_rn[MEMORY],
        "gpu": capacity_rn[GPU],
        "gpu_memory_bytes": nodes.device_memory_n,
        "speed": nodes.speed_n,
        "price_per_hour": nodes.price_n,
        "cpu_free": free_rn[CPU] / 1000,
        "memory_free_bytes": free_rn[MEMORY],
        "gpu_free": free_rn[GPU],
        "gpu_memory_free_bytes": free_rn[GPU_MEMORY],
        **{name: latest_nm[:, column] for column, name in enumerate(METRICS)},
    }


def selected(specs: Sequence[NodeSpec], task: Task) -> np.ndarray:
    """[N] whether the node has every label that the task asks for."""
    wanted = task.node_selector.items()
    return np.array([all(spec.labels.get(k) == v for k, v in wanted) for spec in specs], bool)


def tolerated(specs: Sequence[NodeSpec], task: Task) -> np.ndarray:
    """[N] whether the task tolerates every hard taint of the node."""
    return np.array([not intolerable(spec, task, Effect.NO_SCHEDULE) for spec in specs], bool)


def intolerable(spec: NodeSpec, task: Task, effect: Effect) -> int:
    """How many taints of this effect the node has that the task does not tolerate."""
    return sum(
        taint.effect == effect and not any(tolerates(toleration, taint) for toleration in task.tolerations)
        for taint in spec.taints
    )


def _device_fits(nodes: NodeTable, task: Task) -> np.ndarray:
    if task.gpu == 0:
        return np.ones(len(nodes), bool)
    return nodes.device_memory_n >= task.gpu_memory_bytes


def in_words(rejections: Mapping[str, int], nodes: int) -> str:
    """Why no node takes a task: `0/16 nodes: 12 too little gpu, 4 stale`."""
    if nodes == 0:
        return "0/0 nodes: no node of the pool is known yet"
    largest_first = sorted(rejections.items(), key=lambda item: -item[1])
    return f"0/{nodes} nodes: " + ", ".join(f"{count} {REASONS[reason]}" for reason, count in largest_first)
