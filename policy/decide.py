"""One round of decisions: what is ready and fits is placed, the rest waits or is refused.

Live agents, the simulator and the log all decide here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from policy.arbiter import BLOCK, NOWHERE, Choice, arbitrate, draw, masked
from policy.canary import Canary
from policy.constraints import Constraints, in_words
from policy.heuristics import HEURISTICS
from policy.observation import Observation, Policy
from policy.queue import attempt_key
from policy.state import State
from policy.workflows import TaskState
from schemas.errors import InvalidConfiguration, UnusableWeights
from schemas.records import DecisionBatch, Outcome, Placement


@dataclass(frozen=True, kw_only=True)
class DecideSettings:
    """How a round is cut into batches, and what of it is recorded."""

    batch: int = 64
    """Most tasks that are scored on one snapshot."""
    batch_share: float = 0.125
    """A batch holds no more tasks than this share of the nodes, lest its scores go stale within it."""
    candidates: int = 5
    """Nodes that the evidence names for each task."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.candidates < 1 or not self.batch_share > 0:
            raise InvalidConfiguration("decide", f"{self} is out of range", "give positive numbers")


@dataclass(frozen=True, slots=True)
class Batch:
    """What was decided together, and the evidence. A repeated `pending` is not reported again."""

    placements: list[Placement]
    evidence: DecisionBatch


@dataclass(frozen=True)
class Stamp:
    """Under what a decision is made: goes into its records, has no influence on it."""

    epoch: int = -1
    as_of: tuple[int, ...] = field(default=())


LOOKED_AT = 128
"""Attempts whose mask is computed at once: most of a long queue may have to be turned away."""

IN_TURN = HEURISTICS["round_robin"]
"""Decides while the pool's breaker wants it."""

Row = tuple[TaskState, int]
"""A task and its attempt that waits."""

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
    canary: Canary | None = None,
) -> Iterator[Batch]:
    """Decide about everything that waits and may find room now; yields one batch at a time.

    A batch is of one policy: this one, the canary's for the workflows that it takes, or, while the pool's breaker wants
    it, each node in its turn. The order of the tasks is always this one's.
    Each batch is folded into the state before it is yielded. Who stops midway loses nothing: the rest still waits.
    """
    if state.given_up:
        yield _give_up(state, policy, stamp)
    fresh_n = state.fresh()
    _look_again(state, constraints)
    while len(rows := state.queue.candidates()):
        looked_at = rows.first(LOOKED_AT, policy.urgency(rows))
        free_rn = state.ledger.free_rn
        mask_bn = constraints.mask(state, [task for task, _ in looked_at], free_rn, fresh_n)
        is_open_b = np.atleast_1d(mask_bn.any(axis=1)).tolist()
        shut_out = [row for row, is_open in zip(looked_at, is_open_b, strict=True) if not is_open]
        turned_away = _turn_away(state, shut_out, constraints, free_rn, fresh_n, policy, stamp)
        if turned_away is not None:
            yield turned_away
        may_fit = [row for row, is_open in zip(looked_at, is_open_b, strict=True) if is_open]
        open_bn, is_first = mask_bn[is_open_b], True
        while may_fit:
            who, chosen = _next_batch(state, policy, canary, settings, may_fit)
            batch = [may_fit[at] for at in chosen]
            if is_first:  # nothing has changed since the mask was made
                tasks, attempts = zip(*batch, strict=True)
                seen, is_first = Observation(state, tasks, attempts, open_bn[chosen], free_rn), False
            else:
                seen = _observe(state, batch, constraints, fresh_n)
            if seen.tasks:
                yield _place(seen, *score(who, seen), settings, stamp)
            in_batch = set(chosen)
            may_fit = [row for at, row in enumerate(may_fit) if at not in in_batch]


def _next_batch(
    state: State, policy: Policy, canary: Canary | None, settings: DecideSettings, rows: Sequence[Row]
) -> tuple[Policy, list[int]]:
    """Who decides for the first of these rows, and which of them make a batch with it."""
    if state.breaker.turns:
        return IN_TURN, [0]
    first = rows[: _batch_size(settings, policy, len(state.nodes))]
    if canary is None:
        return policy, list(range(len(first)))
    flows = {task.workflow.workflow_id: task.workflow for task, _ in first}
    takes = {workflow_id: canary.takes(workflow) for workflow_id, workflow in flows.items()}
    is_canary = [takes[task.workflow.workflow_id] for task, _ in first]
    its_rows = [at for at, is_its in enumerate(is_canary) if is_its == is_canary[0]]
    return canary.policy if is_canary[0] else policy, its_rows


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


