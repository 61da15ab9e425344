"""A canary that decides badly, under load: how much it decides, and for how long, until it is back."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.line import report
from benchmarks.plant import broker
from benchmarks.weights import upside_down
from policy.weight_set import shipped_weights
from schemas.codec import Codec
from schemas.errors import HeadraceError
from schemas.records import Edge, Env, NodeSpec, Outcome, Placement, Task, WorkflowClass, WorkflowSubmitted
from schemas.topics import TopicSettings
from streams.canary import answer_to, ask
from streams.client import Client
from streams.cluster import Cluster, ClusterSettings
from streams.kafka import KafkaSettings, Publisher
from streams.model_topic import ModelTopic, publish
from streams.supervisor import Supervised
from streams.topic_admin import create_topics
from streams.watch import Watch

POOL = "canary"
SHARE = 0.1
RATE = 10.0
"""Workflows a second."""
TIME_SCALE = 300.0
GIVE_UP_S = 300.0
NODES = tuple(NodeSpec(f"n{at:02}", 64.0, 2**38, speed=2.0 if at % 2 else 0.25) for at in range(12))
"""Fast ones and slow ones: who chooses the worst makes a workflow eight times as long."""


class Followed:
    """When the canary decided first and last, and for how many workflows."""

    def __init__(self, version: str) -> None:
        self.workflows: set[str] = set()
        self.first = self.last = 0.0
        self._version = version

    def take(self, record: object) -> None:
        """See a record of the pool."""
        is_placed = isinstance(record, Placement) and record.outcome == Outcome.PLACED
        if is_placed and record.model_version == self._version:  # type: ignore[attr-defined]
            self.last = time.monotonic()
            self.first = self.first or self.last
            self.workflows.add(record.workflow_id)  # type: ignore[attr-defined]


@contextmanager
def _installed(kafka: KafkaSettings, topics: TopicSettings, folder: Path) -> Iterator[None]:
    """A worker, a controller, and a simulated cluster."""
    environment = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "HEADRACE_TOPICS__PREFIX": topics.prefix,
        "HEADRACE_TOPICS__PARTITIONS": "1",
        "HEADRACE_POOL": POOL,
        "HEADRACE_WORKER__GROUP": f"{topics.prefix}workers",
        "HEADRACE_WORKER__PORT": "0",
        "HEADRACE_CANARY__SHARES": f"[{SHARE}]",
        "HEADRACE_CANARY__GUARDRAILS__LATENCY_P99_S": "30",
    }
    settings = ClusterSettings(time_scale=TIME_SCALE)
    cluster = Cluster(POOL, NODES, settings, kafka, topics, Codec())
    thread = threading.Thread(target=cluster.run, name="cluster")
    with ExitStack() as stack:
        for name, arguments in (("worker", ["worker"]), ("controller", ["canary", "run"])):
            child = Supervised(name, arguments, environment, folder / f"{name}.log")
            stack.callback(child.stop)
        thread.start()
        stack.callback(thread.join)
        stack.callback(cluster.stop)
        yield


def run(kafka: KafkaSettings) -> tuple[int, float, float]:
    """Workflows of the canary, seconds from its first decision to the verdict, and from that to its last decision."""
    topics = TopicSettings(prefix=f"canary-{time.time_ns()}.", partitions=1)
    create_topics(kafka, topics)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-canary-") as folder,
        _installed(kafka, topics, Path(folder)),
        closing(Publisher(kafka, topics, Codec())) as publisher,
        Client(kafka, POOL, topics) as client,
        ModelTopic(kafka, topics, Codec()) as models,
        closing(Watch(kafka, topics, Codec(), POOL)) as watch,
    ):
        version = publish(publisher, upside_down(shipped_weights()), "canary").version
        followed = Followed(version)
        watch.on_record = followed.take
        number = _load(client, watch, 0, lambda: len(watch.trace.finished) > 100)
        request = ask(publisher, POOL, "start", version, "benchmark", "")
        answer_to(models, POOL, request, 60.0)
        verdict: list[float] = []

        def is_back() -> bool:
            models.poll(0)
            if not verdict and '"driven back"' in models.of(POOL).commands["canary"].arguments["progress"]:
                verdict.append(time.monotonic())
            return bool(verdict) and time.monotonic() - verdict[0] > 5.0

        _load(client, watch, number, is_back)
        return len(followed.workflows), verdict[0] - followed.first, max(0.0, followed.last - verdict[0])


def _load(client: Client, watch: Watch, number: int, is_done: Callable[[], bool]) -> int:
    """Submit workflows at a steady rate until then; returns the number of the next."""
    deadline, due = time.monotonic() + GIVE_UP_S, time.monotonic()
    while not is_done():
        if time.monotonic() > deadline:
            raise HeadraceError("the canary is not driven back")
        while due <= time.monotonic():
            tasks = (Task("a", 20.0), Task("b", 20.0, parents=(Edge("a"),)))
            known = (POOL, f"w{number}", int(1000 * time.time()), "chain", WorkflowClass.ETL_BATCH, Env.PROD)
            client.submit(WorkflowSubmitted(*known, tasks))
            number, due = number + 1, due + 1 / RATE
        watch.poll(0.02)
    return number


def main(runs: int = 3) -> None:
    """Three canaries, one after the other."""
    os.environ.setdefault("HEADRACE_LOG_LEVEL", "WARNING")
    with broker() as kafka:
        found = [run(kafka) for _ in range(runs)]
    facts = {"share": SHARE, "workflows a second": RATE, "slowdown": 8}
    workflows, seconds, after = zip(*found, strict=True)
    report("bad canary: workflows that it decides until it is driven back", "workflows", workflows, **facts)
    report("bad canary: first decision to verdict", "s", seconds, **facts)
    report("bad canary: verdict to its last decision", "s", after, **facts)
