"""What really happened, attempt by attempt, folded from the records of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policy.ledger import AttemptKey
from schemas.records import (
    EventKind,
    NodeSpec,
    Outcome,
    Placement,
    Task,
    TaskEvent,
    TaskReady,
    WorkflowClass,
    WorkflowSubmitted,
)

ENDS = {
    EventKind.FINISHED: "finished",
    EventKind.FAILED: "failed",
    EventKind.KILLED: "migrated",
    EventKind.NODE_LOST: "failed",
}
GIB = 2**30


@dataclass(slots=True)
class Attempt:
    """One attempt on a node. Times are event times in seconds."""

    workflow_id: str
    task_id: str
    attempt: int
    node_id: str
    task: Task
    ready_s: float
    reserved_s: float
    start_s: float
    transfer_s: float
    finish_s: float | None = None
    end: str | None = None
    policy: str = ""


class Trace:
    """A run's attempts. `apply` takes the records in the order in which they happened; others are ignored."""

    def __init__(self) -> None:
        self.attempts: dict[AttemptKey, Attempt] = {}
        self.submitted_s: dict[str, float] = {}
        self.classes: dict[str, WorkflowClass] = {}
        self.refused: dict[tuple[str, str], str] = {}
        self.finished: set[tuple[str, str]] = set()
        self.tasks: dict[tuple[str, str], Task] = {}
        self.placements: dict[AttemptKey, Placement] = {}
        self.decided: int = 0
        self._ready_s: dict[AttemptKey, float] = {}

    def apply(self, record: object) -> None:
        """Fold one record in."""
        if isinstance(record, WorkflowSubmitted):
            self.classes.setdefault(record.workflow_id, record.workflow_class)
            for task in record.tasks:
                self.tasks.setdefault((record.workflow_id, task.task_id), task)
        elif isinstance(record, TaskReady):
            self._ready(record)
        elif isinstance(record, Placement):
            self._placement(record)
        elif isinstance(record, TaskEvent):
            self._event(record)

    @property
    def open_tasks(self) -> int:
        """Tasks that are neither finished nor refused."""
        return len(self.tasks) - len(self.finished) - len(self.refused)

    def _ready(self, record: TaskReady) -> None:
        key = (record.workflow_id, record.task_id, record.attempt)
        ready_s = record.event_time_ms / 1000
        self._ready_s.setdefault(key, ready_s)
        if record.task is not None:
            self.tasks.setdefault(key[:2], record.task)
        first_s = self.submitted_s.get(record.workflow_id, ready_s)
        self.submitted_s[record.workflow_id] = min(first_s, ready_s)

    def _placement(self, record: Placement) -> None:
        key = (record.workflow_id, record.task_id, record.attempt)
        if record.outcome == Outcome.REFUSED:
            self.refused.setdefault(key[:2], record.reason or "")
        elif record.outcome == Outcome.PLACED and key not in self.placements:
            self.placements[key] = record
            self.decided += 1

    def _event(self, record: TaskEvent) -> None:
        at_s = record.event_time_ms / 1000
        if record.kind == EventKind.NODE_LOST:
            for attempt in self.attempts.values():
                if attempt.node_id == record.node_id and attempt.finish_s is None:
                    attempt.finish_s, attempt.end = at_s, ENDS[record.kind]
            return
        key = (record.workflow_id, record.task_id, record.attempt)
        if record.kind == EventKind.STARTED and key[:2] in self.tasks and key not in self.attempts:
            transfer_s = record.transfer_s or 0.0
            placement = self.placements.get(key)
            self.attempts[key] = Attempt(
                *key,
                record.node_id,
                self.tasks[key[:2]],
                self._ready_s.get(key, at_s),
                at_s - transfer_s,
                at_s,
                transfer_s,
                policy=placement.policy if placement else "",
            )
        elif record.kind in ENDS:
            if record.kind == EventKind.FINISHED:
                self.finished.add(key[:2])
            begun = self.attempts.get(key)
            if begun is not None and begun.finish_s is None:
                begun.finish_s, begun.end = at_s, ENDS[record.kind]

    def rows(self) -> Iterator[dict[str, object]]:
        """The ended attempts, one JSON object each: seconds, cores, GiB, devices."""
        for attempt in self.attempts.values():
            if attempt.finish_s is None:
                continue
            task = attempt.task
            yield {
                "workflow_id": attempt.workflow_id,
                "task_id": attempt.task_id,
                "attempt": attempt.attempt,
                "node": attempt.node_id,
                "submit_time": self.submitted_s.get(attempt.workflow_id, attempt.ready_s),
                "ready_time": attempt.ready_s,
                "reserve_time": attempt.reserved_s,
                "start_time": attempt.start_s,
                "finish_time": attempt.finish_s,
                "event": attempt.end,
                "cpu": task.cpu,
                "mem": task.memory_bytes / GIB,
                "gpu": task.gpu,
                "parents": [edge.task_id for edge in task.parents],
                "policy": attempt.policy,
            }


def cluster_object(specs: tuple[NodeSpec, ...]) -> dict[str, object]:
    """The nodes as one JSON object, in the units of `Trace.rows`."""
    return {
        "nodes": [
            {
                "name": spec.node_id,
                "cpu": spec.cpu,
                "mem": spec.memory_bytes / GIB,
                "gpu": spec.gpu,
                "speed": spec.speed,
                "price_per_hour": spec.price_per_hour,
            }
            for spec in specs
        ]
    }
