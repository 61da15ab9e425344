"""Follows one pool's topics into a trace: what was submitted, decided, done."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import TopicPartition

from policy.trace import Trace
from schemas.codec import Codec
from schemas.errors import InvalidInput
from schemas.records import Placement
from schemas.topics import PLACEMENTS, TASK_EVENTS, TASK_READY, WORKFLOW_SUBMITTED, TopicSettings, partition_of
from streams.claims import end_of_placements
from streams.kafka import KafkaSettings, checked, decoded, fetch, reader, watermarks

FOLLOWED = (WORKFLOW_SUBMITTED, TASK_READY, PLACEMENTS, TASK_EVENTS)

OnRecord = Callable[[object], None]


class Watch:
    """Reads from where the topics end when it is made. `poll` folds what is new into `trace`."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings, codec: Codec, pool: str) -> None:
        self.trace = Trace()
        self.on_record: OnRecord | None = None
        self._pool = pool
        self._codec = codec
        self._topic_of = {topics.full_name(topic): topic for topic in FOLLOWED}
        self._consumer = reader(kafka)
        number = partition_of(pool, topics.partitions)
        ends = {name: watermarks(self._consumer, name, number)[1] for name in self._topic_of}
        ends[topics.full_name(PLACEMENTS)], self._fence = end_of_placements(kafka, topics, codec, number)
        self._consumer.assign([TopicPartition(name, number, end) for name, end in ends.items()])

    def poll(self, timeout_s: float = 0.1) -> int:
        """Fold what has come; returns how many records. Raises BrokerError."""
        messages = list(checked(fetch(self._consumer, 2000, timeout_s)))
        for message in messages:
            topic = self._topic_of[message.topic() or ""]
            try:
                record: object = decoded(message, self._codec, topic.record)
            except InvalidInput:
                continue  # the worker sends it to the dead letters
            if isinstance(record, Placement) and not self._fence.admits(record, message.offset() or 0):
                continue
            if record.pool == self._pool:  # type: ignore[attr-defined]
                self.trace.apply(record)
                if self.on_record is not None:
                    self.on_record(record)
        return len(messages)

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()
