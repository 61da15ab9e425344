"""A run in which weights were swapped, and shared work with a canary, is played again bit by bit."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from benchmarks.weights import renamed, upside_down
from policy.actor import Actor, ActorSettings
from policy.canary_stages import CanarySettings, begun
from policy.constraints import Constraints
from policy.decide import DecideSettings
from policy.state import StateSettings
from policy.weight_set import shipped_weights
from replay.cast import Cast
from replay.fidelity import Fidelity, Verifier
from replay.player import Player, Range
from replay.source import KafkaSource
from schemas.codec import Codec
from schemas.records import DecisionBatch
from schemas.steps import Encoded, Uses, read
from schemas.topics import DECISIONS, TopicSettings, partition_of
from streams.client import Client
from streams.kafka import KafkaSettings, Publisher
from streams.model_topic import Choice, ModelTopic, choose, publish, send_control
from streams.policies import PolicySettings, Roles, build_actor
from streams.watch import Watch
from tests.cluster_thread import running_cluster
from tests.eventually import eventually
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess
from tests.workload import POOL, some_work
from trainer.workloads import example_nodes

pytestmark = [pytest.mark.kafka, pytest.mark.journey]
NUMBER = partition_of(POOL, 4)
SHIPPED = shipped_weights()
NODES = 600
"""So many that they are encoded beside the decisions."""
WORKFLOWS = 24


def loaded(kafka: KafkaSettings, topics: TopicSettings, version: str) -> Actor:
    with ModelTopic(kafka, topics, Codec()) as models:
        return Actor(models.weights(version), ActorSettings(synchronous=False))


def verified(kafka: KafkaSettings, topics: TopicSettings, wanted: Range) -> Fidelity:
    actor = build_actor(PolicySettings(), synchronous=False)
    cast = Cast(Roles(actor.policy(), actor), partial(loaded, kafka, topics))
    player = Player(KafkaSource(kafka, topics), Codec(), NUMBER, StateSettings(), cast=cast)
    return Verifier(actor.policy(), Constraints(()), DecideSettings(), cast).verify(player, wanted)


def test_over_swaps_a_canary_and_a_death_every_decision_is_made_again(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    watch = Watch(kafka, topics, Codec(), POOL)
    work = some_work(WORKFLOWS)
    tasks = sum(len(workflow.tasks) for workflow in work)
    with (
        closing(Publisher(kafka, topics, Codec())) as publisher,
        WorkerProcess(kafka, topics, tmp_path, policy__name="actor", worker__snapshot_s=2) as worker,
    ):
        second = publish(publisher, renamed(SHIPPED, b"second"), "stable").version
        third = publish(publisher, upside_down(SHIPPED), "canary").version
        worker.wait_until_ready()
        with running_cluster(kafka, topics, example_nodes(NODES), POOL), Client(kafka, POOL, topics) as client:
            for at, workflow in enumerate(work):
                client.submit(workflow)
                time.sleep(0.2)
                if at == 5:
                    choose(publisher, POOL, (), Choice(second, int(1000 * time.time()), "test", ""))
                    eventually(lambda: worker.logged("model.swapped"), "the swap")
                elif at == 10:
                    progress = begun(CanarySettings(shares=(0.5,)), third, 0, "test", "")
                    send_control(publisher, progress.record(POOL, int(1000 * time.time()), {}))
                    eventually(lambda: len(worker.logged("model.swapped")) == 2, "the canary")
                elif at == 16:
                    worker.kill()
                    worker.start_and_wait()
            eventually(lambda: watch.poll() >= 0 and len(watch.trace.finished) == tasks, f"{tasks} tasks finished")
        worker.terminate()
    watch.close()

    batches = [batch for batch in records_of(kafka, topics, DECISIONS) if isinstance(batch, DecisionBatch)]
    steps = [step for batch in batches for step in read(batch.steps)]
    assert {SHIPPED.manifest.version, second, third} <= {batch.model_version for batch in batches}
    assert any(isinstance(step, Encoded) for step in steps)
    assert sum(step.is_swap for step in steps if isinstance(step, Uses)) == 2
    found = verified(kafka, topics, Range())
    assert found.differences == []
    assert found.is_exact
    assert found.batches == sum(1 for batch in batches if batch.workflow_ids) > 20
