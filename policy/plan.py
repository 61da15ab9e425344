"""A plan for one workflow on an empty cluster: which node each task runs on, and when.

Axes: T tasks, N nodes. Times are whole milliseconds from the workflow's submission, as on the simulated nodes of
`policy/physics.py`: without noise they do what a plan says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from policy.plan_problem import Problem

HOUR_MS = 3_600_000
NOWHERE = -1
"""The node of a task that has none yet."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where and when each task runs. It holds its room from `come_ms_t` to `finish_ms_t`."""

    node_t: Sequence[int]
    come_ms_t: Sequence[int]
    start_ms_t: Sequence[int]
    """When its inputs are there, and it runs."""
    finish_ms_t: Sequence[int]

    @property
    def makespan_ms(self) -> int:
        """When the last task has finished."""
        return max(self.finish_ms_t)

    @property
    def order(self) -> list[int]:
        """The tasks as they come: `build` makes this plan, or one that is nowhere later, from it."""
        return sorted(range(len(self.node_t)), key=lambda t: (self.come_ms_t[t], self.finish_ms_t[t]))


class Draft:
    """A plan in the making. A task comes as soon as its node has room for all its time, if need be before others.

    The insertion is that of Topcuoglu, Hariri, Wu 2002, doi 10.1109/71.993206; here a node has room for several tasks.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.node_t = [NOWHERE] * problem.tasks
        self.come_ms_t = [0] * problem.tasks
        self.start_ms_t = [0] * problem.tasks
        self.finish_ms_t = [0] * problem.tasks
        self._since_ms_n = [[0] for _ in range(problem.nodes)]
        """For each node, times from which its room stays the same until the next; after the last it is empty."""
        self._room_n = [[room] for room in problem.room_n]
        """For each node, what is left from each of these times on, packed, with guards."""

    def earliest(self, task: int, node: int) -> tuple[int, int, int]:
        """When the task could come, start and finish there. Its parents have been placed."""
        problem = self.problem
        come_ms, transfer_ms = problem.inputs(task, node, self.node_t, self.finish_ms_t)
        duration_ms = transfer_ms + problem.run_ms_tn[task][node]
        _, come_ms = _gap(
            self._since_ms_n[node], self._room_n[node], come_ms, duration_ms, problem.request_t[task], problem.guards
        )
        return come_ms, come_ms + transfer_ms, come_ms + duration_ms

    def place(self, task: int, node: int) -> int:
        """The task runs there as early as it can; returns its finish."""
        problem = self.problem
        since_ms, room, wanted = self._since_ms_n[node], self._room_n[node], problem.request_t[task]
        come_ms, transfer_ms = problem.inputs(task, node, self.node_t, self.finish_ms_t)
        duration_ms = transfer_ms + problem.run_ms_tn[task][node]
        at, come_ms = _gap(since_ms, room, come_ms, duration_ms, wanted, problem.guards)
        finish_ms = come_ms + duration_ms
        self.node_t[task], self.come_ms_t[task] = node, come_ms
        self.start_ms_t[task], self.finish_ms_t[task] = come_ms + transfer_ms, finish_ms
        if since_ms[at] != come_ms:
            at += 1
            since_ms.insert(at, come_ms)
            room.insert(at, room[at - 1])
        pieces = len(since_ms)
        while since_ms[at] < finish_ms:
            before = room[at]
            room[at] = before - wanted
            at += 1
            if at == pieces or since_ms[at] > finish_ms:
                since_ms.insert(at, finish_ms)
                room.insert(at, before)
                break
        return finish_ms

    def plan(self) -> Plan:
        """What has become of it, when every task has been placed."""
        return Plan(self.node_t, self.come_ms_t, self.start_ms_t, self.finish_ms_t)


def _gap(
    since_ms: Sequence[int], room: Sequence[int], come_ms: int, duration_ms: int, wanted: int, guards: int
) -> tuple[int, int]:
    """The first time from `come_ms` on at which there is room for so long, and the index of the piece it lies in."""
    first = at = bisect_right(since_ms, come_ms) - 1
    finish_ms, last = come_ms + duration_ms, len(since_ms) - 1
    while True:
        if (room[at] - wanted) & guards != guards:
            first = at = at + 1
            come_ms = since_ms[at]
            finish_ms = come_ms + duration_ms
        elif at == last or since_ms[at + 1] >= finish_ms:
            return first, come_ms
        else:
            at += 1


def build(problem: Problem, order: Sequence[int], node_t: Sequence[int]) -> Plan:
    """The plan that gives the tasks their room one after the other, parents before children, each on its node."""
    draft = Draft(problem)
    for task in order:
        draft.place(task, node_t[task])
    return draft.plan()


def build_within(
    problem: Problem, order: Sequence[int], node_t: Sequence[int], limit_ms: int, tail_ms_t: Sequence[int]
) -> Plan | None:
    """The same, given up (None) once the finish of a task and what must follow it, its tail, are beyond the limit."""
    draft = Draft(problem)
    for task in order:
        if draft.place(task, node_t[task]) + tail_ms_t[task] > limit_ms:
            return None
    return draft.plan()


def cost(problem: Problem, plan: Plan) -> float:
    """What the plan costs as the simulated nodes bill it: a node's price for as long as tasks take any of it."""
    spans_n: list[list[tuple[int, int]]] = [[] for _ in range(problem.nodes)]
    for task, node in enumerate(plan.node_t):
        if problem.request_t[task]:
            spans_n[node].append((plan.come_ms_t[task], plan.finish_ms_t[task]))
    total = 0.0
    for spans, price in zip(spans_n, problem.price_n, strict=True):
        held_ms, until_ms = 0, 0
        for come_ms, finish_ms in sorted(spans):
            held_ms += max(0, finish_ms - max(come_ms, until_ms))
            until_ms = max(until_ms, finish_ms)
        total += held_ms / HOUR_MS * price
    return total
