"""A recorded run is played again from its topics and from an archive: every decision as it was, bit by bit."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from policy.constraints import Constraints
from policy.credit import Credits
from policy.decide import DecideSettings
from policy.heuristics import HEURISTICS
from policy.state import StateSettings
from replay.archive import ArchiveSource, archive
from replay.continuation import ContinuationSettings
from replay.fidelity import Fidelity, Verifier
from replay.live_shadow import LiveShadow
from replay.player import Player, Range
from replay.promotion import Promotion, PromotionSettings
from replay.shadow import Shadow, ShadowSettings
from replay.shadow_report import Saved, newest, standing
from replay.source import KafkaSource, Source
from schemas.codec import Codec
from schemas.records import DecisionBatch
from schemas.steps import Encoded, read
from schemas.topics import CONTROL, DECISIONS, SHADOW_PLACEMENTS, TopicSettings, partition_of
from streams.client import Client
from streams.config import Settings
from streams.kafka import KafkaSettings, Publisher
from streams.policies import PolicySettings, build, build_actor
from streams.watch import Watch
from tests.cluster_thread import running_cluster
from tests.command_line import CommandLine
from tests.eventually import eventually
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess
from tests.workload import POOL, SPECS, some_work
from trainer.workloads import example_nodes

pytestmark = [pytest.mark.kafka, pytest.mark.journey]
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


def settings_of(kafka: KafkaSettings, topics: TopicSettings) -> Settings:
    return Settings(pool=POOL, kafka=kafka, topics=topics)


def a_shadow() -> Shadow:
    heft = HEURISTICS["heft"]
    rare = ShadowSettings(every_s=1800.0, horizon_s=60.0, lucks=1)
    return Shadow(heft, lambda name: heft, Constraints(()), rare, ContinuationSettings(), Credits(POOL))


def test_a_live_shadow_publishes_what_it_would_have_decided_and_goes_on_after_a_restart(recorded) -> None:
    kafka, topics, killed = recorded
    settings, codec, rule = settings_of(kafka, topics), Codec(), PromotionSettings(days=3)
    wanted = sum(1 for batch in decisions(recorded) if batch.width for node in batch.node_ids if node)
    publisher = Publisher(kafka, topics, codec)
    first = LiveShadow(
        settings, a_shadow, "heft", codec, publisher, Saved("heft", 0, Promotion(rule), "nothing yet"), rule
    )
    thread = threading.Thread(target=first.run, daemon=True)
    thread.start()
    placements = eventually(
        lambda: [] if len(found := records_of(kafka, topics, SHADOW_PLACEMENTS)) < wanted - 20 else found,
        "shadow placements",
    )
    first.stop.set()
    thread.join(60)
    publisher.flush()
    placements = records_of(kafka, topics, SHADOW_PLACEMENTS)
    saved = newest(kafka, topics.full_name(CONTROL), POOL, codec)

    assert not thread.is_alive()
    assert {placement.policy for placement in placements} == {"heft"}
    assert len(placements) <= wanted
    assert saved is not None
    assert saved.promotion.settings == rule
    assert saved.at_ms > killed[0]
    assert "candidate heft: asked about" in "\n".join(standing(saved))

    again = LiveShadow(settings, a_shadow, "heft", codec, publisher, saved, rule)
    thread = threading.Thread(target=again.run, daemon=True)
    thread.start()
    time.sleep(3.0)
    again.stop.set()
    thread.join(60)
    publisher.close()

    everything = records_of(kafka, topics, SHADOW_PLACEMENTS)
    keys = [(p.workflow_id, p.task_id, p.attempt) for p in everything]
    assert len(keys) - len(set(keys)) < 10  # the turn at which it ended may be told twice


def test_the_commands_on_a_recorded_run(recorded, archived: Path, command: CommandLine, tmp_path: Path) -> None:
    kafka, topics, _ = recorded
    config = tmp_path / "settings.yaml"
    config.write_text(
        f"kafka: {{bootstrap_servers: '{kafka.bootstrap_servers}'}}\ntopics: {{prefix: {topics.prefix}}}\n"
    )
    batch = next(b for b in decisions(recorded) if b.width and all(b.node_ids))
    name = f"{batch.workflow_ids[0]}/{batch.task_ids[0]}"

    part = command("archive", tmp_path / "part", "--from", "2h", "--config", config)
    again = command("archive", tmp_path / "part", "--config", config)
    exact = command("replay", "--config", config, "--all-pools")
    other = command("replay", "--archive", archived, "--config", tmp_path / "none.yaml")
    shadow = command(
        "shadow", "--candidate", "heft", "--archive", archived, "--every", 3600, "--out", tmp_path / "s.json"
    )
    whatif = command("whatif", name, "--policy", "heft", "--archive", archived)

    assert part.code == 0
    assert "decisions-" in part.errors
    assert again.code == 2
    assert "holds an archive already" in again.errors
    assert exact.code == 0
    assert f"partition {NUMBER}: " in exact.output
    assert " 0 differ, 0 not compared" in exact.output
    assert other.code == 2
    assert shadow.code == 0, shadow.errors
    assert "candidate heft: asked about" in shadow.output
    assert json.loads((tmp_path / "s.json").read_text())["decisions"] > 100
    assert whatif.code == 0, whatif.errors
    assert "otherwise: " in whatif.output
