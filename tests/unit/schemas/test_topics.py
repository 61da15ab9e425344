"""The catalogue of topics, and which partition a pool is."""

from __future__ import annotations

import pytest

from schemas.errors import InvalidConfiguration
from schemas.topics import (
    CATALOGUE,
    MODELS,
    NODE_METRICS,
    SHADOW_PLACEMENTS,
    STATE_INPUTS,
    TopicSettings,
    murmur2,
    partition_of,
)


@pytest.mark.parametrize(
    ("key", "signed"),
    [  # the vectors of Kafka's own test of its partitioner
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafka(key, signed):
    assert murmur2(key) == signed % 2**32


def test_the_partition_is_that_of_the_java_client_and_of_librdkafka():
    assert partition_of("foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000
    assert partition_of("21", 7) == (-973932308 & 0x7FFFFFFF) % 7


def test_every_partition_gets_some_pools():
    assert {partition_of(f"pool-{i}", 12) for i in range(200)} == set(range(12))


def test_a_pool_without_a_name_is_refused():
    with pytest.raises(InvalidConfiguration, match="pool: is empty"):
        partition_of("", 4)


def test_no_two_topics_share_a_name_or_a_record():
    assert len({topic.name for topic in CATALOGUE}) == len(CATALOGUE)
    assert len({topic.record for topic in CATALOGUE} | {SHADOW_PLACEMENTS}) == len(CATALOGUE)


def test_what_a_state_is_folded_from_has_the_partitions_of_the_pools():
    assert all(topic.is_partitioned_by_pool for topic in STATE_INPUTS)
    assert {TopicSettings(partitions=7).partition_count(topic) for topic in STATE_INPUTS} == {7}
    assert TopicSettings(partitions=7).partition_count(MODELS) == 1


def test_a_topic_is_compacted_or_deleted_after_its_time():
    assert MODELS.settings()["cleanup.policy"] == "compact"
    assert "retention.ms" not in MODELS.settings()
    assert NODE_METRICS.settings() == {"cleanup.policy": "delete", "retention.ms": "86400000"}


def test_the_prefix_stands_before_every_name():
    assert TopicSettings(prefix="lab.").full_name(NODE_METRICS) == "lab.node-metrics"


@pytest.mark.parametrize("wrong", [{"prefix": ""}, {"partitions": 0}, {"replication_factor": 0}])
def test_settings_that_no_broker_can_have_are_refused(wrong):
    with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
        TopicSettings(**wrong)
