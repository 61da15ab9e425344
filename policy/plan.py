"""A plan for one workflow on an empty cluster: which node each task runs on, and when.

Axes: T tasks, N nodes, R resources. Times are whole milliseconds from the workflow's submission, as on the simulated
nodes of `policy/physics.py`: without noise they do what a plan says. Run times are the predicted ones; that tasks may
be slower on a crowded node is not planned for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from policy.constraints import Constraints
from policy.nodes import NodeTable
from policy.resources import RESOURCES, request
from schemas.errors import InvalidWorkflow
from schemas.records import NodeSpec, WorkflowSubmitted

HOUR_MS = 3_600_000
NOWHERE = -1
"""The node of a task that has none yet."""

Inputs = Callable[[int, int, Sequence[int], Sequence[int]], tuple[int, int]]
"""When its inputs let a task come to a node: (task, node, node_t, finish_ms_t) -> (earliest_ms, transfer_ms).

The task holds its room from its coming on, first for the transfers, then for the run. Its parents have been placed.
"""


@dataclass(frozen=True)
class Problem:
    """What is to be planned.

    parents_t    the parents of each task, as indices
    run_ms_tn    [T][N] run times; what they are on nodes that the task may not use does not matter
    comm_ms_t    like parents_t: the time that the parent's output takes to another node, on average over the nodes
    request_tr   [T, R] int64
    capacity_nr  [N, R] int64
    mask_tn      [T, N] bool, nodes that the task may use when they are empty; at least one for each task
    price_n      per hour
    inputs       how transfers delay tasks
    """

    parents_t: Sequence[Sequence[int]]
    run_ms_tn: Sequence[Sequence[int]]
    comm_ms_t: Sequence[Sequence[float]]
    request_tr: np.ndarray
    capacity_nr: np.ndarray
    mask_tn: np.ndarray
    price_n: Sequence[float]
    inputs: Inputs

    @property
    def tasks(self) -> int:
        """How many there are."""
        return len(self.parents_t)

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self.price_n)

    @cached_property
    def children_t(self) -> list[list[int]]:
        """The children of each task."""
        children_t: list[list[int]] = [[] for _ in self.parents_t]
        for task, parents in enumerate(self.parents_t):
            for parent in parents:
                children_t[parent].append(task)
        return children_t

    @cached_property
    def allowed_t(self) -> list[list[int]]:
        """The nodes that each task may use."""
        return [np.flatnonzero(mask_n).tolist() for mask_n in self.mask_tn]

    @cached_property
    def topological(self) -> list[int]:
        """All tasks, parents before children."""
        return in_order(self, [0.0] * self.tasks)

    # Amounts of all resources lie side by side in one integer: `_bits` for each, of which the highest, the guard, is
    # set while the amount is not negative. To take a request is one subtraction; it fits where every guard is left.
    # A search asks this some hundred thousand times a second.

    @cached_property
    def _bits(self) -> int:
        return int(max(self.capacity_nr.max(initial=0), self.request_tr.max(initial=0))).bit_length() + 1

    @cached_property
    def guards(self) -> int:
        """All guards."""
        return sum(1 << (self._bits * (r + 1) - 1) for r in range(len(RESOURCES)))

    @cached_property
    def request_t(self) -> list[int]:
        """What each task takes, packed."""
        return [self._packed(row) for row in self.request_tr.tolist()]

    @cached_property
    def room_n(self) -> list[int]:
        """What each node has, packed, with guards."""
        return [self._packed(row) | self.guards for row in self.capacity_nr.tolist()]

    def _packed(self, amounts: Sequence[int]) -> int:
        return sum(amount << (self._bits * r) for r, amount in enumerate(amounts))


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


def in_order(problem: Problem, priority_t: Sequence[float]) -> list[int]:
    """All tasks, parents before children; of those whose parents are in, the one of the highest priority first."""
    missing_t = [len(parents) for parents in problem.parents_t]
    ready = [(-priority_t[task], task) for task, missing in enumerate(missing_t) if missing == 0]
    heapify(ready)
    order = []
    while ready:
        _, task = heappop(ready)
        order.append(task)
        for child in problem.children_t[task]:
            missing_t[child] -= 1
            if missing_t[child] == 0:
                heappush(ready, (-priority_t[child], child))
    return order


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


def problem_of(workflow: WorkflowSubmitted, specs: Sequence[NodeSpec]) -> Problem:
    """The workflow on these nodes, all of them empty. Raises InvalidWorkflow where a task may run on none of them."""
    nodes, constraints = NodeTable(), Constraints()
    for spec in specs:
        nodes.put(spec)
    index = {task.task_id: at for at, task in enumerate(workflow.tasks)}
    request_tr = np.array([request(task) for task in workflow.tasks], np.int64)
    mask_tn: np.ndarray = np.logical_and.reduce(request_tr[:, :, None] <= nodes.capacity_rn, axis=1)
    for at, task in enumerate(workflow.tasks):
        mask_tn[at] &= constraints.static_mask(nodes, task)
        if not mask_tn[at].any():
            raise InvalidWorkflow(
                f"workflow {workflow.workflow_id}: task '{task.task_id}'",
                f"none of {len(specs)} nodes has its room, labels and devices, and no taint that it does not tolerate",
                "ask for less, or give other nodes",
            )
    parents_t = [[index[edge.task_id] for edge in task.parents] for task in workflow.tasks]
    bytes_t = [[edge.bytes for edge in task.parents] for task in workflow.tasks]
    ms_a_byte = float((1000 / nodes.bandwidth_n).mean())
    speed_n = nodes.speed_n.tolist()
    return Problem(
        parents_t,
        [[max(1, round(1000 * task.runtime_s / speed)) for speed in speed_n] for task in workflow.tasks],
        [[amount * ms_a_byte for amount in amounts] for amounts in bytes_t],
        request_tr,
        nodes.capacity_rn.T.copy(),
        mask_tn,
        nodes.price_n.tolist(),
        through_links(parents_t, bytes_t, nodes.bandwidth_n.tolist()),
    )


def through_links(
    parents_t: Sequence[Sequence[int]], bytes_t: Sequence[Sequence[int]], bandwidth_n: Sequence[float]
) -> Inputs:
    """Transfers as on the simulated nodes: they begin when all parents are done, one after the other through the link.

    bytes_t  like parents_t: what each parent hands on; bandwidth_n  bytes per second
    """

    amounts_t = [list(zip(parents, amounts, strict=True)) for parents, amounts in zip(parents_t, bytes_t, strict=True)]

    def inputs(task: int, node: int, node_t: Sequence[int], finish_ms_t: Sequence[int]) -> tuple[int, int]:
        earliest_ms, remote = 0, 0
        for parent, amount in amounts_t[task]:
            if finish_ms_t[parent] > earliest_ms:
                earliest_ms = finish_ms_t[parent]
            if node_t[parent] != node:
                remote += amount
        return earliest_ms, math.ceil(1000 * remote / bandwidth_n[node]) if remote else 0

    return inputs


def side_by_side(parents_t: Sequence[Sequence[int]], comm_ms_t: Sequence[Sequence[int]]) -> Inputs:
    """Transfers as the literature has them: each begins when its parent is done, and takes nothing of the node.

    comm_ms_t  like parents_t: how long, between any two nodes
    """

    def inputs(task: int, node: int, node_t: Sequence[int], finish_ms_t: Sequence[int]) -> tuple[int, int]:
        earliest_ms = 0
        for parent, comm_ms in zip(parents_t[task], comm_ms_t[task], strict=True):
            earliest_ms = max(earliest_ms, finish_ms_t[parent] + (comm_ms if node_t[parent] != node else 0))
        return earliest_ms, 0

    return inputs
