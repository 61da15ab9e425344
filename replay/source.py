"""Where a history lies: the topics on a broker, or an archive of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

from confluent_kafka import TopicPartition

from schemas.topics import SNAPSHOTS, Topic, TopicSettings
from streams.kafka import KafkaSettings, Stored, checked, fetch, offset_at, read_range, reader, watermarks

FOR_EVER = 2**62
"""An end that is never reached."""
MOST_FETCHED = 2000
WAIT_S = 0.2


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


class FollowingSource(KafkaSource):
    """The topics as they grow: but for snapshots, nothing ends until `stop` is set."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings, stop: threading.Event) -> None:
        super().__init__(kafka, topics)
        self._stop = stop

    def bounds(self, topic: Topic, number: int) -> tuple[int, int]:
        """Raises BrokerError."""
        low, high = super().bounds(topic, number)
        return (low, high) if topic is SNAPSHOTS else (low, FOR_EVER)

    def read(self, topic: Topic, number: int, start: int, end: int) -> Iterator[Stored]:
        """Raises BrokerError."""
        if end < FOR_EVER:
            yield from super().read(topic, number, start, end)
            return
        consumer = reader(self._kafka)
        try:
            consumer.assign([TopicPartition(self.topics.full_name(topic), number, start)])
            while not self._stop.is_set():
                yield from checked(fetch(consumer, MOST_FETCHED, WAIT_S))
        finally:
            consumer.close()
