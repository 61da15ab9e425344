"""Several workers of one group: who owns what, and what becomes of it when one dies, or only seems to."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from benchmarks.audit import problems, read_log
from schemas.codec import Codec
from schemas.records import METRICS, NodeMetrics, Outcome, Placement, TaskReady
from schemas.topics import PLACEMENTS, STATE_INPUTS, TopicSettings
from streams.claims import claim
from streams.client import Client
from streams.kafka import KafkaSettings, Publisher, admin
from tests.builders import a_node, a_task
from tests.cluster_thread import running_cluster
from tests.eventually import eventually
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess
from tests.workload import SPECS, pool_in, some_work

PARTITIONS = 4
POOLS = [pool_in(number) for number in range(PARTITIONS)]
SESSION_S = 6.0
"""The shortest that a broker takes."""
ANSWER_S = 20.0
SHARED = {"worker__session_timeout_s": SESSION_S, "worker__snapshot_s": 1}


@pytest.fixture
def workers(kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    """Two workers of one group, not started."""
    with ExitStack() as stack:
        made = [WorkerProcess(kafka, topics, tmp_path, **SHARED) for _ in range(2)]
        for worker in made:
            stack.callback(worker.kill)
        yield made
        for worker in made:
            print(worker.log)


def owned(kafka: KafkaSettings, topics: TopicSettings) -> list[dict[str, set[int]]]:
    """For each member of the group: topic -> the numbers of its partitions."""
    group = f"{topics.prefix}workers"
    client = admin(kafka)  # one that is not kept ends its requests
    found = client.describe_consumer_groups([group])[group].result(ANSWER_S)
    members = []
    for member in found.members:
        numbers: dict[str, set[int]] = {}
        for where in member.assignment.topic_partitions:
            numbers.setdefault(where.topic, set()).add(where.partition)
        members.append(numbers)
    return members


def is_shared(kafka: KafkaSettings, topics: TopicSettings, members: int) -> bool:
    """Whether so many members own all partitions, each some."""
    found = owned(kafka, topics)
    return len(found) == members and all(found) and sum(map(numbers_of, found)) == PARTITIONS * len(STATE_INPUTS)


def numbers_of(member: dict[str, set[int]]) -> int:
    return sum(map(len, member.values()))


def start_both(kafka: KafkaSettings, topics: TopicSettings, workers: list[WorkerProcess]) -> None:
    """Both at once, until they share the partitions and decide."""
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.wait_until_ready()
    eventually(lambda: is_shared(kafka, topics, 2) and all(worker.is_ready for worker in workers), "two owners")


class Pools:
    """A cluster and a client for a pool in each partition."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings, stack: ExitStack) -> None:
        self._kafka = kafka
        self._topics = topics
        self._tasks = dict.fromkeys(POOLS, 0)
        self._clients = {}
        for pool in POOLS:
            stack.enter_context(running_cluster(kafka, topics, SPECS, pool, time_scale=200))
            self._clients[pool] = stack.enter_context(Client(kafka, pool, topics))

    def submit(self, prefix: str, workflows: int = 2) -> None:
        """Work for each of them."""
        for pool, client in self._clients.items():
            for workflow in some_work(workflows, pool=pool, prefix=prefix):
                client.submit(workflow)
                self._tasks[pool] += len(workflow.tasks)

    def wait_until_finished(self) -> None:
        """Until all tasks are over."""
        for pool, tasks in self._tasks.items():
            eventually(lambda pool=pool, tasks=tasks: self._finished(pool) >= tasks, f"{tasks} tasks of {pool}")

    def check(self) -> None:
        """Everything ran once, nothing was given twice."""
        assert {pool: problems(read_log(self._kafka, self._topics, pool), SPECS) for pool in POOLS} == {
            pool: [] for pool in POOLS
        }

    def _finished(self, pool: str) -> int:
        return len(read_log(self._kafka, self._topics, pool).trace.finished)


def test_two_workers_share_the_pools_and_equal_partitions_of_all_topics_are_with_one(
    kafka: KafkaSettings, topics: TopicSettings, workers: list[WorkerProcess]
) -> None:
    start_both(kafka, topics, workers)

    names = {topics.full_name(topic) for topic in STATE_INPUTS}
    members = owned(kafka, topics)
    assert [set(member) for member in members] == [names, names]
    shares = [next(iter(member.values())) for member in members]
    assert all(numbers == share for member, share in zip(members, shares, strict=True) for numbers in member.values())
    assert sorted(map(sorted, shares)) == [[0, 1], [2, 3]]


