"""A worker ends, in order or not, and another one goes on from where it was."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.audit import EVENTS_SEEN, Log, problems, read_log
from policy.state import State, StateSettings
from schemas.codec import Codec
from schemas.records import METRICS, EventKind, NodeMetrics, SnapshotPart, TaskReady
from schemas.topics import PLACEMENTS, SNAPSHOTS, STATE_INPUTS, TASK_READY, Topic, TopicSettings, partition_of
from streams import snapshots
from streams.client import Client
from streams.kafka import KafkaSettings, Publisher, admin
from streams.partition import Partition
from streams.restore import restore
from streams.topic_admin import create_topics
from streams.watch import Watch
from tests.builders import a_node, a_task
from tests.cluster_thread import running_cluster
from tests.eventually import eventually
from tests.topic_records import messages_of, records_of
from tests.worker_process import WorkerProcess
from tests.workload import POOL, SPECS, some_work

NUMBER = partition_of(POOL, 4)
DRAIN_S = 20.0
NEVER_S = 3600
RESTORED = 6000
SLOW = 18.0
"""A time scale at which attempts outlast a restart."""
ROOM, TASKS = 4, 10


@pytest.fixture
def watch(kafka: KafkaSettings, topics: TopicSettings) -> Iterator[Watch]:
    watch = Watch(kafka, topics, Codec(), POOL)
    yield watch
    watch.close()


def restored(worker: WorkerProcess) -> dict[str, Any]:
    """How the pool's partition was restored."""
    (line,) = [line for line in worker.logged("partition.restored") if line["partition"] == NUMBER]
    return line


def test_a_worker_that_is_told_to_stop_saves_its_state_for_the_next_one(
    kafka: KafkaSettings, topics: TopicSettings, watch: Watch, tmp_path: Path
) -> None:
    with WorkerProcess(kafka, topics, tmp_path, worker__snapshot_s=NEVER_S) as worker:
        worker.wait_until_ready()
        with running_cluster(kafka, topics, SPECS, POOL), Client(kafka, POOL, topics) as client:
            for workflow in some_work(3):
                client.submit(workflow)
            eventually(lambda: watch.poll() >= 0 and watch.trace.open_tasks == 0 < len(watch.trace.tasks), "the end")
        stopped = time.monotonic()

        exit_code = worker.terminate()

        assert exit_code == 0
        assert time.monotonic() - stopped < DRAIN_S
        worker.start_and_wait()
        assert restored(worker)["has_snapshot"]
        written = sum(len(messages_of(kafka, topics, topic)) for topic in (*STATE_INPUTS, PLACEMENTS))
        assert restored(worker)["records"] < written / 10


