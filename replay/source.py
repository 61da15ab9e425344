"""Where a history lies: the topics on a broker, or an archive of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from schemas.topics import Topic, TopicSettings
from streams.kafka import KafkaSettings, Stored, offset_at, read_range, reader, watermarks


class Source(Protocol):
    """Partitions that can be read from any offset."""

    topics: TopicSettings

    def bounds(self, topic: Topic, number: int) -> tuple[int, int]:
        """The oldest offset of a partition, and the one after its newest."""

    def offset_at(self, topic: Topic, number: int, at_ms: int) -> int:
        """The offset of the first record that arrived at this time (Unix ms) or later; the end where none did."""

    def read(self, topic: Topic, number: int, start: int, end: int) -> Iterator[Stored]:
        """The records of these offsets, in order. What is no longer there is left out."""


class KafkaSource:
    """The topics on a broker. Joins no group and commits nothing: nobody notices that they are read."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings) -> None:
        self.topics = topics
        self._kafka = kafka

    def bounds(self, topic: Topic, number: int) -> tuple[int, int]:
        """Raises BrokerError."""
        consumer = reader(self._kafka)
        try:
            return watermarks(consumer, self.topics.full_name(topic), number)
        finally:
            consumer.close()

    def offset_at(self, topic: Topic, number: int, at_ms: int) -> int:
        """Raises BrokerError."""
        consumer = reader(self._kafka)
        try:
            found = offset_at(consumer, self.topics.full_name(topic), number, at_ms)
            return watermarks(consumer, self.topics.full_name(topic), number)[1] if found is None else found
        finally:
            consumer.close()

    def read(self, topic: Topic, number: int, start: int, end: int) -> Iterator[Stored]:
        """Raises BrokerError."""
        where = self.topics.full_name(topic), number
        return read_range(self._kafka, {where: start}, {where: end})
