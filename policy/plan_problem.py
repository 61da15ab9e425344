"""What is to be planned: the tasks of one workflow, and empty nodes.

Axes: T tasks, N nodes, R resources. Times are whole milliseconds, by the rules of `policy/physics.py`. Run times are
the predicted ones; that tasks may be slower on a crowded node is not planned for.
"""

from __future__ import annotations

import math
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
