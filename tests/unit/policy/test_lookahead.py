"""Search makes plans better, never worse, within its budget, and the same for the same seed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.lookahead import LookaheadSettings, critical_tasks, lookahead, search_bound
from policy.plan import build
from policy.plan_bounds import lower_bound
from policy.plan_problem import problem_of
from policy.planners import PLANNERS
from schemas.errors import InvalidConfiguration
from tests.builders import a_node, a_task, a_workflow, some_nodes
from tests.plan_rules import Case, cases, violations
from tests.unit.policy.test_plan import TOPCUOGLU


class Clock:
    """Goes on by so much with each look at it."""

    def __init__(self, step_ms: float) -> None:
        self._step_ms = step_ms
        self.at_ms = 0.0

    def __call__(self) -> float:
        self.at_ms += self._step_ms
        return self.at_ms


def so_many(evaluations: int, seed: int = 0) -> LookaheadSettings:
    return LookaheadSettings(budget_ms=math.inf, evaluations=evaluations, seed=seed)


@settings(max_examples=30, deadline=None)
@given(cases(), st.integers(0, 3))
def test_a_plan_that_was_found_keeps_to_the_rules_and_is_no_worse(case: Case, seed: int) -> None:
    workflow, specs = case
    problem = problem_of(workflow, specs)
    candidates = [planner(problem) for planner in PLANNERS.values()]

    found = lookahead(problem, candidates, so_many(60, seed), Clock(0))

    assert violations(workflow, specs, found.plan) == []
    assert lower_bound(problem) <= found.plan.makespan_ms <= min(plan.makespan_ms for plan in candidates)


def test_it_finds_a_better_plan_than_heft_in_heft_s_own_example() -> None:
    found = lookahead(TOPCUOGLU, [PLANNERS["heft"](TOPCUOGLU)], so_many(3000), Clock(0))

    assert found.plan.makespan_ms < 80
    assert found.evaluations == 3000


def test_one_seed_makes_one_plan() -> None:
    candidates = [PLANNERS["heft"](TOPCUOGLU)]

    found = [
        [lookahead(TOPCUOGLU, candidates, so_many(n, seed), Clock(0)).plan for n in range(5, 60, 5)]
        for seed in (5, 5, 6)
    ]

    assert found[0] == found[1]
    assert found[0] != found[2]


def test_it_ends_when_its_time_is_over() -> None:
    found = lookahead(TOPCUOGLU, [PLANNERS["heft"](TOPCUOGLU)], LookaheadSettings(budget_ms=50), Clock(1))

    assert 40 <= found.evaluations <= 51


def test_without_a_budget_it_takes_the_best_candidate() -> None:
    candidates = [planner(TOPCUOGLU) for planner in PLANNERS.values()]

    found = lookahead(TOPCUOGLU, candidates, LookaheadSettings(budget_ms=0), Clock(1))

    assert found.plan == min(candidates, key=lambda plan: plan.makespan_ms)
    assert found.evaluations == 0


def test_it_ends_with_a_plan_that_cannot_be_beaten() -> None:
    problem = problem_of(a_workflow(*(a_task(f"t{i}", 10, cpu=8) for i in range(4))), some_nodes(2))
    bad = build(problem, [0, 1, 2, 3], [0, 0, 0, 0])

    found = lookahead(problem, [bad], so_many(100_000), Clock(0))

    assert found.is_optimal
    assert found.plan.makespan_ms == lower_bound(problem) == 20_000
    assert found.evaluations < 1000


def test_the_search_bound_begins_again_from_every_candidate() -> None:
    candidates = [planner(TOPCUOGLU) for planner in PLANNERS.values()]

    found = search_bound(TOPCUOGLU, candidates, 2500, Clock(1))

    assert found.evaluations == pytest.approx(2500, rel=0.02)
    assert found.plan.makespan_ms < 80


def test_the_critical_tasks_are_those_that_the_end_waits_for() -> None:
    workflow = a_workflow(
        a_task("long", 10, cpu=8), a_task("next", 10, cpu=8), a_task("last", 5, after=["next"]), a_task("aside", 3)
    )
    problem = problem_of(workflow, [a_node("n0"), a_node("n1")])

    plan = build(problem, [0, 1, 2, 3], [0, 0, 0, 1])

    assert critical_tasks(problem, plan) == [0, 1, 2]


@pytest.mark.parametrize("wrong", [{"budget_ms": -1.0}, {"budget_ms": math.nan}, {"budget_ms": math.inf}])
def test_a_budget_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidConfiguration, match="lookahead"):
        LookaheadSettings(**wrong)
