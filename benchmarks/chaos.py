"""Kills the worker over and over under load: how long nothing is decided, and whether anything is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.audit import problems, read_log
from benchmarks.line import report
from benchmarks.plant import broker
from policy.simulator import SimulatorSettings
from policy.trace import Trace, cluster_object
from policy.workflows import from_record
from schemas.codec import Codec
from schemas.dag import check_fits
from schemas.errors import HeadraceError, InvalidWorkflow
from schemas.records import NodeSpec, Outcome, Placement, WorkflowSubmitted
from schemas.topics import TopicSettings
from schemas.workflow_file import read_workflows
from streams.client import Client
from streams.cluster import Cluster, ClusterSettings
from streams.kafka import KafkaSettings
from streams.supervisor import Supervised
from streams.topic_admin import create_topics
from streams.watch import Watch
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

POOL = "chaos"
NODES = 16
SHARED = Path(__file__).resolve().parents[2] / "shared"
TRACES = SHARED / "data" / "wfinstances"
CHECKER = SHARED / "tools" / "check_schedule.py"
MOST_TASKS, LONGEST_S = 120, 600.0
"""Of the traces that are used: the run must end soon after the last kill."""
GIVE_UP_S = 120.0


@dataclass(frozen=True, kw_only=True)
class ChaosSettings:
    """How often the worker dies, and what it has to do meanwhile."""

    kills: int = 10
    calm_s: tuple[float, float] = (0.5, 6.0)
    """Least and most seconds from a life's first placement to its end."""
    open_tasks: int = 200
    """Work is submitted whenever fewer tasks are open."""
    time_scale: float = 30.0
    failure_rate: float = 0.02
    seed: int = 1


@dataclass(frozen=True)
class Damage:
    """What the kills cost."""

    silences_s: tuple[float, ...]
    """From each kill to the first placement of the next owner."""
    tasks: int
    attempts: int
    rejections: int
    violations: tuple[str, ...]


class Silences:
    """Measures the time without decisions after each kill."""

    def __init__(self) -> None:
        self.epoch = -1
        self.lengths_s: list[float] = []
        self._killed: float | None = None

    def begin(self) -> None:
        """The owner was killed."""
        self._killed = time.monotonic()

    @property
    def is_silent(self) -> bool:
        """Whether no owner has placed anything since."""
        return self._killed is not None or self.epoch < 0

    def take(self, record: object) -> None:
        """See a record of the pool."""
        if isinstance(record, Placement) and record.outcome == Outcome.PLACED and record.epoch > self.epoch:
            self.epoch = record.epoch
            if self._killed is not None:
                self.lengths_s.append(time.monotonic() - self._killed)
                self._killed = None


