"""Fine-tuning on what a run left in a real Kafka: read from an archive, called for, sent to the topics."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from policy.actor import load_actor
from policy.state import StateSettings
from policy.weight_set import shipped_weights
from replay.archive import ArchiveSource, archive
from replay.fine_tune import Deployment, RunSettings, Verdict, run
from replay.fine_tune_loop import Calls
from replay.player import Range
from replay.quality import QualitySettings
from replay.source import KafkaSource
from schemas.codec import Codec
from schemas.records import Control, Env
from schemas.topics import CONTROL, TopicSettings, partition_of
from streams.breaker_watch import RETRAIN
from streams.kafka import KafkaSettings, Publisher
from tests.cluster_thread import TIME_SCALE
from tests.command_line import CommandLine
from tests.recorded_run import record_run
from tests.workload import POOL, some_work
from trainer.fine_tune import FineTuneSettings

pytestmark = [pytest.mark.kafka, pytest.mark.journey]
NUMBER = partition_of(POOL, 4)
WORKFLOWS = 30


@pytest.fixture(scope="module")
def archived(kafka: KafkaSettings, module_topics: TopicSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a run of prod work."""
    work = [replace(workflow, env=Env.PROD) for workflow in some_work(WORKFLOWS)]
    record_run(kafka, module_topics, tmp_path_factory.mktemp("run"), work)
    folder = tmp_path_factory.mktemp("archive") / "run"
    archive(KafkaSource(kafka, module_topics), Codec(), folder, [NUMBER], Range(), StateSettings())
    return folder


def test_weights_that_learnt_from_an_archive_serve_and_know_the_offsets(archived: Path, tmp_path: Path) -> None:
    settings = RunSettings(
        out=tmp_path,
        tuning=FineTuneSettings(steps=10, learning_rate=1e-7),  # two scenarios would judge more by chance
        scenarios=2,
        processes=1,
        least_decisions=50,
        least_workflows=4,
        quality=QualitySettings(time_scale=TIME_SCALE),
    )
    source = ArchiveSource(archived, "any.")

    report, weights = run(source, Codec(), Range(), shipped_weights(), Deployment(pool=POOL, number=NUMBER), settings)

    assert report.verdict == Verdict.ACCEPTED, report.in_words()
    assert weights is not None
    assert report.decisions + report.held_out > 200
    assert report.mean_weight == pytest.approx(1.0, abs=1e-3)
    assert load_actor(tmp_path / weights.manifest.version, device="cpu").version == report.candidate
    for name, (low, high) in weights.manifest.learned_from.items():
        topic, _, number = name.rpartition("/")
        assert int(number) == NUMBER
        assert 0 <= low < high, topic


def test_the_command_says_why_it_made_nothing(
    archived: Path, command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_POOL", POOL)

    done = command(
        "fine-tune", "--archive", str(archived), "--out", str(tmp_path), "--time-scale", str(TIME_SCALE), "--emergency"
    )

    assert done.code == 1
    assert "too_little" in done.output
    (kept,) = tmp_path.iterdir()
    assert json.loads(kept.read_text())["kind"] == "emergency"


def test_a_call_is_heard_once(kafka: KafkaSettings, topics: TopicSettings) -> None:
    now_ms = int(1000 * time.time())
    publisher, calls = Publisher(kafka, topics, Codec()), Calls(kafka, topics, Codec(), POOL)
    for pool, at_ms in (("other", now_ms), (POOL, now_ms), (POOL, now_ms)):
        publisher.send(CONTROL, f"{pool} {RETRAIN}", Control(pool, at_ms, RETRAIN))
    publisher.close()

    heard = [calls.waiting(2.0, now_ms) for _ in range(3)]

    assert heard.count(True) == 1
    calls.close()
