"""Planners that need no search: HEFT, PEFT, CPoP, min-min and max-min.

Their sources have one task at a time on a node and transfers that take nothing of it; here "earliest finish" is what
`Draft.earliest` says, with room for several tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from policy.plan import Draft, Plan
from policy.plan_problem import Problem, in_order

Planner = Callable[[Problem], Plan]


def heft(problem: Problem) -> Plan:
    """The longest way to the end first, each task where it finishes earliest.

    Source: Topcuoglu, Hariri, Wu 2002, doi 10.1109/71.993206.
    """
    draft = Draft(problem)
    for task in in_order(problem, upward_rank(problem)):
        draft.place(task, earliest_finish(draft, task))
    return draft.plan()


def cpop(problem: Problem) -> Plan:
    """Tasks on the longest way through all go to one node, where together they run shortest; the others as in HEFT.

    Where no node may take all of them, it is one that may take the most. Source: as of HEFT.
    """
    upward_t, downward_t = upward_rank(problem), downward_rank(problem)
    priority_t = [upward + downward for upward, downward in zip(upward_t, downward_t, strict=True)]
    path = critical_path(problem, priority_t)
    on_path = set(path)
    mask_n = problem.mask_tn[path].sum(axis=0)
    run_ms_n = [sum(problem.run_ms_tn[t][n] for t in path if problem.mask_tn[t, n]) for n in range(problem.nodes)]
    chosen = min(range(problem.nodes), key=lambda n: (-mask_n[n], run_ms_n[n]))
    draft = Draft(problem)
    for task in in_order(problem, priority_t):
        fits = task in on_path and problem.mask_tn[task, chosen]
        draft.place(task, chosen if fits else earliest_finish(draft, task))
    return draft.plan()


def peft(problem: Problem) -> Plan:
    """Each task where its finish, and what is left to do after it from that node, are together earliest.

    Source: Arabnejad, Barbosa 2014, doi 10.1109/TPDS.2013.57.
    """
    left_tn = optimistic_left(problem)
    mean_t = [float(left_tn[task, allowed].mean()) for task, allowed in enumerate(problem.allowed_t)]
    draft = Draft(problem)
    for task in in_order(problem, mean_t):
        left_n = left_tn[task].tolist()
        draft.place(task, min(problem.allowed_t[task], key=lambda n: draft.earliest(task, n)[2] + left_n[n]))
    return draft.plan()


def min_min(problem: Problem) -> Plan:
    """Of the tasks that are due, the one that can finish first. Source: Ibarra, Kim 1977, doi 10.1145/322003.322011."""
    return _by_finish(problem, min)


def max_min(problem: Problem) -> Plan:
    """Of the tasks that are due, the one whose earliest finish is last. Source: as of min-min."""
    return _by_finish(problem, max)


PLANNERS: Mapping[str, Planner] = {"heft": heft, "peft": peft, "cpop": cpop, "min_min": min_min, "max_min": max_min}
"""Every planner by its name."""


def earliest_finish(draft: Draft, task: int) -> int:
    """The node where the task finishes first."""
    return min(draft.problem.allowed_t[task], key=lambda node: draft.earliest(task, node)[2])


def mean_run(problem: Problem) -> list[float]:
    """The run time of each task on average over the nodes that it may use, ms."""
    rows = zip(problem.run_ms_tn, problem.allowed_t, strict=True)
    return [sum(run_ms_n[n] for n in allowed) / len(allowed) for run_ms_n, allowed in rows]


def upward_rank(problem: Problem) -> list[float]:
    """The longest way from each task to the end, its own run included, on average nodes, ms."""
    rank_t = mean_run(problem)
    after_t = [0.0] * problem.tasks
    for task in reversed(problem.topological):
        rank_t[task] += after_t[task]
        for parent, comm_ms in zip(problem.parents_t[task], problem.comm_ms_t[task], strict=True):
            after_t[parent] = max(after_t[parent], comm_ms + rank_t[task])
    return rank_t


def downward_rank(problem: Problem) -> list[float]:
    """The longest way from the beginning to each task, its own run excluded, on average nodes, ms."""
    run_t, rank_t = mean_run(problem), [0.0] * problem.tasks
    for task in problem.topological:
        for parent, comm_ms in zip(problem.parents_t[task], problem.comm_ms_t[task], strict=True):
            rank_t[task] = max(rank_t[task], rank_t[parent] + run_t[parent] + comm_ms)
    return rank_t


def critical_path(problem: Problem, priority_t: Sequence[float]) -> list[int]:
    """The tasks on the longest way through all, by upward + downward rank."""
    roots = [task for task, parents in enumerate(problem.parents_t) if not parents]
    path = [max(roots, key=lambda t: priority_t[t])]
    while problem.children_t[path[-1]]:
        path.append(max(problem.children_t[path[-1]], key=lambda t: priority_t[t]))
    return path


def optimistic_left(problem: Problem) -> np.ndarray:
    """left_tn [T, N], ms: the longest way that is left after a task on a node, where every task takes its best node."""
    left_tn = np.zeros((problem.tasks, problem.nodes))
    for task in reversed(problem.topological):
        run_n = np.where(problem.mask_tn[task], np.array(problem.run_ms_tn[task], float), np.inf)
        here_n = left_tn[task] + run_n
        for parent, comm_ms in zip(problem.parents_t[task], problem.comm_ms_t[task], strict=True):
            left_tn[parent] = np.maximum(left_tn[parent], np.minimum(here_n, here_n.min() + comm_ms))
    return left_tn


def _by_finish(problem: Problem, choose: Callable[[Iterable[tuple[int, int, int]]], tuple[int, int, int]]) -> Plan:
    """Place the due task whose (earliest finish, task, node) is chosen, until all are placed."""
    draft = Draft(problem)
    missing_t = [len(parents) for parents in problem.parents_t]
    finish_ms_tn: dict[int, dict[int, int]] = {}
    """For each due task, its earliest finish on each node."""

    def become_due(task: int) -> None:
        finish_ms_tn[task] = {node: draft.earliest(task, node)[2] for node in problem.allowed_t[task]}

    for task, missing in enumerate(missing_t):
        if missing == 0:
            become_due(task)
    while finish_ms_tn:
        bests = (min((finish_ms, task, node) for node, finish_ms in row.items()) for task, row in finish_ms_tn.items())
        _, task, node = choose(bests)
        draft.place(task, node)
        del finish_ms_tn[task]
        for other, row in finish_ms_tn.items():
            if node in row:
                row[node] = draft.earliest(other, node)[2]
        for child in problem.children_t[task]:
            missing_t[child] -= 1
            if missing_t[child] == 0:
                become_due(child)
    return draft.plan()
