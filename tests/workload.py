"""Work for tests through Kafka: workflows of all classes, and nodes that have room for all their tasks."""

from __future__ import annotations

import time

import numpy as np

from schemas.records import WorkflowSubmitted
from schemas.topics import partition_of
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

POOL = "default"
SPECS = example_nodes(12)


def some_work(
    workflows: int, seed: int = 0, pool: str = POOL, prefix: str = "w", tasks: tuple[int, int] = (5, 12)
) -> list[WorkflowSubmitted]:
    """So many workflows, submitted now; the same ones for the same seed."""
    settings = WorkloadSettings(workflows=workflows, tasks=tasks)
    made = random_workload(np.random.default_rng(seed), SPECS, settings, pool, 0)
    now_ms = int(time.time() * 1000)
    return [
        WorkflowSubmitted(pool, f"{prefix}{at}", now_ms, w.name, w.workflow_class, w.env, w.tasks)
        for at, w in enumerate(made)
    ]


def pool_in(number: int, partitions: int = 4) -> str:
    """The name of a pool that lies in this partition."""
    return next(name for name in map("pool-{}".format, range(1000)) if partition_of(name, partitions) == number)
