"""Better plans by search: candidates of others, changed where they are critical, within a budget."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from policy.plan import Plan, build, build_within
from policy.plan_bounds import lower_bound, tails
from policy.plan_problem import Problem
from schemas.errors import InvalidConfiguration

HISTORY = 20
"""Steps after which a plan is compared with the present one once more."""
PATIENCE = 300
"""Steps without a new best plan after which the search goes on from the best, changed at random."""
KICKS = 3
"""Changes that it then begins with."""
CRITICAL = 0.85
"""Share of changes at a task that the makespan hangs on; the others are at any task."""
EARLIER = 0.4
"""Share of changes, where possible, that move the task forward in the order instead of to another node."""
BOTH = 0.25
"""Share of these that do both."""
NEAR = 0.4
"""Share of moves to another node that go to one of a parent or, without parents, of a child."""
SWAP = 0.5
"""Share of moves to another node at which one of its tasks comes back in exchange."""
BLOCK = 4096
"""Random numbers that are drawn at once."""


@dataclass(frozen=True, kw_only=True)
class LookaheadSettings:
    """How much is searched. It ends at whatever comes first, and with a plan that cannot be beaten."""

    budget_ms: float = 2000.0
    """Time for one plan; 0 takes the best candidate as it is."""
    evaluations: int | None = None
    """Plans that are tried; with as many and `budget_ms` infinite, one seed makes one plan."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.budget_ms >= 0:
            raise InvalidConfiguration("lookahead.budget_ms", f"{self.budget_ms} is below 0", "give 0 or more")
        if self.evaluations is None and self.budget_ms == math.inf:
            raise InvalidConfiguration("lookahead.evaluations", "neither they nor the time ends", "give one of the two")


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan, and how many were tried for it."""

    plan: Plan
    evaluations: int
    is_optimal: bool
    """Whether it reaches the lower bound; others may be optimal too."""


def lookahead(
    problem: Problem, candidates: Sequence[Plan], settings: LookaheadSettings, clock_ms: Callable[[], float]
) -> Found:
    """The best plan that is found from the candidates, never worse than any of them; see `_Search`."""
    bound_ms = lower_bound(problem)
    deadline_ms = clock_ms() + settings.budget_ms
    most = math.inf if settings.evaluations is None else settings.evaluations
    search = _Search(problem, candidates, np.random.default_rng(settings.seed))
    while search.best.makespan_ms > bound_ms and search.evaluations < most and clock_ms() < deadline_ms:
        search.step()
    return Found(search.best, search.evaluations, search.best.makespan_ms == bound_ms)


def search_bound(
    problem: Problem, candidates: Sequence[Plan], budget_ms: float, clock_ms: Callable[[], float]
) -> Found:
    """The best plan that a long search finds: as `lookahead`, begun again from each candidate in turn."""
    share_ms = budget_ms / len(candidates)
    best, evaluations = min(candidates, key=lambda plan: plan.makespan_ms), 0
    for seed, candidate in enumerate(candidates, 1):
        found = lookahead(problem, [candidate], LookaheadSettings(budget_ms=share_ms, seed=seed), clock_ms)
        evaluations += found.evaluations
        best = min(best, found.plan, key=lambda plan: plan.makespan_ms)
        if found.is_optimal:
            break
    return Found(best, evaluations, best.makespan_ms == lower_bound(problem))


class _Search:
    """Late acceptance hill climbing over (order, node of each task).

    A step changes the plan at a task that its makespan hangs on: to another node, or earlier in the order. The new plan
    is kept if it is not worse than the present one, or than the one of HISTORY steps ago.
    Source: Burke, Bykov 2017, doi 10.1016/j.ejor.2016.07.012.
    """

    def __init__(self, problem: Problem, candidates: Sequence[Plan], rng: np.random.Generator) -> None:
        self.problem = problem
        self.best = self._now = min(candidates, key=lambda plan: plan.makespan_ms)
        self.evaluations = 0
        self._tail_ms_t = tails(problem)
        self._chance = _uniform(rng)
        self._go_on_from(self.best)

    def _go_on_from(self, plan: Plan) -> None:
        self._since_best = 0
        self._history_ms = [plan.makespan_ms] * HISTORY
        self._accept(plan)

    def step(self) -> None:
        """Try one change."""
        if self._since_best >= PATIENCE:
            self._kick()
        order, node_t = self._changed(self._order, self._now.node_t, self._position_t)
        slot = self.evaluations % HISTORY
        limit_ms = max(self._now.makespan_ms, self._history_ms[slot])
        plan = build_within(self.problem, order, node_t, limit_ms, self._tail_ms_t)
        self.evaluations += 1
        self._since_best += 1
        if plan is not None:
            self._accept(plan)
        if self._now.makespan_ms < self._history_ms[slot]:
            self._history_ms[slot] = self._now.makespan_ms

    def _accept(self, plan: Plan) -> None:
        self._now, self._order = plan, plan.order
        self._position_t = _positions(self._order)
        self._critical = critical_tasks(self.problem, plan)
        if plan.makespan_ms < self.best.makespan_ms:
            self.best, self._since_best = plan, 0

    def _kick(self) -> None:
        self._accept(self.best)
        order, node_t = self._order, self._now.node_t
        for _ in range(KICKS):
            order, node_t = self._changed(order, node_t, _positions(order))
        self._go_on_from(build(self.problem, order, node_t))
        self.evaluations += 1

    def _changed(
        self, order: Sequence[int], node_t: Sequence[int], position_t: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """A neighbour of the plan: one task elsewhere, or earlier in the order."""
        problem, draw = self.problem, self._chance
        order, node_t = list(order), list(node_t)
        task = self._pick(self._critical) if next(draw) < CRITICAL else int(next(draw) * problem.tasks)
        first = max((position_t[p] for p in problem.parents_t[task]), default=-1) + 1
        here = position_t[task]
        allowed = problem.allowed_t[task]
        wants_shift = first < here and (len(allowed) == 1 or next(draw) < EARLIER)
        if wants_shift:
            to = first + int(next(draw) * (here - first))
            order.insert(to, order.pop(here))
        if not wants_shift or next(draw) < BOTH:
            near = problem.parents_t[task] or problem.children_t[task]
            node = node_t[self._pick(near)] if near and next(draw) < NEAR else self._pick(allowed)
            if node == node_t[task] or not problem.mask_tn[task, node]:
                node = self._pick(allowed)
            if next(draw) < SWAP:
                self._make_room(task, node, node_t)
            node_t[task] = node
        return order, node_t

    def _make_room(self, task: int, node: int, node_t: list[int]) -> None:
        """One of the tasks that are on the node takes the task's old one, if it may."""
        others = [other for other, chosen in enumerate(node_t) if chosen == node]
        if others:
            other = self._pick(others)
            if self.problem.mask_tn[other, node_t[task]]:
                node_t[other] = node_t[task]

    def _pick(self, some: Sequence[int]) -> int:
        return some[int(next(self._chance) * len(some))]


