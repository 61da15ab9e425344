"""What another policy would have done: asked at every recorded decision, in the state that the decider saw.

Nothing that it answers is obeyed. Two comparisons follow from its answers: now and then the recorded state is played on
under both policies (`replay.continuation`), and the recorded decisions are weighed by how likely the candidate was to
make them (`replay.estimates`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from policy import snapshot
from policy.arbiter import NOWHERE, arbitrate, masked
from policy.constraints import Constraints
from policy.credit import Credits
from policy.features import free_shares
from policy.ledger import AttemptKey
from policy.observation import Observation, Policy
from policy.pair_features import Workspace, pair_features
from policy.state import State
from policy.workflows import TaskState
from replay.continuation import ContinuationSettings, Course, course
from replay.estimates import Weighed
from replay.player import Moment, Progress, Range
from schemas.errors import InvalidConfiguration
from schemas.records import DecisionBatch, Outcome, Placement, Reward, Stage, WorkflowSubmitted

LEAST_PROBABILITY = 1e-9
KEPT = 50_000
"""Weighed decisions that are kept, the newest."""
WAITING = 50_000
"""Decisions whose reward is waited for, at most."""


@dataclass(frozen=True, kw_only=True)
class ShadowSettings:
    """How a candidate is compared."""

    every_s: float = 300.0
    """Event time between two states that are played on under both policies."""
    horizon_s: float = 600.0
    """Workflows that were submitted so long after such a state are played too, as they came."""
    lucks: int = 2
    """Times that each is played, with the same luck for both."""

    def __post_init__(self) -> None:
        for name, least, most in (("every_s", 0.001, 1e7), ("horizon_s", 0.0, 1e6), ("lucks", 1, 1000)):
            if not least <= getattr(self, name) <= most:
                raise InvalidConfiguration(
                    f"shadow.{name}", f"{getattr(self, name)} is out of range", f"give {least:g} to {most:g}"
                )


@dataclass(frozen=True, slots=True)
class Choice:
    """What the candidate would have done with one attempt, beside what was done."""

    placement: Placement
    """The candidate's."""
    recorded: str
    """The node that was chosen."""
    probability: float
    """That the candidate had chosen that one."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One recorded state, played on under both policies: means over the same lucks."""

    at_ms: int
    workflows: int
    incumbent: Course
    candidate: Course

    @property
    def makespan(self) -> float:
        """Mean over the workflows, candidate less incumbent, as a share of the incumbent's."""
        return _relative(self.candidate.makespan_s, self.incumbent.makespan_s)

    @property
    def cost(self) -> float:
        """The same for the cost."""
        return _relative(self.candidate.cost, self.incumbent.cost)


def _relative(candidate: float, incumbent: float) -> float:
    if math.isinf(candidate) or math.isinf(incumbent):
        return 0.0 if candidate == incumbent else math.copysign(1.0, candidate - incumbent)
    return (candidate - incumbent) / incumbent if incumbent > 0 else 0.0


class Plays(Protocol):
    """A history that is played: `replay.player.Player`, or `replay.arrivals.Arrivals`."""

    progress: Progress

    def play(self, wanted: Range) -> Iterator[Moment]:
        """The moments of a range."""

    def on_record(self, record: object) -> None:
        """Is set by who wants to be told."""


@dataclass
class Report:
    """What a shadow has seen so far."""

    decisions: int = 0
    """Of the incumbent's, that the candidate was asked about."""
    agreed: int = 0
    """On which both chose the same node."""
    impossible: int = 0
    """For which the candidate found no node."""
    pairs: list[Pair] = field(default_factory=list)
    weighed: deque[Weighed] = field(default_factory=lambda: deque(maxlen=KEPT))
    policies: dict[str, int] = field(default_factory=dict)
    """Who decided -> how often."""


