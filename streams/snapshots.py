"""A partition's state in the snapshots topic: what a new owner starts from.

A snapshot is cut into parts, followed by an index that names the offset of the first part and a digest of the whole. A
snapshot without its index, or with a part missing, does not count; the one before it does.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from policy import snapshot
from policy.state import State, StateSettings
from schemas.codec import Codec
from schemas.errors import InvalidInput, StateLost
from schemas.records import SnapshotPart
from schemas.topics import SNAPSHOTS, TopicSettings
from streams.kafka import KafkaSettings, Publisher, Stored, read_range, reader, watermarks

log = logging.getLogger("headrace.snapshots")

PART_BYTES = 700_000
INDEX = -1
FIRST_PART = "first-part"
EPOCH = "epoch"
LOOK_BACK = 64
"""Records at the end of the partition that are searched for an index first; four times as many after each miss."""


@dataclass(frozen=True)
class Snapshot:
    """What a partition's owner had folded, and up to where."""

    pools: dict[str, State]
    offsets: dict[str, int]
    epoch: int
    slot: int
    """Its name among the partition's snapshots: when it was written, Unix milliseconds."""


def pack(pools: Mapping[str, State]) -> bytes:
    """The pools' states as one run of bytes."""
    packed = bytearray(struct.pack("<I", len(pools)))
    for pool, state in pools.items():
        name, payload = pool.encode(), snapshot.dump(state)
        packed += struct.pack("<IQ", len(name), len(payload)) + name + payload
    return bytes(packed)


def unpack(payload: bytes, settings: StateSettings) -> dict[str, State]:
    """The states that `pack` packed. Raises StateLost or InvalidRecord."""
    try:
        (count,), at = struct.unpack_from("<I", payload), 4
        pools = {}
        for _ in range(count):
            name_size, size = struct.unpack_from("<IQ", payload, at)
            at += struct.calcsize("<IQ")
            pool = payload[at : at + name_size].decode()
            at += name_size
            pools[pool] = snapshot.load(payload[at : at + size], settings)
            at += size
    except (struct.error, UnicodeDecodeError) as error:
        raise StateLost(f"a snapshot is damaged: {error}") from error
    return pools


def write(publisher: Publisher, partition: int, payload: bytes, offsets: Mapping[str, int], slot: int) -> None:
    """Publish a snapshot; `slot` tells its parts from those of others. Blocks. Raises BrokerError."""
    digest = hashlib.sha256(payload).hexdigest()
    pieces = [payload[i : i + PART_BYTES] for i in range(0, len(payload), PART_BYTES)]
    first: list[int] = []
    for number, piece in enumerate(pieces):
        part = SnapshotPart(slot, number, len(pieces), slot, digest, {}, piece)
        on_delivery = (lambda message: first.append(message.offset() or 0)) if number == 0 else None
        publisher.send(SNAPSHOTS, f"{slot}", part, partition, on_delivery=on_delivery)
    publisher.flush()
    index = SnapshotPart(slot, INDEX, len(pieces), slot, digest, {**offsets, FIRST_PART: first[0]}, b"")
    publisher.send(SNAPSHOTS, f"{slot}", index, partition)


def read(
    kafka: KafkaSettings, topics: TopicSettings, codec: Codec, partition: int, settings: StateSettings
) -> Snapshot | None:
    """The newest snapshot of the partition that is whole; None where there is none."""
    name = topics.full_name(SNAPSHOTS)
    consumer = reader(kafka)
    try:
        low, high = watermarks(consumer, name, partition)
    finally:
        consumer.close()
    look_back = LOOK_BACK
    while low < high:
        start = max(low, high - look_back)
        newest = found(read_range(kafka, {(name, partition): start}), codec, settings, start)
        if newest is not None or start == low:
            return newest
        look_back *= 4
    return None


def found(
    messages: Iterable[Stored],
    codec: Codec,
    settings: StateSettings,
    start: int = 0,
    admits: Callable[[int], bool] = lambda slot: True,
    *,
    oldest_from: Mapping[str, int] | None = None,
) -> Snapshot | None:
    """The newest whole snapshot of an admitted slot among these records, which begin at offset `start`.

    oldest_from  topic -> offset: instead the oldest that has seen all before these
    """
    indices: list[SnapshotPart] = []
    parts: dict[int, dict[int, bytes]] = {}
    number: int | None = None
    for message in messages:
        number = message.partition()
        part = _part(codec, message.value())
        if part is None or not admits(part.slot):
            continue
        if part.part == INDEX:
            indices.append(part)
        else:
            parts.setdefault(part.slot, {})[part.part] = part.payload
    for index in reversed(indices) if oldest_from is None else indices:
        if any(index.offsets.get(topic, 0) < offset for topic, offset in (oldest_from or {}).items()):
            continue
        pieces = parts.get(index.slot, {})
        if len(pieces) < index.parts and index.offsets.get(FIRST_PART, start) < start:
            if oldest_from is not None:
                continue
            return None  # its first parts lie further back
        payload = b"".join(pieces.get(i, b"") for i in range(index.parts))
        if hashlib.sha256(payload).hexdigest() != index.digest:
            log.error("snapshot.damaged", extra={"partition": number, "slot": index.slot})
            continue
        try:
            pools = unpack(payload, settings)
        except (StateLost, InvalidInput) as error:
            log.error("snapshot.unusable", extra={"partition": number, "slot": index.slot, "error": str(error)})
            continue
        offsets = {k: v for k, v in index.offsets.items() if k not in (FIRST_PART, EPOCH)}
        return Snapshot(pools, offsets, index.offsets.get(EPOCH, -1), index.slot)
    return None


def _part(codec: Codec, payload: bytes | None) -> SnapshotPart | None:
    try:
        return codec.decode(payload or b"", SnapshotPart)
    except InvalidInput as error:
        log.error("snapshot.undecodable", extra={"error": str(error)})
        return None
