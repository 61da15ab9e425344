"""What a canary does beside the control group: decisions, attempts and workflows from a pool's records to its guards.

The control group are the eligible workflows that the stable weights decide for. A workflow that was decided by both, or
partly by a stand-in, says nothing about either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from policy.canary import is_eligible
from policy.ledger import AttemptKey
from policy.sequential import Guardrails
from schemas.records import (
    EventKind,
    NodeMetrics,
    Outcome,
    Placement,
    Reward,
    Task,
    TaskEvent,
    TaskReady,
    WorkflowClass,
    WorkflowSubmitted,
)

ACTOR = "actor"
IN_TURN = "round_robin"
GPU_IN_CORES = 16.0
"""What a GPU counts for in a workflow's work; only ratios of like workflows are compared."""
MOST_KNOWN = 200_000
"""Workflows and attempts that are remembered; the oldest go first."""
SUCCEEDED = {EventKind.FINISHED: True, EventKind.FAILED: False, EventKind.REJECTED: False}
"""Ends that a placement answers for: neither a migration nor the loss of a node is one."""


@dataclass(slots=True)
class _Flow:
    """What is known of a workflow. `is_canary` None: both groups, or somebody else, decided for it."""

    is_eligible: bool
    work: float = 0.0
    """Core-seconds that were predicted of it."""
    is_canary: bool | None = None
    is_decided: bool = False


@dataclass(slots=True)
class _Batch:
    """Decisions that arrived together: the slowest of them."""

    at_ms: int = -1
    is_canary: bool = False
    latency_s: float = 0.0


