"""The figures of a run, against one that can be done by hand, and against each other."""

from __future__ import annotations

import numpy as np
import pytest

from policy.reward import Baseline
from policy.simulator import SimulatorSettings
from schemas.records import Edge, Env, NodeSpec, Task, WorkflowClass, WorkflowSubmitted
from trainer.figures import measured, shortest_s
from trainer.rules import HEURISTIC_RULES
from trainer.scenarios import CLASSES, course_of
from trainer.suite import EVALUATION, STANDARD

START_MS = 1_700_000_000_000
GIB = 2**30
CERTAIN = SimulatorSettings(runtime_noise=0, transfer_noise=0)
USUAL = Baseline(np.full(len(CLASSES), 100.0), np.full(len(CLASSES), 1.0))
PLAIN, GPU = NodeSpec("plain", 4, 8 * GIB, price_per_hour=1.0), NodeSpec("gpu", 4, 8 * GIB, 2, price_per_hour=36.0)


def submitted(workflow_id: str, at_s: float, *tasks: Task) -> WorkflowSubmitted:
    at_ms = START_MS + round(1000 * at_s)
    return WorkflowSubmitted("p", workflow_id, at_ms, workflow_id, WorkflowClass.MIXED, Env.TEST, tasks)


def a_course(specs, *workflows: WorkflowSubmitted):
    return course_of(specs, workflows, CERTAIN, START_MS, np.random.default_rng(0))


def test_a_workflow_that_waits_for_another_by_hand():
    first = submitted("first", 10, Task("a", 40, 4, GIB))
    second = submitted("second", 20, Task("b", 40, 4, GIB), Task("c", 10, 4, GIB, parents=(Edge("b"),)))

    figures = measured(a_course((PLAIN,), first, second), HEURISTIC_RULES["kube_default"], USUAL)

    assert figures.turnaround_s == pytest.approx((40 + 80) / 2, abs=0.01)
    assert figures.makespan_s == pytest.approx((40 + 50) / 2, abs=0.01)
    assert figures.slowdown == pytest.approx((1 + 80 / 50) / 2, abs=0.001)
    assert figures.cost == pytest.approx(90 / 3600, rel=1e-3)
    assert (figures.gpu_cost, figures.cpu_cost) == (0, figures.cost)
    assert figures.sla == 1
    assert figures.load_std == 0


def test_what_is_paid_for_nodes_with_gpus_is_told_apart():
    work = submitted("w", 10, Task("plain", 100, 4, GIB), Task("gpu", 50, 1, GIB, 1))

    figures = measured(a_course((PLAIN, GPU), work), HEURISTIC_RULES["srcp_spare_gpu"], USUAL)

    assert figures.gpu_cost == pytest.approx(50 / 100, rel=1e-3)
    assert figures.cpu_cost == pytest.approx(100 / 3600, rel=1e-3)


def test_the_shortest_time_is_the_critical_path_on_the_fastest_node():
    work = submitted("w", 10, Task("a", 30), Task("b", 50), Task("c", 20, parents=(Edge("a"),)))
    fast = NodeSpec("fast", 4, 8 * GIB, speed=2.0)

    assert shortest_s(a_course((PLAIN, fast), work, work)).tolist() == [25, 25]


def test_what_nodes_cost_is_what_their_attempts_cost():
    figures = measured(STANDARD[0].course(EVALUATION, 0), HEURISTIC_RULES["srcp"], USUAL)

    assert figures.gpu_cost + figures.cpu_cost == pytest.approx(figures.cost)
    assert figures.makespan_s <= figures.turnaround_s
