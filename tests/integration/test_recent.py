"""What came of a pool lately, from a real Kafka."""

from __future__ import annotations

import pytest

from schemas.codec import Codec
from schemas.records import EventKind, Outcome, Placement
from schemas.topics import NODE_METRICS, PLACEMENTS, TASK_EVENTS, TASK_READY, WORKFLOW_SUBMITTED, TopicSettings
from streams.kafka import KafkaSettings, Publisher
from streams.recent import recent_records
from tests.builders import POOL, a_node, a_placement, a_ready, a_workflow, an_event, some_metrics
from tests.command_line import CommandLine

RECORDS = (
    (WORKFLOW_SUBMITTED, a_workflow()),
    (NODE_METRICS, some_metrics(a_node())),
    (TASK_READY, a_ready()),
    (PLACEMENTS, a_placement()),
    (TASK_EVENTS, an_event(EventKind.STARTED, at_s=1)),
    (TASK_EVENTS, an_event(EventKind.FINISHED, at_s=13)),
)


@pytest.fixture
def run_in_topics(kafka: KafkaSettings, topics: TopicSettings) -> TopicSettings:
    """One task of a pool, and a placement that is void: another worker owns the partition since."""
    publisher = Publisher(kafka, topics, Codec())
    for topic, record in RECORDS:
        publisher.send(topic, POOL, record)
    publisher.send(PLACEMENTS, POOL, Placement("", "", "", 0, 0, Outcome.OWNER, reason="the next worker"))
    publisher.send(PLACEMENTS, POOL, a_placement("n1", task_id="t9"))
    publisher.close()
    return topics


def test_the_pools_records_come_back_without_void_placements(
    kafka: KafkaSettings, run_in_topics: TopicSettings
) -> None:
    found = list(recent_records(kafka, run_in_topics, POOL, hours=1.0))

    assert sorted(map(repr, found)) == sorted(repr(record) for _, record in RECORDS)
    assert list(recent_records(kafka, run_in_topics, "another pool", hours=1.0)) == []


def test_the_gap_of_a_short_run_in_kafka_says_what_is_missing(
    command: CommandLine, kafka: KafkaSettings, run_in_topics: TopicSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    monkeypatch.setenv("HEADRACE_TOPICS__PREFIX", run_in_topics.prefix)
    monkeypatch.setenv("HEADRACE_POOL", POOL)
    monkeypatch.setenv("HEADRACE_POLICY__NAME", "heft")

    ended = command("gap", "--from-kafka")

    assert ended.code == 0, ended.errors
    assert "50 finished attempts are needed, 49 more" in " ".join(ended.output.split())
    assert "settings to change: none" in ended.output
