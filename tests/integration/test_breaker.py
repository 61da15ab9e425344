"""A pool whose nodes are loaded unequally: ten tasks go in turn, training is asked for, and a successor knows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policy.constraints import Constraints
from policy.decide import DecideSettings
from policy.heuristics import HEURISTICS
from policy.state import StateSettings
from policy.windows import STEP_MS
from replay.fidelity import Verifier
from replay.player import Player, Range
from replay.source import KafkaSource
from schemas.codec import Codec
from schemas.records import METRICS, Control, NodeMetrics, Outcome, Placement, TaskReady
from schemas.topics import CONTROL, PLACEMENTS, TopicSettings, partition_of
from streams.breaker_watch import RETRAIN
from streams.client import Client
from streams.kafka import KafkaSettings
from tests.builders import a_task, some_metrics, some_nodes
from tests.eventually import eventually
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess

pytestmark = pytest.mark.kafka
POOL = "default"
PACKING = "most_allocated"
NODES = some_nodes(10, cpu=4.0)
START_MS = int(time.time() * 1000) // STEP_MS * STEP_MS


def sample(step: int, used_n: list[float], *, with_specs: bool = False) -> NodeMetrics:
    values_nm = np.zeros((len(NODES), len(METRICS)))
    values_nm[:, 0] = used_n
    nodes = NODES if with_specs else [node.node_id for node in NODES]
    return replace(some_metrics(*nodes, values_nm=values_nm), pool=POOL, event_time_ms=START_MS + STEP_MS * step)


def ready(name: str, step: int) -> TaskReady:
    return TaskReady(POOL, name, "t", 0, START_MS + STEP_MS * step, a_task("t", 1000.0, cpu=1.0))


def placed(kafka: KafkaSettings, topics: TopicSettings, count: int) -> list[Placement]:
    def look() -> list[Placement]:
        found = [p for p in records_of(kafka, topics, PLACEMENTS) if p.outcome == Outcome.PLACED]
        return found if len(found) >= count else []

    return eventually(look, f"{count} placements")


def calls(kafka: KafkaSettings, topics: TopicSettings) -> list[Control]:
    return [r for r in records_of(kafka, topics, CONTROL) if r.command == RETRAIN]


def test_skew_is_answered_at_once_and_by_the_next_owner_and_played_again(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    with (
        WorkerProcess(kafka, topics, tmp_path, policy__name=PACKING, worker__snapshot_s=1) as worker,
        Client(kafka, POOL, topics) as client,
    ):
        worker.wait_until_ready()
        client.sample(sample(0, [0.0] * 10, with_specs=True))
        eventually(lambda: worker.metric("headrace_nodes") == 10, "the nodes")
        for number in range(20):  # five nodes full of them
            client.ready(ready(f"first{number}", 0))
        held = {p.node_id for p in placed(kafka, topics, 20)}
        assert len(held) == 5
        used_n = [1.0 if node.node_id in held else 0.0 for node in NODES]
        client.sample(sample(1, used_n))
        client.sample(sample(2, used_n))
        eventually(lambda: worker.metric("headrace_breaker_open") == 1, "the open breaker")
        (call,) = eventually(lambda: calls(kafka, topics), "the call for training")
        for number in range(4):
            client.ready(ready(f"second{number}", 2))
        assert {p.policy for p in placed(kafka, topics, 24)[20:]} == {"round_robin"}

        eventually(lambda: worker.metric("headrace_snapshot_bytes") > 0, "a snapshot")
        worker.kill()
        worker.start_and_wait()
        for number in range(8):
            client.ready(ready(f"third{number}", 2))
        last = placed(kafka, topics, 32)[24:]
        client.sample(sample(3, used_n))
        told = eventually(lambda: c if len(c := calls(kafka, topics)) > 1 else [], "the call of the next owner")
        worker.terminate()

    assert [p.policy for p in last] == ["round_robin"] * 6 + [PACKING] * 2
    assert (call.event_time_ms, call.arguments["spread"]) == (START_MS + 2 * STEP_MS, "0.5000")
    assert int(call.arguments["to_ms"]) - int(call.arguments["from_ms"]) == 3600_000
    assert {one.event_time_ms for one in told} == {call.event_time_ms}
    player = Player(KafkaSource(kafka, topics), Codec(), partition_of(POOL, 4), StateSettings())
    found = Verifier(HEURISTICS[PACKING], Constraints(()), DecideSettings()).verify(player, Range())
    assert found.differences == []
    assert found.placements == 32
