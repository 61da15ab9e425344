"""A history in files: what a range of the topics held, byte for byte, to be replayed where there is no broker.

A folder: `archive.json` says what it holds; each partition of each topic is an Avro object container file of its
records, with their offsets and arrival times. Snapshots are kept as far as a replay begins with them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import fastavro

from policy.state import StateSettings
from replay.player import SLOT_EARLY_MS, Player, Range
from replay.source import Source
from replay.turns import turns
from schemas.codec import CONFLUENT, Codec
from schemas.conversion import from_plain
from schemas.errors import InvalidInput, InvalidRecord
from schemas.records import SnapshotPart
from schemas.steps import FOLD_ORDER, Restored, Took
from schemas.topics import DECISIONS, SNAPSHOTS, Topic, TopicSettings
from streams.kafka import Stored, decoded

MANIFEST = "archive.json"
FORMAT = 1
COMPRESSION = "deflate"
BLOCK_BYTES = 256 * 1024
SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Archived",
        "namespace": "io.headrace",
        "doc": "A record of a topic.",
        "fields": [
            {"name": "offset", "type": "long"},
            {"name": "at_ms", "type": "long"},
            {"name": "key", "type": ["null", "bytes"]},
            {"name": "value", "type": ["null", "bytes"]},
            {"name": "headers", "type": {"type": "map", "values": ["null", "bytes"]}},
        ],
    }
)


@dataclass(frozen=True, slots=True)
class Part:
    """One partition of one topic in an archive."""

    topic: str
    partition: int
    start: int
    """The first offset of the range, whether or not there was a record."""
    end: int
    """The offset after the range."""
    records: int
    first_ms: int | None = None
    """When the first record arrived."""
    last_ms: int | None = None

    @property
    def file(self) -> str:
        """Its file's name."""
        return f"{self.topic}-{self.partition}.avro"


@dataclass(frozen=True, slots=True)
class Contents:
    """What an archive holds."""

    partitions: int
    """Of the topics keyed by pool."""
    parts: tuple[Part, ...]
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Archived:
    """A record from an archive, asked like a message of Kafka's."""

    _topic: str
    _partition: int
    _offset: int
    _at_ms: int
    _key: bytes | None
    _value: bytes | None
    _headers: tuple[tuple[str, bytes | None], ...] = field(default=())

    def topic(self) -> str:
        """The topic's full name."""
        return self._topic

    def partition(self) -> int:
        """Its partition."""
        return self._partition

    def offset(self) -> int:
        """Its place in the partition."""
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """As Kafka's clients tell it: kind, and Unix milliseconds."""
        return 1, self._at_ms

    def key(self) -> bytes | None:
        """Its key."""
        return self._key

    def value(self) -> bytes | None:
        """The payload."""
        return self._value

    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Its headers."""
        return self._headers


class Writer:
    """Writes an archive. Its manifest comes last: a folder without one is no archive."""

    def __init__(self, folder: Path, codec: Codec, partitions: int) -> None:
        """codec  that of the topics: what needs a registry to be read is written so that it does not"""
        if (folder / MANIFEST).exists():
            raise InvalidInput(str(folder), "holds an archive already", "name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._codec = codec
        self._plain = Codec()
        self._partitions = partitions
        self._parts: list[Part] = []

    def write(self, topic: Topic, number: int, start: int, end: int, records: Iterable[Stored]) -> Part:
        """Write one partition of one topic; holds one block of it at a time."""
        seen: list[int] = []
        times: list[int] = []

        def rows() -> Iterator[dict[str, Any]]:
            for stored in records:
                at_ms = stored.timestamp()[1]
                seen[:] = [seen[0] + 1 if seen else 1]
                times[:] = [times[0] if times else at_ms, at_ms]
                yield {
                    "offset": stored.offset(),
                    "at_ms": at_ms,
                    "key": stored.key(),
                    "value": self._value(topic, stored),
                    "headers": dict(stored.headers() or ()),
                }

        path = self._folder / Part(topic.name, number, start, end, 0).file
        with path.open("wb") as file:
            fastavro.writer(file, SCHEMA, rows(), codec=COMPRESSION, sync_interval=BLOCK_BYTES)
            file.flush()
            os.fsync(file.fileno())
        part = Part(topic.name, number, start, end, seen[0] if seen else 0, *times)
        self._parts.append(part)
        return part

    def close(self) -> Contents:
        """Write the manifest."""
        contents = Contents(self._partitions, tuple(self._parts))
        unfinished = self._folder / f"{MANIFEST}.unfinished"
        unfinished.write_text(json.dumps(asdict(contents), indent=1) + "\n", encoding="utf-8")
        unfinished.replace(self._folder / MANIFEST)
        return contents

    def _value(self, topic: Topic, stored: Stored) -> bytes | None:
        value = stored.value()
        if value is None or value[:1] != CONFLUENT:
            return value
        try:
            return self._plain.encode(decoded(stored, self._codec, topic.record), topic.name)
        except InvalidRecord:
            return value  # a dead letter stays one


class ArchiveSource:
    """An archive as a source."""

    def __init__(self, folder: Path, prefix: str) -> None:
        """prefix  of the topics' names in the records. Raises InvalidInput for a folder that is no archive."""
        self._folder = folder
        contents = read_contents(folder)
        self.topics = TopicSettings(prefix=prefix, partitions=contents.partitions)
        self._parts = {(part.topic, part.partition): part for part in contents.parts}

    @property
    def numbers(self) -> Sequence[int]:
        """The partitions of which it holds anything."""
        return sorted({number for _, number in self._parts})

    def bounds(self, topic: Topic, number: int) -> tuple[int, int]:
        """Of the range that was archived."""
        part = self._parts.get((topic.name, number))
        return (part.start, part.end) if part else (0, 0)

    def offset_at(self, topic: Topic, number: int, at_ms: int) -> int:
        """Reads from the beginning of the file up to there."""
        part = self._parts.get((topic.name, number))
        if part is None or part.last_ms is None or part.last_ms < at_ms:
            return part.end if part else 0
        return next((row["offset"] for row in self._rows(part, part.start) if row["at_ms"] >= at_ms), part.end)

    def read(self, topic: Topic, number: int, start: int, end: int) -> Iterator[Stored]:
        """Raises InvalidInput for a damaged file."""
        part = self._parts.get((topic.name, number))
        if part is None:
            return
        name = self.topics.full_name(topic)
        for row in self._rows(part, start):
            if row["offset"] >= end:
                return
            headers = tuple(row["headers"].items())
            yield Archived(name, number, row["offset"], row["at_ms"], row["key"], row["value"], headers)

    def _rows(self, part: Part, start: int) -> Iterator[dict[str, Any]]:
        path = self._folder / part.file
        last = part.start - 1
        try:
            with path.open("rb") as file:
                for row in self._blocks(file):
                    last = row["offset"]
                    if last >= start:
                        yield row
        except (OSError, EOFError, ValueError, StopIteration, IndexError) as error:
            raise InvalidInput(
                str(path), f"cannot be read on after offset {last}: {error}", "archive that range again"
            ) from error

    @staticmethod
    def _blocks(file: BinaryIO) -> Iterator[dict[str, Any]]:
        yield from fastavro.reader(file)  # type: ignore[misc]


