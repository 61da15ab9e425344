"""Scenarios as arrays: nodes, workflows and chance of an episode, for `trainer.arena`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policy import workflows
from policy.arbiter import draw
from policy.features import Graphs, graphs
from policy.physics import Machines
from policy.resources import RESOURCES
from policy.reward import SLA_S, Run
from policy.simulator import SimulatorSettings, chances, machines_of, with_spot
from schemas.records import NodeSpec, WorkflowClass, WorkflowSubmitted
from trainer.arena import BEGIN, END, LOAD, SCRAPS, SPREAD, Outcome, Rule, Scenario, play

DRAWN = 4
CLASSES = tuple(WorkflowClass)


@dataclass(frozen=True)
class Course:
    """A scenario with its nodes, to be played as often as one likes."""

    specs: tuple[NodeSpec, ...]
    workflows: tuple[WorkflowSubmitted, ...]
    cluster: SimulatorSettings
    scenario: Scenario

    def machines(self) -> Machines:
        """The nodes as they are at the beginning."""
        return machines_of(self.specs, self.cluster, self.scenario.start_ms, len(self.scenario.workflow_t))

    @cached_property
    def graphs(self) -> Graphs:
        """The workflows side by side, as the DAG encoder takes them."""
        return graphs([workflows.from_record(record, record.event_time_ms).tasks for record in self.workflows])


RuleOf = Callable[[Course], Rule]
"""How a policy decides that looks at more of a course than the arena keeps."""


@dataclass(frozen=True)
class Played:
    """One play of a course."""

    course: Course
    outcome: Outcome
    machines: Machines
    placements: int

    def measured(self) -> Run:
        """What is measured of it."""
        s, outcome = self.course.scenario, self.outcome
        workflows = len(s.arrival_ms_w)
        finished_w = outcome.finish_ms_w >= 0
        turnaround_s_w = np.where(finished_w, (outcome.finish_ms_w - s.arrival_ms_w) / 1000, np.inf)
        is_punctual_t = (outcome.wait_ms_t >= 0) & (outcome.wait_ms_t <= 1000 * SLA_S)
        tasks_w = np.diff(s.first_w)
        sums = outcome.sums
        passed_ms = max(1.0, sums[END] - sums[BEGIN])
        return Run(
            s.class_w,
            turnaround_s_w,
            np.bincount(s.workflow_t, self.machines.cost_a[: len(s.workflow_t)], workflows),
            np.bincount(s.workflow_t, is_punctual_t, workflows) / tasks_w,
            sums[SCRAPS] / passed_ms,
            sums[SPREAD] / max(sums[LOAD], 1e-9),
        )


def digest(courses: Iterable[Course]) -> str:
    """SHA-256 over everything that happens in these courses whoever decides."""
    whole = hashlib.sha256()
    for course in courses:
        for array in (*course.scenario, *course.machines()):
            whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def run(course: Course, rule: Rule | RuleOf, log: int = 0) -> Played:
    """Play the course by the rule; `log`: placements that are kept."""
    rule = rule if isinstance(rule, Rule) else rule(course)
    machines = course.machines()
    outcome = Outcome(
        np.full(len(course.workflows), -1),
        np.full(len(course.scenario.workflow_t), -1),
        np.zeros((log, 3), np.int64),
        np.zeros(6),
    )
    return Played(course, outcome, machines, play(machines, course.scenario, rule, outcome))


def course_of(
    specs: Sequence[NodeSpec],
    submitted: Sequence[WorkflowSubmitted],
    cluster: SimulatorSettings,
    start_ms: int,
    rng: np.random.Generator | None = None,
    drawn: int = DRAWN,
) -> Course:
    """The scenario of these workflows on these nodes.

    rng  draws what attempts meet; without, they meet what the simulated cluster lets them meet, which takes longer
    drawn  attempts of a task for which chance is drawn; those after them meet the same again
    """
    specs = with_spot(specs, cluster)
    in_order = sorted(submitted, key=lambda w: w.event_time_ms)
    live = [workflows.from_record(record, record.event_time_ms) for record in in_order]
    tasks = [task for workflow in live for task in workflow.tasks]
    first_w = np.cumsum([0, *(len(w.tasks) for w in live)])
    begin = np.repeat(first_w[:-1], np.diff(first_w))
    parents = [[t.workflow.index[e.task_id] for e in t.task.parents] for t in tasks]
    scenario = Scenario(
        start_ms,
        np.array([w.submitted_ms for w in live], np.int64),
        first_w,
        np.array([CLASSES.index(w.workflow_class) for w in live], np.int64),
        np.repeat(np.arange(len(live)), np.diff(first_w)),
        np.array([t.request for t in tasks], np.int64).reshape(-1, len(RESOURCES)),
        np.array([t.task.gpu_memory_bytes if t.task.gpu else 0 for t in tasks], np.int64),
        np.array([t.task.runtime_s for t in tasks], np.float64),
        np.array([t.rank_s for t in tasks], np.float64),
        np.array([2 * t.task.priority + t.task.critical for t in tasks], np.int64),
        *_ragged(parents, begin),
        np.array([e.bytes for t in tasks for e in t.task.parents], np.float64),
        *_ragged([t.children for t in tasks], begin),
        np.array([spec.gpu_memory_bytes for spec in specs], np.int64),
        *(_met(cluster, tasks, drawn) if rng is None else _drawn(cluster, (len(tasks), drawn), rng)),
    )
    return Course(specs, tuple(in_order), cluster, scenario)


def _ragged(rows: Sequence[Sequence[int]], begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each task's begin [T + 1], and all of them [E], as places among all tasks."""
    counts = np.array([len(row) for row in rows], np.int64)
    flat = np.array([at for row in rows for at in row], np.int64)
    return np.concatenate([[0], np.cumsum(counts)]), flat + np.repeat(begin, counts)


def _met(
    cluster: SimulatorSettings, tasks: Sequence[workflows.TaskState], drawn: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What the simulated cluster, and the arbiter's draw, have ready for each attempt."""
    ids = [(t.workflow.workflow_id, t.task.task_id) for t in tasks]
    met = [[chances(cluster, (*key, k)) for k in range(drawn)] for key in ids]
    met_tk3 = np.array(met, np.float64).reshape(-1, drawn, 3)
    draw_tk = np.array([[draw(*key, k) for k in range(drawn)] for key in ids], np.float64)
    return met_tk3[:, :, 1].copy(), met_tk3[:, :, 0].copy(), met_tk3[:, :, 2] > 0, draw_tk


def _drawn(
    cluster: SimulatorSettings, shape: tuple[int, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same kind of chance, all at once."""
    normal_2tk = rng.standard_normal((2, *shape))
    fails_tk = rng.random(shape) < cluster.failure_rate
    fails_tk[fails_tk.all(axis=1), -1] = False  # they repeat: such a task would fail for ever
    noise = cluster.runtime_noise, cluster.transfer_noise
    run_tk, transfer_tk = (np.exp(s * n - s * s / 2) for s, n in zip(noise, normal_2tk, strict=True))
    run_tk = np.where(fails_tk, run_tk * rng.random(shape), run_tk)
    return run_tk, transfer_tk, fails_tk, rng.random(shape)