def _place(seen: Observation, logits_bn: np.ndarray, policy: Policy, settings: DecideSettings, stamp: Stamp) -> Batch:
    """Arbitrate a batch and fold its placements into the state."""
    state = seen.state
    draws = [draw(t.workflow.workflow_id, t.task.task_id, a) for t, a in zip(seen.tasks, seen.attempts, strict=True)]
    score_bn = masked(logits_bn, seen.mask_bn)
    choices = arbitrate(score_bn, seen.request_br, seen.free_rn, policy.temperature, np.array(draws))
    evidence = _evidence(seen, choices, score_bn, draws, policy, settings.candidates, stamp)
    chosen = [(row, choice) for row, choice in enumerate(choices) if choice.node != NOWHERE]
    if not chosen:  # the first task of a batch finds all that its mask promised
        raise UnusableWeights(f"policy {policy.name}: no score of a feasible node is finite; use another policy")
    rows, nodes = [row for row, _ in chosen], [choice.node for _, choice in chosen]
    expected_s = seen.finish_bn[rows, nodes].tolist()
    placements = [
        _placement(seen, row, choice, seconds, policy, stamp)
        for (row, choice), seconds in zip(chosen, expected_s, strict=True)
    ]
    for placement in placements:
        state.apply(placement)
    return Batch(placements, evidence)


def _placement(
    seen: Observation, row: int, choice: Choice, expected_s: float, policy: Policy, stamp: Stamp
) -> Placement:
    state, task = seen.state, seen.tasks[row]
    return Placement(
        state.pool,
        task.workflow.workflow_id,
        task.task.task_id,
        seen.attempts[row],
        state.now_ms,
        Outcome.PLACED,
        node_id=state.nodes.specs[choice.node].node_id,
        expected_s=expected_s,
        log_prob=choice.log_prob,
        policy=policy.name,
        model_version=policy.version,
        epoch=stamp.epoch,
        as_of=stamp.as_of,
    )


def _evidence(
    seen: Observation,
    choices: Sequence[Choice],
    score_bn: np.ndarray,
    draws: Sequence[float],
    policy: Policy,
    count: int,
    stamp: Stamp,
) -> DecisionBatch:
    """For each task of a batch, the chosen node and the best others, best first."""
    width = min(count, score_bn.shape[1])
    row_b1 = np.arange(len(choices))[:, None]
    best_bk = _best(score_bn, [choice.node for choice in choices], width)
    scores_bk = score_bn[row_b1, best_bk]
    order_bk = np.argsort(-scores_bk, axis=1, kind="stable")
    best_bk, scores_bk = best_bk[row_b1, order_bk], scores_bk[row_b1, order_bk]
    is_known_bk = np.isfinite(scores_bk)
    weights_bk = np.array(
        [choice.weight_n[best_k] for choice, best_k in zip(choices, best_bk, strict=True)], np.float64
    )
    weights_bk /= np.array([choice.total or 1.0 for choice in choices])[:, None]
    specs = seen.state.nodes.specs
    return DecisionBatch(
        seen.state.pool,
        seen.state.now_ms,
        policy.name,
        policy.version,
        stamp.epoch,
        stamp.as_of,
        policy.temperature,
        tuple([t.workflow.workflow_id for t in seen.tasks]),
        tuple([t.task.task_id for t in seen.tasks]),
        tuple(seen.attempts),
        tuple(draws),
        tuple(["" if choice.node == NOWHERE else specs[choice.node].node_id for choice in choices]),
        tuple(seen.mask_bn.sum(axis=1).tolist()),
        width,
        tuple(
            [
                specs[node].node_id if is_known else ""
                for node, is_known in zip(best_bk.ravel().tolist(), is_known_bk.ravel().tolist(), strict=True)
            ]
        ),
        tuple(np.where(is_known_bk, scores_bk, 0.0).ravel().tolist()),
        tuple(np.where(is_known_bk, weights_bk, 0.0).ravel().tolist()),
    )