class Load:
    """Keeps so many tasks open, with these workflows in turn."""

    def __init__(self, client: Client, watch: Watch, work: Sequence[WorkflowSubmitted], open_tasks: int) -> None:
        self._client = client
        self._watch = watch
        self._work = work
        self._open_tasks = open_tasks
        self._submitted = 0
        self.tasks = 0

    def go_on_until(self, is_done: Callable[[], bool]) -> None:
        """Submit and follow. Raises HeadraceError when it takes too long."""
        self._follow(is_done, self._submit)

    def finish(self) -> None:
        """Follow until everything is over. Raises HeadraceError when it takes too long."""
        self._follow(lambda: len(self._watch.trace.tasks) == self.tasks and not self._watch.trace.open_tasks)

    def _follow(self, is_done: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
        deadline = time.monotonic() + GIVE_UP_S
        while not is_done():
            meanwhile()
            self._watch.poll(0.01)
            if time.monotonic() > deadline:
                raise HeadraceError(f"{self._watch.trace.open_tasks} tasks are open, and it is not done")

    def _submit(self) -> None:
        over = len(self._watch.trace.finished) + len(self._watch.trace.refused)
        while self.tasks - over < self._open_tasks:
            round_, at = divmod(self._submitted, len(self._work))
            workflow = self._work[at]
            workflow_id = f"{workflow.workflow_id}-{round_}"
            self._client.submit(replace(workflow, workflow_id=workflow_id, event_time_ms=int(time.time() * 1000)))
            self._submitted += 1
            self.tasks += len(workflow.tasks)


def traced_work(specs: Sequence[NodeSpec]) -> list[WorkflowSubmitted]:
    """The real workflows beside the checkout that are small, short, and fit; none where there are none."""
    work = []
    for path in sorted([*TRACES.glob("*.json"), *TRACES.glob("*.json.gz")]):
        (workflow,) = read_workflows(path, pool=POOL, event_time_ms=0, workflow_id=path.name.split(".json")[0])
        is_small = len(workflow.tasks) <= MOST_TASKS and from_record(workflow, 0).path_s <= LONGEST_S
        if is_small and _fits(workflow, specs):
            work.append(workflow)
    return work


def _fits(workflow: WorkflowSubmitted, specs: Sequence[NodeSpec]) -> bool:
    try:
        check_fits(workflow, specs, workflow.workflow_id)
    except InvalidWorkflow:
        return False
    return True


def made_up_work(specs: Sequence[NodeSpec], workflows: int = 20, seed: int = 0) -> list[WorkflowSubmitted]:
    """Workflows of all classes."""
    settings = WorkloadSettings(workflows=workflows, tasks=(5, 20))
    return random_workload(np.random.default_rng(seed), specs, settings, POOL, 0)


@contextmanager
def _worker(kafka: KafkaSettings, topics: TopicSettings, folder: Path) -> Iterator[Supervised]:
    """A worker that is started again under its name, from compiled modules as any installation has them."""
    environment = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "HEADRACE_TOPICS__PREFIX": topics.prefix,
        "HEADRACE_WORKER__GROUP": f"{topics.prefix}workers",
        "HEADRACE_WORKER__INSTANCE": "worker-0",
        "HEADRACE_WORKER__PORT": "0",
        "HEADRACE_POLICY__NAME": "heft",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    child = Supervised("worker", ["worker"], environment, folder / "worker.log")
    try:
        yield child
    finally:
        child.stop()


@contextmanager
def _cluster(
    kafka: KafkaSettings, topics: TopicSettings, specs: Sequence[NodeSpec], settings: ChaosSettings
) -> Iterator[None]:
    simulator = SimulatorSettings(failure_rate=settings.failure_rate, seed=settings.seed)
    simulated = ClusterSettings(time_scale=settings.time_scale, simulator=simulator)
    cluster = Cluster(POOL, specs, simulated, kafka, topics, Codec())
    thread = threading.Thread(target=cluster.run, name="cluster")
    thread.start()
    try:
        yield
    finally:
        cluster.stop()
        thread.join()


def run(
    kafka: KafkaSettings, work: Sequence[WorkflowSubmitted], specs: Sequence[NodeSpec], settings: ChaosSettings
) -> Damage:
    """Kill the worker so often at random moments, and judge what happened. Raises HeadraceError when it hangs."""
    topics = TopicSettings(prefix=f"chaos-{time.time_ns()}.")
    create_topics(kafka, topics)
    rng, silences = np.random.default_rng(settings.seed), Silences()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder,
        _worker(kafka, topics, Path(folder)) as worker,
        _cluster(kafka, topics, specs, settings),
        Client(kafka, POOL, topics) as client,
    ):
        watch = Watch(kafka, topics, Codec(), POOL)
        watch.on_record = silences.take
        load = Load(client, watch, work, settings.open_tasks)
        load.go_on_until(lambda: not silences.is_silent)
        for _ in range(settings.kills):
            moment = time.monotonic() + rng.uniform(*settings.calm_s)
            load.go_on_until(lambda moment=moment: time.monotonic() >= moment)  # type: ignore[misc]
            os.kill(worker.pid, signal.SIGKILL)
            silences.begin()
            load.go_on_until(lambda: not silences.is_silent)
        load.finish()
        watch.close()
        return _damage(kafka, topics, specs, silences, Path(folder))


def _damage(
    kafka: KafkaSettings, topics: TopicSettings, specs: Sequence[NodeSpec], silences: Silences, folder: Path
) -> Damage:
    log = read_log(kafka, topics, POOL)
    violations = (*problems(log, specs), *_second_opinion(log.trace, specs, folder))
    attempts, rejections = len(log.effective), len(log.rejections)
    return Damage(tuple(silences.lengths_s), len(log.trace.tasks), attempts, rejections, violations)


def _second_opinion(trace: Trace, specs: Sequence[NodeSpec], folder: Path) -> list[str]:
    """What the checker beside the checkout finds, where there is one."""
    if not CHECKER.is_file():
        return []
    rows, cluster = folder / "trace.jsonl", folder / "cluster.json"
    rows.write_text("".join(json.dumps(row) + "\n" for row in trace.rows()), encoding="utf-8")
    cluster.write_text(json.dumps(cluster_object(tuple(specs))), encoding="utf-8")
    checked = subprocess.run([sys.executable, CHECKER, rows, cluster], capture_output=True, text=True)
    return [line for line in checked.stderr.splitlines() if line] if checked.returncode else []


def main(settings: ChaosSettings | None = None) -> None:
    """Ten kills; one line."""
    settings = settings or ChaosSettings()
    specs = example_nodes(NODES)
    work = traced_work(specs)
    with broker() as kafka:
        damage = run(kafka, work or made_up_work(specs), specs, settings)
    report(
        "time without decisions after a SIGKILL under load",
        "s",
        damage.silences_s,
        load="real workflows" if work else "made-up workflows",
        tasks=damage.tasks,
        attempts=damage.attempts,
        rejections=damage.rejections,
        violations=len(damage.violations),
    )
    for violation in damage.violations[:20]:
        print(violation, file=sys.stderr)
