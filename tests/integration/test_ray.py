"""Work on a Ray cluster of two machines comes to what it comes to here, also when one of them is lost."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headrace import EXIT_REFUSED
from schemas.errors import InvalidConfiguration, InvalidWorkflow, RayUnavailable
from tests.command_line import CommandLine
from tests.processes import comes_true
from trainer import evaluate
from trainer.scenarios import digest
from trainer.search import SearchSettings, find
from trainer.suite import SUITES, Setup
from trainer.workers import start_workers
from trainer.workloads import WorkloadSettings

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "node_ip_address": "127.0.0.1", "include_log_monitor": False}
LONG_S = 120.0
"""For what takes Ray seconds."""
POLL_S = 0.05
CLOSED = "127.0.0.1:1"
"""Where nobody listens."""


@pytest.fixture(scope="module", autouse=True)
def loopback() -> Iterator[None]:
    """Ray takes 127.0.0.1 for the machine's address to the outside, unless it is told before its import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@pytest.fixture(scope="module")
def cluster(loopback: None) -> Iterator[Any]:
    """Two machines of one processor each, one process tree each; this process connects with the first work."""
    import ray
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        started.add_node(**NODE)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


@contextmanager
def workers_of(cluster: Any, *state: Any) -> Iterator[Any]:
    with start_workers(ray=cluster.address, state=state) as workers:
        yield workers


def silent(line: str) -> None:
    pass


@pytest.mark.parametrize("hidden", [0, 2])
def test_one_seed_makes_the_same_weights_here_and_on_ray(cluster: Any, tmp_path: Path, hidden: int) -> None:
    here = SearchSettings(
        out=tmp_path / "here", generations=3, candidates=4, episodes=2, pool=4, hidden=hidden, processes=1
    )
    on_ray = replace(here, out=tmp_path / "ray", processes=None, ray=cluster.address)

    (found, practice), (found_there, practice_there) = find(here, silent), find(on_ray, silent)

    assert found_there.vector().tobytes() == found.vector().tobytes()
    assert pickle.dumps(practice_there.reference) == pickle.dumps(practice.reference)
    assert digest(practice_there.courses) == digest(practice.courses)