def read_contents(folder: Path) -> Contents:
    """What an archive holds. Raises InvalidInput."""
    path = folder / MANIFEST
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        contents: Contents = from_plain(plain, Contents)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(str(path), f"cannot be read: {error}", "name a folder of `headrace archive`") from error
    if contents.format != FORMAT:
        raise InvalidInput(str(path), f"is of format {contents.format}", "upgrade headrace")
    return contents


def archive(
    source: Source,
    codec: Codec,
    folder: Path,
    numbers: Iterable[int],
    wanted: Range,
    settings: StateSettings,
    on_part: Callable[[Part], None] = lambda part: None,
) -> Contents:
    """Copy what a replay of this range needs into a folder. Raises HistoryLost, BrokerError, InvalidInput."""
    writer = Writer(folder, codec, source.topics.partitions)
    for number in numbers:
        for topic, start, end, slots in _needed(source, codec, number, wanted, settings):
            stored = source.read(topic, number, start, end)
            if slots is not None:
                stored = (one for one in stored if _slot(one, codec) in slots)
            on_part(writer.write(topic, number, start, end, stored))
    return writer.close()


def _needed(
    source: Source, codec: Codec, number: int, wanted: Range, settings: StateSettings
) -> Iterator[tuple[Topic, int, int, set[int] | None]]:
    """Topics and offsets that a replay of this range needs; of snapshots, which."""
    start = Player(source, codec, number, settings).first_snapshot(wanted)
    low, high = source.bounds(DECISIONS, number)
    if start is not None:
        low = max(low, source.offset_at(DECISIONS, number, start.slot - SLOT_EARLY_MS))
    if wanted.until_ms is not None:
        high = source.offset_at(DECISIONS, number, wanted.until_ms + 1)
    slots = {start.slot} if start else set()
    ends = dict.fromkeys(FOLD_ORDER, 0)
    for turn in turns(source.read(DECISIONS, number, low, high), codec):
        for step in turn.steps:
            if isinstance(step, Took):
                ends[step.topic] = max(ends[step.topic], step.end)
            elif isinstance(step, Restored):
                slots |= {step.slot} - {-1}
                ends |= {t: max(ends[t], end) for t, (_, end) in zip(FOLD_ORDER, step.ranges, strict=True)}
    yield DECISIONS, low, high, None
    for topic in FOLD_ORDER:
        first, last = source.bounds(topic, number)
        until = last if wanted.until_ms is None else source.offset_at(topic, number, wanted.until_ms + 1)
        yield topic, max(first, start.offsets.get(topic.name, 0) if start else 0), max(ends[topic], until), None
    if slots:
        first = source.offset_at(SNAPSHOTS, number, min(slots) - SLOT_EARLY_MS)
        yield SNAPSHOTS, first, source.offset_at(SNAPSHOTS, number, max(slots) + SLOT_EARLY_MS), slots


def _slot(stored: Stored, codec: Codec) -> int:
    try:
        return decoded(stored, codec, SnapshotPart).slot
    except InvalidRecord:
        return -1
