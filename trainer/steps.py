"""Many episodes side by side, one decision at a time: what a policy learns from that is trained step by step.

The games are those of `trainer.arena`; what is new here is who chooses, and the reward of each choice. It is shaped: as
soon as a choice makes a workflow's finish later than it looked before, or its nodes dearer, it says so, instead of when
the workflow ends. Summed over an episode, and but for a part that is the same whoever decides, it is the turnaround of
`policy.reward` times the number of workflows, and its cost, late starts and fragmentation as far as they are foreseen.
Imbalance is left out: it depends on all choices together, and good policies are at its bound.
Axes: E environments, N nodes (padded to the most of all), P pair features, C changing features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.typed import List

from policy.physics import NOW
from policy.reward import Baseline, RewardWeights, Run
from trainer import arena
from trainer.arena import ARRIVED, CHANGING, NOBODY, PAIRS, SLA_MS, Outcome, Rule
from trainer.compiled import by_reference, compiled
from trainer.scenarios import Course, Played

HOUR_MS = 3_600_000
LEAST_CHANCE = 0.01
"""Of an attempt that fails right away hardly anything can be told about the length of the whole one."""


class Prices(NamedTuple):
    """What each term of the reward counts in this scenario."""

    turnaround_w: np.ndarray
    """[W] of a second's delay"""
    latest_ms_w: np.ndarray
    """[W] the finish after which delay counts no more"""
    cost_w: np.ndarray
    """[W] of a unit of currency"""
    dearest_w: np.ndarray
    """[W] the cost beyond which it counts no more"""
    sla_w: np.ndarray
    """[W] of a task that is placed too late"""
    scraps: np.ndarray
    """[1] of a millisecond of fragmentation"""


class Account(NamedTuple):
    """What was foreseen at the last look."""

    until_ms_t: np.ndarray
    """[T] when the attempt that was placed last probably ends"""
    running_q: np.ndarray
    """The tasks that were placed, and may not be over."""
    is_running_t: np.ndarray
    """Whether the task is among them."""
    cost_w: np.ndarray
    """[W] the workflow's shares of what its nodes cost, up to the ends of its attempts"""
    finish_ms_w: np.ndarray
    """[W]; of those that have not come, what it will be when they come"""
    counts: np.ndarray


TASK, LOOKED_MS, FIRST, RUNNING = range(4)
"""Counts: the task to be decided, when the last look was, the first workflow that may not be over, tasks that may be
running."""


class Game(NamedTuple):
    """An episode that waits for a decision. Every part is a reference."""

    machines: Any
    scenario: Any
    rule: Any
    outcome: Any
    world: Any
    prices: Any
    account: Any


class Seen(NamedTuple):
    """What the environments show, and what the last choices brought; a step overwrites it.

    pair_epn [E, PAIRS, N] and mask_en [E, N]: the nodes; 0 where infeasible or padding
    changing_ec [E, CHANGING], task_e [E]: the task to be decided; NOBODY: the episode is over
    reward_e, passed_s_e: of the choice before, and the time from it to this one
    """

    pair_epn: np.ndarray
    mask_en: np.ndarray
    changing_ec: np.ndarray
    task_e: np.ndarray
    reward_e: np.ndarray
    passed_s_e: np.ndarray


_prices = by_reference(Prices, __name__)
_account = by_reference(Account, __name__)
_game = by_reference(Game, __name__)


@compiled
def _new(machines, scenario, rule, outcome, prices, account):  # type: ignore[no-untyped-def]
    """A game before its first decision."""
    m, s = arena._machines(*machines), arena._scenario(*scenario)
    w = arena._begin(m, s)
    return _game(m, s, arena._rule(*rule), arena._outcome(*outcome), w, _prices(*prices), _account(*account))


@compiled
def _listed(machines, scenario, rule, outcome, prices, account):  # type: ignore[no-untyped-def]
    """A list of one game."""
    games = List()
    games.append(_new(machines, scenario, rule, outcome, prices, account))
    return games


