"""What the benchmarks through Kafka run on: a broker, a worker as a process of its own, nodes, tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from schemas.codec import Codec
from schemas.errors import HeadraceError
from schemas.records import METRICS, NodeMetrics, NodeSpec, Task, TaskReady
from schemas.topics import NODE_METRICS, TopicSettings, partition_of
from streams.broker import EmbeddedBroker, free_port
from streams.kafka import KafkaSettings, Publisher
from streams.topic_admin import create_topics

POOL = "bench"
TICKS = os.sysconf("SC_CLK_TCK")
END_S = 15.0
START_MS = 1_700_000_000_000


@contextmanager
def broker() -> Iterator[KafkaSettings]:
    """The broker of HEADRACE_KAFKA__BOOTSTRAP_SERVERS, or one of our own."""
    named = os.environ.get("HEADRACE_KAFKA__BOOTSTRAP_SERVERS")
    if named:
        yield KafkaSettings(bootstrap_servers=named)
        return
    with EmbeddedBroker() as embedded:
        yield KafkaSettings(bootstrap_servers=embedded.bootstrap_servers)


class Plant:
    """Topics of their own, and a process that reads them: headrace's worker, or a counterpart of it."""

    def __init__(self, kafka: KafkaSettings, name: str, nodes: int, policy: str = "actor") -> None:
        self.kafka = kafka
        self.topics = TopicSettings(prefix=f"bench-{name}-{time.time_ns()}.", partitions=1)
        self.publisher = Publisher(kafka, self.topics, Codec())
        self.partition = partition_of(POOL, 1)
        self.specs = node_specs(nodes)
        self._policy = policy
        self._log = tempfile.NamedTemporaryFile(prefix=f"headrace-{name}-", suffix=".log", delete=False)  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        create_topics(kafka, self.topics)

    @property
    def log(self) -> str:
        """The file of what the process prints."""
        return self._log.name

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """CPU time of the process so far, user and system."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def rss_mib(self) -> float:
        """Resident memory of the process."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def start(self, *module: str) -> float:
        """Start `headrace worker`, or another module; returns the seconds until it was ready."""
        self.port = free_port()
        environment = {
            **os.environ,
            "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "HEADRACE_TOPICS__PREFIX": self.topics.prefix,
            "HEADRACE_TOPICS__PARTITIONS": "1",
            "HEADRACE_WORKER__GROUP": self.topics.prefix + "group",
            "HEADRACE_WORKER__PORT": str(self.port),
            "HEADRACE_POLICY__NAME": self._policy,
        }
        started = time.monotonic()
        command = [sys.executable, "-m", *(module or ("headrace", "worker"))]
        self._process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=1.0):
                    return time.monotonic() - started
            except (urllib.error.URLError, OSError):
                if self._process.poll() is not None or time.monotonic() - started > 90:
                    raise HeadraceError(f"the worker is not ready; see {self._log.name}") from None
            time.sleep(0.02)

    def publish_nodes(self) -> None:
        """Specifications, and a window's worth of samples."""
        rng = np.random.default_rng(0)
        ids = tuple(spec.node_id for spec in self.specs)
        for start in range(0, len(ids), 500):
            part = slice(start, start + 500)
            for step in range(20):
                specs = self.specs[part] if step == 0 else ()
                values = samples(rng, len(ids[part]))
                record = NodeMetrics(POOL, START_MS + 15_000 * step, "bench", ids[part], values, tuple(specs))
                self.publisher.send(NODE_METRICS, POOL, record, self.partition)
        self.publisher.flush()

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:  # stock Faust does not always end
                self._process.kill()
                self._process.wait()
        self.publisher.close()


def samples(rng: np.random.Generator, nodes: int) -> bytes:
    """One sample of each node, as `NodeMetrics.values`."""
    return rng.random((nodes, len(METRICS)), np.float32).astype("<f4").tobytes()


def node_specs(nodes: int) -> tuple[NodeSpec, ...]:
    """Machines of three sizes."""
    sizes = ((16.0, 64, 0, 1.0, 0.8), (32.0, 128, 0, 1.2, 1.7), (64.0, 256, 4, 1.5, 6.0))
    return tuple(
        NodeSpec(f"n{i:05d}", cpu, memory * 2**30, gpu, 16 * 2**30 if gpu else 0, speed, price)
        for i in range(nodes)
        for cpu, memory, gpu, speed, price in [sizes[i % 3]]
    )


def task_ready(number: int, prefix: str) -> TaskReady:
    """A small task of a workflow that an engine of its own keeps."""
    task = Task("t", 30.0 + number % 7, cpu=0.001, memory_bytes=1024)
    return TaskReady(POOL, f"{prefix}{number}", "t", 0, START_MS + 300_000, task)
