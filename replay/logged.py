"""Records of a history with where each was read, whatever kept it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from replay.source import Source
from schemas.codec import Codec
from schemas.errors import InvalidRecord
from schemas.steps import FOLD_ORDER
from schemas.topics import Topic
from streams.kafka import decoded
from trainer.log_files import read_records

FILE = -1
"""The partition of what stands in a file: `topic` is its path, `offset` the line."""
Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A record, and where it was read."""

    topic: str
    partition: int
    offset: int
    at_ms: int | None  # when the broker received it; None: nobody noted that
    record: object  # of schemas.records

    @property
    def place(self) -> Place:
        """What tells it from every other."""
        return self.topic, self.partition, self.offset


def where(place: Place) -> str:
    """A place as people look it up."""
    topic, partition, offset = place
    return f"{topic}: line {offset}" if partition == FILE else f"{topic}[{partition}]@{offset}"


def from_files(paths: Sequence[Path]) -> Iterator[Logged]:
    """The records in these files of JSON lines. Raises InvalidInput."""
    for path in paths:
        for line, record in read_records(path):
            yield Logged(str(path), FILE, line, None, record)


def from_source(
    source: Source,
    codec: Codec,
    number: int,
    since_ms: int | None = None,
    until_ms: int | None = None,
    unreadable: Callable[[Topic, InvalidRecord], None] = lambda topic, error: None,
) -> Iterator[Logged]:
    """A partition's records that arrived in this time, in the order of arrival; in one millisecond causes come first.

    Raises BrokerError, or InvalidInput for a damaged archive.
    """

    def read(rank: int, topic: Topic) -> Iterator[tuple[int, int, int, Logged]]:
        low, high = source.bounds(topic, number)
        if since_ms is not None:
            low = max(low, source.offset_at(topic, number, since_ms))
        if until_ms is not None:
            high = min(high, source.offset_at(topic, number, until_ms + 1))
        for stored in source.read(topic, number, low, high):
            try:
                record: object = decoded(stored, codec, topic.record)
            except InvalidRecord as error:
                unreadable(topic, error)  # the worker sends it to the dead letters
                continue
            at_ms, offset = stored.timestamp()[1], stored.offset() or 0
            yield at_ms, rank, offset, Logged(topic.name, number, offset, at_ms, record)

    topics: Iterable[Iterator[tuple[int, int, int, Logged]]] = [read(rank, t) for rank, t in enumerate(FOLD_ORDER)]
    for _, _, _, logged in heapq.merge(*topics, key=lambda row: row[:3]):
        yield logged
