"""A history without a broker: a pool's topics as a worker and a simulated cluster would have filled them.

The same fold and the same decisions as a worker's, in chunks; deterministic, and as long as one likes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from policy.constraints import Constraints
from policy.decide import DecideSettings, Stamp, decide
from policy.observation import Policy
from policy.simulator import SimulatedCluster, SimulatorSettings
from policy.state import StateSettings
from policy.windows import STEP_MS
from replay.archive import Archived
from schemas.codec import Codec
from schemas.decisions import without_decisions
from schemas.errors import InvalidInput
from schemas.records import NodeSpec, Outcome, Placement, TaskReady, WorkflowSubmitted
from schemas.steps import FOLD_ORDER, Restored, Took
from schemas.topics import (
    DECISIONS,
    NODE_METRICS,
    PLACEMENTS,
    TASK_EVENTS,
    TASK_READY,
    WORKFLOW_SUBMITTED,
    Topic,
    TopicSettings,
    partition_of,
)
from streams.kafka import Stored
from streams.partition import Partition

EPOCH = 0


class MemorySource:
    """Topics in memory."""

    def __init__(self, topics: TopicSettings) -> None:
        self.topics = topics
        self._codec = Codec()
        self._stored: dict[tuple[str, int], list[Archived]] = defaultdict(list)

    def put(self, topic: Topic, number: int, record: object, at_ms: int) -> int:
        """Append a record; returns its offset."""
        return self.put_bytes(topic, number, self._codec.encode(record, self.topics.full_name(topic)), at_ms)

    def put_bytes(self, topic: Topic, number: int, payload: bytes, at_ms: int) -> int:
        """The same for bytes."""
        stored = self._stored[topic.name, number]
        stored.append(Archived(self.topics.full_name(topic), number, len(stored), at_ms, b"key", payload))
        return len(stored) - 1

    def bounds(self, topic: Topic, number: int) -> tuple[int, int]:
        """All there is."""
        return 0, len(self._stored[topic.name, number])

    def offset_at(self, topic: Topic, number: int, at_ms: int) -> int:
        """By arrival."""
        return bisect_left(self._stored[topic.name, number], at_ms, key=lambda stored: stored.timestamp()[1])

    def read(self, topic: Topic, number: int, start: int, end: int) -> Iterator[Stored]:
        """The records of these offsets."""
        yield from self._stored[topic.name, number][start:end]


def record_history(
    specs: Sequence[NodeSpec],
    workflows: Sequence[WorkflowSubmitted],
    policy: Policy,
    *,
    pool: str = "default",
    simulator: SimulatorSettings | None = None,
    between: Callable[[MemorySource, int, int], None] = lambda source, number, at_ms: None,
) -> MemorySource:
    """Play these workflows to their end (or ten days) and return what the topics then hold.

    between  may put more records into the topics, whenever samples were taken: what it is given is the source, the
             number of the pool's partition, and the time
    """
    return _History(specs, workflows, policy, pool, simulator or SimulatorSettings(), between).run()


class _History:
    def __init__(
        self,
        specs: Sequence[NodeSpec],
        workflows: Sequence[WorkflowSubmitted],
        policy: Policy,
        pool: str,
        simulator: SimulatorSettings,
        between: Callable[[MemorySource, int, int], None],
    ) -> None:
        topics = TopicSettings(partitions=4)
        self.source = MemorySource(topics)
        self.number = partition_of(pool, topics.partitions)
        self.partition = Partition(self.number, topics.partitions, StateSettings())
        self.partition.epoch = EPOCH
        self.policy = policy
        self.pool = pool
        self.between = between
        self.arrivals = sorted(workflows, key=lambda workflow: workflow.event_time_ms)
        self.start_ms = self.arrivals[0].event_time_ms // STEP_MS * STEP_MS
        self.cluster = SimulatedCluster(pool, specs, simulator, self.start_ms)
        self.constraints = Constraints(())
        self.codec = Codec()
        self.now_ms = self.arrived_ms = self.start_ms

    def run(self) -> MemorySource:
        owner = Placement("", "", "", 0, self.start_ms, Outcome.OWNER, reason="worker")
        self.source.put(PLACEMENTS, self.number, owner, self.start_ms)
        self.partition.note(Restored(-1, tuple((0, 0) for _ in FOLD_ORDER)))
        arrivals, tick_ms = self.arrivals[::-1], self.start_ms
        state = None
        while arrivals or state is None or state.workflows:
            times = [t for t in (self.cluster.next_ms, arrivals[-1].event_time_ms if arrivals else None) if t]
            self.now_ms = min([tick_ms, *times])
            for event in self.cluster.advance(self.now_ms):
                self.put(TASK_EVENTS, event)
            if self.now_ms >= tick_ms:
                self.put(NODE_METRICS, self.cluster.sample())
                self.between(self.source, self.number, self.now_ms)
                tick_ms += STEP_MS
            while arrivals and arrivals[-1].event_time_ms <= self.now_ms:
                workflow = replace(arrivals.pop(), pool=self.pool)
                self.cluster.learn(workflow)
                self.put(WORKFLOW_SUBMITTED, workflow)
            self.work()
            state = self.partition.pools[self.pool]
            if self.now_ms > self.start_ms + 10 * 24 * 3_600_000:
                break
        told = without_decisions(self.pool, self.now_ms, EPOCH, self.partition.as_of, self.partition.take_steps())
        self.put(DECISIONS, told)
        return self.source

    def put(self, topic: Topic, record: object) -> None:
        self.arrived_ms = max(self.arrived_ms + 1, self.now_ms)  # one after the other
        self.source.put(topic, self.number, record, self.arrived_ms)

    def work(self) -> None:
        """As a worker: chunk by chunk, until nothing is left to read."""
        while any(self.take(topic) for topic in (WORKFLOW_SUBMITTED, NODE_METRICS, TASK_EVENTS, TASK_READY)):
            pass

    def take(self, topic: Topic) -> bool:
        """Fold what is new of one topic, and decide."""
        start, (_, end) = self.partition.offsets.get(topic.name, 0), self.source.bounds(topic, self.number)
        if start == end:
            return False
        due: list[TaskReady] = []
        for stored in self.source.read(topic, self.number, start, end):
            with suppress(InvalidInput):  # a dead letter
                payload = stored.value() or b""
                due += self.partition.take(self.codec.decode(payload, topic.record), payload)
        self.partition.offsets[topic.name] = end
        self.partition.settle()
        self.partition.note(Took(topic, end))
        for ready in due:
            self.put(TASK_READY, ready)
        if topic is NODE_METRICS:
            for state in self.partition.pools.values():
                for ready in state.overdue():
                    self.put(TASK_READY, ready)
        for state in self.partition.pools.values():
            if state.has_open_questions:
                stamp = Stamp(EPOCH, self.partition.as_of)
                for batch in decide(state, self.policy, self.constraints, DecideSettings(), stamp):
                    for placement in batch.placements:
                        self.put(PLACEMENTS, placement)
                        for event in self.cluster.place(placement):
                            self.put(TASK_EVENTS, event)
                    self.put(DECISIONS, replace(batch.evidence, steps=self.partition.take_steps()))
        return True
