"""Through Kafka and the worker: decisions a second, and the time from a task-ready to the consumed placement."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from benchmarks.line import report
from benchmarks.plant import POOL, START_MS, Plant, broker, task_ready
from schemas.codec import Codec
from schemas.errors import HeadraceError
from schemas.records import EventKind, Outcome, Placement, TaskEvent
from schemas.topics import PLACEMENTS, TASK_EVENTS, TASK_READY
from streams.kafka import KafkaSettings, checked, fetch, reader, watermarks

SETTLE_S = 1.0
GIVE_UP_S = 60.0


class Arrivals:
    """Reads a placements topic, and notes when each workflow's placement came."""

    def __init__(self, kafka: KafkaSettings, plant: Plant) -> None:
        name = plant.topics.full_name(PLACEMENTS)
        self._consumer: Consumer = reader(kafka)
        _, end = watermarks(self._consumer, name, plant.partition)
        self._where = [TopicPartition(name, plant.partition, end)]
        self._consumer.assign(self._where)
        self.at: dict[str, float] = {}
        self._codec = Codec()
        self._is_stopping = False
        self._may_read = threading.Event()
        self._may_read.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping:
            self._may_read.wait()
            messages = fetch(self._consumer, 1000, 0.1)
            now = time.perf_counter()
            for message in checked(messages):
                record = self._codec.decode(message.value() or b"", Placement)
                if record.outcome == Outcome.PLACED:
                    self.at.setdefault(record.workflow_id, now)

    def pause(self) -> None:
        """Read nothing for now."""
        self._may_read.clear()
        self._consumer.pause(self._where)

    def resume(self) -> None:
        """Go on where it was paused."""
        self._consumer.resume(self._where)
        self._may_read.set()

    def wait_for(self, count: int) -> None:
        """Until so many placements have come, or nothing comes any more."""
        last, since = -1, time.monotonic()
        while len(self.at) < count and time.monotonic() - since < GIVE_UP_S:
            if len(self.at) != last:
                last, since = len(self.at), time.monotonic()
            time.sleep(0.005)

    def close(self) -> None:
        """Stop reading."""
        self._is_stopping = True
        self._thread.join()
        self._consumer.close()


def burst(plant: Plant, count: int, prefix: str) -> tuple[float, float]:
    """`count` tasks that wait when the process goes on; returns decisions a second of wall and of CPU.

    They are sent while it is stopped, and nobody reads the placements meanwhile: what else runs is the broker.
    """
    name = plant.topics.full_name(PLACEMENTS)
    consumer = reader(plant.kafka)
    arrivals = Arrivals(plant.kafka, plant)
    arrivals.pause()
    _, before = watermarks(consumer, name, plant.partition)
    os.kill(plant.pid, signal.SIGSTOP)
    for number in range(count):
        plant.publisher.send(TASK_READY, POOL, task_ready(number, prefix), plant.partition)
    plant.publisher.flush()
    cpu_s, started = plant.cpu_s, time.perf_counter()
    os.kill(plant.pid, signal.SIGCONT)
    while watermarks(consumer, name, plant.partition)[1] < before + count:
        if time.perf_counter() - started > GIVE_UP_S:
            raise HeadraceError(f"{count} tasks are not placed after {GIVE_UP_S:g} s; see {plant.log}")
        time.sleep(0.01)
    wall_s, spent_s = time.perf_counter() - started, plant.cpu_s - cpu_s
    consumer.close()
    arrivals.resume()
    arrivals.wait_for(count)
    finish(plant, arrivals.at)
    time.sleep(SETTLE_S)
    arrivals.close()
    if len(arrivals.at) != count:
        raise HeadraceError(f"{len(arrivals.at)} of {count} tasks were placed; see {plant.log}")
    return count / wall_s, count / max(spent_s, 0.01)


def finish(plant: Plant, workflow_ids: Iterable[str]) -> None:
    """Report the placed tasks as finished: a pool's state is bounded by what is live."""
    for workflow_id in workflow_ids:
        event = TaskEvent(POOL, workflow_id, "t", 0, "", START_MS + 300_000, EventKind.FINISHED)
        plant.publisher.send(TASK_EVENTS, POOL, event, plant.partition)
    plant.publisher.flush()


