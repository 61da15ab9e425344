"""A recorded run is played again from its topics and from an archive: every decision as it was, bit by bit."""

from __future__ import annotations

import time

import pytest

from policy.constraints import Constraints
from policy.decide import DecideSettings
from policy.state import StateSettings
from replay.fidelity import Fidelity, Verifier
from replay.player import Player, Range
from replay.source import KafkaSource, Source
from schemas.codec import Codec
from schemas.records import DecisionBatch
from schemas.topics import DECISIONS, TopicSettings, partition_of
from streams.client import Client
from streams.kafka import KafkaSettings
from streams.policies import PolicySettings, build
from streams.watch import Watch
from tests.cluster_thread import running_cluster
from tests.eventually import eventually
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess
from tests.workload import POOL, SPECS, some_work

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
