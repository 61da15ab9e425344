"""A recorded run is played again from its topics and from an archive: every decision as it was, bit by bit."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from policy.constraints import Constraints
from policy.decide import DecideSettings
from policy.state import StateSettings
from replay.archive import ArchiveSource, archive
from replay.fidelity import Fidelity, Verifier
from replay.player import Player, Range
from replay.source import KafkaSource, Source
from schemas.codec import Codec
from schemas.records import DecisionBatch
from schemas.steps import Encoded, read
from schemas.topics import DECISIONS, TopicSettings, partition_of
from streams.client import Client
from streams.kafka import KafkaSettings
from streams.policies import PolicySettings, build, build_actor
from streams.watch import Watch
from tests.cluster_thread import running_cluster
from tests.eventually import eventually
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess
from tests.workload import POOL, SPECS, some_work
from trainer.workloads import example_nodes

pytestmark = pytest.mark.kafka
NUMBER = partition_of(POOL, 4)
WORKFLOWS = 30


@pytest.fixture(scope="module")
def recorded(
    kafka: KafkaSettings, module_topics: TopicSettings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[KafkaSettings, TopicSettings, list[int]]:
    """A run with a worker that is killed twice; the times (ms) at which it was."""
    killed: list[int] = []
    folder = tmp_path_factory.mktemp("recorded")
    watch = Watch(kafka, module_topics, Codec(), POOL)
    work = some_work(WORKFLOWS)
    tasks = sum(len(workflow.tasks) for workflow in work)
    settings = {"policy__name": "actor", "worker__snapshot_s": 2}
    with WorkerProcess(kafka, module_topics, folder, **settings) as worker:
        worker.wait_until_ready()
        with running_cluster(kafka, module_topics, SPECS, POOL), Client(kafka, POOL, module_topics) as client:
            for at, workflow in enumerate(work):
                client.submit(workflow)
                time.sleep(0.2)
                if at in (10, 20):
                    killed.append(int(1000 * time.time()))
                    worker.kill()
                    worker.start_and_wait()
            eventually(lambda: watch.poll() >= 0 and len(watch.trace.finished) == tasks, f"{tasks} tasks finished")
        worker.terminate()
    watch.close()
    return kafka, module_topics, killed


def verified(source: Source, wanted: Range) -> Fidelity:
    policy = build(PolicySettings())
    player = Player(source, Codec(), NUMBER, StateSettings())
    return Verifier(policy, Constraints(()), DecideSettings()).verify(player, wanted)


def decisions(recorded: tuple[KafkaSettings, TopicSettings, list[int]]) -> list[DecisionBatch]:
    kafka, topics, _ = recorded
    return [batch for batch in records_of(kafka, topics, DECISIONS) if batch.workflow_ids]


def test_every_decision_is_made_again_over_the_deaths_of_its_owner(recorded) -> None:
    kafka, topics, _ = recorded

    found = verified(KafkaSource(kafka, topics), Range())

    assert found.differences == []
    assert found.skipped == 0
    assert found.batches == len(decisions(recorded)) > 100


@pytest.fixture(scope="module")
def archived(recorded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kafka, topics, _ = recorded
    folder = tmp_path_factory.mktemp("archive") / "run"
    archive(KafkaSource(kafka, topics), Codec(), folder, range(4), Range(), StateSettings())
    return folder


def test_an_archive_is_played_as_the_topics_are(recorded, archived: Path) -> None:
    found = verified(ArchiveSource(archived, "other."), Range())

    assert found.is_exact
    assert found.batches == len(decisions(recorded))


@pytest.mark.parametrize("death", [0, 1])
def test_a_replay_begins_anywhere(recorded, death: int) -> None:
    kafka, topics, killed = recorded

    found = verified(KafkaSource(kafka, topics), Range(since_ms=killed[death] - 1000))

    assert found.is_exact
    assert 0 < found.batches < len(decisions(recorded))


def test_an_archive_of_a_part_holds_the_snapshots_that_it_takes(recorded, tmp_path: Path) -> None:
    kafka, topics, killed = recorded
    part = Range(since_ms=killed[0] - 500, until_ms=killed[1] + 4000)
    archive(KafkaSource(kafka, topics), Codec(), tmp_path / "part", [NUMBER], part, StateSettings())

    found = verified(ArchiveSource(tmp_path / "part", topics.prefix), part)

    assert found.is_exact
    assert found.batches == verified(KafkaSource(kafka, topics), part).batches > 0
    assert verified(ArchiveSource(tmp_path / "part", topics.prefix), Range()).is_exact


def test_another_temperature_is_another_decision(recorded) -> None:
    kafka, topics, _ = recorded
    policy = replace(build(PolicySettings()), temperature=0.31)
    player = Player(KafkaSource(kafka, topics), Codec(), NUMBER, StateSettings())

    found = Verifier(policy, Constraints(()), DecideSettings()).verify(player, Range())

    assert not found.is_exact
    assert found.differences[0].field == "temperature"
    assert found.skipped > 0


def test_nodes_of_a_large_pool_that_were_encoded_beside_the_decisions_are_again(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    work = some_work(12)
    tasks = sum(len(workflow.tasks) for workflow in work)
    watch = Watch(kafka, topics, Codec(), POOL)
    with WorkerProcess(kafka, topics, tmp_path, policy__name="actor") as worker:
        worker.wait_until_ready()
        with running_cluster(kafka, topics, example_nodes(600), POOL), Client(kafka, POOL, topics) as client:
            for workflow in work:
                client.submit(workflow)
                time.sleep(0.2)
            eventually(lambda: watch.poll() >= 0 and len(watch.trace.finished) == tasks, f"{tasks} tasks finished")
        worker.terminate()
    watch.close()
    steps = [step for batch in records_of(kafka, topics, DECISIONS) for step in read(batch.steps)]
    assert any(isinstance(step, Encoded) for step in steps)
    actor = build_actor(PolicySettings(), synchronous=False)
    player = Player(KafkaSource(kafka, topics), Codec(), NUMBER, StateSettings(), actor)

    found = Verifier(actor.policy(), Constraints(()), DecideSettings()).verify(player, Range())

    assert found.differences == []
    assert found.batches > 10