@compiled
def _put(games, e, machines, scenario, rule, outcome, prices, account, seen, skipped):  # type: ignore[no-untyped-def]
    """Begin an episode as the e-th game; the rule itself takes the first decisions that are skipped."""
    g = _new(machines, scenario, rule, outcome, prices, account)
    if e < len(games):
        games[e] = g
    else:
        games.append(g)
    _go_on(g)
    reward, begin_ms = 0.0, g.machines.counters[NOW]
    for _ in range(skipped):
        t = g.account.counts[TASK]
        if t == NOBODY:
            break
        reward += _decided(g, t, arena._choose(g.machines, g.scenario, g.world, g.rule, t))
    seen.reward_e[e], seen.passed_s_e[e] = reward, (g.machines.counters[NOW] - begin_ms) / 1000
    _show(g, seen, e)


@compiled
def _step(games, node_e, seen):  # type: ignore[no-untyped-def]
    """Place each environment's task on the node that is chosen for it, and play on to its next decision."""
    for e in range(len(games)):
        g = games[e]
        t = g.account.counts[TASK]
        if t != NOBODY and node_e[e] != NOBODY:
            before_ms = g.machines.counters[NOW]
            seen.reward_e[e] = _decided(g, t, node_e[e])
            seen.passed_s_e[e] = (g.machines.counters[NOW] - before_ms) / 1000
            _show(g, seen, e)


@compiled
def _decided(g, t, node) -> float:  # type: ignore[no-untyped-def]
    """Place the task and play on; returns the reward."""
    reward = _place(g, t, node)
    _go_on(g)
    return reward + _slip(g, g.scenario.workflow_t[t])


@compiled
def _go_on(g) -> None:  # type: ignore[no-untyped-def]
    g.account.counts[TASK] = arena._next(g.machines, g.scenario, g.world, g.rule, g.outcome)


@compiled
def _place(g, t, node) -> float:  # type: ignore[no-untyped-def]
    """Place the task; returns what that costs, as far as the nodes and the start of the task go."""
    m, s, w, a = g.machines, g.scenario, g.world, g.account
    workflow, now_ms = s.workflow_t[t], m.counters[NOW]
    k = w.ready_t[t] % s.run_chance_tk.shape[1]
    is_late = w.attempt_t[t] < 0 and now_ms - w.ready_ms_t[t] > SLA_MS
    before = w.totals[2]
    arena._place(m, s, w, g.outcome, t, node)
    scraps = (w.totals[2] - before) / len(w.scraps_n)
    # What is usual on such a node as it is now, crowded or slow; this attempt's own luck is taken out.
    transfer_ms = m.transfer_ms_a[t] / s.transfer_chance_tk[t, k]
    run_ms = m.run_ms_a[t] / max(s.run_chance_tk[t, k], LEAST_CHANCE)
    a.until_ms_t[t] = now_ms + transfer_ms + run_ms
    if not a.is_running_t[t]:
        a.is_running_t[t] = True
        a.running_q[a.counts[RUNNING]] = t
        a.counts[RUNNING] += 1
    reward = -_bill(g, t, node, now_ms) - (g.prices.sla_w[workflow] if is_late else 0.0)
    return reward - g.prices.scraps[0] * scraps * (transfer_ms + run_ms)


