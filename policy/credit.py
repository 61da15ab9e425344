"""What every decision was worth, folded from the records of its pool.

What a decision does to the pool (fragmentation, balance, pcie) is known when it is made; its cost and its start when
the attempt ends; the makespan when the workflow does. Until then a term is what is expected. The terms are those of
`policy.decision_terms`; each record has them all, and says by its stage how much is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from policy.billing import CPU, GPU, Bill, CostSettings, split
from policy.decision_terms import balance, cost_terms, fragmentation, free_pcie, makespan_term, signed, stranded_gpu
from policy.ledger import AttemptKey
from policy.resources import Request, dominant_share
from policy.reward import SLA_S, RewardWeights, changed
from policy.state import LONGEST_S, State, StateSettings
from policy.usual import Usual
from policy.workflows import TaskState, Workflow
from schemas.records import (
    METRICS,
    REWARD_TERMS,
    Control,
    EventKind,
    NodeMetrics,
    Outcome,
    Placement,
    Reward,
    Stage,
    TaskEvent,
    TaskReady,
    WorkflowClass,
    WorkflowSubmitted,
)

NEW_WEIGHTS = "reward.weights"
"""A command in the control topic: its arguments are weights by name; those that it does not name are as configured."""
PCIE = METRICS.index("pcie_utilisation")
TYPICAL = 64
"""Kinds of GPU tasks, the last that became ready, that a free GPU should be of use to."""
REMEMBERED = 200_000
"""Attempts and workflows of which a repeat is recognised."""
STAGES = (Stage.UNKNOWN, Stage.PLACED, Stage.ENDED, Stage.SETTLED)
ENDS = (EventKind.FINISHED, EventKind.FAILED, EventKind.KILLED, EventKind.REJECTED)


@dataclass(slots=True)
class _Flow:
    """What is known of a workflow as a whole."""

    workflow_class: WorkflowClass
    is_open: bool
    begin_ms: int
    """When its first task became ready."""
    path_s: float
    """Its critical path: predicted run times on nodes of speed 1."""
    ready_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    """Task and attempt -> when it became ready, of those that are not placed yet."""
    ended: list[Reward] = field(default_factory=list)
    """What was told of its attempts, to be told once more when it is over."""
    is_over: bool = False
    turnaround_s: float | None = None
    """None: it is not over, or can never finish."""


@dataclass(slots=True)
class _Decision:
    """One attempt that was placed, and the reward that was last told of it."""

    flow: _Flow
    request: Request
    bytes_handed_on: int
    price_per_hour: float
    ready_ms: int
    told: Reward
    started_ms: int | None = None


class Credits:
    """One pool's decisions. Records may be repeated; they come in the order in which Kafka received them."""

    def __init__(
        self,
        pool: str,
        weights: RewardWeights | None = None,
        costs: CostSettings | None = None,
        settings: StateSettings | None = None,
    ) -> None:
        self.pool = pool
        self.weights = self._configured = weights or RewardWeights()
        self._costs = costs or CostSettings()
        self._state = State(pool, settings)
        self._bill = Bill()
        self._usual = Usual()
        self._flows: dict[str, _Flow] = {}
        self._open: dict[AttemptKey, _Decision] = {}
        self._typical: dict[Request, None] = {}
        self._told: dict[tuple[object, ...], int] = {}
        """Attempt -> the stage that was told last; workflow -> that its turnaround counts. Oldest first."""
        self._fold: dict[type, Callable[[object], list[Reward]]] = {
            NodeMetrics: self._of_state,
            WorkflowSubmitted: self._of_state,
            TaskReady: self._ready,  # type: ignore[dict-item]
            Placement: self._placement,  # type: ignore[dict-item]
            TaskEvent: self._event,  # type: ignore[dict-item]
            Control: self._control,  # type: ignore[dict-item]
        }

    def apply(self, record: object) -> list[Reward]:
        """Fold one record in; returns what is new of the rewards.

        Raises InvalidInput for a record that contradicts itself, and for weights that are none; all is then as before.
        """
        return [reward for reward in self._fold[type(record)](record) if self._is_news(reward)]

    def remember(self, reward: Reward) -> None:
        """This was told before, and is not told again; what was measured counts for what is usual."""
        self._is_news(reward)

    # The folds, one for each kind of record.

    def _of_state(self, record: object) -> list[Reward]:
        self._state.apply(record)
        return []

    def _ready(self, record: TaskReady) -> list[Reward]:
        self._state.apply(record)
        workflow = self._state.workflows.get(record.workflow_id)
        task = None if workflow is None else workflow.get(record.task_id)
        if workflow is None or task is None or task.is_over:
            return []
        flow = self._flows.get(record.workflow_id)
        if flow is None:
            flow = _Flow(workflow.workflow_class, workflow.is_open, record.event_time_ms, workflow.path_s)
            self._flows[record.workflow_id] = flow
        flow.ready_ms.setdefault((record.task_id, record.attempt), record.event_time_ms)
        if task.request[GPU]:
            self._typical.pop(task.request, None)
            self._typical[task.request] = None
            if len(self._typical) > TYPICAL:
                del self._typical[next(iter(self._typical))]
        return []

    def _control(self, record: Control) -> list[Reward]:
        if record.command == NEW_WEIGHTS and record.pool == self.pool:
            self.weights = changed(self._configured, record.arguments)
        return []

    def _placement(self, record: Placement) -> list[Reward]:
        state, key = self._state, (record.workflow_id, record.task_id, record.attempt)
        workflow = state.workflows.get(record.workflow_id)
        state.apply(record)
        if record.outcome != Outcome.PLACED or key in self._open:
            return self._settled(record.workflow_id, workflow, record.event_time_ms)
        held, task = state.ledger.get(key), None if workflow is None else workflow.get(record.task_id)
        flow = self._flows.get(record.workflow_id)
        if held is None or task is None or flow is None:
            return []
        decision = self._decision(record, flow, task, held.node)
        self._open[key] = decision
        return [decision.told]

    def _event(self, record: TaskEvent) -> list[Reward]:
        state, key = self._state, (record.workflow_id, record.task_id, record.attempt)
        if record.kind == EventKind.NODE_LOST:
            return self._node_lost(record)
        workflow = state.workflows.get(record.workflow_id)
        state.apply(record)
        decision = self._open.get(key)
        found: list[Reward] = []
        if decision is not None and record.kind == EventKind.STARTED and decision.started_ms is None:
            decision.started_ms = record.event_time_ms
        elif decision is not None and record.kind in ENDS and state.ledger.get(key) is None:
            found = [self._ended(key, workflow, record.kind, record.event_time_ms)]
        settled = self._settled(record.workflow_id, workflow, record.event_time_ms)
        return settled or found

    def _node_lost(self, record: TaskEvent) -> list[Reward]:
        state, at_ms = self._state, record.event_time_ms
        node = state.nodes.index.get(record.node_id)
        on_node = [] if node is None else sorted(key for key in state.ledger.on_node(node) if key in self._open)
        workflows = {key[0]: state.workflows.get(key[0]) for key in on_node}
        state.apply(record)
        lost = [key for key in on_node if state.ledger.get(key) is None]
        found = [self._ended(key, workflows[key[0]], EventKind.NODE_LOST, at_ms) for key in lost]
        return found + [r for name, workflow in workflows.items() for r in self._settled(name, workflow, at_ms)]

    # What the folds share.

    def _decision(self, record: Placement, flow: _Flow, task: TaskState, node: int) -> _Decision:
        """The decision, told with what is expected of it."""
        state, key = self._state, (record.workflow_id, record.task_id, record.attempt)
        spec, at_ms = state.nodes.specs[node], record.event_time_ms
        share = float(dominant_share(np.array(task.request), state.nodes.capacity_rn[:, node : node + 1])[0])
        self._bill.begin(key, spec.node_id, share, spec.price_per_hour, at_ms)
        ready_ms = flow.ready_ms.pop(key[1:], task.ready_ms)
        wait_s = max(0, at_ms - ready_ms) / 1000
        expected_s = record.expected_s if record.expected_s and 0 < record.expected_s <= LONGEST_S else 0.0
        told = Reward(
            self.pool,
            *key,
            at_ms,
            Stage.PLACED,
            at_ms,
            spec.node_id,
            flow.workflow_class,
            0.0,
            (0.0,) * 4 + (float(wait_s <= SLA_S), *self._of_pool(task, node)),
            signed(self.weights),
            (),
            (0.0, 0.0, 0.0),
            path_s=flow.path_s,
            wait_s=wait_s,
            stranded_gpu=self._stranded_gpu(),
            policy=record.policy,
            model_version=record.model_version,
        )
        bytes_handed_on = sum(
            edge.bytes
            for child in task.children
            for edge in task.workflow.tasks[child].task.parents
            if edge.task_id == key[1]
        )
        decision = _Decision(flow, task.request, bytes_handed_on, spec.price_per_hour, ready_ms, told)
        cost = self._bill.expected(key, spec.price_per_hour, expected_s)
        rest_s = expected_s + task.rank_s - task.task.runtime_s
        decision.told = self._valued(
            replace(told, turnaround_s=(at_ms - flow.begin_ms) / 1000 + rest_s),
            split(cost, task.request, bytes_handed_on, self._costs),
        )
        return decision

    def _ended(self, key: AttemptKey, workflow: Workflow | None, kind: EventKind, at_ms: int) -> Reward:
        """The attempt is over: what it has cost, and when it started, is known."""
        decision = self._open.pop(key)
        flow, started_ms = decision.flow, decision.started_ms
        handed_on = decision.bytes_handed_on if kind == EventKind.FINISHED else 0
        cost = self._bill.end(key, decision.price_per_hour, at_ms)
        wait_s = None if started_ms is None else max(0, started_ms - decision.ready_ms) / 1000
        terms = list(decision.told.terms)
        terms[REWARD_TERMS.index("sla")] = float(wait_s is not None and wait_s <= SLA_S)
        rest_s = 0.0 if workflow is None else workflow.path_s
        decision.told = self._valued(
            replace(
                decision.told,
                event_time_ms=at_ms,
                stage=Stage.SETTLED if flow.is_over else Stage.ENDED,
                end=kind,
                wait_s=wait_s,
                terms=tuple(terms),
                turnaround_s=flow.turnaround_s if flow.is_over else (at_ms - flow.begin_ms) / 1000 + rest_s,
            ),
            split(cost, decision.request, handed_on, self._costs),
        )
        if not flow.is_over and not flow.is_open:
            flow.ended.append(decision.told)
        return decision.told

    def _settled(self, workflow_id: str, before: Workflow | None, at_ms: int) -> list[Reward]:
        """Everything of a workflow that was live before the record, and is over now."""
        flow = self._flows.get(workflow_id)
        if flow is None or before is None or workflow_id in self._state.workflows:
            return []
        del self._flows[workflow_id]
        if flow.is_open:
            return []  # nobody knows whether its owner's engine sends more
        flow.is_over = True
        flow.turnaround_s = None if before.refused else (at_ms - flow.begin_ms) / 1000
        return [
            self._valued(
                replace(told, event_time_ms=at_ms, stage=Stage.SETTLED, turnaround_s=flow.turnaround_s), told.costs
            )
            for told in flow.ended
        ]

    def _valued(self, reward: Reward, costs: tuple[float, ...]) -> Reward:
        """The reward with the terms that depend on what is usual now, and their sum."""
        found, now_ms = reward.workflow_class, reward.event_time_ms
        turnaround_p95_s, usual_of = self._usual.turnaround_p95_s(found, reward.path_s, now_ms)
        costs_p95 = tuple(
            cost if (usual := self._usual.cost_p95(found, kind, now_ms)) is None else usual
            for kind, cost in enumerate(costs)
        )
        terms = (makespan_term(reward.turnaround_s, turnaround_p95_s), *cost_terms(costs, costs_p95), *reward.terms[4:])
        # Adding 0 makes 0 of -0, which people would ask about.
        contributions = tuple(weight * term + 0.0 for weight, term in zip(reward.weights, terms, strict=True))
        return replace(
            reward,
            reward=math.fsum(contributions),
            terms=terms,
            contributions=contributions,
            costs=costs,
            turnaround_p95_s=turnaround_p95_s,
            costs_p95=costs_p95,
            usual_of=usual_of,
        )

    def _of_pool(self, task: TaskState, node: int) -> tuple[float, float, float]:
        """Fragmentation, balance and pcie, as the decision leaves the pool."""
        state = self._state
        present_n = state.nodes.is_present_n
        capacity_rn = state.nodes.capacity_rn
        load_n = state.ledger.reserved_rn[CPU] / np.maximum(capacity_rn[CPU], 1)
        in_use = float(state.windows.latest(len(state.nodes))[node, PCIE]) if task.request[GPU] else math.nan
        return (
            fragmentation(state.ledger.free_rn[:, present_n], capacity_rn[:, present_n]),
            balance(float(load_n[node]), float(load_n[present_n].mean()) if present_n.any() else 0.0),
            free_pcie(in_use),
        )

    def _stranded_gpu(self) -> float | None:
        free_rn = self._state.ledger.free_rn[:, self._state.nodes.is_present_n]
        return stranded_gpu(free_rn, np.array(list(self._typical), np.int64).reshape(-1, len(free_rn)))

    def _is_news(self, reward: Reward) -> bool:
        """Whether nothing as late was told of the attempt; what it measures then counts for what is usual."""
        key = (reward.workflow_id, reward.task_id, reward.attempt)
        before, stage = self._told.get(key, 0), STAGES.index(reward.stage)
        if stage <= before:
            return False
        ended, usual = STAGES.index(Stage.ENDED), self._usual
        if before < ended <= stage and reward.end == EventKind.FINISHED:
            for kind, cost in enumerate(reward.costs):
                if cost > 0:
                    usual.add_cost(reward.workflow_class, kind, cost, reward.event_time_ms)
        of_workflow = (reward.workflow_id,)
        if reward.stage == Stage.SETTLED and reward.turnaround_s is not None and of_workflow not in self._told:
            usual.add_workflow(reward.workflow_class, reward.turnaround_s, reward.path_s, reward.event_time_ms)
            self._remember(of_workflow, 0)
        self._remember(key, stage)
        return True

    def _remember(self, key: tuple[object, ...], stage: int) -> None:
        self._told[key] = stage
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]
