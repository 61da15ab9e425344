"""What decisions were worth, from a real Kafka: told once, recorded once, whatever starts again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import REGISTRY

import headrace
from policy.credit import Credits
from policy.ledger import AttemptKey
from schemas.codec import Codec
from schemas.records import REWARD_TERMS, Placement, Reward, Stage
from schemas.topics import REWARDS, TopicSettings
from streams import reward_report
from streams.client import Client
from streams.kafka import KafkaSettings, Publisher
from streams.rewards import MEAN_OF, Recorder, Rewards, latest
from streams.watch import Watch
from tests.cluster_thread import running_cluster
from tests.command_line import CommandLine
from tests.eventually import eventually
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess
from tests.workload import POOL, SPECS, some_work


@pytest.fixture
def finished(
    at_broker: CommandLine, kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> Iterator[dict[AttemptKey, Placement]]:
    """Workflows that were run to their end, the last of them under other weights; returns the placements."""
    watch = Watch(kafka, topics, Codec(), POOL)
    try:
        with (
            WorkerProcess(kafka, topics, tmp_path) as worker,
            running_cluster(kafka, topics, SPECS, POOL),
            Client(kafka, POOL, topics) as client,
        ):
            worker.wait_until_ready()
            run(client, watch, "before")
            assert at_broker("reward", "--weight", "cost=0.6", "--weight", "pcie=0.1").code == 0
            run(client, watch, "after")
            yield watch.trace.placements
    finally:
        watch.close()


def run(client: Client, watch: Watch, prefix: str) -> None:
    workflows = some_work(3, prefix=prefix)
    tasks = {(workflow.workflow_id, task.task_id) for workflow in workflows for task in workflow.tasks}
    for workflow in workflows:
        client.submit(workflow)

    def is_over() -> bool:
        watch.poll()
        return tasks <= watch.trace.finished and tasks <= {key[:2] for key in watch.trace.placements}

    eventually(is_over, f"all of {prefix} finished")


def rewards(kafka: KafkaSettings, topics: TopicSettings) -> Rewards:
    return Rewards(kafka, topics, Codec(), POOL, Credits(POOL))


def recorded(kafka: KafkaSettings, topics: TopicSettings) -> list[Reward]:
    return [record for record in records_of(kafka, topics, REWARDS) if isinstance(record, Reward)]


def record_all(kafka: KafkaSettings, topics: TopicSettings) -> int:
    """A recorder that starts, and looks once."""
    publisher = Publisher(kafka, topics, Codec())
    try:
        recorder = Recorder(rewards(kafka, topics), publisher)
        recorder.catch_up()
        return recorder.record()
    finally:
        publisher.close()


def weight_of(reward: Reward, term: str) -> float:
    return reward.weights[REWARD_TERMS.index(term)]


def test_every_decision_is_told_settled_recorded_once_and_shown(
    finished: dict[AttemptKey, Placement],
    kafka: KafkaSettings,
    topics: TopicSettings,
    at_broker: CommandLine,
    tmp_path: Path,
) -> None:
    told = list(rewards(kafka, topics).news())
    of_attempt = {(r.workflow_id, r.task_id, r.attempt): r for r in latest(told)}

    assert of_attempt.keys() == finished.keys()
    assert {r.stage for r in of_attempt.values()} == {Stage.SETTLED}
    assert {(r.node_id, r.policy) for r in told} == {(p.node_id, p.policy) for p in finished.values()}
    assert all(-1 <= term <= 1 for r in told for term in r.terms)

    # Whoever reads the same topics tells the same: the order is the broker's.
    assert list(rewards(kafka, topics).news()) == told

    # The weights of the command hold from its place in that order on.
    assert {(r.workflow_id[:2], weight_of(r, "cost_cpu"), weight_of(r, "pcie")) for r in told} == {
        ("be", -0.3, 0.0),
        ("af", -0.6, 0.1),
    }

    # A recorder that starts again records nothing twice.
    assert record_all(kafka, topics) == len(told)
    assert record_all(kafka, topics) == 0
    newest = [r.reward for r in told if r.stage == Stage.SETTLED][-MEAN_OF:]
    assert REGISTRY.get_sample_value("headrace_reward_mean", {"term": "reward"}) == pytest.approx(np.mean(newest))
    assert recorded(kafka, topics) == told
    assert set(Counter((r.workflow_id, r.task_id, r.attempt, r.stage) for r in recorded(kafka, topics)).values()) == {1}

    # The command shows what is recorded.
    ended = at_broker("reward", "--last", 500, "--out", tmp_path / "out")
    assert (ended.code, ended.errors) == (0, "")
    assert reward_report.read(tmp_path / "out") == latest(told)
    first = told[0]
    in_full = at_broker("reward", f"{first.workflow_id}/{first.task_id}")
    assert f"{first.workflow_id}/{first.task_id}#0 on {first.node_id}" in in_full.output
    assert at_broker("reward", "nothing").code == headrace.EXIT_REFUSED


def test_weights_that_are_none_are_refused_and_not_sent(
    at_broker: CommandLine, kafka: KafkaSettings, topics: TopicSettings
) -> None:
    ended = [at_broker("reward", "--weight", text) for text in ("slo=1", "sla=lots", "sla", "sla=-1")]

    assert [one.code for one in ended] == [headrace.EXIT_REFUSED] * 4
    assert "did you mean 'sla'?" in ended[0].errors
    assert list(rewards(kafka, topics).news()) == []