@compiled
def _bill(g, t, node, now_ms) -> float:  # type: ignore[no-untyped-def]
    """What the node costs more with the task, priced: it pays for the time that it is there alone, and its share of the
    time that others are there, who pay less by as much.
    """
    m, w, a = g.machines, g.world, g.account
    until_ms, held_until_ms, others_ms = a.until_ms_t[t], float(now_ms), 0.0
    at = 0
    while at < a.counts[RUNNING]:
        other = a.running_q[at]
        if w.on_t[other] == NOBODY:
            a.counts[RUNNING] -= 1
            a.running_q[at], a.is_running_t[other] = a.running_q[a.counts[RUNNING]], False
            continue
        if w.on_t[other] == node and other != t:
            held_until_ms = max(held_until_ms, a.until_ms_t[other])
            others_ms += m.share_a[other] * max(0.0, min(a.until_ms_t[other], until_ms) - now_ms)
        at += 1
    alone_ms = max(0.0, until_ms - held_until_ms)
    together_ms = until_ms - now_ms - alone_ms
    own_ms = m.share_a[t] * together_ms
    part_ms = together_ms * own_ms / max(own_ms + others_ms, 1e-9)
    price = m.price_n[node] / HOUR_MS
    total = _charge(g, g.scenario.workflow_t[t], price * (alone_ms + part_ms))
    if others_ms > 0:
        for at in range(a.counts[RUNNING]):
            other = a.running_q[at]
            if w.on_t[other] == node and other != t:
                theirs_ms = m.share_a[other] * max(0.0, min(a.until_ms_t[other], until_ms) - now_ms)
                total += _charge(g, g.scenario.workflow_t[other], -price * part_ms * theirs_ms / others_ms)
    return total


@compiled
def _charge(g, workflow, cost) -> float:  # type: ignore[no-untyped-def]
    """Add it to what the workflow costs; returns what that counts, as far as it counts at all."""
    most, before = g.prices.dearest_w[workflow], g.account.cost_w[workflow]
    g.account.cost_w[workflow] = before + cost
    return g.prices.cost_w[workflow] * (min(before + cost, most) - min(before, most))


@compiled
def _slip(g, placed) -> float:  # type: ignore[no-untyped-def]
    """By how much the foreseen finishes of the workflows have become later, priced; `placed`: the one that changed."""
    w, a = g.world, g.account
    now_ms, arrived = g.machines.counters[NOW], w.counts[ARRIVED]
    total = 0.0
    if now_ms == a.counts[LOOKED_MS]:
        total += _slip_of(g, placed, now_ms)
    else:
        for workflow in range(a.counts[FIRST], arrived):
            total += _slip_of(g, workflow, now_ms)
        while a.counts[FIRST] < arrived and w.left_w[a.counts[FIRST]] == 0:
            a.counts[FIRST] += 1
    a.counts[LOOKED_MS] = now_ms
    return -total


@compiled
def _slip_of(g, workflow, now_ms) -> float:  # type: ignore[no-untyped-def]
    before_ms = g.account.finish_ms_w[workflow]
    finish_ms = min(_foreseen(g, workflow, now_ms), float(g.prices.latest_ms_w[workflow]))
    g.account.finish_ms_w[workflow] = finish_ms
    return g.prices.turnaround_w[workflow] * (finish_ms - before_ms) / 1000


@compiled
def _foreseen(g, workflow, now_ms) -> float:  # type: ignore[no-untyped-def]
    """When the workflow is done, if what waits starts now and everything after it as soon as it may."""
    s, w = g.scenario, g.world
    if w.left_w[workflow] == 0:
        return float(g.outcome.finish_ms_w[workflow])
    finish_ms = float(now_ms)
    for t in range(s.first_w[workflow], s.first_w[workflow + 1]):
        if not w.is_done_t[t] and w.missing_t[t] == 0:  # those that miss a parent come after it: see its rank
            if w.on_t[t] == NOBODY:
                finish_ms = max(finish_ms, now_ms + 1000 * s.rank_t[t])
            else:
                after_ms = 1000 * (s.rank_t[t] - s.runtime_t[t])
                finish_ms = max(finish_ms, max(float(now_ms), g.account.until_ms_t[t]) + after_ms)
    return finish_ms


