"""Creating topics, and checking those that are there."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from schemas.errors import BrokerError
from schemas.topics import CATALOGUE, TopicSettings
from streams.kafka import CONNECT_S, REQUEST_TIMEOUT_S, KafkaSettings, admin, metadata, reader

SERVED_TIMEOUT_S = 1.0


def create_topics(kafka: KafkaSettings, topics: TopicSettings, timeout_s: float = REQUEST_TIMEOUT_S) -> list[str]:
    """Create the topics that are missing; returns their names. Raises BrokerError."""
    client = admin(kafka)
    existing = metadata(client, kafka, min(timeout_s, CONNECT_S)).topics
    missing = [t for t in CATALOGUE if topics.full_name(t) not in existing]
    wanted = [
        NewTopic(
            topics.full_name(topic),
            topics.partition_count(topic),
            topics.replication_factor,
            config={**topic.settings(), "message.timestamp.type": "LogAppendTime"},
        )
        for topic in missing
    ]
    created = []
    for name, future in (client.create_topics(wanted, request_timeout=timeout_s) if wanted else {}).items():
        try:
            future.result()
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerError(f"topic {name} cannot be created: {error.args[0].str()}") from error
    counts = {topics.full_name(topic): topics.partition_count(topic) for topic in missing}
    partitions = [TopicPartition(name, number) for name in created for number in range(counts[name])]
    _wait_until_served(kafka, partitions, timeout_s)
    return created


def _wait_until_served(kafka: KafkaSettings, partitions: Iterable[TopicPartition], timeout_s: float) -> None:
    """A topic is created before its brokers know of it, and has leaders before these answer."""
    deadline = time.monotonic() + timeout_s
    consumer = reader(kafka)
    try:
        for partition in partitions:
            while (problem := _refusal(consumer, partition)) is not None:
                if time.monotonic() > deadline:
                    raise BrokerError(f"topic {partition.topic} was created, but Kafka does not serve it: {problem}")
                time.sleep(0.02)
    finally:
        consumer.close()


def _refusal(consumer: Consumer, partition: TopicPartition) -> str | None:
    """Why the partition's leader does not say where the partition ends."""
    try:
        consumer.get_watermark_offsets(partition, timeout=SERVED_TIMEOUT_S)
    except KafkaException as error:
        return str(error.args[0].str())
    return None


def check_topics(kafka: KafkaSettings, topics: TopicSettings, timeout_s: float = CONNECT_S) -> None:
    """Raises BrokerError for a topic that is missing or has another number of partitions than configured."""
    existing = metadata(admin(kafka), kafka, timeout_s).topics
    for topic in CATALOGUE:
        name, expected = topics.full_name(topic), topics.partition_count(topic)
        if name not in existing:
            raise BrokerError(f"topic {name} is missing; create it with 'headrace topics create'")
        found = len(existing[name].partitions)
        if found != expected:
            raise BrokerError(
                f"topic {name} has {found} partitions, not {expected}; set topics.partitions to what is there "
                "(all topics keyed by pool need one number), or recreate the topics"
            )
