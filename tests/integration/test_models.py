"""Other weights while a worker decides: nothing is lost or decided twice; bad ones are refused, the old ones stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headrace
from benchmarks.weights import renamed, with_file
from policy.weight_set import shipped_weights, to_record, write_weights
from schemas.records import Outcome, Placement
from schemas.topics import MODELS, PLACEMENTS, TopicSettings
from streams.client import Client
from streams.kafka import KafkaSettings, Publisher
from streams.model_topic import Choice, choose, publish
from tests.builders import a_task, some_nodes
from tests.command_line import CommandLine
from tests.eventually import eventually
from tests.made_weights import not_finite
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess

SHIPPED = shipped_weights()
OWN = SHIPPED.manifest.version
POOL = "default"
IN_TURN = 0.004
"""Seconds between two tasks."""


@pytest.fixture
def worker(kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker with the shipped weights, ready, that knows some nodes."""
    with WorkerProcess(kafka, topics, tmp_path, policy__name="actor") as worker:
        worker.wait_until_ready()
        with Client(kafka, POOL, topics) as client:
            client.sample(nodes_now())
        yield worker


def nodes_now():
    from tests.builders import some_metrics

    sample = some_metrics(*some_nodes(40, cpu=64.0))
    return replace(sample, pool=POOL, event_time_ms=int(time.time() * 1000))


def ready(client: Client, number: int, prefix: str) -> None:
    from schemas.records import TaskReady

    task = a_task("t", 30.0, cpu=0.01, memory_bytes=1024)
    client.ready(TaskReady(POOL, f"{prefix}{number}", "t", 0, int(time.time() * 1000), task))


def placed(kafka: KafkaSettings, topics: TopicSettings) -> list[Placement]:
    return [p for p in records_of(kafka, topics, PLACEMENTS) if p.outcome == Outcome.PLACED]


def decide(client: Client, kafka: KafkaSettings, topics: TopicSettings, prefix: str, count: int = 20) -> set[str]:
    """Have some tasks placed; returns the versions that did."""
    for number in range(count):
        ready(client, number, prefix)
    client.flush()

    def all_placed() -> list[Placement]:
        found = [p for p in placed(kafka, topics) if p.workflow_id.startswith(prefix)]
        return found if len(found) >= count else []

    return {p.model_version for p in eventually(all_placed, f"{count} tasks of {prefix} placed")}


def test_under_load_every_task_is_decided_once_by_the_old_weights_or_by_the_new(
    worker: WorkerProcess, publisher: Publisher, kafka: KafkaSettings, topics: TopicSettings
) -> None:
    version = publish(publisher, renamed(SHIPPED, b"new"), "stable").version
    sent = 0
    with Client(kafka, POOL, topics) as client:

        def under_way() -> bool:
            nonlocal sent
            for _ in range(10):
                ready(client, sent, "load-")
                sent += 1
                time.sleep(IN_TURN)
            return bool(worker.logged("model.swapped"))

        for _ in range(10):
            under_way()
        choose(publisher, POOL, (), Choice(version, int(time.time() * 1000), "test", "newer"))
        eventually(under_way, "the swap")
        for _ in range(10):
            under_way()
        client.flush()

    found = eventually(lambda: p if len(p := placed(kafka, topics)) >= sent else [], f"{sent} tasks placed")
    versions = [placement.model_version for placement in found]

    assert sorted(p.workflow_id for p in found) == sorted(f"load-{number}" for number in range(sent))
    first_new = versions.index(version)
    assert set(versions[:first_new]) == {OWN}
    assert set(versions[first_new:]) == {version}
    assert worker.metric("headrace_model_info", role="stable", version=version) == 1
    assert worker.metric("headrace_model_info", role="stable", version=OWN) == 0
    assert worker.metric("headrace_fallbacks_total") == 0


def test_bad_weights_are_refused_and_shown_and_those_in_use_stay(
    worker: WorkerProcess, publisher: Publisher, kafka: KafkaSettings, topics: TopicSettings, at_broker: CommandLine
) -> None:
    good = publish(publisher, renamed(SHIPPED, b"good"), "stable").version
    cut_short = to_record(renamed(SHIPPED, b"cut"), "stable", 1)
    cut_short = replace(cut_short, files={**cut_short.files, "node.onnx": cut_short.files["node.onnx"][:-5]})
    nan = to_record(not_finite(SHIPPED), "stable", 2)
    no_onnx = to_record(with_file(SHIPPED, "dag.onnx", b"no ONNX at all"), "stable", 3)
    for record in (cut_short, nan, no_onnx):
        publisher.send(MODELS, record.version, record)
    chosen: tuple[Choice, ...] = ()
    with Client(kafka, POOL, topics) as client:
        for version in (good, cut_short.version, nan.version, no_onnx.version):
            choice = Choice(version, int(time.time() * 1000), "test", "")
            choose(publisher, POOL, chosen, choice)
            chosen = (*chosen, choice)
            event = "model.swapped" if version == good else "model.refused"
            eventually(
                lambda v=version, e=event: [r for r in worker.logged(e) if r["version"] == v], f"{event} {version}"
            )
            assert decide(client, kafka, topics, f"after-{version}-") == {good}

        shown = at_broker("models", "list")
        assert "node.onnx has the SHA-256" in " ".join(shown.output.split())
        assert shown.output.count("refused by") == 3
        assert at_broker("models", "promote", nan.version).code == headrace.EXIT_REFUSED

        # Whoever begins now takes the newest that can be used, from the first decision on.
        worker.terminate()
        worker.start_and_wait()
        assert decide(client, kafka, topics, "restarted-") == {good}


def test_published_promoted_and_taken_back_by_commands(
    worker: WorkerProcess, kafka: KafkaSettings, topics: TopicSettings, at_broker: CommandLine, tmp_path: Path
) -> None:
    folders = {mark: tmp_path / mark for mark in ("a", "b")}
    sets = {mark: renamed(SHIPPED, mark.encode()) for mark in folders}
    versions = {mark: weights.manifest.version for mark, weights in sets.items()}
    for mark, folder in folders.items():
        write_weights(sets[mark], folder)

    def in_use(version: str) -> bool:
        return worker.metric("headrace_model_info", role="stable", version=version) == 1

    assert at_broker("models", "publish", folders["a"]).code == 0
    assert at_broker("models", "promote", versions["a"][:6], "--why", "try a").code == 0
    eventually(lambda: in_use(versions["a"]), "a in use")
    assert at_broker("models", "publish", folders["b"], "--channel", "stable").code == 0
    eventually(lambda: in_use(versions["b"]), "b in use")
    shown = at_broker("models", "list").output
    assert [word in shown for word in (versions["a"], versions["b"], "try a", "in use")] == [True] * 4
    assert at_broker("models", "rollback").code == 0
    eventually(lambda: in_use(versions["a"]), "a again")
    assert at_broker("models", "rollback").code == 0
    eventually(lambda: in_use(OWN), "the worker's own")

    refused = [at_broker("models", *words) for words in (["rollback"], ["promote", "nothing"])]
    assert [one.code for one in refused] == [headrace.EXIT_REFUSED] * 2
    assert "there is nothing to go back from" in refused[0].errors
    assert "'headrace models list' has them all" in refused[1].errors