def paced(plant: Plant, rate: float, seconds: float, prefix: str) -> np.ndarray:
    """Poisson arrivals at this rate; returns the latencies [tasks], milliseconds."""
    arrivals = Arrivals(plant.kafka, plant)
    rng = np.random.default_rng(1)
    sent: dict[str, float] = {}
    due = time.perf_counter()
    end = due + seconds
    number = 0
    while due < end:
        due += rng.exponential(1 / rate)
        pause = due - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        ready = task_ready(number, prefix)
        sent[ready.workflow_id] = time.perf_counter()
        plant.publisher.send(TASK_READY, POOL, ready, plant.partition)
        number += 1
    arrivals.wait_for(number)
    finish(plant, arrivals.at)
    arrivals.close()
    return np.array([1000 * (arrivals.at[w] - at) for w, at in sent.items() if w in arrivals.at])


def measure(
    kafka: KafkaSettings, name: str, nodes: int, policy: str, module: tuple[str, ...], tasks: int, runs: int
) -> dict[str, list[float]]:
    """Bursts and paced arrivals on one process."""
    plant = Plant(kafka, f"{name}-{nodes}", nodes, policy)
    try:
        start_s = plant.start(*module)
        plant.publish_nodes()
        time.sleep(SETTLE_S)
        burst(plant, max(200, tasks // 10), "warm-")
        walls, cpus = zip(*(burst(plant, tasks, f"burst{run}-") for run in range(runs)), strict=True)
        figures = {"start_s": [start_s], "wall": list(walls), "cpu": list(cpus), "rss_mib": [plant.rss_mib]}
        for rate, seconds in ((100, 4.0), (500, 4.0), (1000, 4.0)):
            latencies = [paced(plant, rate, seconds, f"paced{rate}-{run}-") for run in range(runs)]
            figures[f"p50@{rate}"] = [float(np.percentile(x, 50)) for x in latencies]
            figures[f"p99@{rate}"] = [float(np.percentile(x, 99)) for x in latencies]
        return figures
    finally:
        plant.stop()


def main(sizes: tuple[int, ...] = (100, 1000, 5000), tasks: int = 10_000, runs: int = 3, policy: str = "actor") -> None:
    """Headrace at each size, beside an echo by librdkafka alone and an agent of stock Faust."""
    with broker() as kafka:
        echo = measure(kafka, "echo", 1, policy, ("benchmarks.counterparts", "echo"), tasks, runs)
        for nodes in sizes:
            ours = measure(kafka, "headrace", nodes, policy, (), tasks, runs)
            stock = measure(kafka, "stock", nodes, policy, ("benchmarks.counterparts", "stock"), 1000, runs)
            _report(nodes, policy, ours, stock, echo)


def _report(
    nodes: int, policy: str, ours: dict[str, list[float]], stock: dict[str, list[float]], echo: dict[str, list[float]]
) -> None:
    median: Callable[[list[float]], float] = lambda values: float(np.median(values))  # noqa: E731
    facts = {"nodes": nodes, "policy": policy}
    for figure, unit in (("wall", "decisions/s"), ("cpu", "decisions/cpu-s")):
        report(
            f"decisions through kafka and faust ({figure})",
            unit,
            ours[figure],
            **facts,
            stock_faust=median(stock[figure]),
            ratio=median(ours[figure]) / median(stock[figure]),
        )
    for rate in (100, 500, 1000):
        for quantile in ("p50", "p99"):
            key = f"{quantile}@{rate}"
            report(
                f"task-ready to placement, {quantile} at {rate}/s",
                "ms",
                ours[key],
                **facts,
                echo=median(echo[key]),
                ratio=median(ours[key]) / median(echo[key]),
            )
    report("worker start to ready", "s", ours["start_s"], **facts)
    report("worker memory after the run", "MiB", ours["rss_mib"], **facts)
