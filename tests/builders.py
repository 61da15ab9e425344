"""Small clusters, workflows, states and observations for tests: every argument has a harmless default."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from policy.constraints import Constraints
from policy.decide import DecideSettings, Stamp, decide
from policy.observation import Observation, Policy, by_arrival
from policy.state import State, StateSettings
from schemas.records import (
    METRICS,
    Edge,
    Env,
    EventKind,
    NodeMetrics,
    NodeSpec,
    Outcome,
    Placement,
    Task,
    TaskEvent,
    TaskReady,
    WorkflowClass,
    WorkflowSubmitted,
)

POOL = "pool"
START_MS = 1_767_225_600_000  # 2026-01-01, on the edge of a window step
GIB = 2**30
MOST_BATCHES = 1000


def a_node(node_id: str = "n0", cpu: float = 8.0, memory_bytes: int = 32 * GIB, **fields: Any) -> NodeSpec:
    """A node of 8 cores and 32 GiB."""
    return NodeSpec(node_id, cpu, memory_bytes, **fields)


def some_nodes(count: int, **fields: Any) -> list[NodeSpec]:
    """Equal nodes n0, n1, …"""
    return [a_node(f"n{i}", **fields) for i in range(count)]


def a_task(task_id: str = "t0", runtime_s: float = 10.0, *, after: Sequence[str | Edge] = (), **fields: Any) -> Task:
    """A task of one core and 1 GiB, after these parents."""
    parents = tuple(p if isinstance(p, Edge) else Edge(p) for p in after)
    return Task(task_id, runtime_s, **{"memory_bytes": GIB, "parents": parents, **fields})


def a_workflow(*tasks: Task, workflow_id: str = "w0", at_s: float = 0.0, **fields: Any) -> WorkflowSubmitted:
    """These tasks, or a single one, submitted as one workflow."""
    known = {"name": workflow_id, "workflow_class": WorkflowClass.ETL_BATCH, "env": Env.TEST, "pool": POOL} | fields
    return WorkflowSubmitted(workflow_id=workflow_id, event_time_ms=ms(at_s), tasks=tasks or (a_task(),), **known)


def some_metrics(
    *nodes: NodeSpec | str, at_s: float = 0.0, values_nm: np.ndarray | None = None, source: str = "collector"
) -> NodeMetrics:
    """One sample of each of these nodes, idle unless said; with the specifications of those that are not only named."""
    if values_nm is None:
        values_nm = np.zeros((len(nodes), len(METRICS)))
    return NodeMetrics(
        POOL,
        ms(at_s),
        source,
        tuple(n if isinstance(n, str) else n.node_id for n in nodes),
        np.asarray(values_nm, "<f4").tobytes(),
        tuple(n for n in nodes if not isinstance(n, str)),
    )


def a_state(*nodes: NodeSpec, settings: StateSettings | None = None) -> State:
    """The state of a pool of these nodes, all sampled at the start."""
    state = State(POOL, settings)
    if nodes:
        state.apply(some_metrics(*nodes))
    return state


def submit(state: State, *tasks: Task, workflow_id: str = "w0", at_s: float = 0.0, **fields: Any) -> list[TaskReady]:
    """Submit these tasks as one workflow, and announce what is due; returns the announcements."""
    due = state.apply(a_workflow(*tasks, workflow_id=workflow_id, at_s=at_s, **fields))
    for ready in due:
        state.apply(ready)
    return due


def a_ready(task: Task | None = None, *, attempt: int = 0, workflow_id: str = "w0", **fields: Any) -> TaskReady:
    """The announcement of a task by an engine of the user's own."""
    task_id = fields.pop("task_id", task.task_id if task else "t0")
    at_s = fields.pop("at_s", 0.0)
    return TaskReady(POOL, workflow_id, task_id, attempt, ms(at_s), task, **fields)


def a_placement(
    node_id: str | None = "n0",
    *,
    task_id: str = "t0",
    attempt: int = 0,
    workflow_id: str = "w0",
    at_s: float = 0.0,
    outcome: Outcome = Outcome.PLACED,
    expected_s: float | None = 10.0,
) -> Placement:
    """One attempt on one node, or an outcome without a node."""
    return Placement(
        POOL,
        workflow_id,
        task_id,
        attempt,
        ms(at_s),
        outcome,
        node_id=node_id,
        expected_s=expected_s if node_id else None,
    )


def an_event(
    kind: EventKind,
    *,
    task_id: str = "t0",
    attempt: int = 0,
    workflow_id: str = "w0",
    node_id: str = "n0",
    at_s: float = 0.0,
) -> TaskEvent:
    """What happened to an attempt."""
    return TaskEvent(POOL, workflow_id, task_id, attempt, node_id, ms(at_s), kind)


def a_lost_node(node_id: str = "n0", at_s: float = 0.0) -> TaskEvent:
    """The loss of a node."""
    return TaskEvent(POOL, "", "", 0, node_id, ms(at_s), EventKind.NODE_LOST)


def an_observation(state: State, constraints: Constraints | None = None) -> Observation:
    """All that waits and some node could take now, in the order of arrival."""
    rows = state.queue.candidates()
    waiting = rows.first(len(rows), by_arrival(rows))
    free_rn = state.ledger.free_rn
    mask_bn = (constraints or Constraints()).mask(state, [t for t, _ in waiting], free_rn, state.fresh())
    open_b = mask_bn.any(axis=1)
    chosen = [pair for pair, is_open in zip(waiting, open_b, strict=True) if is_open]
    return Observation(state, [t for t, _ in chosen], [a for _, a in chosen], mask_bn[open_b], free_rn)


def ms(at_s: float) -> int:
    """Event time of this many seconds after the start."""
    return START_MS + round(1000 * at_s)


def decided(state: State, policy: Policy, constraints: Constraints | None = None) -> list[Placement]:
    """What one round of decisions says, all batches."""
    batches = decide(state, policy, constraints or Constraints(), DecideSettings(), Stamp())
    placements = [placement for batch in islice(batches, MOST_BATCHES) for placement in batch.placements]
    assert next(batches, None) is None, "a round of decisions without end"
    return placements
