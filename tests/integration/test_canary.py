"""A canary on a real Kafka, with time compressed: it takes its share, grows, and a bad one is driven back by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace
from benchmarks.weights import renamed, upside_down
from policy.canary import is_within
from policy.canary_stages import CanarySettings, Phase
from policy.sequential import GuardrailSettings
from policy.weight_set import shipped_weights
from schemas.codec import Codec
from schemas.records import Env, NodeSpec, Outcome, Placement, WorkflowClass, WorkflowSubmitted
from schemas.topics import PLACEMENTS, TopicSettings
from streams.canary import Controller
from streams.client import Client
from streams.config import Settings
from streams.kafka import KafkaSettings, Publisher
from streams.model_topic import publish
from streams.watch import Watch
from tests.builders import GIB, a_task
from tests.cluster_thread import running_cluster
from tests.command_line import CommandLine
from tests.eventually import eventually
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.journey]
POOL = "default"
SHIPPED = shipped_weights()
OWN = SHIPPED.manifest.version
FAST_AND_SLOW = [NodeSpec(f"n{at:02}", 32.0, 128 * GIB, speed=2.0 if at % 2 else 0.25) for at in range(12)]
PATIENT = GuardrailSettings(latency_p99_s=30.0)  # this machine may be busy with other things
END_S = 30.0


@pytest.fixture
def worker(kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker that decides with the shipped weights, on a cluster of fast and slow nodes."""
    settings = {"policy__name": "actor", "state__breaker__tasks": 0}
    with WorkerProcess(kafka, topics, tmp_path, **settings) as worker:
        worker.wait_until_ready()
        with running_cluster(kafka, topics, FAST_AND_SLOW, POOL):
            yield worker


