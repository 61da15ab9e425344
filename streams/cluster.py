"""A simulated cluster as a client of Kafka: obeys placements, and publishes what a real one would."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Message, TopicPartition

from policy.fencing import Fence
from policy.simulator import SimulatedCluster, SimulatorSettings
from policy.windows import STEP_MS
from schemas.codec import Codec
from schemas.errors import InvalidConfiguration, InvalidInput
from schemas.records import EventKind, NodeSpec, Placement, TaskEvent, TaskReady, WorkflowSubmitted
from schemas.topics import (
    NODE_METRICS,
    PLACEMENTS,
    TASK_EVENTS,
    TASK_READY,
    WORKFLOW_SUBMITTED,
    Topic,
    TopicSettings,
    partition_of,
)
from streams.claims import end_of_placements
from streams.kafka import KafkaSettings, Publisher, checked, decoded, fetch, read_range, reader, watermarks

log = logging.getLogger("headrace.cluster")

POLL_S = 0.02
NEWEST = 100
"""Records at the end of a topic that are asked for the newest event time."""
READS = (WORKFLOW_SUBMITTED, TASK_READY, PLACEMENTS)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The simulated cluster."""

    nodes: Path | None = None
    """A file of nodes; none: a small pool of headrace's own."""
    time_scale: float = 60.0
    """Seconds of event time that pass in one second."""
    sample_s: float = STEP_MS / 1000
    """Event time between two samples of the nodes."""
    simulator: SimulatorSettings = field(default_factory=SimulatorSettings)

    def __post_init__(self) -> None:
        if not 0 < self.time_scale <= 10_000:
            raise InvalidConfiguration("cluster.time_scale", f"{self.time_scale} is out of range", "give 0 to 10,000")
        if not 0 < self.sample_s <= 300:
            raise InvalidConfiguration("cluster.sample_s", f"{self.sample_s} is out of range", "give 0 to 300")


class ScaledClock:
    """Event time that runs faster than the wall's, from where the wall's stands, or the pool's where that is later."""

    def __init__(self, scale: float, not_before_ms: int = 0) -> None:
        self._scale = scale
        self._start_ms = max(time.time() * 1000, not_before_ms)
        self._origin = time.monotonic()

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return int(self._start_ms + (time.monotonic() - self._origin) * 1000 * self._scale)


class Cluster:
    """One pool of simulated nodes. `run` returns when it is told to stop."""

    def __init__(
        self,
        pool: str,
        specs: Iterable[NodeSpec],
        settings: ClusterSettings,
        kafka: KafkaSettings,
        topics: TopicSettings,
        codec: Codec,
    ) -> None:
        self.pool = pool
        self.settings = settings
        self._kafka = kafka
        self._topics = topics
        self._codec = codec
        self._fence = Fence()
        self._partition = partition_of(pool, topics.partitions)
        self.clock = ScaledClock(settings.time_scale, self._latest_ms() + 1)
        self.simulated = SimulatedCluster(pool, tuple(specs), settings.simulator, self.clock.now_ms())
        self._topic_of = {topics.full_name(t): t for t in READS}
        self._open: dict[str, int] = {}
        self._tasks_of: dict[str, list[str]] = {}
        self._is_stopping = False
        self._publisher = Publisher(kafka, topics, codec)

    def stop(self) -> None:
        """End `run` soon. May be called from another thread."""
        self._is_stopping = True

    def run(self) -> None:
        """Live: obey, happen, measure. Raises BrokerError."""
        consumer = reader(self._kafka)
        try:
            ends = {name: watermarks(consumer, name, self._partition)[1] for name in self._topic_of}
            placements = end_of_placements(self._kafka, self._topics, self._codec, self._partition)
            ends[self._topics.full_name(PLACEMENTS)], self._fence = placements
            self._learn_all()
            consumer.assign([TopicPartition(name, self._partition, end) for name, end in ends.items()])
            self._publish(TASK_EVENTS, self.simulated.lose_all())
            # Samples of the loss's own millisecond would not bring the nodes back.
            self._publish(TASK_EVENTS, self.simulated.advance(self.simulated.now_ms + 1))
            self._sample()
            next_sample_ms = self.clock.now_ms() + 1000 * self.settings.sample_s
            while not self._is_stopping:
                messages = fetch(consumer, 1000, self._patience_s(next_sample_ms))
                self._publish(TASK_EVENTS, self.simulated.advance(self.clock.now_ms()))
                for message in checked(messages):
                    self._obey(message)
                if self.clock.now_ms() >= next_sample_ms:
                    self._sample()
                    next_sample_ms = self.clock.now_ms() + 1000 * self.settings.sample_s
        finally:
            consumer.close()
            self._publisher.close()

    def _learn_all(self) -> None:
        """Every workflow that is still in the topic: the worker may place tasks of old ones again."""
        starts = {(self._topics.full_name(t), self._partition): 0 for t in (WORKFLOW_SUBMITTED, TASK_READY)}
        for message in read_range(self._kafka, starts):
            self._obey(message)

    def _latest_ms(self) -> int:
        """The newest event time in the pool's topics: that of an earlier cluster may have run ahead of the wall's."""
        latest_ms = 0
        consumer = reader(self._kafka)
        try:
            for topic in (NODE_METRICS, TASK_EVENTS, PLACEMENTS):
                name = self._topics.full_name(topic)
                _, end = watermarks(consumer, name, self._partition)
                for message in read_range(self._kafka, {(name, self._partition): max(0, end - NEWEST)}):
                    try:
                        record: Any = decoded(message, self._codec, topic.record)
                    except InvalidInput:
                        continue
                    latest_ms = max(latest_ms, record.event_time_ms)
        finally:
            consumer.close()
        return latest_ms

    def _patience_s(self, next_sample_ms: float) -> float:
        """How long to wait for messages before something happens by itself, in seconds of the wall's clock."""
        next_ms = min(next_sample_ms, self.simulated.next_ms or next_sample_ms)
        left_s = (next_ms - self.clock.now_ms()) / 1000 / self.settings.time_scale
        return min(POLL_S, max(0.001, left_s))

    def _obey(self, message: Message) -> None:
        topic = self._topic_of[message.topic() or ""]
        offset = message.offset() or 0
        try:
            record = decoded(message, self._codec, topic.record)
        except InvalidInput as error:
            log.warning("record.refused", extra={"topic": topic.name, "offset": offset, "problem": str(error)})
            return
        if isinstance(record, Placement):
            if self._fence.admits(record, offset):
                self._publish(TASK_EVENTS, self.simulated.place(record))
        elif isinstance(record, WorkflowSubmitted | TaskReady) and record.pool == self.pool:
            self._learn(record)

    def _learn(self, record: WorkflowSubmitted | TaskReady) -> None:
        if isinstance(record, WorkflowSubmitted) and record.workflow_id not in self._open:
            self._open[record.workflow_id] = len(record.tasks)
            self._tasks_of[record.workflow_id] = [task.task_id for task in record.tasks]
        self._publish(TASK_EVENTS, self.simulated.learn(record))

    def _publish(self, topic: Topic, events: Iterable[TaskEvent]) -> None:
        for event in events:
            self._publisher.send(topic, self.pool, event)
            if event.kind == EventKind.FINISHED and event.workflow_id in self._open:
                self._open[event.workflow_id] -= 1
                if self._open[event.workflow_id] == 0:
                    del self._open[event.workflow_id]
                    self.simulated.forget(event.workflow_id, self._tasks_of.pop(event.workflow_id))

    def _sample(self) -> None:
        self._publisher.send(NODE_METRICS, self.pool, self.simulated.sample())
