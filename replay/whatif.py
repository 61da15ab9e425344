"""One recorded decision, made otherwise: another node, policy, or metrics; and what would have come of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from policy import snapshot
from policy.arbiter import NOWHERE, arbitrate, masked
from policy.constraints import Constraints, in_words
from policy.ledger import AttemptKey
from policy.observation import Observation, Policy
from policy.state import State
from replay.continuation import ContinuationSettings, Course, course
from replay.player import Moment, Player, Range
from schemas.decisions import Decision, decisions_of
from schemas.errors import InvalidInput
from schemas.fields import suggestion
from schemas.records import METRICS, EventKind, NodeMetrics, Placement, TaskEvent

LUCKS = 8


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be otherwise. Nothing: only the policy is asked once more."""

    node_id: str | None = None
    policy: Policy | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Node -> metric -> value."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What really came of the attempt."""

    started_ms: int | None = None
    ended_ms: int | None = None
    kind: EventKind | None = None
    runtime_s: float | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A decision as it was, and as it would have been."""

    recorded: Decision
    decider: str
    at_ms: int
    expected_s: float | None
    """What the attempt was expected to take where it was placed."""
    node_id: str | None
    """Where it would have been placed; None: nowhere."""
    why_not: str | None
    """Why nowhere, or not on the node that was asked for."""
    probability: float | None
    """Of that choice, by who would have made it; None where the node was given."""
    otherwise_s: float | None
    happened: Happened
    courses: tuple[tuple[Course, Course], ...]
    """As it was and otherwise, with the same luck both times."""

    @property
    def makespan(self) -> tuple[float, float]:
        """Mean difference of the mean makespan of the live workflows, otherwise less as it was, seconds; its error."""
        return _mean([other.makespan_s - was.makespan_s for was, other in self.courses])

    @property
    def workflow(self) -> tuple[float, float]:
        """The same of the decision's own workflow."""
        name = self.recorded.workflow_id
        pairs = [(was.finish_s.get(name), other.finish_s.get(name)) for was, other in self.courses]
        return _mean([other - was for was, other in pairs if was is not None and other is not None])

    @property
    def cost(self) -> tuple[float, float]:
        """The same of the cost of all nodes."""
        return _mean([other.cost - was.cost for was, other in self.courses])


def what_if(
    player: Player,
    wanted: Range,
    name: str,
    change: Change,
    policy_of: Mapping[str, Policy],
    constraints: Constraints,
    settings: ContinuationSettings,
) -> WhatIf:
    """Find a decision, make it otherwise, and play both on.

    name       WORKFLOW/TASK, or WORKFLOW/TASK/ATTEMPT; without an attempt, the first one that was placed
    policy_of  recorded name -> who decides after it
    Raises InvalidInput where the decision is not there, or the change cannot be made.
    """
    workflow_id, task_id, attempt = _parsed(name)
    found: _Found | None = None
    happened = Happened()
    key: AttemptKey | None = None

    def hear(record: object) -> None:
        nonlocal happened
        if isinstance(record, TaskEvent) and (record.workflow_id, record.task_id, record.attempt) == key:
            happened = _after(happened, record)

    player.on_record = hear
    for moment in player.play(wanted):
        if found is None:
            found = _search(moment, workflow_id, task_id, attempt)
            if found is not None:
                key = (workflow_id, task_id, found.decision.attempt)
        elif found.workflow_is_over(moment):
            break
    if found is None:
        raise InvalidInput(name, "no such decision is in this history", "give WORKFLOW/TASK, and --from and --to")
    return _made_otherwise(found, happened, change, policy_of, constraints, settings)


@dataclass(frozen=True, slots=True)
class _Found:
    pool: str
    decider: str
    decision: Decision
    placement: Placement
    saved: bytes

    def workflow_is_over(self, moment: Moment) -> bool:
        return self.decision.workflow_id not in moment.partition.pools[self.pool].workflows


