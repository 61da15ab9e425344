"""One round of decisions: what is ready and fits is placed, the rest waits or is refused.

Live agents, the simulator and the log all decide here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from policy.arbiter import NOWHERE, Choice, arbitrate, draw
from policy.constraints import Constraints, in_words
from policy.observation import Observation, Policy
from policy.queue import attempt_key
from policy.state import State
from policy.workflows import TaskState
from schemas.errors import InvalidConfiguration, UnusableWeights
from schemas.records import Decision, Outcome, Placement


@dataclass(frozen=True, kw_only=True)
class DecideSettings:
    """How a round is cut into batches, and what of it is recorded."""

    batch: int = 64
    """Most tasks that are scored on one snapshot."""
    batch_share: float = 0.125
    """A batch holds no more tasks than this share of the nodes, lest its scores go stale within it."""
    candidates: int = 5
    """Nodes that a decision's evidence names."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.candidates < 1 or not self.batch_share > 0:
            raise InvalidConfiguration("decide", f"{self} is out of range", "give positive numbers")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about one attempt, and the evidence. A repeated `pending` is not reported again."""

    placement: Placement
    decision: Decision


@dataclass(frozen=True)
class Stamp:
    """Under what a decision is made: goes into its records, has no influence on it."""

    epoch: int = -1
    as_of: tuple[int, ...] = field(default=())


LOOKED_AT = 128
"""Attempts whose mask is computed at once: most of a long queue may have to be turned away."""

Score = Callable[[Policy, Observation], tuple[np.ndarray, Policy]]
"""Asks a policy; returns the scores and the policy that really gave them (a fallback's, where the first one failed)."""


def ask(policy: Policy, seen: Observation) -> tuple[np.ndarray, Policy]:
    """Ask the policy, and no other."""
    return policy.score(seen), policy


def decide(
    state: State,
    policy: Policy,
    constraints: Constraints,
    settings: DecideSettings,
    stamp: Stamp,
    score: Score = ask,
) -> Iterator[list[Verdict]]:
    """Decide about everything that waits and may find room now; yields one batch's verdicts at a time.

    Each batch is folded into the state before it is yielded. Who stops midway loses nothing: the rest still waits.
    """
    fresh_n = state.fresh()
    _look_again(state, constraints)
    while len(rows := state.queue.candidates()):
        looked_at = rows.first(LOOKED_AT, policy.urgency(rows))
        free_rn = state.ledger.free_rn
        mask_bn = constraints.mask(state, [task for task, _ in looked_at], free_rn, fresh_n)
        is_open_b = np.atleast_1d(mask_bn.any(axis=1)).tolist()
        turned_away = [
            verdict
            for (task, attempt), is_open in zip(looked_at, is_open_b, strict=True)
            if not is_open
            and (verdict := _turned_away(state, task, attempt, constraints, free_rn, fresh_n, policy, stamp))
        ]
        if turned_away:
            yield turned_away
        may_fit = [row for row, is_open in zip(looked_at, is_open_b, strict=True) if is_open]
        size = _batch_size(settings, policy, len(state.nodes))
        for start in range(0, len(may_fit), size):
            batch = may_fit[start : start + size]
            if start == 0:  # nothing has changed since the mask was made
                tasks, attempts = zip(*batch, strict=True)
                seen = Observation(state, tasks, attempts, mask_bn[is_open_b][:size], free_rn)
            else:
                seen = _observe(state, batch, constraints, fresh_n)
            if seen.tasks:
                yield _place(seen, *score(policy, seen), settings, stamp)


def _look_again(state: State, constraints: Constraints) -> None:
    """Attempts that no node had room for may find some now."""
    columns = state.nodes_to_reconsider(all_each_step=constraints.follow_metrics)
    if columns and len(state.queue):
        allowed = [constraints.static_mask(state.nodes, task)[columns] for task in state.queue.kinds]
        state.queue.unblock(state.ledger.free_rn[:, columns], np.array(allowed))


def _observe(
    state: State, batch: Sequence[tuple[TaskState, int]], constraints: Constraints, fresh_n: np.ndarray
) -> Observation:
    """The attempts of a batch that still wait and still find a node."""
    waiting = [(task, attempt) for task, attempt in batch if attempt_key(task, attempt) in state.queue]
    free_rn = state.ledger.free_rn
    mask_bn = constraints.mask(state, [task for task, _ in waiting], free_rn, fresh_n)
    rows = np.flatnonzero(mask_bn.any(axis=1)).tolist()
    return Observation(state, [waiting[r][0] for r in rows], [waiting[r][1] for r in rows], mask_bn[rows], free_rn)


def _batch_size(settings: DecideSettings, policy: Policy, nodes: int) -> int:
    most = policy.max_batch or settings.batch
    return max(1, min(most, settings.batch, int(nodes * settings.batch_share)))


def _place(
    seen: Observation, logits_bn: np.ndarray, policy: Policy, settings: DecideSettings, stamp: Stamp
) -> list[Verdict]:
    """Arbitrate a batch and fold its placements into the state."""
    state = seen.state
    draws = [draw(t.workflow.workflow_id, t.task.task_id, a) for t, a in zip(seen.tasks, seen.attempts, strict=True)]
    choices = arbitrate(logits_bn, seen.mask_bn, seen.request_br, seen.free_rn, policy.temperature, np.array(draws))
    evidence = _evidence(seen, choices, logits_bn, settings.candidates)
    feasible_b = seen.mask_bn.sum(axis=1).tolist()
    verdicts = []
    for row, choice in enumerate(choices):
        if choice.node != NOWHERE:
            placement = _placement(seen, row, choice, policy, stamp)
            decision = _decision(placement, policy, draws[row], feasible_b[row], evidence[row], {})
            state.apply(placement)
            verdicts.append(Verdict(placement, decision))
    if not verdicts:  # the first task of a batch finds all that its mask promised
        raise UnusableWeights(f"policy {policy.name}: no score of a feasible node is finite; use another policy")
    return verdicts


def _placement(seen: Observation, row: int, choice: Choice, policy: Policy, stamp: Stamp) -> Placement:
    state, task = seen.state, seen.tasks[row]
    return Placement(
        state.pool,
        task.workflow.workflow_id,
        task.task.task_id,
        seen.attempts[row],
        state.now_ms,
        Outcome.PLACED,
        node_id=state.nodes.specs[choice.node].node_id,
        expected_s=float(seen.finish_bn[row, choice.node]),
        log_prob=choice.log_prob,
        policy=policy.name,
        model_version=policy.version,
        epoch=stamp.epoch,
        as_of=stamp.as_of,
    )


Candidates = tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]
"""Names, scores and probabilities."""