class Load:
    """Chains of tasks, submitted one after the other and followed to their end."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings) -> None:
        self.client = Client(kafka, POOL, topics)
        self.watch = Watch(kafka, topics, Codec(), POOL)
        self.submitted = 0
        self.tasks = 0

    def go_on(self, count: int = 2) -> None:
        """Some more of them; every seventh has a critical task."""
        for _ in range(count):
            critical = self.submitted % 7 == 0
            tasks = (a_task("a", 20.0), a_task("b", 20.0, after=["a"], critical=critical))
            known = (POOL, f"w{self.submitted}", int(1000 * time.time()), "chain", WorkflowClass.ETL_BATCH, Env.PROD)
            self.client.submit(WorkflowSubmitted(*known, tasks))
            self.submitted, self.tasks = self.submitted + 1, self.tasks + len(tasks)
        self.client.flush()
        self.watch.poll(0.1)

    def until(self, is_done: Callable[[], object], what: str) -> None:
        """Keep submitting until then."""

        def look() -> object:
            self.go_on()
            return is_done()

        eventually(look, what)

    def finish(self) -> None:
        """Until all of it is finished."""
        eventually(
            lambda: self.watch.poll() >= 0 and len(self.watch.trace.finished) == self.tasks, "every task finished"
        )

    def close(self) -> None:
        self.watch.close()
        self.client.close()


@pytest.fixture
def load(worker: WorkerProcess, kafka: KafkaSettings, topics: TopicSettings) -> Iterator[Load]:
    load = Load(kafka, topics)
    yield load
    load.close()


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.ms

    def go_on(self, hours: float) -> None:
        self.ms += round(3600_000 * hours)


@contextmanager
def watching(
    kafka: KafkaSettings, topics: TopicSettings, publisher: Publisher, canary: CanarySettings, clock: Clock
) -> Iterator[Controller]:
    """A controller that watches as long as the block."""
    settings = Settings(kafka=kafka, topics=topics, pool=POOL, canary=canary)
    controller = Controller(settings, kafka, Codec(), publisher, clock)
    problems: list[BaseException] = []

    def run() -> None:
        try:
            controller.run()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, name="controller")
    thread.start()
    try:
        yield controller
    finally:
        controller.stop()
        thread.join(END_S)
        controller.close()
        if problems:
            raise problems[0]


def placed(kafka: KafkaSettings, topics: TopicSettings) -> list[Placement]:
    return [p for p in records_of(kafka, topics, PLACEMENTS) if p.outcome == Outcome.PLACED]


def test_a_good_one_takes_its_share_and_grows_whoever_starts_again_and_becomes_the_stable_model(
    worker: WorkerProcess,
    load: Load,
    publisher: Publisher,
    kafka: KafkaSettings,
    topics: TopicSettings,
    at_broker: CommandLine,
) -> None:
    version = publish(publisher, renamed(SHIPPED, b"good"), "canary").version
    canary = CanarySettings(shares=(0.4, 1.0), least_decisions=4, look_s=0.2, save_s=0.2, guardrails=PATIENT)
    clock = Clock()
    load.go_on(5)
    with watching(kafka, topics, publisher, canary, clock) as controller:
        started = at_broker("canary", "start", version[:8], "--why", "a test")
        assert (started.code, f"canary {version} of pool default: running" in started.output) == (0, True)
        eventually(lambda: worker.metric("headrace_canary_share") == 0.4, "the worker's share")
        load.finish()
        first = load.submitted
        load.until(lambda: controller.progress and controller.progress.decisions >= 4, "decisions of the canary")
        worker.kill()
        worker.start_and_wait()
        assert worker.metric("headrace_canary_share") == 0.4
        load.go_on(10)
        load.finish()
    before = controller.progress
    assert before is not None

    # Another controller goes on where this one stopped, and counts nothing twice.
    with watching(kafka, topics, publisher, canary, clock) as controller:
        eventually(lambda: controller.progress, "the canary's progress")
        assert controller.progress is not None
        assert (controller.progress.began_ms, controller.progress.version) == (before.began_ms, version)
        load.go_on(10)
        load.finish()
        last = load.submitted
        assert controller.progress.stage == 0
        clock.go_on(hours=73)
        load.until(lambda: controller.progress and controller.progress.stage == 1, "the second stage")
        assert worker.metric("headrace_fallbacks_total") == 0
        load.until(lambda: controller.progress and controller.progress.decisions >= 4, "decisions of its second stage")
        clock.go_on(hours=73)
        load.until(lambda: controller.progress and controller.progress.phase == Phase.PROMOTED, "the promotion")
        eventually(lambda: worker.metric("headrace_model_info", role="stable", version=version) == 1, "its use")
        load.finish()
        attempts = controller._watch.guards.success.groups  # type: ignore[union-attr]

    versions: dict[str, set[str]] = {}
    for placement in placed(kafka, topics):
        versions.setdefault(placement.workflow_id, set()).add(placement.model_version)
    for number in range(first, last):
        covered = is_within(f"w{number}", 0.4) and number % 7 != 0
        assert versions[f"w{number}"] == ({version} if covered else {OWN}), f"w{number}"
    ended = sum(1 for number in range(load.submitted) if number % 7) * 2
    assert 0 < attempts.canary.count + attempts.control.count <= ended
    assert attempts.canary.total == attempts.control.total == 0
    assert "promoted" in at_broker("canary", "status").output
    assert version in at_broker("models", "list").output


def test_a_bad_one_is_driven_back_by_itself_with_its_cause(
    worker: WorkerProcess,
    load: Load,
    publisher: Publisher,
    kafka: KafkaSettings,
    topics: TopicSettings,
    at_broker: CommandLine,
) -> None:
    version = publish(publisher, upside_down(SHIPPED), "canary").version
    canary = CanarySettings(shares=(0.5, 1.0), look_s=0.2, guardrails=PATIENT)
    with watching(kafka, topics, publisher, canary, Clock()) as controller:
        assert at_broker("canary", "start", version).code == 0

        load.until(lambda: controller.progress and not controller.progress.is_running, "its end")

        assert controller.progress is not None
        assert controller.progress.phase == Phase.BACK
        assert controller.progress.cause.startswith("turnaround: the slowdown of the canary's ")
        eventually(lambda: worker.metric("headrace_canary_share") == 0.0, "the way back")
        seen = load.submitted
        load.go_on(20)
        load.finish()

    after = [p for p in placed(kafka, topics) if int(p.workflow_id[1:]) >= seen]
    assert {p.model_version for p in after} == {OWN}
    status = at_broker("canary", "status").output
    assert "driven back" in status
    assert "cause: turnaround" in status


def test_requests_that_make_no_sense_are_answered_and_start_nothing(
    publisher: Publisher, kafka: KafkaSettings, topics: TopicSettings, at_broker: CommandLine
) -> None:
    assert at_broker("canary", "start", "nothing").code == headrace.EXIT_REFUSED
    with watching(kafka, topics, publisher, CanarySettings(look_s=0.2), Clock()):
        stopped = at_broker("canary", "stop")

    assert (stopped.code, "none is running" in stopped.errors) == (headrace.EXIT_REFUSED, True)
    assert "has had no canary" in at_broker("canary", "status").output