def _parsed(name: str) -> tuple[str, str, int | None]:
    parts = name.split("/")
    if len(parts) == 3 and parts[2].isdigit():
        return parts[0], parts[1], int(parts[2])
    if len(parts) < 2 or not all(parts):
        raise InvalidInput(name, "is no decision", "give WORKFLOW/TASK or WORKFLOW/TASK/ATTEMPT")
    return parts[0], "/".join(parts[1:]), None


def _search(moment: Moment, workflow_id: str, task_id: str, attempt: int | None) -> _Found | None:
    """The decision, if it was made at this moment; what was decided before it in the same round is folded in."""
    moment.is_folded = True
    found = None
    for made, placements in zip(moment.made, moment.placements, strict=True):
        state = moment.partition.pools[made.batch.pool]
        rows = [d for d in decisions_of(made.batch) if (d.workflow_id, d.task_id) == (workflow_id, task_id)]
        for decision in rows:
            if found is None and decision.node_id and attempt in (None, decision.attempt):
                key = (workflow_id, task_id, decision.attempt)
                its = next(p for p in placements if (p.workflow_id, p.task_id, p.attempt) == key)
                before = _before(state, placements, key)
                found = _Found(state.pool, made.batch.policy, decision, its, before)
        for placement in placements:
            state.apply(placement)
    return found


def _before(state: State, placements: Sequence[Placement], key: AttemptKey) -> bytes:
    """The state with what the batch had placed before this attempt."""
    earlier = snapshot.load(snapshot.dump(state), state.settings)
    for placement in placements:
        if (placement.workflow_id, placement.task_id, placement.attempt) == key:
            break
        earlier.apply(placement)
    return snapshot.dump(earlier)


def _after(happened: Happened, event: TaskEvent) -> Happened:
    if event.kind == EventKind.STARTED:
        return replace(happened, started_ms=event.event_time_ms)
    if happened.kind is None:
        return replace(happened, ended_ms=event.event_time_ms, kind=event.kind, runtime_s=event.runtime_s)
    return happened


def _made_otherwise(
    found: _Found,
    happened: Happened,
    change: Change,
    policy_of: Mapping[str, Policy],
    constraints: Constraints,
    settings: ContinuationSettings,
) -> WhatIf:
    state = snapshot.load(found.saved, settings.state)
    for sample in _samples(state, change.metrics):
        state.apply(sample)
    decision = found.decision
    decider = policy_of.get(found.decider) or policy_of["kube_default"]
    node_id, probability, otherwise_s, why_not = _choose(state, decision, change, decider, constraints)
    courses: list[tuple[Course, Course]] = []
    if node_id is not None:
        other = replace(found.placement, node_id=node_id, expected_s=otherwise_s)
        after, saved = change.policy or decider, snapshot.dump(state)
        for luck in range(LUCKS):
            was = course(found.saved, [found.placement], decider, [], settings, luck)
            courses.append((was, course(saved, [other], after, [], settings, luck)))
    return WhatIf(
        decision,
        found.decider,
        found.placement.event_time_ms,
        found.placement.expected_s,
        node_id,
        why_not,
        probability,
        otherwise_s,
        happened,
        tuple(courses),
    )


def _choose(
    state: State, decision: Decision, change: Change, decider: Policy, constraints: Constraints
) -> tuple[str | None, float | None, float | None, str | None]:
    """Node, its probability, what the attempt is expected to take there, and why not."""
    task = state.workflows[decision.workflow_id].get(decision.task_id)
    assert task is not None, "it was decided"
    free_rn, fresh_n = state.ledger.free_rn, state.fresh()
    mask_bn = constraints.mask(state, [task], free_rn, fresh_n)
    seen = Observation(state, [task], [decision.attempt], mask_bn, free_rn)
    nodes = [spec.node_id for spec in state.nodes.specs]
    if change.node_id is not None:
        if change.node_id not in state.nodes.index:
            raise InvalidInput("--node", f"there is no node '{change.node_id}'", suggestion(change.node_id, nodes))
        at = state.nodes.index[change.node_id]
        if not mask_bn[0, at]:
            why = constraints.rejection(state, task, at, free_rn, fresh_n)
            return None, None, None, f"{change.node_id} cannot take it: {why}"
        return change.node_id, None, float(seen.finish_bn[0, at]), None
    policy = change.policy or decider
    score_bn = masked(policy.score(seen), mask_bn)
    (choice,) = arbitrate(score_bn, seen.request_br, free_rn, policy.temperature, np.array([decision.draw]))
    if choice.node == NOWHERE:
        return None, None, None, in_words(constraints.rejections(state, task, free_rn, fresh_n), len(nodes))
    return nodes[choice.node], math.exp(choice.log_prob), float(seen.finish_bn[0, choice.node]), None


