"""Node samples into the windows: through the worker's agent, beside a bare consumer and stock Faust."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.request

import numpy as np
from confluent_kafka import TopicPartition

from benchmarks.line import report
from benchmarks.plant import POOL, START_MS, Plant, broker, samples
from schemas.records import NodeMetrics
from schemas.topics import NODE_METRICS
from streams.kafka import KafkaSettings, checked, reader, watermarks

COUNTED = re.compile(rb"^headrace_node_samples_total ([0-9.e+]+)$", re.MULTILINE)


def fill(plant: Plant, messages: int, nodes: int, first: int) -> None:
    """`messages` records of `nodes` samples each, one second of event time apart."""
    rng = np.random.default_rng(first)
    ids = tuple(spec.node_id for spec in plant.specs)
    for number in range(messages):
        start = number * nodes % len(ids)
        part = ids[start : start + nodes]
        at_ms = START_MS + 400_000 + 1000 * ((first + number) * nodes // len(ids))
        record = NodeMetrics(POOL, at_ms, "bench", part, samples(rng, len(part)))
        plant.publisher.send(NODE_METRICS, POOL, record, plant.partition)
    plant.publisher.flush()


def counted(plant: Plant) -> float:
    """Samples that the process says it has folded."""
    with urllib.request.urlopen(f"http://127.0.0.1:{plant.port}/metrics", timeout=30) as answer:
        match = COUNTED.search(answer.read())
    return float(match[1]) if match else 0.0


def drain(plant: Plant, messages: int, nodes: int, first: int) -> tuple[float, float]:
    """Fill the topic while the process is stopped, let it go on; returns samples a second of wall and of CPU."""
    before = counted(plant)
    os.kill(plant.pid, signal.SIGSTOP)
    fill(plant, messages, nodes, first)
    cpu_s, started = plant.cpu_s, time.perf_counter()
    os.kill(plant.pid, signal.SIGCONT)
    wanted = messages * nodes
    while counted(plant) - before < wanted and time.perf_counter() - started < 60:
        time.sleep(0.02)
    wall_s = time.perf_counter() - started
    return wanted / wall_s, wanted / max(0.01, plant.cpu_s - cpu_s)


def bare(kafka: KafkaSettings, plant: Plant, messages: int, nodes: int) -> tuple[float, float]:
    """The newest `messages` records read by a plain consumer that looks at nothing."""
    name = plant.topics.full_name(NODE_METRICS)
    consumer = reader(kafka)
    _, end = watermarks(consumer, name, 0)
    consumer.assign([TopicPartition(name, 0, end - messages)])
    cpu_s, started, left = time.process_time(), time.perf_counter(), messages
    while left > 0:
        left -= sum(1 for _ in checked(consumer.consume(10_000, 1.0)))
    wall_s, spent_s = time.perf_counter() - started, time.process_time() - cpu_s
    consumer.close()
    return messages * nodes / wall_s, messages * nodes / max(spent_s, 1e-4)


def measure(
    kafka: KafkaSettings, name: str, module: tuple[str, ...], messages: int, nodes: int, runs: int
) -> dict[str, list[float]]:
    """Wall and CPU rates of one process, and of a bare consumer of the same records."""
    plant = Plant(kafka, f"ingest-{name}", 1000, "heft")
    try:
        plant.start(*module)
        plant.publish_nodes()
        time.sleep(1.0)
        drain(plant, max(20, messages // 10), nodes, 0)
        rates = [drain(plant, messages, nodes, (run + 1) * messages) for run in range(runs)]
        bares = [bare(kafka, plant, messages, nodes) for _ in range(runs)]
    finally:
        plant.stop()
    figures = {"wall": [w for w, _ in rates], "cpu": [c for _, c in rates]}
    return figures | {"bare_wall": [w for w, _ in bares], "bare_cpu": [c for _, c in bares]}


def main(runs: int = 3) -> None:
    """Columnar records of 100 nodes, and records of one."""
    with broker() as kafka:
        for name, nodes, messages, stock_messages in (("columnar", 100, 5000, 2000), ("single", 1, 40_000, 3000)):
            ours = measure(kafka, name, (), messages, nodes, runs)
            stock = measure(kafka, f"stock-{name}", ("benchmarks.counterparts", "stock"), stock_messages, nodes, runs)
            for kind in ("wall", "cpu"):
                report(
                    f"node samples into the windows, {name} ({kind})",
                    "samples/s" if kind == "wall" else "samples/cpu-s",
                    ours[kind],
                    nodes_a_record=nodes,
                    bare_consumer=float(np.median(ours[f"bare_{kind}"])),
                    stock_faust=float(np.median(stock[kind])),
                    ratio_to_stock=float(np.median(ours[kind]) / np.median(stock[kind])),
                )