def _evidence(seen: Observation, choices: Sequence[Choice], logits_bn: np.ndarray, count: int) -> list[Candidates]:
    """For each task of a batch, the chosen node and the best others, best first."""
    scores_bn = np.where(seen.mask_bn, logits_bn, -np.inf)
    best_bk = _best(scores_bn, [choice.node for choice in choices], min(count, scores_bn.shape[1]))
    scores_bk = np.take_along_axis(scores_bn, best_bk, axis=1)
    order_bk = np.argsort(-scores_bk, axis=1, kind="stable")
    best_bk = np.take_along_axis(best_bk, order_bk, axis=1)
    scores_bk = np.take_along_axis(scores_bk, order_bk, axis=1)
    counts = np.isfinite(scores_bk).sum(axis=1).tolist()
    specs = seen.state.nodes.specs
    found: list[Candidates] = []
    for row, (best, scores) in enumerate(zip(best_bk.tolist(), scores_bk.tolist(), strict=True)):
        choice, known = choices[row], counts[row]
        weights = choice.weight_n[best_bk[row, :known]] / (choice.total or 1.0)
        names = tuple([specs[node].node_id for node in best[:known]])
        found.append((names, tuple(scores[:known]), tuple(weights.tolist())))
    return found


def _best(scores_bn: np.ndarray, chosen: Sequence[int], count: int) -> np.ndarray:
    """The nodes of the best scores of each row, the chosen one among them: best_bk [B, K], in any order."""
    if count == scores_bn.shape[1]:
        return np.broadcast_to(np.arange(count), (len(scores_bn), count))
    best_bk = np.argpartition(scores_bn, -count, axis=1)[:, -count:]
    worst_b = np.take_along_axis(scores_bn, best_bk, axis=1).argmin(axis=1)
    for row in np.flatnonzero(~(best_bk == np.array(chosen)[:, None]).any(axis=1)).tolist():
        if chosen[row] != NOWHERE:
            best_bk[row, worst_b[row]] = chosen[row]
    return best_bk


def _turned_away(
    state: State,
    task: TaskState,
    attempt: int,
    constraints: Constraints,
    free_rn: np.ndarray,
    fresh_n: np.ndarray,
    policy: Policy,
    stamp: Stamp,
) -> Verdict | None:
    """No node takes the attempt: it waits, said once, or is refused where no node ever could."""
    nodes = len(state.nodes)
    is_hopeless = nodes > 0 and not constraints.could_ever(state, task)
    is_news = state.queue.block(attempt_key(task, attempt))
    if not is_hopeless and (not is_news or task.pending_attempt == attempt):
        return None
    rejections = constraints.rejections(state, task, free_rn, fresh_n)
    placement = Placement(
        state.pool,
        task.workflow.workflow_id,
        task.task.task_id,
        attempt,
        state.now_ms,
        Outcome.REFUSED if is_hopeless else Outcome.PENDING,
        reason=in_words(rejections, nodes),
        policy=policy.name,
        model_version=policy.version,
        epoch=stamp.epoch,
        as_of=stamp.as_of,
    )
    state.apply(placement)
    return Verdict(placement, _decision(placement, policy, 0.0, 0, ((), (), ()), dict(rejections)))


def _decision(
    placement: Placement,
    policy: Policy,
    drawn: float,
    feasible: int,
    candidates: Candidates,
    rejections: dict[str, int],
) -> Decision:
    return Decision(
        placement.pool,
        placement.workflow_id,
        placement.task_id,
        placement.attempt,
        placement.event_time_ms,
        placement.policy,
        placement.model_version,
        placement.epoch,
        placement.as_of,
        policy.temperature,
        drawn,
        placement.node_id,
        feasible,
        *candidates,
        rejections,
    )