@compiled
def _show(g, seen, e) -> None:  # type: ignore[no-untyped-def]
    t, w = g.account.counts[TASK], g.world
    seen.task_e[e] = t
    if t == NOBODY or len(w.mask_n) < seen.mask_en.shape[1]:
        seen.mask_en[e] = False
        seen.pair_epn[e] = 0
    if t == NOBODY:
        return
    arena._pairs(g.machines, g.scenario, w, t)
    arena._changing(g.machines, g.scenario, w, t)
    for c in range(CHANGING):
        seen.changing_ec[e, c] = w.changing_c[c]
    for node in range(len(w.mask_n)):
        seen.mask_en[e, node] = w.mask_n[node]
    for p in range(PAIRS):
        for node in range(len(w.mask_n)):
            seen.pair_epn[e, p, node] = w.pair_pn[p, node] if w.mask_n[node] else 0.0


def prices(course: Course, usual: Baseline, weights: RewardWeights | None = None) -> Prices:
    """What the terms of the reward count in this scenario."""
    weights = weights or RewardWeights()
    s, workflows = course.scenario, len(course.workflows)
    lasts_ms = max(1.0, float((s.arrival_ms_w + 1000 * paths(course)).max() - s.start_ms))
    turnaround_s_w = np.maximum(usual.turnaround_s_c[s.class_w], 1e-9)
    cost_w = np.maximum(usual.cost_c[s.class_w], 1e-9)
    return Prices(
        weights.turnaround / turnaround_s_w,
        s.arrival_ms_w + 1000 * turnaround_s_w,
        weights.cost / cost_w,
        cost_w,
        weights.sla / np.diff(s.first_w),
        np.full(1, weights.fragmentation * workflows / lasts_ms),
    )


def paths(course: Course) -> np.ndarray:
    """path_w [W], seconds: the longest way through each workflow."""
    s = course.scenario
    return np.maximum.reduceat(s.rank_t, s.first_w[:-1])


class Steps:
    """Environments side by side, each with an episode of its own; `seen` is what they show."""

    def __init__(self, environments: int, nodes: int) -> None:
        self.seen = Seen(
            np.zeros((environments, PAIRS, nodes), np.float32),
            np.zeros((environments, nodes), np.bool_),
            np.zeros((environments, CHANGING), np.float32),
            np.full(environments, NOBODY),
            np.zeros(environments),
            np.zeros(environments),
        )
        self._games: Any = None
        self._played: list[Played] = []

    def put(self, e: int, course: Course, rule: Rule, prices: Prices, skipped: int = 0) -> None:
        """Begin this episode in the e-th environment; new ones come in turn.

        rule     orders the waiting tasks, and takes the first decisions that are skipped
        """
        s = course.scenario
        tasks, workflows = len(s.workflow_t), len(s.arrival_ms_w)
        outcome = Outcome(np.full(workflows, -1), np.full(tasks, -1), np.zeros((0, 3), np.int64), np.zeros(6))
        account = Account(
            np.zeros(tasks),
            np.zeros(tasks, np.int64),
            np.zeros(tasks, np.bool_),
            np.zeros(workflows),
            np.minimum(s.arrival_ms_w + 1000 * paths(course), prices.latest_ms_w),
            np.array([NOBODY, s.start_ms, 0, 0], np.int64),
        )
        played = Played(course, outcome, course.machines(), 0)
        parts = (played.machines, s, rule, outcome, prices, account)
        if self._games is None:
            self._games = _listed(*parts)
        _put(self._games, e, *parts, self.seen, skipped)
        self._played[e : e + 1] = [played]

    def step(self, node_e: np.ndarray) -> Seen:
        """Place every environment's task on its node of node_e [E] int64, which must be feasible; NOBODY: it waits."""
        _step(self._games, node_e, self.seen)
        return self.seen

    def measured(self, e: int) -> Run:
        """What is measured of the e-th environment's episode, once it is over."""
        return self._played[e].measured()

    def live(self, e: int, soon_ms: int) -> np.ndarray:
        """The workflows of the e-th environment that are under way, or come within this time."""
        played = self._played[e]
        until_ms = played.machines.counters[NOW] + soon_ms
        is_near_w = played.course.scenario.arrival_ms_w <= until_ms
        return np.flatnonzero(is_near_w & (played.outcome.finish_ms_w < 0))
