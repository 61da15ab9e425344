"""Taking a partition over: claim it, load its snapshot, fold what came since."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from policy.fencing import Fence
from schemas import topics as catalogue
from schemas.codec import Codec
from schemas.errors import InvalidInput, StateLost
from schemas.records import Placement
from schemas.steps import FOLD_ORDER, Restored
from schemas.topics import PLACEMENTS, Topic, TopicSettings
from streams import snapshots
from streams.claims import claim
from streams.kafka import KafkaSettings, Publisher, Stored, decoded, offset_at, read_range, reader, watermarks
from streams.partition import Partition

log = logging.getLogger("headrace.restore")

METRICS_BACK_MS = 15 * 60 * 1000
"""Node samples that arrived longer ago than this are not read again: windows hold five minutes."""


def restore(
    partition: Partition, kafka: KafkaSettings, topics: TopicSettings, codec: Codec, publisher: Publisher, owner: str
) -> int:
    """Make the partition ours, and its state that of all records so far; returns how many records that took.

    Blocks. Raises BrokerError, StateLost.
    """
    started = time.monotonic()
    if partition.is_revoked:
        return 0  # a claim now would void what its new owner decides
    partition.epoch = claim(partition.number, publisher, owner)
    saved = snapshots.read(kafka, topics, codec, partition.number, partition.settings)
    if saved is not None:
        partition.pools.update(saved.pools)
        partition.offsets.update(saved.offsets)
    starts = _starts(partition, kafka, topics)
    missed = _missed(partition, kafka, {(topics.full_name(t), partition.number): starts[t] for t in FOLD_ORDER})
    folded = fold_missed(partition, missed, topics, codec, Fence(saved.epoch if saved else -1))
    ranges = tuple((starts[t], max(starts[t], partition.offsets.get(t.name, 0))) for t in FOLD_ORDER)
    partition.note(Restored(saved.slot if saved else -1, ranges))
    partition.placements_offset = max(partition.offsets.get(PLACEMENTS.name, 0), partition.epoch + 1)
    log.info(
        "partition.restored",
        extra={
            "partition": partition.number,
            "epoch": partition.epoch,
            "has_snapshot": saved is not None,
            "records": folded,
            "seconds": round(time.monotonic() - started, 3),
        },
    )
    return folded


def fold_missed(
    partition: Partition, missed: Iterable[Stored], topics: TopicSettings, codec: Codec, fence: Fence
) -> int:
    """Fold what a state has not seen, as the broker received it, so that its owner may decide; returns how many."""
    folded = 0
    for topic, message in _in_order(missed, topics):
        if partition.is_revoked:
            return folded
        _fold(partition, topic, message, codec, fence)
        folded = partition.restoring = folded + 1
    partition.settle()
    for state in partition.pools.values():
        state.queue.unblock()
    return folded


def _starts(partition: Partition, kafka: KafkaSettings, topics: TopicSettings) -> dict[Topic, int]:
    """Of each topic, the first record that the state has not seen and needs."""
    starts = {topic: partition.offsets.get(topic.name, 0) for topic in FOLD_ORDER}
    _check_ends(kafka, {(topics.full_name(topic), partition.number): start for topic, start in starts.items()})
    samples, since_ms = catalogue.NODE_METRICS, int(time.time() * 1000) - METRICS_BACK_MS
    recent = _offset_at(kafka, (topics.full_name(samples), partition.number), since_ms)
    return {**starts, samples: max(starts[samples], recent)}


def _missed(partition: Partition, kafka: KafkaSettings, starts: Mapping[tuple[str, int], int]) -> Iterable[Stored]:
    """Every record from these offsets up to now; each topic in order."""
    for message in read_range(kafka, starts):
        if partition.is_revoked:
            return
        yield message


def _check_ends(kafka: KafkaSettings, starts: Mapping[tuple[str, int], int]) -> None:
    """Raises StateLost for a topic that ends before what a snapshot has seen of it."""
    consumer = reader(kafka)
    try:
        for (topic, number), start in starts.items():
            _, end = watermarks(consumer, topic, number)
            if end < start:
                raise StateLost(
                    f"{topic} [{number}] ends at offset {end}, but a snapshot has seen {start} records of it: it "
                    "was deleted and created again; delete and create all topics of this prefix, or set another "
                    "topics.prefix"
                )
    finally:
        consumer.close()


def _offset_at(kafka: KafkaSettings, where: tuple[str, int], at_ms: int) -> int:
    consumer = reader(kafka)
    try:
        return offset_at(consumer, *where, at_ms) or 0
    finally:
        consumer.close()


def _in_order(messages: Iterable[Stored], topics: TopicSettings) -> list[tuple[Topic, Stored]]:
    """The records of all topics as the broker received them."""
    by_name = {topics.full_name(t): (rank, t) for rank, t in enumerate(FOLD_ORDER)}
    ranked = [(m.timestamp()[1], *by_name[m.topic() or ""], m) for m in messages]
    ranked.sort(key=lambda item: item[:2])  # stable: each topic stays in order
    return [(topic, message) for _, _, topic, message in ranked]


def _fold(partition: Partition, topic: Topic, message: Stored, codec: Codec, fence: Fence) -> None:
    offset = message.offset() or 0
    partition.offsets[topic.name] = offset + 1
    try:
        record: object = decoded(message, codec, topic.record)
        if isinstance(record, Placement) and not fence.admits(record, offset):
            return
        partition.take(record, message.value() or b"")
    except InvalidInput:
        pass  # the owner that read it first has sent it to the dead letters
