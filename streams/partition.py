"""One partition of the pool-keyed topics, as its owner holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka import Message

from policy.ledger import AttemptKey
from policy.state import State, StateSettings
from policy.state_columns import keep
from schemas import topics as catalogue
from schemas.checks import check_samples, check_time
from schemas.dag import MOST_ID_CHARS, check_task, check_workflow
from schemas.errors import InvalidRecord
from schemas.quantities import shown
from schemas.records import EventKind, NodeMetrics, Placement, TaskEvent, TaskReady, WorkflowSubmitted
from schemas.steps import Step, written
from schemas.topics import Topic, partition_of


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a task-ready record arrived (broker's clock, ms), and the W3C traceparent that it carried."""

    at_ms: int
    trace: bytes | None


class Partition:
    """The states of the pools that hash to one partition, and how far they are folded.

    `offsets` holds for each topic the first offset that the state has not seen. Whoever reads or changes the states
    holds `lock`.
    """

    def __init__(self, number: int, partitions: int, settings: StateSettings) -> None:
        self.number = number
        self.pools: dict[str, State] = {}
        self.offsets: dict[str, int] = {}
        self.epoch = -1
        self.lock = asyncio.Lock()
        self.restored = asyncio.Event()
        self.is_revoked = False
        self.restoring = 0
        """Records that its restore has folded so far."""
        self._restoring_before = 0
        self.placements_offset = 0
        """The offset after our newest placement that Kafka confirmed."""
        self.written_by_others: int | None = None
        """The offset of the first placement, of those not looked at yet, that another worker wrote among ours."""
        self.arrivals: dict[AttemptKey, Arrival] = {}
        """How the attempts arrived that are not decided yet."""
        self.traces: dict[str, bytes] = {}
        """W3C traceparent of the live workflows whose submission had one."""
        self.sampled_at: dict[str, float] = {}
        """When (wall clock, seconds) the pools' last samples were folded."""
        self._samples: list[NodeMetrics] = []
        self._steps: list[int] = []
        self._partitions = partitions
        self.settings = settings

    @property
    def as_of(self) -> tuple[int, ...]:
        """How far the inputs are folded, in the order of `topics.STATE_INPUTS`."""
        return tuple(self.offsets.get(topic.name, 0) for topic in catalogue.STATE_INPUTS)

    @property
    def steps(self) -> int:
        """Numbers that wait for the next batch's evidence."""
        return len(self._steps)

    def note(self, step: Step) -> None:
        """Remember what was done to the states, for the evidence of the next batch."""
        self._steps += written([step])

    def note_before_last(self, step: Step) -> None:
        """Remember it as having been before the step that was noted last."""
        self._steps[-2:-2] = written([step])

    def take_steps(self) -> tuple[int, ...]:
        """What was done since the last call."""
        steps, self._steps = tuple(self._steps), []
        return steps

    def goes_on(self) -> bool:
        """Whether its restore has folded more since the last call."""
        before, self._restoring_before = self._restoring_before, self.restoring
        return self.restoring > before

    def has_seen(self, topic: Topic, offset: int) -> bool:
        """Whether the record at this offset is folded already."""
        return offset < self.offsets.get(topic.name, 0)

    def take(self, record: object, payload: bytes) -> list[TaskReady]:
        """Check a record and fold it in; returns what it makes due. Raises InvalidInput; the state is as before.

        Samples wait for those that follow: who has taken the last record calls `settle`.
        """
        if isinstance(record, NodeMetrics) and not record.specs:
            self.check(record)
            self._samples.append(record)
            return []
        self.settle()
        return self.fold(record, payload)

    def settle(self) -> None:
        """Fold the samples that wait, those of one pool together."""
        if self._samples:
            samples, self._samples = self._samples, []
            self._fold_samples(samples)

    def fold(self, record: object, payload: bytes = b"") -> list[TaskReady]:
        """Check a record and fold it in now."""
        self.check(record)
        state = self._pool(record.pool)  # type: ignore[attr-defined]
        due = state.apply(record)
        keep(state, record, payload)
        return due

    def _fold_samples(self, records: Sequence[NodeMetrics]) -> None:
        of_pool: dict[str, list[NodeMetrics]] = {}
        for record in records:
            of_pool.setdefault(record.pool, []).append(record)
        for pool, its_records in of_pool.items():
            self._pool(pool).apply_samples(its_records)

    def _pool(self, pool: str) -> State:
        state = self.pools.get(pool)
        if state is None:
            state = self.pools[pool] = State(pool, self.settings)
        return state

    def due(self) -> Iterator[TaskReady]:
        """What the last owner may have left unannounced."""
        for state in self.pools.values():
            yield from state.due()

    def placement_delivered(self, message: Message) -> None:
        """Kafka has confirmed a placement of ours. Called from the publisher's thread."""
        offset = message.offset() or 0
        if offset > self.placements_offset and self.written_by_others is None:
            self.written_by_others = self.placements_offset
        self.placements_offset = max(self.placements_offset, offset + 1)

    def forget_traces(self) -> None:
        """Drop the traces of workflows that are live no more."""
        live = {workflow_id for state in self.pools.values() for workflow_id in state.workflows}
        self.traces = {w: trace for w, trace in self.traces.items() if w in live}

    def check(self, record: object) -> None:
        """Raises InvalidInput for a record that must not be folded in."""
        pool: str = record.pool  # type: ignore[attr-defined]
        where = type(record).__name__
        is_known = pool in self.pools
        if not is_known and (not pool or partition_of(pool, self._partitions) != self.number):
            raise InvalidRecord(
                where, f"pool {shown(pool)} does not belong to this partition", "key every record by its pool", "key"
            )
        if isinstance(record, NodeMetrics):
            check_samples(record)
        elif isinstance(record, WorkflowSubmitted | TaskReady | TaskEvent | Placement):
            check_time(record.event_time_ms, where)
        if isinstance(record, WorkflowSubmitted):
            check_workflow(record, f"workflow {record.workflow_id[:MOST_ID_CHARS]}")
        elif isinstance(record, TaskEvent) and record.kind == EventKind.UNKNOWN:
            raise InvalidRecord(
                where, "is of a kind that is not known here", "upgrade headrace, or send a kind it knows", "shape"
            )
        elif isinstance(record, TaskReady):
            if record.attempt < 0 or not record.workflow_id or not record.task_id:
                raise InvalidRecord(where, "lacks its ids, or its attempt is negative", "fill them in", "shape")
            if record.task is not None:
                check_task(record.task, f"task-ready of {record.workflow_id[:MOST_ID_CHARS]}")
                if record.task.task_id != record.task_id:
                    raise InvalidRecord(
                        where,
                        f"is of task {shown(record.task_id)}, but brings {shown(record.task.task_id)}",
                        "send that task",
                        "shape",
                    )
