"""Which weights a pool uses: choices and refusals as records, and what a worker does with weights that fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.weights import renamed
from policy.actor import Actor, ActorSettings
from policy.heuristics import heuristic
from policy.weight_set import shipped_weights
from schemas.codec import Codec
from schemas.errors import InvalidInput, UnusableWeights
from schemas.records import Control, Model
from schemas.topics import CONTROL, Topic, TopicSettings
from streams.kafka import KafkaSettings, Publisher
from streams.model_topic import (
    USE,
    Choice,
    ModelTopic,
    Published,
    choose,
    publish,
    refusal_in_force,
    refuse,
    way_back,
)
from streams.models import Models, TooLittleMemory, _available, _left_in_group
from streams.policies import PolicySettings, Roles

POOL = "pool"
A, B, C = (Choice(version, at, "me", "a test") for at, version in enumerate(("aa11", "ab22", "b333")))


class Sent:
    """A publisher that keeps what it is given, by topic and key."""

    def __init__(self) -> None:
        self.records: list[tuple[Topic, str, Any]] = []

    def send(self, topic: Topic, key: str, record: object) -> None:
        self.records.append((topic, key, record))

    def flush(self) -> None:
        pass


@pytest.fixture
def topic() -> Iterator[ModelTopic]:
    """Of a broker that is not there."""
    made = ModelTopic(KafkaSettings(bootstrap_servers="127.0.0.1:1"), TopicSettings(), Codec())
    for at, choice in enumerate((A, B, C)):
        made.published[choice.version] = Published(choice.version, "shadow", None, 100, "", 1000, at)
    yield made
    made.close()


def as_publisher(sent: Sent) -> Publisher:
    return cast(Publisher, sent)


def test_a_choice_keeps_those_before_it_and_their_reasons(topic: ModelTopic) -> None:
    sent = Sent()

    choose(as_publisher(sent), POOL, (A, B), C)

    ((written_to, key, record),) = sent.records
    topic._control(record)
    assert (written_to, key) == (CONTROL, f"{POOL} {USE}")
    assert topic.of(POOL).chosen == (A, B, C)
    assert topic.of("another").version == ""


def test_the_way_back_leads_to_the_workers_own_and_no_further() -> None:
    assert way_back((A, B, C)) == ("ab22", (A,))
    assert way_back((A,)) == ("", ())
    for chosen in ((), (replace(A, version=""),)):
        with pytest.raises(InvalidInput, match="there is nothing to go back from"):
            way_back(chosen)


def test_a_version_is_found_by_its_beginning_where_that_is_one(topic: ModelTopic) -> None:
    assert topic.found("b").version == "b333"
    with pytest.raises(InvalidInput, match="is the beginning of aa11, ab22; write more of it"):
        topic.found("a")
    with pytest.raises(InvalidInput, match=r"there is no version 'b334'; did you mean 'b333'\?"):
        topic.found("b334")


def test_a_refusal_holds_until_the_version_is_published_again(topic: ModelTopic) -> None:
    sent = Sent()
    refuse(as_publisher(sent), POOL, "aa11", "worker-7", "it is bad")
    topic._control(sent.records[0][2])

    refusal = refusal_in_force(topic, POOL, "aa11")

    assert refusal is not None
    assert (refusal.who, refusal.reason) == ("worker-7", "it is bad")
    assert refusal_in_force(topic, "another", "aa11") is None
    topic.published["aa11"] = replace(topic.published["aa11"], at_ms=refusal.at_ms + 1)
    assert refusal_in_force(topic, POOL, "aa11") is None


@pytest.mark.parametrize("arguments", [{}, {"version": "a", "who": "", "why": "", "before": "[1]"}])
def test_what_is_no_choice_is_left_out(topic: ModelTopic, arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="is no choice of a model"):
        topic._control(Control(POOL, 0, USE, arguments))


def test_weights_are_published_under_the_name_that_their_files_give_them() -> None:
    weights, sent = renamed(shipped_weights(), b"x"), Sent()

    record = publish(as_publisher(sent), weights, "shadow")

    assert (record.version, record.parent) == (weights.digest[:12], shipped_weights().manifest.version)
    assert isinstance(sent.records[0][2], Model)
    misnamed = replace(weights, manifest=replace(weights.manifest, version="best"))
    with pytest.raises(InvalidInput, match="its version is 'best', but the digest of the files begins with"):
        publish(as_publisher(sent), misnamed, "shadow")
    with pytest.raises(InvalidInput, match="'prod' is unknown; give one of stable, canary, shadow"):
        publish(as_publisher(sent), weights, "prod")


def models_with(actor: Actor | None, sent: Sent, source: ModelTopic | None = None, **settings: float) -> Models:
    base = Roles(actor.policy() if actor else heuristic("heft"), actor)
    return Models(
        PolicySettings(**settings), base, TopicSettings(), as_publisher(sent), lambda _: None, source, "worker-7"
    )


def test_weights_that_fail_while_they_decide_are_refused_once_and_the_workers_own_never() -> None:
    own = Actor(shipped_weights(), ActorSettings(device="cpu"))
    other, sent = replace(own.policy(), version="aa11"), Sent()
    models = models_with(own, sent)
    models._actors["aa11"] = own

    for policy in (other, other, own.policy(), heuristic("srcp")):
        models.failed(policy, POOL, UnusableWeights("a score is not finite"))

    ((_, key, record),) = sent.records
    assert key == f"{POOL} models.refused aa11"
    assert "a score is not finite" in record.arguments["reason"]


def test_new_weights_wait_where_they_would_leave_too_little_memory(topic: ModelTopic) -> None:
    models = models_with(None, Sent(), topic, headroom_mib=1e12)

    with pytest.raises(TooLittleMemory, match=r"MiB are needed; give the worker more, or lower policy\.headroom_mib"):
        models._load("aa11", 10)


def test_free_memory_is_what_machine_and_group_say(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  2000 kB\nMemAvailable:   1000 kB\n")
    (tmp_path / "memory.max").write_text("4096\n")
    (tmp_path / "memory.current").write_text("96\n")

    assert _available(tmp_path / "meminfo") == 1_024_000
    assert _available(tmp_path / "none") is None
    assert _left_in_group(tmp_path) == 4000
    (tmp_path / "memory.max").write_text("max\n")
    assert _left_in_group(tmp_path) is None