def test_when_one_of_two_workers_is_killed_the_other_takes_its_pools_over(
    kafka: KafkaSettings, topics: TopicSettings, workers: list[WorkerProcess]
) -> None:
    with ExitStack() as stack:
        start_both(kafka, topics, workers)
        pools = Pools(kafka, topics, stack)
        pools.submit("before")

        workers[0].kill()
        pools.submit("after")

        pools.wait_until_finished()
        assert is_shared(kafka, topics, 1)
    pools.check()


def test_a_worker_that_joins_takes_its_share_under_load(
    kafka: KafkaSettings, topics: TopicSettings, workers: list[WorkerProcess]
) -> None:
    with ExitStack() as stack:
        workers[0].start_and_wait()
        pools = Pools(kafka, topics, stack)
        pools.submit("before")

        workers[1].start_and_wait()
        eventually(lambda: is_shared(kafka, topics, 2), "two owners")
        pools.submit("after")

        pools.wait_until_finished()
    pools.check()


BURST = 1500
CROWDED = POOLS[0]
ROOMY = [a_node(f"n{i}", cpu=64.0, memory_bytes=2**40) for i in range(8)]


def announce_burst(client: Client) -> None:
    """Nodes, and at once many tasks that stay on them."""
    values_nm = np.zeros((len(ROOMY), len(METRICS)), "<f4")
    ids = tuple(node.node_id for node in ROOMY)
    client.sample(NodeMetrics(client.pool, now_ms(), "test", ids, values_nm.tobytes(), tuple(ROOMY)))
    client.flush()
    for number in range(BURST):
        client.ready(TaskReady(client.pool, f"w{number}", "t", 0, now_ms(), a_task("t", 60.0, cpu=0.1)))
    client.flush()


def now_ms() -> int:
    return int(time.time() * 1000)


def placed(kafka: KafkaSettings, topics: TopicSettings) -> list[Placement]:
    return [p for p in records_of(kafka, topics, PLACEMENTS) if p.outcome == Outcome.PLACED]


def test_what_a_worker_writes_that_was_thought_dead_is_void(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    slow = {**SHARED, "policy__name": "kube_default"}  # scores anew for each task: it is stopped within its decisions
    zombie, heir = (WorkerProcess(kafka, topics, tmp_path, **slow) for _ in range(2))
    with ExitStack() as running, Client(kafka, CROWDED, topics) as client:
        running.enter_context(zombie).wait_until_ready()
        zombie.signal(signal.SIGSTOP)
        announce_burst(client)  # finds all of it at once, and has it in hand when it is stopped again
        zombie.signal(signal.SIGCONT)
        next(client.placements(timeout_s=ANSWER_S))
        zombie.signal(signal.SIGSTOP)
        decided = len(placed(kafka, topics))
        running.enter_context(heir).wait_until_ready()
        eventually(lambda: effective_count(kafka, topics) == BURST, "the heir has decided the rest")

        zombie.signal(signal.SIGCONT)
        eventually(lambda: len(placed(kafka, topics)) > BURST, "the zombie writes what it had in mind")
        eventually(lambda: zombie.has_ended or is_shared(kafka, topics, 2), "the zombie has heard")

    log = read_log(kafka, topics, CROWDED)
    assert decided < BURST
    assert sorted(p.workflow_id for p in log.effective) == sorted(f"w{number}" for number in range(BURST))
    assert [found for found in problems(log, ROOMY) if "finished" not in found] == []


def effective_count(kafka: KafkaSettings, topics: TopicSettings) -> int:
    return len({p.workflow_id for p in read_log(kafka, topics, CROWDED).effective})


def test_an_owner_whose_partition_is_claimed_behind_its_back_ends_and_its_successor_decides_again(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    with WorkerProcess(kafka, topics, tmp_path) as worker, Client(kafka, CROWDED, topics) as client:
        worker.wait_until_ready()
        publisher = Publisher(kafka, topics, Codec())
        late = claim(0, publisher, "a worker that was paused while it took over")
        publisher.close()

        announce_burst(client)
        exit_code = worker.end()
        worker.start_and_wait()
        eventually(lambda: effective_count(kafka, topics) == BURST, "all decided again")

    log = read_log(kafka, topics, CROWDED)
    assert exit_code == 70
    assert min(p.epoch for p in log.effective) > late
    assert [found for found in problems(log, ROOMY) if "finished" not in found] == []


def test_a_worker_whose_name_another_one_takes_ends(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    first, second = (WorkerProcess(kafka, topics, tmp_path, worker__instance="twin", **SHARED) for _ in range(2))
    with first:
        first.wait_until_ready()
        with second:
            exit_code = first.end()

            second.wait_until_ready()

    assert exit_code == 70