def critical_tasks(problem: Problem, plan: Plan) -> list[int]:
    """Tasks that the makespan hangs on: those that end last, and what each of these had to wait for, and so on.

    A task waits for its parents, if they ended last or their output has to come, or, where it came later than they let
    it, for those whose end on its node made room.
    """
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for task, node in enumerate(plan.node_t):
        ends[node, plan.finish_ms_t[task]].append(task)
    makespan_ms = plan.makespan_ms
    left = [task for task, finish_ms in enumerate(plan.finish_ms_t) if finish_ms == makespan_ms]
    found = set(left)
    while left:
        task = left.pop()
        come_ms, node = plan.come_ms_t[task], plan.node_t[task]
        if problem.inputs(task, node, plan.node_t, plan.finish_ms_t)[0] == come_ms:
            waited = [
                parent
                for parent, comm_ms in zip(problem.parents_t[task], problem.comm_ms_t[task], strict=True)
                if plan.finish_ms_t[parent] == come_ms or (comm_ms > 0 and plan.node_t[parent] != node)
            ]
        else:
            waited = ends[node, come_ms]
        new = [other for other in waited if other not in found]
        found.update(new)
        left += new
    return sorted(found)


def _positions(order: Sequence[int]) -> list[int]:
    position_t = [0] * len(order)
    for position, task in enumerate(order):
        position_t[task] = position
    return position_t


def _uniform(rng: np.random.Generator) -> Iterator[float]:
    """Numbers in [0, 1) without end; to draw them singly costs as much as half an evaluation."""
    while True:
        yield from rng.random(BLOCK).tolist()
