"""What came of a pool lately, read once from its topics."""

from __future__ import annotations

import time
from collections.abc import Iterator

from policy.fencing import Fence
from schemas.errors import InvalidInput
from schemas.records import Placement
from schemas.topics import (
    NODE_METRICS,
    PLACEMENTS,
    TASK_EVENTS,
    TASK_READY,
    WORKFLOW_SUBMITTED,
    TopicSettings,
    partition_of,
)
from streams.kafka import KafkaSettings, decoded, offset_at, read_range, reader
from streams.registry import codec_for

WHOLE = (WORKFLOW_SUBMITTED, PLACEMENTS)
"""Read from their beginning: tasks may be older than what happens to them, and so may the owner of a partition."""
LATELY = (TASK_READY, TASK_EVENTS, NODE_METRICS)


def recent_records(kafka: KafkaSettings, topics: TopicSettings, pool: str, hours: float) -> Iterator[object]:
    """The pool's records that arrived in the last hours; void placements are left out. Raises BrokerError."""
    codec, fence = codec_for(kafka), Fence()
    topic_of = {topics.full_name(topic): topic for topic in (*WHOLE, *LATELY)}
    number = partition_of(pool, topics.partitions)
    since_ms = int(1000 * (time.time() - 3600 * hours))
    starts = {(topics.full_name(topic), number): 0 for topic in WHOLE}
    consumer = reader(kafka)
    try:
        for topic in LATELY:
            name = topics.full_name(topic)
            start = offset_at(consumer, name, number, since_ms)
            if start is not None:
                starts[name, number] = start
    finally:
        consumer.close()
    for message in read_range(kafka, starts):
        try:
            record: object = decoded(message, codec, topic_of[message.topic() or ""].record)
        except InvalidInput:
            continue  # the worker sends it to the dead letters
        if isinstance(record, Placement) and not fence.admits(record, message.offset() or 0):
            continue
        if record.pool == pool:  # type: ignore[attr-defined]
            yield record
