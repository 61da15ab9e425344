"""Plans of which none is both faster and cheaper: NSGA-II over makespan and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.problem import ElementwiseProblem
from pymoo.optimize import minimize

from policy.plan import Plan, build, cost
from policy.plan_problem import Problem, in_order
from schemas.errors import InvalidConfiguration


@dataclass(frozen=True, kw_only=True)
class ParetoSettings:
    """How long is searched; one seed makes one front."""

    population: int = 40
    evaluations: int = 4000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.population <= self.evaluations:
            problem = f"a population of {self.population} with {self.evaluations} evaluations"
            raise InvalidConfiguration("pareto", problem, "give a population of 2 or more, and an evaluation for each")


def front(problem: Problem, seeds: Sequence[Plan], settings: ParetoSettings | None = None) -> list[Plan]:
    """The plans that are found, the fastest first. It begins with the seeds, and with one for each kind of node.

    Source: Deb, Pratap, Agarwal, Meyarivan 2002, doi 10.1109/4235.996017; the implementation is pymoo's.
    """
    settings = settings or ParetoSettings()
    rng = np.random.default_rng(settings.seed)
    known = [encoded(problem, plan) for plan in (*seeds, *_on_one_node(problem))][: settings.population]
    others = rng.random((settings.population - len(known), 2 * problem.tasks))
    found = minimize(
        _MakespanAndCost(problem),
        NSGA2(pop_size=settings.population, sampling=np.vstack([*known, others])),
        ("n_eval", settings.evaluations),
        seed=settings.seed,
    )
    plans = [decoded(problem, genome) for genome in np.atleast_2d(found.X)]
    distinct = {(plan.makespan_ms, cost(problem, plan)): plan for plan in plans}
    return [distinct[figures] for figures in sorted(distinct)]


class _MakespanAndCost(ElementwiseProblem):  # type: ignore[misc]  # pymoo is untyped
    """A genome is 2 T numbers in [0, 1]: which of its nodes each task takes, then each task's priority."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(n_var=2 * problem.tasks, n_obj=2, xl=0.0, xu=1.0)
        self._problem = problem

    def _evaluate(self, x: np.ndarray, out: dict[str, Any], *args: object, **kwargs: object) -> None:
        plan = decoded(self._problem, x)
        out["F"] = [plan.makespan_ms, cost(self._problem, plan)]


def encoded(problem: Problem, plan: Plan) -> np.ndarray:
    """The genome of a plan."""
    choice_t = [
        (allowed.index(node) + 0.5) / len(allowed) for node, allowed in zip(plan.node_t, problem.allowed_t, strict=True)
    ]
    priority_t = np.empty(problem.tasks)
    priority_t[plan.order] = np.linspace(1, 0, problem.tasks)
    return np.concatenate([choice_t, priority_t])


def decoded(problem: Problem, genome: np.ndarray) -> Plan:
    """The plan of a genome."""
    choice_t, priority_t = genome[: problem.tasks].tolist(), genome[problem.tasks :].tolist()
    node_t = [
        allowed[min(int(choice * len(allowed)), len(allowed) - 1)]
        for choice, allowed in zip(choice_t, problem.allowed_t, strict=True)
    ]
    return build(problem, in_order(problem, priority_t), node_t)


def _on_one_node(problem: Problem) -> list[Plan]:
    """For each kind of node, all tasks that may on one of it, and the others where it is cheap."""
    kinds: dict[tuple[object, ...], int] = {}
    for node in range(problem.nodes):
        kind = (problem.price_n[node], *problem.capacity_nr[node].tolist(), *(row[node] for row in problem.run_ms_tn))
        kinds.setdefault(kind, node)
    plans = []
    for node in kinds.values():
        node_t = [
            node if problem.mask_tn[task, node] else min(allowed, key=lambda n: problem.price_n[n])
            for task, allowed in enumerate(problem.allowed_t)
        ]
        plans.append(build(problem, problem.topological, node_t))
    return plans
