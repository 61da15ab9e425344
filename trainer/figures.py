"""The figures by which policies are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policy.resources import RESOURCES
from policy.reward import Baseline, reward
from trainer.arena import BEGIN, END, SPREAD, Rule
from trainer.scenarios import Course, Played, RuleOf, run

GPU = RESOURCES.index("gpu")


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Times are of a workflow, seconds; costs of the whole run, in the currency of the nodes' prices."""

    reward: float
    turnaround_s: float
    turnaround_p95_s: float
    slowdown: float
    """Turnaround over what the critical path takes on the fastest node of the empty pool, transfers left out."""
    makespan_s: float
    """Last finish - first task start."""
    cost: float
    gpu_cost: float
    """Of it, on nodes with GPUs, whatever ran there."""
    cpu_cost: float
    """Of it, on the other nodes."""
    sla: float
    """Share of the tasks that started within `policy.reward.SLA_S` of becoming ready: mean over the workflows."""
    load_std: float
    """Standard deviation over the nodes of the share of cpu in use: mean over time."""
    imbalance: float
    """The same over their mean load."""
    fragmentation: float


NAMES = tuple(Figures.__dataclass_fields__)
RATIOS = ("turnaround_s", "turnaround_p95_s", "slowdown", "makespan_s", "cost", "gpu_cost", "cpu_cost")
"""Compared as ratios; the others as differences."""


def measured(course: Course, rule: Rule | RuleOf, usual: Baseline) -> Figures:
    """The figures of the course, played by the rule."""
    played = run(course, rule)
    found, sums = played.measured(), played.outcome.sums
    gpu_cost, cpu_cost = _cost_by_kind(played)
    return Figures(
        reward(found, usual),
        float(found.turnaround_s_w.mean()),
        float(np.percentile(found.turnaround_s_w, 95)),
        float((found.turnaround_s_w / shortest_s(played.course)).mean()),
        float(_makespan_s(found.turnaround_s_w, played).mean()),
        float(found.cost_w.sum()),
        gpu_cost,
        cpu_cost,
        float(found.sla_w.mean()),
        float(sums[SPREAD] / max(1.0, sums[END] - sums[BEGIN])),
        found.imbalance,
        found.fragmentation,
    )


def shortest_s(course: Course) -> np.ndarray:
    """What each workflow takes at least [W]: its critical path on the fastest node, seconds."""
    fastest = max(spec.speed for spec in course.specs)
    return np.maximum.reduceat(course.scenario.rank_t, course.scenario.first_w[:-1]) / fastest


def _makespan_s(turnaround_s_w: np.ndarray, played: Played) -> np.ndarray:
    """From the first start of a task of each workflow to its end [W], seconds; inf: never finished.

    The first task to start has no parents, so it was ready when the workflow came.
    """
    s, wait_ms_t = played.course.scenario, played.outcome.wait_ms_t
    is_first_t = (np.diff(s.parent_at_t) == 0) & (wait_ms_t >= 0)
    waited_s_w = np.minimum.reduceat(np.where(is_first_t, wait_ms_t / 1000, np.inf), s.first_w[:-1])
    has_started_w = np.isfinite(waited_s_w)
    return np.where(has_started_w, turnaround_s_w - np.where(has_started_w, waited_s_w, 0), np.inf)


def _cost_by_kind(played: Played) -> tuple[float, float]:
    """What the run cost on nodes with GPUs, and on the others."""
    m = played.machines
    has_gpu_n = m.capacity_nr[:, GPU] > 0
    return float(m.cost_n[has_gpu_n].sum()), float(m.cost_n[~has_gpu_n].sum())
