"""One pool's rewards: folded from its topics, and recorded in a topic of their own."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from confluent_kafka import Consumer, Message

from policy.credit import STAGES, Credits
from policy.fencing import Fence
from policy.ledger import AttemptKey
from policy.state import StateSettings
from schemas.codec import Codec
from schemas.errors import InvalidInput
from schemas.records import REWARD_TERMS, Placement, Reward, Stage
from schemas.topics import (
    CONTROL,
    DAY_MS,
    NODE_METRICS,
    PLACEMENTS,
    REWARDS,
    TASK_EVENTS,
    TASK_READY,
    WORKFLOW_SUBMITTED,
    Topic,
    TopicSettings,
    partition_of,
)
from streams import metrics
from streams.config import Settings
from streams.kafka import KafkaSettings, Publisher, decoded, offset_at, read_range, reader, watermarks
from streams.partition import Partition
from streams.registry import codec_for

log = logging.getLogger("headrace.rewards")

READ = (CONTROL, WORKFLOW_SUBMITTED, NODE_METRICS, TASK_READY, PLACEMENTS, TASK_EVENTS)
"""Causes before their effects."""
USUAL_MS = 7 * DAY_MS
RECORD_EVERY_S = 2.0
See = Callable[[Topic, object, Message], None]
"""Told of each record before it is folded."""
MEAN_OF = 100
"""Settled decisions over which the metrics are means."""


class Rewards:
    """The rewards of one pool, from records that arrived at `since_ms` (broker's clock) or later; None: from all."""

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: TopicSettings,
        codec: Codec,
        pool: str,
        credits: Credits,
        since_ms: int | None = None,
        see: See = lambda *_: None,
    ) -> None:
        self._see = see
        self._kafka = kafka
        self._codec = codec
        self._pool = pool
        self._credits = credits
        self._since_ms = since_ms or 0
        self._fence = Fence()
        number = partition_of(pool, topics.partitions)
        self._checks = Partition(number, topics.partitions, StateSettings())
        self._topic_of = {topics.full_name(topic): topic for topic in READ}
        self._recorded = (topics.full_name(REWARDS), number)
        consumer = reader(kafka)
        try:
            self._starts = {
                (name, number if topic.is_partitioned_by_pool else 0): (
                    0 if since_ms is None or topic is CONTROL else _offset(consumer, name, number, since_ms)
                )
                for name, topic in self._topic_of.items()
            }
            self._first_recorded = 0
            if since_ms is not None:
                self._first_recorded = _offset(consumer, *self._recorded, since_ms - USUAL_MS)
        finally:
            consumer.close()

    @property
    def offsets(self) -> dict[str, int]:
        """Of each topic, by the name in the catalogue, the offset after the last record that was folded."""
        return {self._topic_of[name].name: offset for (name, _), offset in self._starts.items()}

    def recorded(self) -> Iterator[Reward]:
        """What the topic has; it will be no news any more. That of the 7 days before counts for what is usual."""
        for message in read_range(self._kafka, {self._recorded: self._first_recorded}):
            try:
                reward = decoded(message, self._codec, Reward)
            except InvalidInput as error:
                log.warning("record.refused", extra={"topic": REWARDS.name, "problem": str(error)})
                continue
            if reward.pool == self._pool:
                self._credits.remember(reward)
                if message.timestamp()[1] >= self._since_ms:
                    yield reward

    def news(self) -> Iterator[Reward]:
        """What follows from the records up to where the topics end now."""
        # Effects first: where they end is asked before where their causes do, so that no cause is missing.
        ranges = [read_range(self._kafka, {where: self._starts[where]}) for where in reversed(self._starts)]
        for message in heapq.merge(*ranges, key=self._order):
            topic, offset = self._topic_of[message.topic() or ""], message.offset() or 0
            self._starts[message.topic() or "", message.partition() or 0] = offset + 1
            try:
                yield from self._fold(topic, message, offset)
            except InvalidInput as error:  # the worker sends it to the dead letters
                log.warning("record.refused", extra={"topic": topic.name, "offset": offset, "problem": str(error)})

    def _fold(self, topic: Topic, message: Message, offset: int) -> list[Reward]:
        record: object = decoded(message, self._codec, topic.record)
        if isinstance(record, Placement) and not self._fence.admits(record, offset):
            return []
        if record.pool != self._pool:  # type: ignore[attr-defined]
            return []
        self._checks.check(record)
        self._see(topic, record, message)
        return self._credits.apply(record)

    def _order(self, message: Message) -> tuple[int, int]:
        """When Kafka received the record; of one millisecond, causes first."""
        return int(message.timestamp()[1]), READ.index(self._topic_of[message.topic() or ""])


def _offset(consumer: Consumer, name: str, number: int, since_ms: int) -> int:
    found = offset_at(consumer, name, number, max(0, since_ms))
    return watermarks(consumer, name, number)[1] if found is None else found


def rewards_of(settings: Settings, kafka: KafkaSettings, hours: float | None) -> Rewards:
    """Those of the settings' pool on this Kafka, so many hours back; None: all."""
    credits = Credits(settings.pool, settings.reward, settings.cost, settings.state)
    since_ms = None if hours is None else int(1000 * (time.time() - 3600 * hours))
    return Rewards(kafka, settings.topics, codec_for(kafka), settings.pool, credits, since_ms)


def latest(rewards: Iterable[Reward]) -> list[Reward]:
    """Of each attempt what was told at its latest stage, in the order in which they were decided."""
    found: dict[AttemptKey, Reward] = {}
    for reward in rewards:
        key = (reward.workflow_id, reward.task_id, reward.attempt)
        if key not in found or STAGES.index(found[key].stage) <= STAGES.index(reward.stage):
            found[key] = reward
    return sorted(found.values(), key=lambda r: r.decided_ms)


class Recorder:
    """Publishes what is new, every `RECORD_EVERY_S`, until it is stopped."""

    def __init__(self, rewards: Rewards, publisher: Publisher) -> None:
        self._rewards = rewards
        self._publisher = publisher
        self._settled: deque[Reward] = deque(maxlen=MEAN_OF)
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """Have `run` return soon."""
        self._is_stopping.set()

    def run(self) -> None:
        """Raises BrokerError."""
        self.catch_up()
        while not self._is_stopping.is_set():
            started = time.monotonic()
            self.record()
            self._is_stopping.wait(max(0.0, RECORD_EVERY_S - (time.monotonic() - started)))

    def catch_up(self) -> None:
        """Learn what is recorded already."""
        for reward in self._rewards.recorded():
            self._show(reward)

    def record(self) -> int:
        """Publish what is new now; returns how many."""
        count = 0
        for reward in self._rewards.news():
            count += 1
            self._publisher.send(REWARDS, reward.pool, reward)
            metrics.REWARDS.labels(str(reward.stage)).inc()
            self._show(reward)
        self._publisher.flush()
        if self._settled:
            for name, value in means(self._settled).items():
                metrics.REWARD_MEAN.labels(name).set(value)
        return count

    def _show(self, reward: Reward) -> None:
        if reward.stage == Stage.SETTLED:
            self._settled.append(reward)


def means(rewards: Iterable[Reward]) -> Mapping[str, float]:
    """Mean contribution of each term, and of the whole as `reward`."""
    rows = [(reward.reward, *reward.contributions) for reward in rewards]
    return {
        name: sum(column) / len(rows)
        for name, column in zip(("reward", *REWARD_TERMS), zip(*rows, strict=True), strict=True)
    }