class Shadow:
    """Compares a candidate with the incumbent over what is played."""

    def __init__(
        self,
        candidate: Policy,
        incumbent_of: Callable[[str], Policy],
        constraints: Constraints,
        settings: ShadowSettings,
        continuation: ContinuationSettings,
        credits: Credits,
    ) -> None:
        """incumbent_of  recorded name -> who goes on to decide where a state is played on: that one, or its model"""
        self.report = Report()
        self._candidate = candidate
        self._incumbent_of = incumbent_of
        self._constraints = constraints
        self._settings = settings
        self._continuation = continuation
        self._credits = credits
        self._space = Workspace()
        self._waiting: dict[AttemptKey, tuple[float, np.ndarray, np.ndarray]] = {}
        self._asked: deque[_Asked] = deque()
        self._next_ms = 0

    def watch(self, player: Plays, wanted: Range) -> Iterator[list[Choice]]:
        """Yields what the candidate would have done, batch by batch; `report` grows meanwhile."""
        player.on_record = self._hear  # type: ignore[method-assign]
        for moment in player.play(wanted):
            moment.is_folded = True
            for made, placements in zip(moment.made, moment.placements, strict=True):
                state = moment.partition.pools[made.batch.pool]
                yield from self._look(state, made.batch, placements)
                for placement in placements:
                    state.apply(placement)
        self._settle(None)

    def _look(self, state: State, batch: DecisionBatch, placements: Sequence[Placement]) -> Iterator[list[Choice]]:
        """One recorded batch, in the state before it."""
        self._settle(state.now_ms)
        if state.pool != self._credits.pool or not batch.width or not any(batch.node_ids):
            return
        if state.breaker.turns:
            return  # the breaker decides, whoever the policy is
        log_probs = {(p.workflow_id, p.task_id, p.attempt): p.log_prob for p in placements}
        choices = self._choose(state, batch, log_probs)
        self.report.policies[batch.policy] = self.report.policies.get(batch.policy, 0) + len(choices)
        if choices and state.now_ms >= self._next_ms:
            self._next_ms = state.now_ms + round(1000 * self._settings.every_s)
            theirs = [p for p in placements if p.outcome == Outcome.PLACED]
            ours = [choice.placement for choice in choices]
            self._asked.append(_Asked(state.now_ms, batch.policy, snapshot.dump(state), theirs, ours))
        if choices:
            yield choices

    def _choose(self, state: State, batch: DecisionBatch, log_probs: Mapping[AttemptKey, float | None]) -> list[Choice]:
        rows = [
            (task, attempt, drawn, node_id)
            for workflow_id, task_id, attempt, drawn, node_id in zip(
                batch.workflow_ids, batch.task_ids, batch.attempts, batch.draws, batch.node_ids, strict=True
            )
            if node_id and (task := _task(state, workflow_id, task_id)) is not None and node_id in state.nodes.index
        ]
        found: list[Choice] = []
        size = self._candidate.max_batch or len(rows) or 1
        for first in range(0, len(rows), size):
            found += self._ask(state, rows[first : first + size], log_probs)
        return found

    def _ask(
        self,
        state: State,
        rows: Sequence[tuple[TaskState, int, float, str]],
        log_probs: Mapping[AttemptKey, float | None],
    ) -> list[Choice]:
        tasks, attempts, draws, node_ids = (list(column) for column in zip(*rows, strict=True))
        free_rn, policy = state.ledger.free_rn, self._candidate
        mask_bn = self._constraints.mask(state, tasks, free_rn, state.fresh())
        seen = Observation(state, tasks, attempts, mask_bn, free_rn)
        score_bn = masked(policy.score(seen), mask_bn)
        choices = arbitrate(score_bn, seen.request_br, free_rn, policy.temperature, np.array(draws))
        pair_bpn = pair_features(seen, free_shares(seen), self._space)
        found = []
        for row, (task, attempt, choice, recorded) in enumerate(zip(tasks, attempts, choices, node_ids, strict=True)):
            key = (task.workflow.workflow_id, task.task.task_id, attempt)
            self.report.decisions += 1
            if choice.node == NOWHERE:
                self.report.impossible += 1
                continue
            node, probability_n = state.nodes.index[recorded], choice.probability_n
            self.report.agreed += choice.node == node
            log_prob = log_probs.get(key)
            if log_prob is not None:
                weight = float(probability_n[node]) / max(LEAST_PROBABILITY, math.exp(log_prob))
                self._wait_for(key, weight, pair_bpn[row, :, node].copy(), pair_bpn[row] @ probability_n)
            placement = Placement(
                state.pool,
                *key,
                state.now_ms,
                Outcome.PLACED,
                state.nodes.specs[choice.node].node_id,
                expected_s=float(seen.finish_bn[row, choice.node]),
                log_prob=choice.log_prob,
                policy=policy.name,
                model_version=policy.version,
            )
            found.append(Choice(placement, recorded, float(probability_n[node])))
        return found

    def _wait_for(self, key: AttemptKey, weight: float, chosen_p: np.ndarray, expected_p: np.ndarray) -> None:
        self._waiting[key] = weight, chosen_p, expected_p
        while len(self._waiting) > WAITING:
            del self._waiting[next(iter(self._waiting))]

    def _hear(self, record: object) -> None:
        """Every record that is folded: rewards follow from them, and arrivals."""
        if record.pool != self._credits.pool:  # type: ignore[attr-defined]
            return
        if isinstance(record, WorkflowSubmitted):
            for asked in self._asked:
                if record.event_time_ms <= asked.at_ms + 1000 * self._settings.horizon_s:
                    asked.arrivals.append(record)
        for reward in self._credits.apply(record):
            self._learn(reward)

    def _learn(self, reward: Reward) -> None:
        key = (reward.workflow_id, reward.task_id, reward.attempt)
        if reward.stage == Stage.SETTLED and key in self._waiting:
            weight, chosen_p, expected_p = self._waiting.pop(key)
            self.report.weighed.append(Weighed(reward.workflow_id, weight, reward.reward, chosen_p, expected_p))

    def _settle(self, now_ms: int | None) -> None:
        """Play on the states whose arrivals are known by now; without a time, all."""
        while self._asked and (now_ms is None or now_ms > self._asked[0].at_ms + 1000 * self._settings.horizon_s):
            self.report.pairs.append(self._play(self._asked.popleft()))

    def _play(self, asked: _Asked) -> Pair:
        arrivals = sorted(asked.arrivals, key=lambda record: record.event_time_ms)
        arrivals = [replace(a, event_time_ms=max(a.event_time_ms, asked.at_ms)) for a in arrivals]
        courses = [
            [
                course(asked.saved, first, policy, arrivals, self._continuation, luck)
                for luck in range(self._settings.lucks)
            ]
            for policy, first in (
                (self._incumbent_of(asked.decider), asked.incumbent),
                (self._candidate, asked.candidate),
            )
        ]
        incumbent, candidate = map(_mean, courses)
        return Pair(asked.at_ms, len(incumbent.finish_s), incumbent, candidate)


@dataclass
class _Asked:
    """A state to be played on once its arrivals are known."""

    at_ms: int
    decider: str
    saved: bytes
    incumbent: list[Placement]
    candidate: list[Placement]
    arrivals: list[WorkflowSubmitted] = field(default_factory=list)


def _task(state: State, workflow_id: str, task_id: str) -> TaskState | None:
    workflow = state.workflows.get(workflow_id)
    task = workflow.get(task_id) if workflow is not None else None
    return None if task is None or task.is_over else task


def _mean(courses: Sequence[Course]) -> Course:
    names = courses[0].finish_s
    finish_s = {name: float(np.mean([one.finish_s[name] for one in courses])) for name in names}
    return Course(finish_s, float(np.mean([one.cost for one in courses])))
