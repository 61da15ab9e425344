"""What lies in a topic, decoded."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message

from schemas.codec import Codec
from schemas.topics import Topic, TopicSettings
from streams.kafka import KafkaSettings, read_range


def messages_of(kafka: KafkaSettings, topics: TopicSettings, topic: Topic) -> list[Message]:
    """Everything in the topic, partition by partition."""
    name = topics.full_name(topic)
    return list(read_range(kafka, {(name, number): 0 for number in range(topics.partition_count(topic))}))


def records_of(kafka: KafkaSettings, topics: TopicSettings, topic: Topic) -> list[Any]:
    """Its records, each partition in order."""
    codec = Codec()
    return [codec.decode(message.value() or b"", topic.record) for message in messages_of(kafka, topics, topic)]
