"""A pool's state as plain values, to tell whether two are the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from policy.state import State
from policy.workflows import TaskState, Workflow


def dump(state: State) -> dict[str, Any]:
    """All that decisions depend on, `counts` left aside: those tell of repeats."""
    nodes, ledger = state.nodes, state.ledger
    return {
        "now_ms": state.now_ms,
        "placed": state.placed,
        "specs": list(nodes.specs),
        "index": dict(nodes.index),
        "columns": shown(
            nodes.capacity_rn, nodes.device_memory_n, nodes.speed_n, nodes.price_n, nodes.bandwidth_n, nodes.seen_ms_n
        ),
        "present": nodes.is_present_n.tolist(),
        "failures": shown(state.failure_n),
        "window": shown(state.windows.read(len(nodes)), state.windows.latest(len(nodes))) if len(nodes) else "",
        "step": state.windows.step,
        "reservations": dict(ledger),
        "reserved": shown(ledger.reserved_rn, ledger.unasked_rn),
        "freed": sorted(ledger.freed),
        "queue": queued(state),
        "waiting": state.queue.waiting,
        "workflows": {workflow_id: of_workflow(workflow) for workflow_id, workflow in state.workflows.items()},
        "finished": list(state.finished),
        "running": sorted(state.running),
    }


def queued(state: State) -> list[tuple[str, str, int]]:
    """The attempts that wait and are not blocked, in the order of arrival."""
    rows = state.queue.candidates()
    first = rows.first(len(rows), -rows.arrival_p)
    return [(task.workflow.workflow_id, task.task.task_id, attempt) for task, attempt in first]


def of_workflow(workflow: Workflow) -> dict[str, Any]:
    """A workflow's fields, its tasks as dicts."""
    skipped = ("tasks", "record")
    fields = {name: getattr(workflow, name) for name in Workflow.__slots__ if name not in skipped}
    return fields | {"tasks": [of_task(task) for task in workflow.tasks]}


def of_task(task: TaskState) -> dict[str, Any]:
    """A task's fields."""
    return {name: getattr(task, name) for name in TaskState.__slots__ if name != "workflow"}


def shown(*arrays: np.ndarray) -> str:
    """Arrays as text: NaN equals NaN."""
    return repr([array.tolist() for array in arrays])
