"""What breaks around the worker: the broker, nodes, tasks, the cluster as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.audit import Log, problems, read_log
from policy.simulator import SimulatorSettings
from schemas.records import EventKind
from schemas.topics import TopicSettings
from streams.broker import BrokerSettings, EmbeddedBroker, free_port
from streams.client import Client
from streams.kafka import KafkaSettings
from streams.supervisor import Supervised
from streams.topic_admin import create_topics
from tests.cluster_thread import running_cluster
from tests.eventually import eventually
from tests.processes import is_running
from tests.worker_process import WorkerProcess
from tests.workload import POOL, SPECS, some_work

pytestmark = pytest.mark.kafka

END_S = 120.0
ANSWER_S = 2.0
LONG_S = 3000.0
"""More than a placement may take until its attempt is started."""


def submit(client: Client, workflows: int, prefix: str = "w") -> int:
    """Work; returns how many tasks."""
    work = some_work(workflows, prefix=prefix)
    for workflow in work:
        client.submit(workflow)
    return sum(len(workflow.tasks) for workflow in work)


def wait_until_finished(kafka: KafkaSettings, topics: TopicSettings, tasks: int) -> Log:
    """Until so many tasks finished; returns the pool's log."""

    def look() -> Log | None:
        log = read_log(kafka, topics, POOL)
        return log if len(log.trace.finished) >= tasks else None

    log = eventually(look, f"{tasks} tasks finished", END_S)
    assert log is not None
    return log


@contextmanager
def supervised(
    name: str, kafka: KafkaSettings, topics: TopicSettings, folder: Path, port: int | None = None
) -> Iterator[Supervised]:
    """A headrace command that is started again when it ends."""
    port = port or free_port()
    environment = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "HEADRACE_TOPICS__PREFIX": topics.prefix,
        "HEADRACE_WORKER__INSTANCE": "a",
        "HEADRACE_WORKER__PORT": str(port),
        "HEADRACE_POLICY__NAME": "heft",
        "HEADRACE_CLUSTER__TIME_SCALE": "200",
    }
    log_file = folder / f"{name}.log"
    child = Supervised(name, [name], environment, log_file)
    try:
        if name == "worker":
            eventually(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "a ready worker")
        yield child
    finally:
        child.stop()
        print(log_file.read_text(errors="replace"))


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S):
            return True
    except (urllib.error.URLError, OSError):
        return False


def kill(broker: EmbeddedBroker) -> None:
    """End it as a power cut would, but for what the disk has."""
    os.kill(broker.pid, signal.SIGKILL)
    broker.stop()


@pytest.mark.parametrize("end", [EmbeddedBroker.stop, kill], ids=["in order", "by force"])
def test_a_broker_that_is_restarted_under_load_costs_nothing_but_time(
    tmp_path: Path, end: Callable[[EmbeddedBroker], None]
) -> None:
    broker = EmbeddedBroker(BrokerSettings(data_dir=tmp_path / "kafka", port=free_port()))
    broker.start()
    try:
        kafka, topics = KafkaSettings(bootstrap_servers=broker.bootstrap_servers), TopicSettings(prefix="test.")
        create_topics(kafka, topics)
        port = free_port()
        with (
            supervised("worker", kafka, topics, tmp_path, port) as worker,
            running_cluster(kafka, topics, SPECS, POOL, time_scale=100),
            Client(kafka, POOL, topics) as client,
        ):
            tasks = submit(client, 6)
            eventually(lambda: len(read_log(kafka, topics, POOL).trace.finished) >= tasks // 4, "a quarter of it")

            end(broker)
            eventually(lambda: not answers(f"http://127.0.0.1:{port}/readyz"), "a worker that says it is cut off")
            assert is_running(worker.pid)
            broker.start()
            tasks += submit(client, 2, "after")

            log = wait_until_finished(kafka, topics, tasks)
            assert is_running(worker.pid)
    finally:
        broker.stop()
    assert problems(log, SPECS) == []


def test_tasks_finish_once_though_attempts_fail_and_nodes_are_lost(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    unlucky = SimulatorSettings(failure_rate=0.1, node_losses_per_hour=2.0, repair_s=60.0, seed=3)
    with (
        WorkerProcess(kafka, topics, tmp_path) as worker,
        running_cluster(kafka, topics, SPECS, POOL, simulator=unlucky),
        Client(kafka, POOL, topics) as client,
    ):
        worker.wait_until_ready()
        log = wait_until_finished(kafka, topics, submit(client, 8))

    kinds = [event.kind for _, event in log.events]
    assert kinds.count(EventKind.FAILED) > 0
    assert kinds.count(EventKind.NODE_LOST) > len(SPECS)  # each node once is how a cluster begins
    assert problems(log, SPECS) == []


class ClusterProcess:
    """`headrace cluster`, to be killed."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings, folder: Path) -> None:
        self._environment = os.environ | {
            "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "HEADRACE_TOPICS__PREFIX": topics.prefix,
            "HEADRACE_CLUSTER__TIME_SCALE": "200",
        }
        self._log_file = folder / "cluster.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log_file.open("ab") as log:
            command = [sys.executable, "-m", "headrace", "cluster"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> ClusterProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        print(self._log_file.read_text(errors="replace"))


def test_a_cluster_that_is_killed_and_started_again_finishes_everything(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    with (
        WorkerProcess(kafka, topics, tmp_path) as worker,
        ClusterProcess(kafka, topics, tmp_path) as cluster,
        Client(kafka, POOL, topics) as client,
    ):
        worker.wait_until_ready()
        specs = eventually(client.nodes, "nodes that are known")
        tasks = submit(client, 6)
        eventually(lambda: len(read_log(kafka, topics, POOL).trace.started) >= tasks // 4, "a quarter of it")

        cluster.kill()
        cluster.start()

        log = wait_until_finished(kafka, topics, tasks)
    assert problems(log, specs) == []


def test_a_worker_that_is_stopped_for_a_while_rejects_nothing_that_runs(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    with (
        WorkerProcess(kafka, topics, tmp_path) as worker,
        running_cluster(kafka, topics, SPECS, POOL) as cluster,
        Client(kafka, POOL, topics) as client,
    ):
        worker.wait_until_ready()
        tasks = submit(client, 6)
        next(client.placements(timeout_s=END_S))

        worker.signal(signal.SIGSTOP)  # before it hears that what it has just placed is started
        resumed_ms = cluster.clock.now_ms() + 1000 * LONG_S
        eventually(lambda: cluster.clock.now_ms() > resumed_ms, "a long time on the cluster's clock")
        worker.signal(signal.SIGCONT)

        log = wait_until_finished(kafka, topics, tasks)
    assert problems(log, SPECS) == []
    assert [event.reason for event in log.rejections] == []
