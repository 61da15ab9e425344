"""Topics on a real broker: created once, as the catalogue says, and checked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource

from schemas.codec import Codec
from schemas.errors import BrokerError
from schemas.records import TaskReady
from schemas.topics import CATALOGUE, PLACEMENTS, TASK_READY, TopicSettings, partition_of
from streams.broker import free_port
from streams.kafka import KafkaSettings, Publisher, admin, read_range, reader, watermarks
from streams.topic_admin import check_topics, create_topics
from tests.processes import comes_true

ANSWER_S = 20.0


def topic_config(kafka: KafkaSettings, name: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    client = admin(kafka)
    found = client.describe_configs([resource])[resource].result(ANSWER_S)
    return {key: entry.value for key, entry in found.items()}


def delete_topic(kafka: KafkaSettings, name: str) -> None:
    client = admin(kafka)
    client.delete_topics([name])[name].result(ANSWER_S)
    assert comes_true(lambda: name not in client.list_topics(timeout=ANSWER_S).topics, ANSWER_S)


def test_all_topics_are_created_as_the_catalogue_says(kafka: KafkaSettings, unmade_topics: TopicSettings) -> None:
    created = create_topics(kafka, unmade_topics)

    assert sorted(created) == sorted(unmade_topics.full_name(topic) for topic in CATALOGUE)
    check_topics(kafka, unmade_topics)
    for topic in CATALOGUE:
        config = topic_config(kafka, unmade_topics.full_name(topic))
        expected = {**topic.settings(), "message.timestamp.type": "LogAppendTime"}
        assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize("again", range(4))
def test_created_topics_answer_at_once(kafka: KafkaSettings, unmade_topics: TopicSettings, again: int) -> None:
    create_topics(kafka, unmade_topics)

    consumer = reader(kafka)
    ends = [
        watermarks(consumer, unmade_topics.full_name(topic), number)
        for topic in CATALOGUE
        for number in range(unmade_topics.partition_count(topic))
    ]
    consumer.close()
    assert set(ends) == {(0, 0)}


def test_creating_topics_that_are_there_does_nothing(kafka: KafkaSettings, topics: TopicSettings) -> None:
    created = create_topics(kafka, topics)

    assert created == []


def test_only_the_missing_topic_is_created(kafka: KafkaSettings, topics: TopicSettings) -> None:
    name = topics.full_name(PLACEMENTS)
    delete_topic(kafka, name)

    created = create_topics(kafka, topics)

    assert created == [name]


def test_a_missing_topic_is_named(kafka: KafkaSettings, topics: TopicSettings) -> None:
    name = topics.full_name(PLACEMENTS)
    delete_topic(kafka, name)

    with pytest.raises(BrokerError, match=rf"{name} is missing; create it with 'headrace topics create'"):
        check_topics(kafka, topics)


def test_another_number_of_partitions_is_refused_with_both_numbers(kafka: KafkaSettings, topics: TopicSettings) -> None:
    expected = replace(topics, partitions=topics.partitions + 3)

    with pytest.raises(BrokerError, match=rf"has {topics.partitions} partitions, not {expected.partitions}"):
        check_topics(kafka, expected)


def test_more_copies_than_brokers_are_refused_with_the_topics_name(
    kafka: KafkaSettings, unmade_topics: TopicSettings
) -> None:
    with pytest.raises(BrokerError, match=rf"topic {unmade_topics.prefix}\S+ cannot be created: .*[Rr]eplication"):
        create_topics(kafka, replace(unmade_topics, replication_factor=7))


@pytest.mark.parametrize("ask", [create_topics, check_topics])
def test_a_kafka_that_is_not_there_is_named_with_its_setting(ask) -> None:
    nobody = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}")

    with pytest.raises(BrokerError, match=rf"{nobody.bootstrap_servers} does not answer.*HEADRACE_KAFKA__BOOTSTRAP"):
        ask(nobody, TopicSettings(), timeout_s=1.0)


@pytest.mark.parametrize("pool", ["default", "gpu-farm", "zürich"])
def test_a_record_lies_in_the_partition_of_its_pool(kafka: KafkaSettings, topics: TopicSettings, pool: str) -> None:
    record = TaskReady(pool, "wf", "task", 0, 1_700_000_000_000)
    publisher = Publisher(kafka, topics, Codec())

    publisher.send(TASK_READY, pool, record)
    publisher.close()

    number = partition_of(pool, topics.partitions)
    (message,) = read_range(kafka, {(topics.full_name(TASK_READY), number): 0})
    assert message.key() == pool.encode()
    assert Codec().decode(message.value(), TaskReady) == record


def test_a_producer_with_kafkas_own_partitioner_finds_the_partition_of_each_pool(
    kafka: KafkaSettings, topics: TopicSettings
) -> None:
    pools = [f"pool-{number}" for number in range(50)]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"})
    chosen: dict[str, int] = {}

    for pool in pools:
        producer.produce(
            topics.full_name(TASK_READY),
            b"",
            pool,
            on_delivery=lambda _, message, pool=pool: chosen.update({pool: message.partition()}),
        )
    producer.flush(ANSWER_S)

    assert chosen == {pool: partition_of(pool, topics.partitions) for pool in pools}