def test_a_worker_that_is_told_to_stop_while_it_starts_stops(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    with WorkerProcess(kafka, topics, tmp_path) as worker:
        eventually(lambda: worker.logged("worker.starting"), "a worker that starts")

        exit_code = worker.terminate()

    assert exit_code == 0


def test_a_worker_that_is_told_to_stop_while_it_restores_stops(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    with Client(kafka, POOL, topics) as client:
        for number in range(RESTORED):
            client.ready(TaskReady(POOL, f"w{number}", "t", 0, 1_700_000_000_000, a_task("t")))
        client.flush()
    with WorkerProcess(kafka, topics, tmp_path) as worker:
        eventually(lambda: worker.logged("partition.restored"), "a first partition, one of those that are empty")

        exit_code = worker.terminate()

    assert exit_code == 0


def test_a_topic_that_was_deleted_and_created_again_is_said_to_be(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    with WorkerProcess(kafka, topics, tmp_path, worker__snapshot_s=NEVER_S) as worker:
        worker.wait_until_ready()
        with Client(kafka, POOL, topics) as client:
            Crowd(client)
            eventually(lambda: worker.metric("headrace_records_total", topic="task-ready") >= TASKS, "all folded")
        assert worker.terminate() == 0
        recreate(kafka, topics, TASK_READY)

        worker.start()

        assert worker.end() == 70
        assert "was deleted and created again" in worker.log


def recreate(kafka: KafkaSettings, topics: TopicSettings, topic: Topic) -> None:
    name = topics.full_name(topic)
    client = admin(kafka)  # one that is not kept ends its requests
    client.delete_topics([name])[name].result()
    eventually(lambda: create_topics(kafka, topics) == [name], "the topic, empty")


@pytest.mark.parametrize(("seed", "snapshot_s"), [(2, NEVER_S), (3, 0.5)], ids=["topics alone", "snapshots"])
def test_a_worker_killed_at_any_moment_loses_nothing_and_gives_nothing_away_twice(
    kafka: KafkaSettings, topics: TopicSettings, watch: Watch, tmp_path: Path, seed: int, snapshot_s: float
) -> None:
    work = some_work(6, seed)
    tasks = sum(len(workflow.tasks) for workflow in work)
    moment = int(np.random.default_rng(seed).integers(1, tasks * 2 // 3))
    with (
        WorkerProcess(kafka, topics, tmp_path, worker__instance="a", worker__snapshot_s=snapshot_s) as worker,
        running_cluster(kafka, topics, SPECS, POOL, time_scale=SLOW),
        Client(kafka, POOL, topics) as client,
    ):
        worker.wait_until_ready()
        for workflow in work:
            client.submit(workflow)
        eventually(lambda: watch.poll(0.001) >= 0 and len(watch.trace.placements) >= moment, "the moment")

        worker.kill()
        worker.start_and_wait()

        eventually(lambda: watch.poll() >= 0 and len(watch.trace.finished) == tasks, f"{tasks} tasks finished")
    log = read_log(kafka, topics, POOL)
    assert problems(log, SPECS) == []
    assert count_inherited(log) > 0


def count_inherited(log: Log) -> int:
    """Attempts that the first owner placed, and that ended when the second one decided."""
    second = log.owners[-1]
    seen = next(placement.as_of[EVENTS_SEEN] for placement in log.effective if placement.epoch == second)
    inherited = {(p.workflow_id, p.task_id, p.attempt) for p in log.effective if p.epoch < second}
    ended = {
        (e.workflow_id, e.task_id, e.attempt) for at, e in log.events if at >= seen and e.kind == EventKind.FINISHED
    }
    return len(inherited & ended)


class Crowd:
    """More tasks than there is room for, from an engine that never runs them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        nodes = tuple(a_node(f"n{i}", cpu=1.0) for i in range(ROOM))
        values_nm = np.zeros((ROOM, len(METRICS)), "<f4")
        ids = tuple(node.node_id for node in nodes)
        client.sample(NodeMetrics(client.pool, now_ms(), "crowd", ids, values_nm.tobytes(), nodes))
        for number in range(TASKS):
            client.ready(TaskReady(client.pool, f"w{number}", "t", 0, now_ms(), a_task("t", 600.0)))
        client.flush()

    @staticmethod
    def is_settled(worker: WorkerProcess) -> bool:
        """Whether the worker says that as many run, and wait, as must."""
        running, waiting = (worker.metric(f"headrace_{name}") for name in ("running_attempts", "pending_tasks"))
        return (running, waiting) == (ROOM, TASKS - ROOM)


def now_ms() -> int:
    return int(time.time() * 1000)


def where_everything_runs(kafka: KafkaSettings, topics: TopicSettings) -> dict[str, str | None]:
    """Workflow -> node, of placements in effect."""
    return {placement.workflow_id: placement.node_id for placement in read_log(kafka, topics, POOL).effective}


@pytest.mark.parametrize("snapshot_s", [NEVER_S, 0.2], ids=["from the topics alone", "from a snapshot"])
def test_after_a_kill_the_same_attempts_run_and_wait(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path, snapshot_s: float
) -> None:
    with (
        WorkerProcess(kafka, topics, tmp_path, worker__instance="a", worker__snapshot_s=snapshot_s) as worker,
        Client(kafka, POOL, topics) as client,
    ):
        worker.wait_until_ready()
        crowd = Crowd(client)
        eventually(lambda: crowd.is_settled(worker), "all decided")
        if snapshot_s != NEVER_S:
            eventually(lambda: saw_everything(kafka, topics), "a snapshot of that")
        before = where_everything_runs(kafka, topics)

        worker.kill()
        worker.start_and_wait()

        assert restored(worker)["has_snapshot"] is (snapshot_s != NEVER_S)
        eventually(lambda: crowd.is_settled(worker), "the same attempts")
        assert where_everything_runs(kafka, topics) == before
        assert len(before) == ROOM


def saw_everything(kafka: KafkaSettings, topics: TopicSettings) -> bool:
    """Whether the newest snapshot holds all tasks."""
    saved = snapshots.read(kafka, topics, Codec(), NUMBER, StateSettings())
    return saved is not None and saved.offsets.get("task-ready", 0) == TASKS


def test_a_damaged_snapshot_is_passed_over_for_an_older_one(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    with WorkerProcess(kafka, topics, tmp_path) as worker, Client(kafka, POOL, topics) as client:
        worker.wait_until_ready()
        crowd = Crowd(client)
        eventually(lambda: crowd.is_settled(worker), "all decided")
        assert worker.terminate() == 0
        write_damaged_snapshot(kafka, topics)
        write_garbage(kafka, topics)

        worker.start_and_wait()

        assert [line["partition"] for line in worker.logged("snapshot.damaged")] == [NUMBER]
        assert worker.logged("snapshot.undecodable")
        assert restored(worker)["has_snapshot"]
        eventually(lambda: crowd.is_settled(worker), "the same attempts")


def test_without_a_usable_snapshot_the_topics_tell_everything(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    with (
        WorkerProcess(kafka, topics, tmp_path, worker__snapshot_s=NEVER_S) as worker,
        Client(kafka, POOL, topics) as client,
    ):
        worker.wait_until_ready()
        crowd = Crowd(client)
        eventually(lambda: crowd.is_settled(worker), "all decided")
        worker.kill()
        write_garbage(kafka, topics)

        worker.start_and_wait()

        assert not restored(worker)["has_snapshot"]
        eventually(lambda: crowd.is_settled(worker), "the same attempts")


def write_damaged_snapshot(kafka: KafkaSettings, topics: TopicSettings) -> None:
    """The newest snapshot again, complete with its index, with one bit turned over."""
    parts: list[SnapshotPart] = records_of(kafka, topics, SNAPSHOTS)
    index = max((part for part in parts if part.part == snapshots.INDEX), key=lambda part: part.slot)
    payload = bytearray(b"".join(part.payload for part in parts if part.slot == index.slot))
    payload[len(payload) // 2] ^= 1
    publisher = Publisher(kafka, topics, Codec())
    slot = index.slot + 1
    found: list[int] = []
    damaged = SnapshotPart(slot, 0, 1, slot, index.digest, {}, bytes(payload))
    publisher.send(SNAPSHOTS, f"{slot}", damaged, NUMBER, on_delivery=lambda m: found.append(m.offset() or 0))
    publisher.flush()
    offsets = {**index.offsets, snapshots.FIRST_PART: found[0]}
    publisher.send(
        SNAPSHOTS, f"{slot}", SnapshotPart(slot, snapshots.INDEX, 1, slot, index.digest, offsets, b""), NUMBER
    )
    publisher.close()


def write_garbage(kafka: KafkaSettings, topics: TopicSettings) -> None:
    publisher = Publisher(kafka, topics, Codec())
    publisher.send_bytes(SNAPSHOTS, "garbage", b"\xc3\x01 is no snapshot", NUMBER)
    publisher.close()


def test_a_snapshot_and_what_came_since_say_the_same_as_all_the_topics(
    kafka: KafkaSettings, topics: TopicSettings, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WorkerProcess(kafka, topics, tmp_path, worker__snapshot_s=0.3) as worker:
        worker.wait_until_ready()
        with running_cluster(kafka, topics, SPECS, POOL), Client(kafka, POOL, topics) as client:
            for workflow in some_work(10):
                client.submit(workflow)
            eventually(lambda: watch.poll(0.001) >= 0 and len(watch.trace.finished) >= 20, "some tasks finished")
        eventually(lambda: worker.metric("headrace_consumer_lag_records") == 0, "all folded")
        worker.kill()

    from_snapshot = state_restored(kafka, topics)
    monkeypatch.setattr(snapshots, "read", lambda *_: None)
    from_topics = state_restored(kafka, topics)

    assert essence(from_snapshot) == essence(from_topics)
    assert len(from_topics.ledger) > 0


def state_restored(kafka: KafkaSettings, topics: TopicSettings) -> State:
    partition = Partition(NUMBER, topics.partitions, StateSettings())
    publisher = Publisher(kafka, topics, Codec())
    restore(partition, kafka, topics, Codec(), publisher, "a test")
    publisher.close()
    return partition.pools[POOL]


def essence(state: State) -> dict[str, Any]:
    """What runs, what waits, and how far each task is."""
    return {
        "reserved": {key: (state.nodes.specs[held.node].node_id, held.request) for key, held in state.ledger},
        "waits": sorted(zip((t.task.task_id for t in rows.tasks), rows.attempts, strict=True))
        if (rows := state.queue.rows())
        else [],
        "tasks": {
            (workflow_id, task.task.task_id): (task.status, task.attempt, task.ready_attempt, task.ended_attempt)
            for workflow_id, workflow in state.workflows.items()
            for task in workflow.tasks
        },
        "finished": sorted(state.finished),
        "now_ms": state.now_ms,
    }
