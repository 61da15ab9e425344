"""From a recorded run to weights in use, step by step, and back: what an operator does before trusting a policy."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.weights import upside_down
from policy.canary_stages import CanarySettings, Phase
from policy.weight_set import shipped_weights
from replay.archive import ArchiveSource
from replay.fine_tune import Deployment, RunSettings, Verdict, run
from replay.player import Range
from replay.quality import QualitySettings
from schemas.codec import Codec
from schemas.records import Env
from schemas.topics import TopicSettings, partition_of
from streams.client import Client
from streams.kafka import KafkaSettings, Publisher
from streams.model_topic import publish
from tests.builders import GIB
from tests.cluster_thread import TIME_SCALE, running_cluster
from tests.command_line import CommandLine
from tests.eventually import eventually
from tests.integration.test_canary import (
    FAST_AND_SLOW,
    PATIENT,
    POOL,
    Clock,
    Load,
    placed,
    watching,
)
from tests.worker_process import WorkerProcess
from tests.workload import some_work
from trainer.fine_tune import FineTuneSettings

pytestmark = [pytest.mark.kafka, pytest.mark.journey]
NODES = [replace(spec, gpu=2, gpu_memory_bytes=40 * GIB) for spec in FAST_AND_SLOW]
TUNING = RunSettings(
    out=Path(),
    tuning=FineTuneSettings(steps=10, learning_rate=1e-7),  # two scenarios would judge more by chance
    scenarios=2,
    processes=1,
    least_decisions=50,
    least_workflows=4,
    quality=QualitySettings(time_scale=TIME_SCALE),
)


def test_a_run_is_recorded_replayed_shadowed_learnt_from_swapped_in_and_a_bad_canary_is_driven_back(
    kafka: KafkaSettings, topics: TopicSettings, at_broker: CommandLine, publisher: Publisher, tmp_path: Path
) -> None:
    settings = {"policy__name": "actor", "state__breaker__tasks": 0, "worker__snapshot_s": 2}
    with (
        WorkerProcess(kafka, topics, tmp_path, **settings) as worker,
        running_cluster(kafka, topics, NODES, POOL),
        Client(kafka, POOL, topics) as client,
    ):
        worker.wait_until_ready()
        load = Load(kafka, topics)
        for workflow in some_work(24, prefix="r"):
            client.submit(replace(workflow, env=Env.PROD))
            load.tasks += len(workflow.tasks)
            time.sleep(0.1)
        load.finish()

        # Recorded, and made again.
        archived = tmp_path / "archive"
        assert at_broker("archive", archived).code == 0
        replayed = at_broker("replay", "--archive", archived)
        assert (replayed.code, " 0 differ, 0 not compared" in replayed.output) == (0, True), replayed.output

        # What another policy would have done.
        shadowed = at_broker("shadow", "--candidate", "random", "--archive", archived, "--every", "1800")
        assert shadowed.code == 0, shadowed.errors
        assert "played on under both: makespan +" in shadowed.output

        # Learnt from, and in use without a restart.
        source = ArchiveSource(archived, topics.prefix)
        deployment = Deployment(pool=POOL, number=partition_of(POOL, 4))
        report, tuned = run(
            source, Codec(), Range(), shipped_weights(), deployment, replace(TUNING, out=tmp_path / "tuned")
        )
        assert report.verdict == Verdict.ACCEPTED, report.in_words()
        assert tuned is not None
        version = tuned.manifest.version
        swapped = at_broker("models", "publish", tmp_path / "tuned" / version, "--channel", "stable")
        assert swapped.code == 0, swapped.errors
        eventually(lambda: worker.metric("headrace_model_info", role="stable", version=version) == 1, "its use")

        # A bad one drives itself back.
        bad = publish(publisher, upside_down(tuned), "canary").version
        canary = CanarySettings(shares=(0.5, 1.0), look_s=0.2, guardrails=PATIENT)
        with watching(kafka, topics, publisher, canary, Clock()) as controller:
            assert at_broker("canary", "start", bad).code == 0
            load.until(lambda: controller.progress and not controller.progress.is_running, "its end")
            assert controller.progress is not None
            assert controller.progress.phase == Phase.BACK
            eventually(lambda: worker.metric("headrace_canary_share") == 0.0, "the way back")
            seen = load.submitted
            load.go_on(10)
            load.finish()
        load.close()
        worker.terminate()

    after = [p for p in placed(kafka, topics) if p.workflow_id[0] == "w" and int(p.workflow_id[1:]) >= seen]
    assert {p.model_version for p in after} == {version}
    assert "cause: " in at_broker("canary", "status").output

    # All of it can be made again: the swap, the canary and its end too.
    replayed = at_broker("replay")
    assert (replayed.code, " 0 differ, 0 not compared" in replayed.output) == (0, True), replayed.output
