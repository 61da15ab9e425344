"""Samples of recorded workflows, fitted to a pool and to a load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from policy.resources import MILLI, RESOURCES, capacity, request
from schemas.errors import InvalidConfiguration
from schemas.records import NodeSpec, Task, WorkflowSubmitted
from trainer.traces import READERS, Trace
from trainer.workloads import busy_s

COUNTED = RESOURCES[:3]
"""What tasks of traces ask for: no trace says how much memory of a GPU is used."""


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """Which recorded work arrives, and how much of it."""

    folder: Path
    """The folder of traces."""
    source: str
    """Of `trainer.traces.READERS`."""
    tasks: int = 3000
    """Most tasks of a sample."""
    largest: int = 400
    """Workflows of more tasks are left out."""
    longest_s: float = 3600.0
    """Workflows with a longer task are left out: it would outlast the sample, and be most of its work."""
    load: float = 0.8
    """Work offered, as a share of what the pool's scarcer of cpu and gpu can do."""

    def __post_init__(self) -> None:
        is_possible = 1 <= self.largest <= self.tasks and self.longest_s > 0 and 0 < self.load < 100
        if self.source not in READERS or not is_possible:
            raise InvalidConfiguration("trace", f"{self} is out of range", f"sources are {', '.join(READERS)}")


def fitted(trace: Trace, specs: Sequence[NodeSpec], settings: TraceSettings) -> Trace:
    """The workflows that are neither too large nor too long, of tasks that each fit some node when it is empty.

    What is larger than every node asks for what it can have of the node that has most of it. All of this is noted.
    """
    notes = Counter(trace.notes)
    capacity_nr = np.unique([capacity(spec)[: len(COUNTED)] for spec in specs], axis=0)
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    workflows = []
    for workflow in trace.workflows:
        if len(workflow.tasks) > settings.largest:
            notes[f"workflows left out, as they have more than {settings.largest} tasks"] += 1
            continue
        if max(task.runtime_s for task in workflow.tasks) > settings.longest_s:
            notes[f"workflows left out, as a task takes longer than {settings.longest_s / 60:g} minutes"] += 1
            continue
        tasks = tuple(_fitted(task, capacity_nr, known) for task in workflow.tasks)
        notes["tasks that asked for more than any node has, which ask for what one has"] += sum(
            task is not before for task, before in zip(tasks, workflow.tasks, strict=True)
        )
        workflows.append(replace(workflow, tasks=tasks))
    return Trace(tuple(workflows), trace.has_arrivals, +notes)


def _fitted(task: Task, capacity_nr: np.ndarray, known: dict[tuple[int, ...], tuple[int, ...]]) -> Task:
    asked = request(task)[: len(COUNTED)]
    if asked not in known:
        share_n = (capacity_nr / np.maximum(asked, 1)).clip(max=1).min(axis=1)
        known[asked] = tuple(np.minimum(asked, capacity_nr[share_n.argmax()]).tolist())
    cpu, memory_bytes, gpu = known[asked]
    if known[asked] == asked:
        return task
    return replace(task, cpu=cpu / MILLI, memory_bytes=memory_bytes, gpu=gpu)


def trace_workload(
    rng: np.random.Generator,
    specs: Sequence[NodeSpec],
    trace: Trace,
    settings: TraceSettings,
    pool: str,
    start_ms: int,
) -> list[WorkflowSubmitted]:
    """A sample of a fitted trace, of `settings.tasks` tasks at most, that offers the load asked for.

    Where the trace has arrivals, the sample is a piece of it with its time stretched; else its arrivals are Poisson.
    """
    if not trace.workflows:
        raise InvalidConfiguration(
            f"trace {settings.source} in {settings.folder}", "has no workflow of this size", "give another folder"
        )
    sample = _piece(rng, trace.workflows, settings.tasks) if trace.has_arrivals else _mixed(rng, trace, settings.tasks)
    span_ms = 1000 * busy_s(sample, specs) / settings.load
    arrival_ms_w = start_ms + 1 + np.round(span_ms * _arrivals(rng, sample, trace.has_arrivals)).astype(np.int64)
    return [
        replace(w, pool=pool, workflow_id=f"{w.workflow_id}-{i}", event_time_ms=at_ms)
        for i, (w, at_ms) in enumerate(zip(sample, arrival_ms_w.tolist(), strict=True))
    ]


def _piece(
    rng: np.random.Generator, workflows: Sequence[WorkflowSubmitted], most_tasks: int
) -> list[WorkflowSubmitted]:
    """Workflows in a row that have so many tasks, from anywhere in the trace."""
    until = np.cumsum([len(w.tasks) for w in workflows])
    before = np.concatenate([[0], until[:-1]])
    begins = max(1, int(np.searchsorted(before, until[-1] - most_tasks, "right")))
    begin = int(rng.integers(begins))
    end = int(np.searchsorted(until, before[begin] + most_tasks, "right"))
    return list(workflows[begin:end])


def _mixed(rng: np.random.Generator, trace: Trace, most_tasks: int) -> list[WorkflowSubmitted]:
    """Workflows in random order, each of them before any comes again."""
    endless = _in_rounds(rng, trace.workflows)
    first = next(endless)
    sample, tasks = [first], len(first.tasks)
    for workflow in endless:
        tasks += len(workflow.tasks)
        if tasks > most_tasks:
            break
        sample.append(workflow)
    return sample


def _in_rounds(rng: np.random.Generator, workflows: Sequence[WorkflowSubmitted]) -> Iterator[WorkflowSubmitted]:
    while True:
        for i in rng.permutation(len(workflows)).tolist():
            yield workflows[i]


def _arrivals(rng: np.random.Generator, sample: Sequence[WorkflowSubmitted], are_recorded: bool) -> np.ndarray:
    """When each workflow comes, as a share of the time in which all do [W], in order."""
    if not are_recorded:
        return np.sort(rng.random(len(sample)))  # so many Poisson arrivals, given that they are so many
    at_ms_w = np.array([w.event_time_ms for w in sample], np.float64)
    passed_ms = at_ms_w[-1] - at_ms_w[0]
    return (at_ms_w - at_ms_w[0]) / passed_ms if passed_ms > 0 else np.zeros(len(sample))
