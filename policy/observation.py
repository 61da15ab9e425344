"""What a policy sees when it is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policy.nodes import NodeTable
from policy.queue import Rows
from policy.resources import RESOURCES
from policy.state import State
from policy.workflows import NONE, Status, TaskState


@dataclass(frozen=True)
class Observation:
    """One snapshot of a pool for a batch of B ready tasks. What is dear to compute is computed when first asked for.

    tasks    B tasks; attempts  their B attempt numbers
    mask_bn  [B, N]  bool, whether the node may take the task on its own
    free_rn  [R, N]  int64, what is left on the nodes
    """

    state: State
    tasks: Sequence[TaskState]
    attempts: Sequence[int]
    mask_bn: np.ndarray
    free_rn: np.ndarray

    @cached_property
    def request_br(self) -> np.ndarray:
        """[B, R] int64, what the tasks take."""
        return np.array([t.request for t in self.tasks], np.int64).reshape(len(self.tasks), len(RESOURCES))

    @cached_property
    def run_bn(self) -> np.ndarray:
        """[B, N] float32, predicted run time on each node, seconds."""
        runtime_b = np.array([t.task.runtime_s for t in self.tasks], np.float32)
        return runtime_b[:, None] * self.state.nodes.derived(slowness)

    @cached_property
    def local_bn(self) -> np.ndarray:
        """[B, N] float32, bytes of the task's inputs that lie on each node."""
        local_bn = np.zeros(self.mask_bn.shape, np.float32)
        for row, task in enumerate(self.tasks):
            for edge in task.task.parents:
                parent = task.workflow.get(edge.task_id)
                if edge.bytes and parent is not None and parent.ran_on != NONE:
                    local_bn[row, parent.ran_on] += edge.bytes
        return local_bn

    @cached_property
    def input_b(self) -> np.ndarray:
        """[B] float32, bytes of all inputs of each task."""
        return np.array([sum(e.bytes for e in t.task.parents) for t in self.tasks], np.float32)

    @cached_property
    def transfer_bn(self) -> np.ndarray:
        """[B, N] float32, time to bring the inputs that lie elsewhere through the node's link, seconds."""
        if not self.input_b.any():
            return np.zeros(self.mask_bn.shape, np.float32)
        return (self.input_b[:, None] - self.local_bn) / self.state.nodes.bandwidth_n.astype(np.float32)

    @cached_property
    def finish_bn(self) -> np.ndarray:
        """[B, N] float32, transfers and run time on each node, seconds."""
        return self.transfer_bn + self.run_bn if self.input_b.any() else self.run_bn

    @cached_property
    def siblings_bn(self) -> np.ndarray:
        """[B, N] int64, attempts of the task's workflow that each node holds."""
        siblings_bn = np.zeros(self.mask_bn.shape, np.int64)
        for row, task in enumerate(self.tasks):
            for other in task.workflow.tasks:
                if other.status in (Status.PLACED, Status.RUNNING):
                    siblings_bn[row, other.node] += 1
        return siblings_bn


def slowness(nodes: NodeTable) -> np.ndarray:
    """[N] float32, the time a node takes for a second of predicted run time."""
    return (1 / nodes.speed_n).astype(np.float32)


Urgency = Callable[[Rows], np.ndarray]
"""Orders waiting attempts within one priority: urgency_p [P], the largest first."""

Scorer = Callable[[Observation], np.ndarray]
"""Scores nodes for tasks: logits_bn [B, N] float32; what it says of masked nodes does not matter."""


@dataclass(frozen=True)
class Policy:
    """Anything that places: the actor, or a heuristic."""

    name: str
    score: Scorer
    urgency: Urgency
    temperature: float = 0.0
    """Softmax temperature of the scores; 0 takes the best node, ties by the decision's draw."""
    max_batch: int | None = None
    """Tasks that one observation may hold; 1 for scores that change with every placement."""
    version: str = ""
    """Of its weights, where it has any."""


def by_rank(rows: Rows) -> np.ndarray:
    """The longest way to its workflow's end first."""
    return rows.rank_p


def by_arrival(rows: Rows) -> np.ndarray:
    """First come, first served."""
    return -rows.arrival_p