class CanaryWatch:
    """One canary. Records come in the order in which Kafka received them; those that are not new only build state."""

    def __init__(self, version: str, classes: frozenset[WorkflowClass], guards: Guardrails) -> None:
        self.guards = guards
        self.decisions = 0
        """New ones of the canary since the last `take_decisions`."""
        self.odd: str | None = None
        """The last odd thing since the last `take_odd`."""
        self._version = version
        self._classes = classes
        self._flows: dict[str, _Flow] = {}
        self._ready_ms: dict[AttemptKey, int] = {}
        self._attempts: dict[AttemptKey, bool] = {}
        self._batch = _Batch()
        self._fastest = 1.0
        self._cost_logs = 0.0
        self._costs = 0

    def see(self, record: object, at_ms: int, is_new: bool, is_since: bool = True) -> None:
        """Take in a record that arrived at this time (broker's clock).

        is_new    it counts; else it was counted before
        is_since  it came since the canary began
        """
        if isinstance(record, NodeMetrics):
            self._fastest = max([self._fastest, *(spec.speed for spec in record.specs)])
        elif isinstance(record, WorkflowSubmitted):
            self._learn(record.workflow_id, record.workflow_class, record.tasks)
        elif isinstance(record, TaskReady):
            if record.workflow_id not in self._flows and record.task is not None:
                self._learn(record.workflow_id, record.workflow_class, [record.task])
            elif record.task is not None and record.task.critical:
                self._flows[record.workflow_id].is_eligible = False
            self._ready_ms.setdefault((record.workflow_id, record.task_id, record.attempt), at_ms)
            _bound(self._ready_ms)
        elif isinstance(record, Placement):
            self._decided(record, at_ms, is_new, is_since)
        elif isinstance(record, TaskEvent):
            self._ended(record, is_new)

    def settled(self, rewards: Iterable[Reward], is_new: bool) -> None:
        """A workflow is over: what its decisions were worth, all of them."""
        all_of_it = list(rewards)
        first = all_of_it[0]
        flow = self._flows.pop(first.workflow_id, None)
        if flow is None or flow.is_canary is None or not flow.is_eligible or first.turnaround_s is None:
            return
        slowdown = first.turnaround_s * self._fastest / first.path_s if first.path_s > 0 else 1.0
        ratio = self._cost_ratio(sum(sum(reward.costs) for reward in all_of_it), flow.work, is_new)
        if is_new:
            self.guards.observe_workflow(flow.is_canary, slowdown, ratio)

    def take_decisions(self) -> int:
        """How many new decisions the canary made since the last call."""
        count, self.decisions = self.decisions, 0
        return count

    def take_odd(self) -> str | None:
        """The last odd thing since the last call."""
        odd, self.odd = self.odd, None
        return odd

    def end_batch(self) -> None:
        """No more decisions of the last batch will come."""
        batch, self._batch = self._batch, _Batch()
        if batch.at_ms >= 0:
            self.guards.observe_decision(batch.is_canary, batch.latency_s)

    def to_plain(self) -> dict[str, Any]:
        """What has to be kept, as JSON takes it; the rest is built again from the topics."""
        return {"guards": self.guards.to_plain(), "cost_logs": self._cost_logs, "costs": self._costs}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], version: str, classes: frozenset[WorkflowClass]) -> CanaryWatch:
        """What `to_plain` gave, to go on. Raises StateLost."""
        watch = cls(version, classes, Guardrails.from_plain(plain["guards"]))
        watch._cost_logs, watch._costs = float(plain["cost_logs"]), int(plain["costs"])
        return watch

    def _learn(self, workflow_id: str, workflow_class: WorkflowClass, tasks: Iterable[Task]) -> None:
        if workflow_id not in self._flows:
            tasks = list(tasks)
            work = sum(task.runtime_s * (task.cpu + GPU_IN_CORES * task.gpu) for task in tasks)
            self._flows[workflow_id] = _Flow(is_eligible(workflow_class, tasks, self._classes), work)
            _bound(self._flows)

    def _decided(self, record: Placement, at_ms: int, is_new: bool, is_since: bool) -> None:
        key = (record.workflow_id, record.task_id, record.attempt)
        ready_ms, flow = self._ready_ms.pop(key, None), self._flows.get(record.workflow_id)
        if record.outcome != Outcome.PLACED:
            return  # it was decided at once; when room is found says nothing about who decides
        self._note_odd(record, is_new)
        group = record.model_version == self._version if _is_actor(record) and is_since else None
        if flow is not None:
            is_other = flow.is_decided and flow.is_canary != group
            flow.is_canary, flow.is_decided = None if is_other else group, True
        if group is None or flow is None or not flow.is_eligible:
            return
        self._attempts[key] = group
        _bound(self._attempts)
        if is_new:
            self.decisions += group
            if ready_ms is not None:
                self._late(group, at_ms, max(0.0, (at_ms - ready_ms) / 1000))

    def _note_odd(self, record: Placement, is_new: bool) -> None:
        if is_new and not _is_actor(record):
            self.odd = (
                "the load-skew breaker was open"
                if record.policy == IN_TURN
                else f"{record.policy} stood in for an actor"
            )

    def _late(self, is_canary: bool, at_ms: int, latency_s: float) -> None:
        if (self._batch.at_ms, self._batch.is_canary) != (at_ms, is_canary):
            self.end_batch()
        self._batch = _Batch(at_ms, is_canary, max(self._batch.latency_s, latency_s))

    def _ended(self, record: TaskEvent, is_new: bool) -> None:
        if record.kind not in SUCCEEDED:
            return
        group = self._attempts.pop((record.workflow_id, record.task_id, record.attempt), None)
        if group is not None and is_new:
            self.guards.observe_attempt(group, SUCCEEDED[record.kind])

    def _cost_ratio(self, cost: float, work: float, is_new: bool) -> float:
        """The workflow's price of work over what was usual so far, whoever decided; NaN: not known yet."""
        if cost <= 0 or work <= 0:
            return math.nan
        log = math.log(cost / work)
        ratio = math.exp(log - self._cost_logs / self._costs) if self._costs else math.nan
        if is_new:
            self._cost_logs, self._costs = self._cost_logs + log, self._costs + 1
        return ratio


def _is_actor(record: Placement) -> bool:
    """Whether an actor decided, with a second look or without."""
    return record.policy.split("+")[0] == ACTOR


def _bound(known: dict[Any, Any]) -> None:
    if len(known) > MOST_KNOWN:
        del known[next(iter(known))]