def test_an_evaluation_has_the_same_figures_here_and_on_ray(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Setup(name="tiny", nodes=4, workload=WorkloadSettings(workflows=4, tasks=(2, 4), load=0.5))
    monkeypatch.setitem(SUITES, "quick", (tiny,))
    here = evaluate.EvaluationSettings(suite="quick", seeds=3, processes=1)

    report = evaluate.evaluate(here, {}, silent)
    report_there = evaluate.evaluate(replace(here, ray=cluster.address), {}, silent)

    assert report_there.figures == report.figures


def whereabouts(item: int) -> tuple[str, int]:
    """On which machine, in which process: after a moment, in which another one begins on the other machine."""
    import ray

    time.sleep(POLL_S)
    return ray.get_runtime_context().get_node_id(), os.getpid()


def test_both_machines_work(cluster: Any) -> None:
    with workers_of(cluster) as workers:
        nodes = {node for node, _ in workers.map(whereabouts, range(20))}

    assert len(nodes) == 2
    assert os.getpid() not in nodes


def test_a_ray_of_our_own_is_started_and_ended() -> None:
    code = (
        "from trainer.workers import start_workers\n"
        "with start_workers(2, 'local') as workers:\n"
        "    import ray\n"
        "    print(list(workers.map(abs, [-1, 2, -3])))\n"
        "    print(ray.cluster_resources()['CPU'], ray.util.get_node_ip_address())\n"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S)

    assert done.stdout.splitlines()[-2:] == ["[1, 2, 3]", "2.0 127.0.0.1"], done.stderr


class Opened:
    """A state that leaves a file behind each time that it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        (self.folder / f"opened-{os.getpid()}-{time.monotonic_ns()}").touch()


def process_of(opened: Opened, item: int) -> int:
    return os.getpid()


def test_each_process_is_handed_the_state_once(cluster: Any, tmp_path: Path) -> None:
    with workers_of(cluster, Opened(tmp_path)) as workers:
        processes = set(workers.map(process_of, range(20)))

    assert len(list(tmp_path.glob("opened-*"))) == len(processes)


def held(folder: Path, lost: str, item: int) -> int:
    """Say where it began. On the machine to be lost, end when the test is over; elsewhere when that one is at work."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    (folder / f"{item}-{node}").touch()
    while not list(folder.glob("over" if node == lost else f"*-{lost}")):
        time.sleep(POLL_S)
    return item * item


def test_what_a_lost_machine_was_at_is_done_by_another(cluster: Any, tmp_path: Path) -> None:
    lost = cluster.add_node(**NODE)
    answers: list[int] = []

    def work() -> None:
        with workers_of(cluster, tmp_path, lost.node_id) as workers:
            answers.extend(workers.map(held, range(6)))

    thread = Thread(target=work, daemon=True)
    thread.start()
    assert comes_true(lambda: list(tmp_path.glob(f"*-{lost.node_id}")), LONG_S)
    (begun,) = tmp_path.glob(f"*-{lost.node_id}")
    cluster.remove_node(lost, allow_graceful=False)
    thread.join(LONG_S)
    (tmp_path / "over").touch()

    assert answers == [0, 1, 4, 9, 16, 25]
    item = begun.name.partition("-")[0]
    assert len(list(tmp_path.glob(f"{item}-*"))) == 2


def refuse(item: int) -> int:
    raise InvalidWorkflow(f"workflow {item}", "is of no use")


def test_an_error_of_headrace_s_arrives_as_it_was_raised(cluster: Any) -> None:
    with workers_of(cluster) as workers, pytest.raises(InvalidWorkflow, match="workflow 7: is of no use") as caught:
        list(workers.map(refuse, [7]))

    assert caught.value.where == "workflow 7"


def test_a_machine_with_another_headrace_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import ray_workers

    monkeypatch.setattr(ray_workers, "sources_digest", lambda: "another")

    with workers_of(cluster) as workers, pytest.raises(RayUnavailable, match="another headrace"):
        list(workers.map(abs, [1]))


# Where there is no Ray. Each of these would hang for minutes if it were left to Ray.


@pytest.mark.parametrize(
    "address", ["", "here", "10.0.0.1:", "10.0.0.1:port", "10.0.0.1:70000", "ray://10.0.0.1:10001/x"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    from trainer.ray_workers import require_grpc

    with pytest.raises(InvalidConfiguration, match="is no address; give HOST:PORT"):
        require_grpc(address)


def test_who_does_not_answer_is_named_with_what_to_do() -> None:
    from trainer.ray_workers import require_grpc

    with pytest.raises(RayUnavailable, match=f"{CLOSED}.*refused.*ray start --head"):
        require_grpc(CLOSED)


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_who_is_not_ray_is_said_not_to_be(says: bytes) -> None:
    from trainer.ray_workers import require_grpc

    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(says)

        thread = Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(RayUnavailable, match="who answers there is not Ray"):
            require_grpc(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join(LONG_S)


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import ray_workers

    monkeypatch.setattr(ray_workers, "PATIENCE_S", 0.1)

    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(RayUnavailable, match="timed out"):
        ray_workers.require_grpc(f"127.0.0.1:{server.getsockname()[1]}")


def test_the_command_says_in_one_line_that_no_ray_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    ray.shutdown()  # tests before this one may have connected this process
    headrace = CommandLine(monkeypatch, capsys)

    ended = headrace("train", "search", "--out", tmp_path / "weights", "--ray", CLOSED)

    assert ended.code == EXIT_REFUSED
    assert ended.errors.count("\n") == 1
    assert ended.errors.startswith(f"error: Ray at {CLOSED}: no answer")
