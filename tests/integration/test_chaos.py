"""The benchmark that kills workers, in small."""

from __future__ import annotations

from benchmarks.chaos import ChaosSettings, made_up_work, run
from streams.kafka import KafkaSettings
from trainer.workloads import example_nodes

SILENCE_S = 30.0
"""More than a busy machine needs to start a worker."""


def test_a_worker_that_is_killed_again_and_again_loses_nothing_and_comes_back_each_time(kafka: KafkaSettings) -> None:
    specs = example_nodes(16)
    settings = ChaosSettings(kills=2, calm_s=(0.2, 2.0), open_tasks=60, time_scale=100.0, failure_rate=0.1, seed=7)

    damage = run(kafka, made_up_work(specs, 10), specs, settings)

    assert damage.violations == ()
    assert len(damage.silences_s) == 2
    assert max(damage.silences_s) < SILENCE_S
    assert damage.attempts > damage.tasks > settings.open_tasks
