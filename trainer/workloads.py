"""Workflows and their arrivals, made up after the five classes of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from schemas.errors import InvalidConfiguration
from schemas.records import Edge, Env, NodeSpec, Task, WorkflowClass, WorkflowSubmitted

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True)
class Shape:
    """What the tasks of one class are like: medians of log-normal quantities."""

    runtime_s: float
    cpu: tuple[int, ...]
    memory_gib: float
    output_mib: float
    gpu_share: float
    """Share of the tasks that need GPUs."""
    width: float
    """Tasks a level, on average."""


SHAPES = {
    WorkflowClass.ETL_BATCH: Shape(120, (2, 4, 8), 6, 400, 0.1, 3),
    WorkflowClass.AI_TRAINING: Shape(400, (4, 8, 16), 16, 800, 0.5, 2),
    WorkflowClass.MICROSERVICE: Shape(8, (1, 2), 1, 5, 0.0, 4),
    WorkflowClass.STREAM_PROCESSING: Shape(60, (1, 2, 4), 4, 60, 0.05, 2),
    WorkflowClass.MIXED: Shape(90, (1, 2, 4, 8), 4, 150, 0.15, 3),
}


@dataclass(frozen=True, kw_only=True)
class Variation:
    """How work differs from `SHAPES`: factors of what its tasks are like."""

    runtime: float = 1.0
    width: float = 1.0
    output: float = 1.0
    gpu_share: float = 1.0

    def of(self, shape: Shape) -> Shape:
        """The shape, varied."""
        return replace(
            shape,
            runtime_s=shape.runtime_s * self.runtime,
            width=shape.width * self.width,
            output_mib=shape.output_mib * self.output,
            gpu_share=min(1.0, shape.gpu_share * self.gpu_share),
        )


@dataclass(frozen=True, kw_only=True)
class WorkloadSettings:
    """How much work arrives, of what size."""

    workflows: int = 40
    tasks: tuple[int, int] = (5, 30)
    """Least and most tasks of a workflow."""
    load: float = 0.7
    """Work offered, as a share of what the pool's scarcer of cpu and gpu can do."""
    classes: tuple[WorkflowClass, ...] = tuple(SHAPES)
    """Of which they are, each as likely as the others."""
    variation: Variation = Variation()

    def __post_init__(self) -> None:
        if self.workflows < 1 or not self.classes or not 1 <= self.tasks[0] <= self.tasks[1] or not 0 < self.load < 100:
            raise InvalidConfiguration("workload", f"{self} is out of range", "give positive numbers")


def random_workflow(
    rng: np.random.Generator,
    kind: WorkflowClass,
    tasks: int,
    workflow_id: str,
    pool: str,
    event_time_ms: int,
    variation: Variation | None = None,
) -> WorkflowSubmitted:
    """A layered DAG: each task depends on one to three tasks of the level before."""
    shape = (variation or Variation()).of(SHAPES[kind])
    levels: list[list[Task]] = []
    made = 0
    while made < tasks:
        width = min(tasks - made, 1 + int(rng.poisson(shape.width - 1)))
        above = levels[-1] if levels else []
        levels.append([_random_task(rng, shape, f"t{made + i}", above) for i in range(width)])
        made += width
    return WorkflowSubmitted(
        pool, workflow_id, event_time_ms, str(kind), kind, Env.DEV, tuple(t for level in levels for t in level)
    )


def _random_task(rng: np.random.Generator, shape: Shape, task_id: str, above: Sequence[Task]) -> Task:
    parents: list[Task] = []
    if above:
        count = min(len(above), 1 + int(rng.binomial(2, 0.3)))
        parents = [above[i] for i in rng.choice(len(above), count, replace=False)]
    needs_gpu = rng.random() < shape.gpu_share
    return Task(
        task_id,
        runtime_s=round(float(shape.runtime_s * rng.lognormal(0, 0.7)), 3) + 0.1,
        cpu=float(rng.choice(shape.cpu)),
        memory_bytes=int(shape.memory_gib * GIB * min(4.0, rng.lognormal(0, 0.5))),
        gpu=int(rng.choice((1, 1, 2))) if needs_gpu else 0,
        gpu_memory_bytes=8 * GIB if needs_gpu else 0,
        parents=tuple(Edge(p.task_id, int(shape.output_mib * MIB * rng.lognormal(0, 1))) for p in parents),
    )


def random_workload(
    rng: np.random.Generator, specs: Sequence[NodeSpec], settings: WorkloadSettings, pool: str, start_ms: int
) -> list[WorkflowSubmitted]:
    """Workflows of the classes with Poisson arrivals, at the load asked for."""
    kinds = settings.classes
    low, high = settings.tasks
    workflows = []
    for i in range(settings.workflows):
        kind, tasks = kinds[int(rng.integers(len(kinds)))], int(rng.integers(low, high + 1))
        workflows.append(random_workflow(rng, kind, tasks, f"w{i}", pool, 0, settings.variation))
    gap_s = busy_s(workflows, specs) / settings.workflows / settings.load
    arrivals_ms = start_ms + 1 + np.cumsum(rng.exponential(1000 * gap_s, settings.workflows)).astype(np.int64)
    return [
        WorkflowSubmitted(w.pool, w.workflow_id, int(at_ms), w.name, w.workflow_class, w.env, w.tasks)
        for w, at_ms in zip(workflows, arrivals_ms.tolist(), strict=True)
    ]


def busy_s(workflows: Sequence[WorkflowSubmitted], specs: Sequence[NodeSpec]) -> float:
    """How long the whole pool would be busy with this work, if it packed perfectly."""
    tasks = [t for w in workflows for t in w.tasks]
    cpu_s = sum(t.runtime_s * t.cpu for t in tasks) / sum(s.cpu * s.speed for s in specs)
    gpus = sum(s.gpu * s.speed for s in specs)
    gpu_s = sum(t.runtime_s * t.gpu for t in tasks) / gpus if gpus else 0.0
    return max(cpu_s, gpu_s)


def example_nodes(count: int = 16) -> tuple[NodeSpec, ...]:
    """A heterogeneous pool: six kinds of machine in turn, in two zones."""
    kinds = (
        (8, 32, 0, 0, 0.8, 0.30),
        (16, 64, 0, 0, 1.0, 0.70),
        (32, 128, 0, 0, 1.2, 1.60),
        (16, 128, 2, 16, 1.0, 2.20),
        (32, 256, 4, 24, 1.5, 5.50),
        (16, 32, 0, 0, 1.4, 0.95),
    )
    return tuple(
        NodeSpec(
            f"n{i:04d}",
            float(cpu),
            memory * GIB,
            gpu,
            gpu_memory * GIB,
            speed,
            price,
            500e6 if i % 2 == 0 else 125e6,
            {"topology.kubernetes.io/zone": f"z{i % 2}"},
        )
        for i in range(count)
        for cpu, memory, gpu, gpu_memory, speed, price in [kinds[i % len(kinds)]]
    )
