"""The Pareto front: nothing on it is beaten, and it is no worse than what it began with."""

from __future__ import annotations

import pytest

from policy.plan import Plan, cost
from policy.plan_problem import Problem, problem_of
from policy.planners import PLANNERS
from schemas.errors import InvalidConfiguration
from tests.builders import a_node, a_task, a_workflow
from tests.plan_rules import violations
from trainer.pareto import ParetoSettings, decoded, encoded, front

WORKFLOW = a_workflow(
    a_task("first", 60),
    *(a_task(f"middle{i}", 300 + 10 * i, cpu=4, after=["first"]) for i in range(8)),
    a_task("last", 60, after=[f"middle{i}" for i in range(8)]),
)
SPECS = (
    a_node("slow", speed=0.5, price_per_hour=0.1),
    a_node("plain", price_per_hour=1.0),
    a_node("fast", speed=2.0, price_per_hour=8.0),
)
SETTINGS = ParetoSettings(population=20, evaluations=400)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of(WORKFLOW, SPECS)


@pytest.fixture(scope="module")
def seeds(problem: Problem) -> list[Plan]:
    return [planner(problem) for planner in PLANNERS.values()]


def test_no_plan_of_the_front_is_beaten_by_another(problem: Problem, seeds: list[Plan]) -> None:
    figures = [(plan.makespan_ms, cost(problem, plan)) for plan in front(problem, seeds, SETTINGS)]

    assert len(figures) > 3
    assert figures == sorted(figures)
    assert [price for _, price in figures] == sorted((price for _, price in figures), reverse=True)


def test_its_ends_are_no_worse_than_what_it_began_with_and_cheap_nodes_are_found(
    problem: Problem, seeds: list[Plan]
) -> None:
    plans = front(problem, seeds, SETTINGS)

    assert plans[0].makespan_ms <= min(plan.makespan_ms for plan in seeds)
    assert cost(problem, plans[-1]) < 0.5 * min(cost(problem, plan) for plan in seeds)
    assert all(violations(WORKFLOW, SPECS, plan) == [] for plan in plans)


def test_one_seed_makes_one_front(problem: Problem, seeds: list[Plan]) -> None:
    assert front(problem, seeds, SETTINGS) == front(problem, seeds, SETTINGS)


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_genome_of_a_plan_means_that_plan(problem: Problem, planner: str) -> None:
    plan = PLANNERS[planner](problem)

    assert decoded(problem, encoded(problem, plan)) == plan


def test_a_population_without_evaluations_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="pareto"):
        ParetoSettings(population=40, evaluations=30)
