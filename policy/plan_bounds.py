"""What no plan can beat: the longest way, and the work there is for the nodes."""

from __future__ import annotations

import math

import numpy as np

from policy.plan_problem import Problem


def least_run(problem: Problem) -> list[int]:
    """The run time of each task on the fastest node that it may use, ms."""
    rows = zip(problem.run_ms_tn, problem.allowed_t, strict=True)
    return [min(run_ms_n[n] for n in allowed) for run_ms_n, allowed in rows]


def heads(problem: Problem) -> list[int]:
    """The least time before each task's run: the longest way to it, on the fastest nodes, without transfers, ms."""
    run_t, head_t = least_run(problem), [0] * problem.tasks
    for task in problem.topological:
        head_t[task] = max((head_t[p] + run_t[p] for p in problem.parents_t[task]), default=0)
    return head_t


def tails(problem: Problem) -> list[int]:
    """The least time after each task's run, likewise, ms."""
    run_t, tail_t = least_run(problem), [0] * problem.tasks
    for task in reversed(problem.topological):
        tail_t[task] = max((run_t[c] + tail_t[c] for c in problem.children_t[task]), default=0)
    return tail_t


def lower_bound(problem: Problem) -> int:
    """A makespan, in ms, that no plan can be below; often there is none that reaches it.

    It is the longest way; or, for any resource and any set of nodes that tasks are confined to, for any h and q: of
    these tasks, those with at least h before them and q after them need h + their work over what the nodes can do + q.
    """
    run_t, head_t, tail_t = (np.array(of(problem)) for of in (least_run, heads, tails))
    bound = float((head_t + run_t + tail_t).max())
    run_tn = np.array(problem.run_ms_tn, float)
    speed_n = 1 / run_tn.mean(axis=0)
    work_tn = np.where(problem.mask_tn, run_tn * speed_n, np.inf)
    work_tr = work_tn.min(axis=1)[:, None] * problem.request_tr
    for allowed_n in np.unique(problem.mask_tn, axis=0):
        confined = np.flatnonzero(~(problem.mask_tn & ~allowed_n).any(axis=1))
        power_r = speed_n[allowed_n] @ problem.capacity_nr[allowed_n]
        for resource in np.flatnonzero(power_r):
            needed_t = work_tr[confined, resource] / power_r[resource]
            bound = max(bound, _between(needed_t, head_t[confined], tail_t[confined]))
    return math.ceil(bound * (1 - 1e-9))


def _between(needed_t: np.ndarray, head_t: np.ndarray, tail_t: np.ndarray) -> float:
    """The largest h + q + time needed by the tasks with a head of at least h and a tail of at least q."""
    head_h, row_t = np.unique(head_t, return_inverse=True)
    tail_q, column_t = np.unique(tail_t, return_inverse=True)
    needed_hq, count_hq = np.zeros((2, len(head_h), len(tail_q)))
    np.add.at(needed_hq, (row_t, column_t), needed_t)
    np.add.at(count_hq, (row_t, column_t), 1)
    needed_hq, count_hq = (a[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1] for a in (needed_hq, count_hq))
    return float(np.where(count_hq > 0, head_h[:, None] + needed_hq + tail_q, 0).max())
