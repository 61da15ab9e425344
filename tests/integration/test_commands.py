"""The commands that talk to a broker, on a real one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import headrace
from schemas.codec import Codec
from schemas.records import DeadLetter
from schemas.topics import CATALOGUE, DEAD_LETTERS, WORKFLOW_SUBMITTED, TopicSettings
from streams.kafka import KafkaSettings, Publisher, read_range
from streams.topic_admin import check_topics
from tests.command_line import CommandLine

WORKFLOW = Path(__file__).resolve().parents[2] / "examples" / "etl_pipeline.yaml"


@pytest.fixture
def at_broker(
    command: CommandLine, kafka: KafkaSettings, unmade_topics: TopicSettings, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line with the settings of the broker, and of topics that are not made yet."""
    monkeypatch.setenv("HEADRACE_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    monkeypatch.setenv("HEADRACE_TOPICS__PREFIX", unmade_topics.prefix)
    return command


def test_topics_are_created_once(at_broker: CommandLine, kafka: KafkaSettings, unmade_topics: TopicSettings) -> None:
    first, second = at_broker("topics", "create"), at_broker("topics", "create")

    assert (first.code, second.code) == (0, 0)
    assert len(first.output.splitlines()) == len(CATALOGUE)
    assert second.output == "all topics are there\n"
    check_topics(kafka, unmade_topics)


def test_a_check_names_the_first_missing_topic(at_broker: CommandLine) -> None:
    ended = at_broker("topics", "check")

    assert ended.code == headrace.EXIT_REFUSED
    (line,) = ended.errors.splitlines()
    assert "is missing; create it with 'headrace topics create'" in line


def test_a_check_of_created_topics_is_content(at_broker: CommandLine, topics: TopicSettings) -> None:
    ended = at_broker("topics", "check")

    assert (ended.code, ended.output) == (0, "all topics are as configured\n")


@pytest.mark.parametrize("verb", [("worker",), ("cluster",), ("submit", WORKFLOW), ("placements",)], ids=lambda v: v[0])
def test_without_topics_the_error_says_how_to_make_them(
    at_broker: CommandLine, unmade_topics: TopicSettings, verb: tuple[object, ...]
) -> None:
    ended = at_broker(*verb)

    assert ended.code == headrace.EXIT_REFUSED
    (line,) = ended.errors.splitlines()
    assert unmade_topics.prefix in line
    assert "headrace topics create" in line


def test_submitted_workflows_that_nobody_places_are_unfinished_when_the_time_is_up(
    at_broker: CommandLine, topics: TopicSettings
) -> None:
    ended = at_broker("submit", WORKFLOW, "--suffix", "-1", "--wait", "--within", "0.2")

    assert ended.code == headrace.EXIT_UNFINISHED
    assert ended.output.splitlines() == [
        "etl_pipeline-1: 4 tasks submitted",
        "0 of 4 tasks of 1 workflows finished, 0 placements",
    ]


def test_dead_letters_are_printed_with_their_reason_and_bytes(
    at_broker: CommandLine, kafka: KafkaSettings, topics: TopicSettings
) -> None:
    letter = DeadLetter("task-ready", 3, 17, 1_700_000_000_000, "unknown_format", "bytes of no format", b"\x07garbage")
    publisher = Publisher(kafka, topics, Codec())
    publisher.send(DEAD_LETTERS, letter.topic, letter)
    publisher.close()

    ended = at_broker("dead-letters")

    assert ended.code == 0
    assert json.loads(ended.output) == {**asdict(letter), "payload": "B2dhcmJhZ2U="}


def test_no_file_of_several_is_submitted_where_one_is_bad(
    at_broker: CommandLine, kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("tasks: [")

    ended = at_broker("submit", WORKFLOW, bad)

    assert (ended.code, ended.output) == (headrace.EXIT_REFUSED, "")
    assert str(bad) in ended.errors
    name = topics.full_name(WORKFLOW_SUBMITTED)
    assert list(read_range(kafka, {(name, number): 0 for number in range(topics.partitions)})) == []


def test_a_topic_without_placements_prints_nothing(at_broker: CommandLine, topics: TopicSettings) -> None:
    ended = at_broker("placements")

    assert (ended.code, ended.output, ended.errors) == (0, "", "")
