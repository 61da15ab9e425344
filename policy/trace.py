"""What really happened, attempt by attempt, folded from the records of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policy.ledger import AttemptKey
from schemas.conversion import to_plain
from schemas.records import (
    EventKind,
    NodeSpec,
    Outcome,
    Placement,
    Task,
    TaskEvent,
    TaskReady,
    WorkflowSubmitted,
)

ENDS = {
    EventKind.FINISHED: "finished",
    EventKind.FAILED: "failed",
    EventKind.KILLED: "migrated",
    EventKind.NODE_LOST: "failed",
}
GIB = 2**30
TaskKey = tuple[str, str]


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


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One line of `trace.jsonl`, an attempt that ended. Times are event times in seconds; cores, GiB, devices."""

    workflow_id: str
    task_id: str
    attempt: int
    node: str
    submit_time: float
    ready_time: float
    reserve_time: float
    start_time: float
    finish_time: float
    event: str  # finished, failed, migrated
    cpu: float
    mem: float
    gpu: int
    parents: tuple[str, ...]
    policy: str = ""
    predicted_s: float | None = None  # run time on a node of speed 1
    parent_bytes: tuple[int, ...] = ()  # what each parent hands on
    node_lost: bool = False  # it failed because its node was lost
    turn: int = 0  # attempts that were placed before: of those that came to a node together, who was first


class Trace:
    """A run's attempts, whatever the order in which its records come. Records of other kinds are ignored."""

    def __init__(self) -> None:
        self.tasks: dict[TaskKey, Task] = {}
        self.finished: set[TaskKey] = set()
        self.refused: dict[TaskKey, str] = {}
        """Why no node will ever take the task."""
        self.placements: dict[AttemptKey, Placement] = {}
        self.submitted_s: dict[str, float] = {}
        """When each workflow's first tasks became ready."""
        self.started: dict[AttemptKey, TaskEvent] = {}
        self.ended: dict[AttemptKey, TaskEvent] = {}
        self._ready_s: dict[AttemptKey, float] = {}
        self._losses: list[TaskEvent] = []

    def apply(self, record: object) -> None:
        """Take one record in."""
        if isinstance(record, WorkflowSubmitted):
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
        elif record.outcome == Outcome.PLACED:
            self.placements.setdefault(key, record)

    def _event(self, record: TaskEvent) -> None:
        key = (record.workflow_id, record.task_id, record.attempt)
        if record.kind == EventKind.NODE_LOST:
            self._losses.append(record)
        elif record.kind == EventKind.STARTED:
            self.started.setdefault(key, record)
        elif record.kind in ENDS:
            self.ended.setdefault(key, record)
            if record.kind == EventKind.FINISHED:
                self.finished.add(key[:2])

    def attempts(self) -> Iterator[Attempt]:
        """The attempts that started, in the order in which they did."""
        losses: dict[str, list[int]] = {}
        for loss in self._losses:
            losses.setdefault(loss.node_id, []).append(loss.event_time_ms)
        for key, start in sorted(self.started.items(), key=lambda item: item[1].event_time_ms):
            task = self.tasks.get(key[:2])
            if task is None:
                continue
            end, finish_ms = self._end(key, start, losses.get(start.node_id, ()))
            start_s, transfer_s = start.event_time_ms / 1000, start.transfer_s or 0.0
            placement = self.placements.get(key)
            yield Attempt(
                *key,
                start.node_id,
                task,
                self._ready_s.get(key, start_s),
                start_s - transfer_s,
                start_s,
                transfer_s,
                None if finish_ms is None else finish_ms / 1000,
                end,
                placement.policy if placement else "",
            )

    def _end(self, key: AttemptKey, start: TaskEvent, losses_ms: Sequence[int]) -> tuple[str | None, int | None]:
        """How and when an attempt ended: by its own event, or with its node."""
        event = self.ended.get(key)
        if event is not None:
            return ENDS[event.kind], event.event_time_ms
        later_ms = [at_ms for at_ms in losses_ms if at_ms >= start.event_time_ms]
        return (ENDS[EventKind.NODE_LOST], min(later_ms)) if later_ms else (None, None)

    def rows(self) -> Iterator[dict[str, object]]:
        """The ended attempts, each a TraceRow as one JSON object."""
        turn = {key: at for at, key in enumerate(self.placements)}
        for attempt in self.attempts():
            if attempt.finish_s is None or attempt.end is None:
                continue
            task = attempt.task
            key = (attempt.workflow_id, attempt.task_id, attempt.attempt)
            yield to_plain(
                TraceRow(
                    *key,
                    attempt.node_id,
                    self.submitted_s.get(attempt.workflow_id, attempt.ready_s),
                    attempt.ready_s,
                    attempt.reserved_s,
                    attempt.start_s,
                    attempt.finish_s,
                    attempt.end,
                    task.cpu,
                    task.memory_bytes / GIB,
                    task.gpu,
                    tuple(edge.task_id for edge in task.parents),
                    attempt.policy,
                    task.runtime_s,
                    tuple(edge.bytes for edge in task.parents),
                    node_lost=key not in self.ended,
                    turn=turn.get(key, 0),
                )
            )


def cluster_object(specs: tuple[NodeSpec, ...]) -> dict[str, object]:
    """The nodes as one JSON object: a node file, in the units of TraceRow."""
    return {
        "nodes": [
            {
                "name": spec.node_id,
                "cpu": spec.cpu,
                "mem": spec.memory_bytes / GIB,
                "gpu": spec.gpu,
                "gpu_memory": spec.gpu_memory_bytes / GIB,
                "speed": spec.speed,
                "price_per_hour": spec.price_per_hour,
                "bandwidth": f"{spec.bandwidth_bytes_per_s:.0f}B/s",
            }
            for spec in specs
        ]
    }