def _samples(state: State, metrics: Mapping[str, Mapping[str, float]]) -> list[NodeMetrics]:
    """Samples that say this, and nothing else, of these nodes now."""
    found = []
    for node_id, values in metrics.items():
        if node_id not in state.nodes.index:
            known = [spec.node_id for spec in state.nodes.specs]
            raise InvalidInput("--set", f"there is no node '{node_id}'", suggestion(node_id, known))
        row_m = np.full(len(METRICS), np.nan, "<f4")
        for name, value in values.items():
            if name not in METRICS:
                raise InvalidInput("--set", f"there is no metric '{name}'", suggestion(name, METRICS))
            row_m[METRICS.index(name)] = value
        found.append(NodeMetrics(state.pool, state.now_ms, "what-if", (node_id,), row_m.tobytes()))
    return found


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return (finite[0] if finite else math.nan), math.inf
    return float(np.mean(finite)), 1.96 * float(np.std(finite, ddof=1)) / len(finite) ** 0.5


def in_lines(found: WhatIf) -> list[str]:
    """For people."""
    recorded, happened = found.recorded, found.happened
    name = f"{recorded.workflow_id}/{recorded.task_id} attempt {recorded.attempt}"
    lines = [f"{name}: {found.decider} placed it on {recorded.node_id}, one of {recorded.feasible} feasible nodes"]
    for node_id, score, probability in zip(recorded.candidates, recorded.scores, recorded.probabilities, strict=True):
        mark = "->" if node_id == recorded.node_id else "  "
        lines.append(f"  {mark} {node_id}  score {score:+.3f}  probability {probability:.3f}")
    expected = "" if found.expected_s is None else f"expected {found.expected_s:.1f} s; "
    if happened.kind is None:
        lines.append(f"  {expected}it has not ended in this history")
    else:
        took = "" if happened.runtime_s is None else f", ran {happened.runtime_s:.1f} s"
        waited = (
            "" if happened.started_ms is None else f", started after {(happened.started_ms - found.at_ms) / 1000:.1f} s"
        )
        lines.append(f"  {expected}really: {happened.kind}{waited}{took}")
    if found.node_id is None:
        return [*lines, f"otherwise: no node; {found.why_not}"]
    chance = "" if found.probability is None else f" (probability {found.probability:.3f})"
    same = ", the same node" if found.node_id == recorded.node_id else ""
    lines.append(f"otherwise: {found.node_id}{chance}{same}, expected {found.otherwise_s:.1f} s")
    for of, (mean, error), unit in (
        ("its workflow's end", found.workflow, "s"),
        ("mean end of all live workflows", found.makespan, "s"),
        ("cost of all nodes", found.cost, ""),
    ):
        lines.append(f"  {of}: {mean:+.4g} ± {error:.2g} {unit}".rstrip())
    return lines


def changes_of(texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """NODE.METRIC=VALUE, several times. Raises InvalidInput."""
    found: dict[str, dict[str, float]] = {}
    for text in texts:
        name, _, number = text.partition("=")
        node_id, _, metric = name.rpartition(".")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not node_id or not math.isfinite(value):
            raise InvalidInput(
                "--set", f"'{text}' is not NODE.METRIC=VALUE", "write for instance n1.cpu_utilisation=0.9"
            )
        found.setdefault(node_id, {})[metric] = value
    return found