def _best(score_bn: np.ndarray, chosen: Sequence[int], count: int) -> np.ndarray:
    """The nodes of the best scores of each row, the chosen one among them: best_bk [B, K], in any order."""
    if count == score_bn.shape[1]:
        return np.broadcast_to(np.arange(count), (len(score_bn), count))
    best_bk = _largest(score_bn, count)
    for row in np.flatnonzero(~(best_bk == np.array(chosen)[:, None]).any(axis=1)).tolist():
        if chosen[row] != NOWHERE:
            best_bk[row, score_bn[row, best_bk[row]].argmin()] = chosen[row]
    return best_bk


def _largest(score_bn: np.ndarray, count: int) -> np.ndarray:
    """[B, count] where the largest scores of each row are; they lie in the blocks that have the largest maxima."""
    nodes = score_bn.shape[1]
    if nodes <= 2 * count * BLOCK:
        return np.argpartition(score_bn, -count, axis=1)[:, -count:]
    whole = nodes - nodes % BLOCK
    highest_bk = np.maximum.reduceat(score_bn[:, :whole], np.arange(0, whole, BLOCK), axis=1)
    first_bk = BLOCK * np.argpartition(highest_bk, -count, axis=1)[:, -count:]
    within_bn = (first_bk[:, :, None] + np.arange(BLOCK)).reshape(len(score_bn), -1)
    rest_bn = np.broadcast_to(np.arange(whole, nodes), (len(score_bn), nodes - whole))
    looked_at_bn = np.concatenate([within_bn, rest_bn], axis=1)
    row_b1 = np.arange(len(score_bn))[:, None]
    among_bk = np.argpartition(score_bn[row_b1, looked_at_bn], -count, axis=1)[:, -count:]
    return looked_at_bn[row_b1, among_bk]


def _turn_away(
    state: State,
    waiting: Sequence[tuple[TaskState, int]],
    constraints: Constraints,
    free_rn: np.ndarray,
    fresh_n: np.ndarray,
    policy: Policy,
    stamp: Stamp,
) -> Batch | None:
    """No node takes these attempts: each waits, said once, or is refused where no node ever could."""
    nodes = len(state.nodes)
    placements, rejections = [], []
    for task, attempt in waiting:
        is_hopeless = nodes > 0 and not constraints.could_ever(state, task)
        is_news = state.queue.block(attempt_key(task, attempt))
        if not is_hopeless and (not is_news or task.pending_attempt == attempt):
            continue
        why = constraints.rejections(state, task, free_rn, fresh_n)
        rejections.append(dict(why))
        placements.append(
            Placement(
                state.pool,
                task.workflow.workflow_id,
                task.task.task_id,
                attempt,
                state.now_ms,
                Outcome.REFUSED if is_hopeless else Outcome.PENDING,
                reason=in_words(why, nodes),
                policy=policy.name,
                model_version=policy.version,
                epoch=stamp.epoch,
                as_of=stamp.as_of,
            )
        )
        state.apply(placements[-1])
    return Batch(placements, _no_candidates(placements, rejections, policy)) if placements else None


def _give_up(state: State, policy: Policy, stamp: Stamp) -> Batch:
    """Attempts that will not be made: too many before them ended without success."""
    most = state.settings.max_attempts
    placements = [
        Placement(
            state.pool,
            *key,
            state.now_ms,
            Outcome.REFUSED,
            reason=f"{key[2]} attempts ended without success; state.max_attempts is {most}",
            policy=policy.name,
            model_version=policy.version,
            epoch=stamp.epoch,
            as_of=stamp.as_of,
        )
        for key in state.given_up
    ]
    for placement in placements:
        state.apply(placement)
    return Batch(placements, _no_candidates(placements, [{}] * len(placements), policy))


def _no_candidates(
    placements: Sequence[Placement], rejections: Sequence[dict[str, int]], policy: Policy
) -> DecisionBatch:
    """The evidence of tasks that found no node."""
    first, none = placements[0], (0,) * len(placements)
    return DecisionBatch(
        first.pool,
        first.event_time_ms,
        first.policy,
        first.model_version,
        first.epoch,
        first.as_of,
        policy.temperature,
        tuple([p.workflow_id for p in placements]),
        tuple([p.task_id for p in placements]),
        tuple([p.attempt for p in placements]),
        (0.0,) * len(placements),
        ("",) * len(placements),
        none,
        0,
        (),
        (),
        (),
        tuple(rejections),
    )
