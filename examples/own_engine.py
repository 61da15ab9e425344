"""An engine of your own: it keeps the DAG and runs the tasks, on nodes of its own; headrace says where.

export HEADRACE_KAFKA__BOOTSTRAP_SERVERS=localhost:9092     # of a running headrace, such as 'headrace up'
python examples/own_engine.py
"""

from __future__ import annotations

import time

import numpy as np

from schemas.records import METRICS, EventKind, NodeMetrics, NodeSpec, Placement, Task, TaskEvent, TaskReady
from streams.client import Client
from streams.config import load

POOL = "own-engine"
GIB = 2**30
NODES = (
    NodeSpec("small", cpu=4, memory_bytes=16 * GIB, price_per_hour=0.2),
    NodeSpec("large", cpu=16, memory_bytes=64 * GIB, speed=1.5, price_per_hour=0.9),
)
STEPS = (  # each begins when the one before is done
    Task("fetch", runtime_s=2, cpu=1, memory_bytes=GIB),
    Task("train", runtime_s=5, cpu=8, memory_bytes=32 * GIB),
    Task("publish", runtime_s=1, cpu=1, memory_bytes=GIB),
)


def main() -> None:
    """Run the steps one after the other, each where headrace places it."""
    settings = load()
    with Client(settings.kafka, POOL, settings.topics) as client:
        client.sample(idle_nodes())
        run = f"run-{now_ms()}"
        steps = iter(STEPS)
        client.ready(TaskReady(POOL, run, STEPS[0].task_id, 0, now_ms(), next(steps)))
        for placement in client.placements(timeout_s=60):
            if placement.workflow_id != run:
                continue
            print(f"{placement.task_id} -> {placement.node_id}")
            execute(client, placement)
            step = next(steps, None)
            if step is None:
                return
            client.ready(TaskReady(POOL, run, step.task_id, 0, now_ms(), step))
    raise SystemExit("no placement has come for a minute; is a worker running?")


def execute(client: Client, placement: Placement) -> None:
    """Here the task would run; headrace learns when it starts and ends."""
    for kind in (EventKind.STARTED, EventKind.FINISHED):
        attempt = (placement.workflow_id, placement.task_id, placement.attempt)
        client.report(TaskEvent(POOL, *attempt, placement.node_id or "", now_ms(), kind))


def idle_nodes() -> NodeMetrics:
    """A sample of each node, all zero; a collector would send one every 15 seconds."""
    values_nm = np.zeros((len(NODES), len(METRICS)), "<f4")
    return NodeMetrics(POOL, now_ms(), "own-engine", tuple(n.node_id for n in NODES), values_nm.tobytes(), NODES)


def now_ms() -> int:
    """Unix milliseconds."""
    return int(time.time() * 1000)


if __name__ == "__main__":
    main()
