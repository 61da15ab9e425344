"""Claims of a partition: the owner records in its placements topic."""

from __future__ import annotations

import time
from collections.abc import Iterator

from policy.fencing import Fence
from schemas.codec import Codec
from schemas.errors import BrokerError, InvalidInput
from schemas.records import Outcome, Placement
from schemas.topics import PLACEMENTS, TopicSettings
from streams.kafka import KafkaSettings, Publisher, decoded, read_range, reader, watermarks

LOOK_BACK = 1000
"""Newest records that are searched for the epoch first; four times as many after each miss."""


def claim(number: int, publisher: Publisher, owner: str) -> int:
    """Write an owner record; returns its offset, the new epoch. Blocks. Raises BrokerError.

    Whatever an earlier owner writes behind it is void.
    """
    offsets: list[int] = []
    record = Placement("", "", "", 0, int(time.time() * 1000), Outcome.OWNER, reason=owner)
    publisher.send(PLACEMENTS, owner, record, number, on_delivery=lambda m: offsets.append(m.offset() or 0))
    publisher.flush()
    if not offsets:
        raise BrokerError(f"the claim of partition {number} was not confirmed")
    return offsets[0]


def later_owner(
    kafka: KafkaSettings, topics: TopicSettings, codec: Codec, number: int, epoch: int, start: int
) -> str | None:
    """Who claimed the partition after this epoch, among the records from `start` on. Blocks. Raises BrokerError."""
    for offset, record in _placements(kafka, topics, codec, number, start):
        if record.outcome == Outcome.OWNER and offset > epoch:
            return record.reason
    return None


def end_of_placements(kafka: KafkaSettings, topics: TopicSettings, codec: Codec, number: int) -> tuple[int, Fence]:
    """Where the partition's placements end now, and the fence of a reader who begins there: it knows the epoch.

    Blocks. Raises BrokerError.
    """
    consumer = reader(kafka)
    try:
        low, end = watermarks(consumer, topics.full_name(PLACEMENTS), number)
    finally:
        consumer.close()
    look_back = LOOK_BACK
    while True:
        fence, start = Fence(), max(low, end - look_back)
        for offset, record in _placements(kafka, topics, codec, number, start):
            if offset < end:
                fence.admits(record, offset)
        if fence.epoch >= 0 or start == low:
            return end, fence
        look_back *= 4


def _placements(
    kafka: KafkaSettings, topics: TopicSettings, codec: Codec, number: int, start: int
) -> Iterator[tuple[int, Placement]]:
    for message in read_range(kafka, {(topics.full_name(PLACEMENTS), number): start}):
        try:
            yield message.offset() or 0, decoded(message, codec, Placement)
        except InvalidInput:
            continue
