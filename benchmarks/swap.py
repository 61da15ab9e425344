"""New weights while tasks arrive: the time from task-ready to placement around the swaps, and without any."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np

from benchmarks.line import report
from benchmarks.loop import SETTLE_S, paced
from benchmarks.plant import POOL, Plant, broker
from benchmarks.weights import renamed
from policy.weight_set import shipped_weights
from schemas.codec import Codec
from schemas.errors import HeadraceError
from streams.kafka import KafkaSettings, Publisher
from streams.model_topic import Choice, choose, publish

EVERY_S = 3.0
"""Between two swaps."""
SECONDS = 12.0
RATE = 200.0


class Swaps:
    """Promotes one of two versions after the other, until it is told to stop."""

    def __init__(self, kafka: KafkaSettings, plant: Plant) -> None:
        self.promoted = 0
        self._publisher = Publisher(kafka, plant.topics, Codec())
        ours = shipped_weights()
        self._versions = [publish(self._publisher, renamed(ours, mark), "stable").version for mark in (b"1", b"2")]
        self._is_stopping = threading.Event()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Within the block."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_stopping.set()
            thread.join()

    def _run(self) -> None:
        before: tuple[Choice, ...] = ()
        while not self._is_stopping.wait(EVERY_S):
            choice = Choice(self._versions[self.promoted % 2], int(time.time() * 1000), "benchmark", "")
            choose(self._publisher, POOL, before, choice)
            before, self.promoted = (*before, choice), self.promoted + 1

    def close(self) -> None:
        """Stop publishing."""
        self._publisher.close()


def measure(kafka: KafkaSettings, nodes: int, runs: int) -> dict[str, list[float]]:
    """Latencies without swaps and with one every few seconds, in turns on one worker."""
    plant = Plant(kafka, f"swap-{nodes}", nodes)
    figures: dict[str, list[float]] = {}
    try:
        plant.start()
        plant.publish_nodes()
        time.sleep(SETTLE_S)
        paced(plant, RATE, SECONDS / 4, "warm-")
        for run in range(runs):
            _note(figures, "without", paced(plant, RATE, SECONDS, f"calm{run}-"))
            with closing(Swaps(kafka, plant)) as swaps, swaps.going_on():
                _note(figures, "with", paced(plant, RATE, SECONDS, f"swapped{run}-"))
            if not swaps.promoted:
                raise HeadraceError(f"nothing was swapped; see {plant.log}")
            figures.setdefault("swaps", []).append(float(swaps.promoted))
        return figures
    finally:
        plant.stop()


def _note(figures: dict[str, list[float]], name: str, latencies_ms: np.ndarray) -> None:
    for quantile in (50, 99, 100):
        figures.setdefault(f"{name} p{quantile}", []).append(float(np.percentile(latencies_ms, quantile)))
    figures.setdefault(f"{name} tasks", []).append(float(len(latencies_ms)))


def main(sizes: tuple[int, ...] = (100, 1000), runs: int = 3) -> None:
    """At each size."""
    with broker() as kafka:
        for nodes in sizes:
            figures = measure(kafka, nodes, runs)
            for quantile in ("p50", "p99", "p100"):
                calm = figures[f"without {quantile}"]
                report(
                    f"task-ready to placement, {quantile} at {RATE:g}/s, weights swapped every {EVERY_S:g} s",
                    "ms",
                    figures[f"with {quantile}"],
                    nodes=nodes,
                    without=float(np.median(calm)),
                    ratio=float(np.median(figures[f"with {quantile}"]) / np.median(calm)),
                    swaps=sum(figures["swaps"]),
                )
