"""Whole episodes in compiled code: what `policy.episode` plays with batches of one, a thousand times as fast.

Nodes and attempts are those of `policy.physics`, the same functions as in the live loop's simulated cluster. What
`policy.state` and `policy.decide` do is written again here, for arrays; a test plays both and compares every placement.
Axes: W workflows, T tasks (a workflow's lie together), E edges, N nodes, R resources, K drawn chances of a task.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from policy import physics
from policy.decide import LOOKED_AT
from policy.features import CROWDED, SLOWED
from policy.pair_features import ROOMY
from policy.physics import FAILED, FINISHED, FREE, LOST, NOW, PLANNED, STARTED, Machines
from policy.reward import SLA_S
from policy.state import FAILURE_WEIGHT, StateSettings
from policy.windows import STEP_MS
from trainer.compiled import by_reference, compiled

CPU, MEMORY, GPU, GPU_MEMORY = range(4)
NOBODY = -1
LONGEST_MS = 30 * 24 * 3600 * 1000
SLA_MS = int(1000 * SLA_S)
_SETTINGS = StateSettings()
ROLLBACK_FACTOR = _SETTINGS.rollback_factor
MAX_ROLLBACKS = _SETTINGS.max_rollbacks

ARRIVAL, RANK, RUNTIME, WORK, PATH, LEARNT_ORDER = range(6)
"""Orders of the waiting tasks."""
ANY, IN_TURN, FINISH, SPARING_FINISH, LEAST_ALLOCATED, MOST_ALLOCATED, ALIGNMENT, CHEAPEST, LEARNT = range(9)
"""Scores of the nodes."""
PAIRS = 13
"""Pair features: those of policy.features.PAIR_FEATURES, in their order, but for the wishes, which are 0 here."""
ORDERS = 7
"""Order features: those of policy.features.ORDER_FEATURES."""
CHANGING = 7
"""Features that change of a task and its pool: those of policy.features.TASK_FEATURES and POOL_FEATURES."""


class Scenario(NamedTuple):
    """What comes, and what chance holds ready: the same whoever decides."""

    start_ms: int
    arrival_ms_w: np.ndarray
    first_w: np.ndarray
    """[W + 1] int64, where the tasks of each workflow begin"""
    class_w: np.ndarray
    """[W] int64"""
    workflow_t: np.ndarray
    request_tr: np.ndarray
    device_memory_t: np.ndarray
    runtime_t: np.ndarray
    rank_t: np.ndarray
    priority_t: np.ndarray
    """[T] 2 * priority + critical"""
    parent_at_t: np.ndarray
    """[T + 1] int64, where the parents of each task begin"""
    parent_e: np.ndarray
    bytes_e: np.ndarray
    child_at_t: np.ndarray
    child_e: np.ndarray
    device_memory_n: np.ndarray
    run_chance_tk: np.ndarray
    """[T, K] factor of the run time of the k-th attempt"""
    transfer_chance_tk: np.ndarray
    fails_tk: np.ndarray
    draw_tk: np.ndarray
    """[T, K] in [0, 1): which of equal nodes is taken"""


class Rule(NamedTuple):
    """How a policy decides, in numbers."""

    order: int
    score: int
    weight_p: np.ndarray
    """[PAIRS] of LEARNT"""
    weight_k: np.ndarray
    """[ORDERS] of LEARNT_ORDER"""
    temperature: float
    """Of the softmax over the scores; 0 takes the best node, ties by the draw."""
    hidden_th: np.ndarray
    """[T, H] float32: of each task of the scenario, what its fixed features bring to the H hidden units of the scoring
    head, their bias included; H = 0: the weights are the same for all tasks"""
    changing_ch: np.ndarray
    """[CHANGING, H] float32, into the hidden units"""
    mix_hp: np.ndarray
    """[H, PAIRS] float32: what each hidden unit adds to the weights of the pair features"""


class Outcome(NamedTuple):
    """What came of it."""

    finish_ms_w: np.ndarray
    """[W] int64; -1: never"""
    wait_ms_t: np.ndarray
    """[T] int64, from ready to the first start; -1: never"""
    log_l3: np.ndarray
    """[L, 3] int64: task, attempt, node of each placement, as far as there is room"""
    sums: np.ndarray
    """Over time, in ms: SPREAD standard deviation of the nodes' cpu shares; LOAD their mean; SCRAPS fragmentation"""


PLACED, BEGIN, END, SPREAD, LOAD, SCRAPS = range(6)


class _World(NamedTuple):
    """Where everything stands."""

    missing_t: np.ndarray
    attempt_t: np.ndarray
    """The newest that was placed."""
    ready_t: np.ndarray
    """The newest that was announced."""
    ended_t: np.ndarray
    """The newest that ended without finishing the task."""
    rollbacks_t: np.ndarray
    excluded_t: np.ndarray
    on_t: np.ndarray
    """Where its attempt is, as far as the scheduler knows."""
    ran_on_t: np.ndarray
    started_ms_t: np.ndarray
    expected_s_t: np.ndarray
    ready_ms_t: np.ndarray
    turn_t: np.ndarray
    """Number of its placement among all."""
    is_done_t: np.ndarray
    work_w: np.ndarray
    path_w: np.ndarray
    left_w: np.ndarray
    submitted_ms_w: np.ndarray
    queue_q: np.ndarray
    """The waiting tasks, in order of arrival."""
    attempt_q: np.ndarray
    is_blocked_q: np.ndarray
    is_visible_n: np.ndarray
    is_freed_n: np.ndarray
    failure_n: np.ndarray
    busy_until_ms_n: np.ndarray
    share_n: np.ndarray
    scraps_n: np.ndarray
    totals: np.ndarray
    """Sum of share_n, sum of its squares, sum of scraps_n."""
    chosen_q: np.ndarray
    """The tasks of the pass that is under way, in their order."""
    mask_n: np.ndarray
    score_n: np.ndarray
    pair_pn: np.ndarray
    weight_p: np.ndarray
    changing_c: np.ndarray
    counts: np.ndarray


QUEUED, LIVE, PLACEMENTS, FREED, ARRIVED, TICK, BEFORE, LOOKED, CHOSEN, CURSOR = range(10)
"""Counts: waiting tasks; workflows that are not over; placements; nodes with more room; workflows that have come; when
the next sample is due and when the last event was, ms; how many attempts the pass looked at, has chosen, has done."""

_machines = by_reference(Machines, __name__)
_scenario = by_reference(Scenario, __name__)
_rule = by_reference(Rule, __name__)
_outcome = by_reference(Outcome, __name__)
_world = by_reference(_World, __name__)


@compiled
def play(machines: Machines, scenario: Scenario, rule: Rule, outcome: Outcome) -> int:
    """Play until every workflow is over; returns the placements. The machines are fresh, with a place for each task."""
    return _play(_machines(*machines), _scenario(*scenario), _rule(*rule), _outcome(*outcome))


@compiled
def _play(m: Machines, s: Scenario, rule: Rule, o: Outcome) -> int:
    w = _begin(m, s)
    while True:
        t = _next(m, s, w, rule, o)
        if t == NOBODY:
            return w.counts[PLACEMENTS]
        _place(m, s, w, o, t, _choose(m, s, w, rule, t))


@compiled
def _begin(m: Machines, s: Scenario) -> _World:
    """Everything as it is before anything comes."""
    tasks, workflows, nodes = len(s.workflow_t), len(s.arrival_ms_w), len(m.is_up_n)
    w = _world(
        s.parent_at_t[1:] - s.parent_at_t[:-1],
        np.full(tasks, -1),
        np.full(tasks, -1),
        np.full(tasks, -1),
        np.zeros(tasks, np.int64),
        np.full(tasks, NOBODY),
        np.full(tasks, NOBODY),
        np.full(tasks, NOBODY),
        np.full(tasks, -1),
        np.zeros(tasks),
        np.zeros(tasks, np.int64),
        np.zeros(tasks, np.int64),
        np.zeros(tasks, np.bool_),
        np.zeros(workflows),
        np.zeros(workflows),
        s.first_w[1:] - s.first_w[:-1],
        np.zeros(workflows, np.int64),
        np.zeros(tasks, np.int64),
        np.zeros(tasks, np.int64),
        np.zeros(tasks, np.bool_),
        np.zeros(nodes, np.bool_),
        np.zeros(nodes, np.bool_),
        np.zeros(nodes),
        np.zeros(nodes, np.int64),
        np.zeros(nodes),
        np.zeros(nodes),
        np.zeros(3),
        np.zeros(LOOKED_AT, np.int64),
        np.zeros(nodes, np.bool_),
        np.zeros(nodes, np.float32),
        np.zeros((PAIRS, nodes)),
        np.zeros(PAIRS),
        np.zeros(CHANGING),
        np.zeros(10, np.int64),
    )
    m.request_ar[:tasks] = s.request_tr
    for node in range(nodes):
        w.scraps_n[node] = _scraps(m, node)
        w.totals[2] += w.scraps_n[node]
    w.counts[TICK], w.counts[BEFORE] = s.start_ms, s.start_ms
    return w


@compiled
def _next(m: Machines, s: Scenario, w: _World, rule: Rule, o: Outcome) -> int:
    """Play on to the next decision; returns the task, for which `mask_n` then holds, or NOBODY when all is over."""
    while True:
        while w.counts[CURSOR] < w.counts[CHOSEN]:
            t = w.chosen_q[w.counts[CURSOR]]
            w.counts[CURSOR] += 1
            if _mask(m, s, w, t) > 0:
                return t
        if w.counts[LOOKED] == 0:
            if not _go_on(m, s, w, o):
                return NOBODY
            _unblock(m, s, w)
        _look(m, s, w, rule)


@compiled
def _go_on(m: Machines, s: Scenario, w: _World, o: Outcome) -> bool:
    """Let what is next happen; returns False when nothing is left to happen."""
    arrived, workflows = w.counts[ARRIVED], len(s.arrival_ms_w)
    if arrived == workflows and w.counts[LIVE] == 0:
        o.sums[PLACED], o.sums[BEGIN], o.sums[END] = w.counts[PLACEMENTS], s.start_ms, w.counts[BEFORE]
        return False
    now_ms = w.counts[TICK]
    if m.counters[PLANNED] > 0:
        now_ms = min(now_ms, m.at_ms_s[m.heap_s[0]])
    if arrived < workflows:
        now_ms = min(now_ms, s.arrival_ms_w[arrived])
    if now_ms > s.start_ms + LONGEST_MS:
        o.sums[PLACED], o.sums[BEGIN], o.sums[END] = w.counts[PLACEMENTS], s.start_ms, w.counts[BEFORE]
        return False
    _measure(m, w, o, now_ms - w.counts[BEFORE])
    w.counts[BEFORE] = now_ms
    while m.counters[PLANNED] > 0 and m.at_ms_s[m.heap_s[0]] <= now_ms:
        what, index = physics.happen(m)
        _fold(m, s, w, o, what, index)
    m.counters[NOW] = now_ms
    if now_ms >= w.counts[TICK]:
        _tick(m, s, w)
        w.counts[TICK] += STEP_MS
    while arrived < workflows and s.arrival_ms_w[arrived] <= now_ms:
        _arrive(s, w, arrived, now_ms)
        arrived += 1
    w.counts[ARRIVED] = arrived
    return True


@compiled
def _measure(m: Machines, w: _World, o: Outcome, passed_ms: int) -> None:
    """Add up over time what is integrated."""
    if passed_ms > 0 and w.counts[PLACEMENTS] > 0:
        nodes = len(w.share_n)
        mean = w.totals[0] / nodes
        o.sums[SPREAD] += passed_ms * math.sqrt(max(0.0, w.totals[1] / nodes - mean * mean))
        o.sums[LOAD] += passed_ms * mean
        o.sums[SCRAPS] += passed_ms * w.totals[2] / nodes


@compiled
def _touch(m: Machines, w: _World, node: int) -> None:
    """The node's load has changed."""
    share = m.used_nr[node, CPU] / m.capacity_nr[node, CPU]
    scraps = _scraps(m, node)
    w.totals[0] += share - w.share_n[node]
    w.totals[1] += share * share - w.share_n[node] * w.share_n[node]
    w.totals[2] += scraps - w.scraps_n[node]
    w.share_n[node], w.scraps_n[node] = share, scraps


@compiled
def _scraps(m: Machines, node: int) -> float:
    """The mean square of the free shares of what the node has."""
    total, count = 0.0, 0
    for r in range(3):
        has = m.capacity_nr[node, r]
        if has > 0:
            free = 1.0 - m.used_nr[node, r] / has
            total += free * free
            count += 1
    return total / max(1, count)


# What is folded: as policy.state does.


@compiled
def _arrive(s: Scenario, w: _World, workflow: int, now_ms: int) -> None:
    w.counts[LIVE] += 1
    w.submitted_ms_w[workflow] = now_ms
    for t in range(s.first_w[workflow], s.first_w[workflow + 1]):
        w.work_w[workflow] += s.runtime_t[t]
        w.path_w[workflow] = max(w.path_w[workflow], s.rank_t[t])
    for t in range(s.first_w[workflow], s.first_w[workflow + 1]):
        if w.missing_t[t] == 0:
            _push(w, t, 0, NOBODY, now_ms)


@compiled
def _push(w: _World, t: int, attempt: int, excluded: int, now_ms: int) -> None:
    """The task's attempt waits."""
    if w.ready_t[t] < 0:
        w.ready_ms_t[t] = now_ms
    _withdraw(w, t)
    at = w.counts[QUEUED]
    w.queue_q[at], w.attempt_q[at], w.is_blocked_q[at] = t, attempt, False
    w.counts[QUEUED] += 1
    w.ready_t[t], w.excluded_t[t] = attempt, excluded


@compiled
def _withdraw(w: _World, t: int) -> None:
    """Take the task out of the queue, if it waits."""
    if w.ready_t[t] <= w.attempt_t[t]:
        return
    for at in range(w.counts[QUEUED]):
        if w.queue_q[at] == t:
            _drop(w, at)
            return


@compiled
def _drop(w: _World, at: int) -> None:
    last = w.counts[QUEUED] - 1
    for q in range(at, last):
        w.queue_q[q], w.attempt_q[q], w.is_blocked_q[q] = w.queue_q[q + 1], w.attempt_q[q + 1], w.is_blocked_q[q + 1]
    w.counts[QUEUED] = last


@compiled
def _free(w: _World, node: int) -> None:
    w.is_freed_n[node] = True
    w.counts[FREED] += 1


@compiled
def _fold(m: Machines, s: Scenario, w: _World, o: Outcome, what: int, index: int) -> None:
    now_ms = m.counters[NOW]
    if what == STARTED:
        w.started_ms_t[index] = now_ms
        if o.wait_ms_t[index] < 0:
            o.wait_ms_t[index] = now_ms - w.ready_ms_t[index]
    elif what == FINISHED or what == FAILED:
        node = w.on_t[index]
        w.on_t[index] = NOBODY
        _free(w, node)
        _touch(m, w, node)
        w.failure_n[node] += FAILURE_WEIGHT * ((1.0 if what == FAILED else 0.0) - w.failure_n[node])
        if what == FINISHED:
            w.ran_on_t[index] = node
            _close(s, w, o, index, now_ms)
        else:
            _retry(w, index, now_ms)
    elif what == LOST:
        w.is_visible_n[index] = False
        _touch(m, w, index)
        for t in range(len(w.on_t)):
            if w.on_t[t] == index:
                w.on_t[t] = NOBODY
                _retry(w, t, now_ms)


@compiled
def _close(s: Scenario, w: _World, o: Outcome, t: int, now_ms: int) -> None:
    """The task is done: its children become due."""
    _withdraw(w, t)
    w.is_done_t[t] = True
    workflow = s.workflow_t[t]
    w.left_w[workflow] -= 1
    w.work_w[workflow] -= s.runtime_t[t]
    if s.rank_t[t] >= w.path_w[workflow]:
        path = 0.0
        for other in range(s.first_w[workflow], s.first_w[workflow + 1]):
            if not w.is_done_t[other]:
                path = max(path, s.rank_t[other])
        w.path_w[workflow] = path
    for e in range(s.child_at_t[t], s.child_at_t[t + 1]):
        child = s.child_e[e]
        w.missing_t[child] -= 1
        if w.missing_t[child] == 0:
            _push(w, child, 0, NOBODY, now_ms)
    if w.left_w[workflow] == 0:
        o.finish_ms_w[workflow] = now_ms
        w.counts[LIVE] -= 1


@compiled
def _retry(w: _World, t: int, now_ms: int) -> None:
    """The next attempt after one that ended, unless it waits already."""
    attempt = w.attempt_t[t]
    w.ended_t[t] = max(w.ended_t[t], attempt)
    w.started_ms_t[t] = -1
    if w.ready_t[t] <= attempt:
        _push(w, t, max(w.ready_t[t], w.ended_t[t]) + 1, NOBODY, now_ms)


@compiled
def _tick(m: Machines, s: Scenario, w: _World) -> None:
    """A sample of the nodes: those that are back are seen; attempts that take too long are to be migrated."""
    now_ms = m.counters[NOW]
    for node in range(len(w.is_visible_n)):
        if m.is_up_n[node] and not w.is_visible_n[node]:
            w.is_visible_n[node] = True
            _free(w, node)
    late = np.zeros(len(w.on_t), np.int64)
    count = 0
    for t in range(len(w.on_t)):
        if w.on_t[t] != NOBODY and w.started_ms_t[t] >= 0 and w.rollbacks_t[t] < MAX_ROLLBACKS:
            is_late = now_ms - w.started_ms_t[t] > 1000 * ROLLBACK_FACTOR * w.expected_s_t[t]
            if is_late and w.ready_t[t] == w.attempt_t[t]:
                late[count] = t
                count += 1
    by_turn = np.argsort(w.turn_t[late[:count]])
    for at in by_turn:
        t = late[at]
        w.rollbacks_t[t] += 1
        _push(w, t, max(w.ready_t[t], w.ended_t[t]) + 1, w.on_t[t], now_ms)


# Decisions: as policy.decide does.


@compiled
def _look(m: Machines, s: Scenario, w: _World, rule: Rule) -> None:
    """Begin a pass over what waits and may find room, in the rule's order; what finds none now waits for some."""
    waiting = _in_order(s, w, rule)[:LOOKED_AT]
    w.counts[LOOKED], w.counts[CURSOR] = len(waiting), 0
    chosen = 0
    for t in waiting:
        if _mask(m, s, w, t) > 0:
            w.chosen_q[chosen] = t
            chosen += 1
        else:
            w.is_blocked_q[_row(w, t)] = True
    w.counts[CHOSEN] = chosen


@compiled
def _row(w: _World, t: int) -> int:
    """Where the task stands in the queue."""
    at = 0
    while w.queue_q[at] != t:
        at += 1
    return at


@compiled
def _in_order(s: Scenario, w: _World, rule: Rule) -> np.ndarray:
    """The tasks that may find room: by priority, urgency, arrival."""
    count = 0
    open_q = np.empty(w.counts[QUEUED], np.int64)
    for at in range(w.counts[QUEUED]):
        if not w.is_blocked_q[at]:
            open_q[count] = w.queue_q[at]
            count += 1
    tasks = open_q[:count]
    if count < 2:
        return tasks
    urgency = np.empty(count)
    priority = np.empty(count, np.int64)
    for i in range(count):
        urgency[i] = -_urgency(s, w, rule, tasks[i])
        priority[i] = -s.priority_t[tasks[i]]
    order = np.argsort(urgency, kind="mergesort")
    if priority.min() != priority.max():
        order = order[np.argsort(priority[order], kind="mergesort")]
    return tasks[order]


@compiled
def _unblock(m: Machines, s: Scenario, w: _World) -> None:
    """Look again at what waits for room, where room was made."""
    if w.counts[FREED] == 0:
        return
    for node in range(len(w.is_freed_n)):
        if w.is_freed_n[node]:
            w.is_freed_n[node] = False
            if w.is_visible_n[node]:
                for at in range(w.counts[QUEUED]):
                    if w.is_blocked_q[at] and _may_take(m, s, w.queue_q[at], node):
                        w.is_blocked_q[at] = False
    w.counts[FREED] = 0


@compiled
def _may_take(m: Machines, s: Scenario, t: int, node: int) -> bool:
    if s.request_tr[t, GPU] > 0 and s.device_memory_n[node] < s.device_memory_t[t]:
        return False
    for r in range(4):
        if s.request_tr[t, r] > max(0, m.capacity_nr[node, r] - m.used_nr[node, r]):
            return False
    return True


@compiled
def _mask(m: Machines, s: Scenario, w: _World, t: int) -> int:
    """Which nodes may take the task now; returns how many."""
    count = 0
    mask_n = w.mask_n
    for node in range(len(mask_n)):
        may = w.is_visible_n[node] and node != w.excluded_t[t] and _may_take(m, s, t, node)
        mask_n[node] = may
        count += may
    return count


@compiled
def _urgency(s: Scenario, w: _World, rule: Rule, t: int) -> float:
    workflow = s.workflow_t[t]
    if rule.order == RANK:
        return s.rank_t[t]
    if rule.order == RUNTIME:
        return -s.runtime_t[t]
    if rule.order == WORK:
        return -w.work_w[workflow]
    if rule.order == PATH:
        return -w.path_w[workflow]
    if rule.order == LEARNT_ORDER:
        k = rule.weight_k
        return (
            k[0] * math.log1p(max(0.0, w.path_w[workflow])) / 5
            + k[1] * math.log1p(max(0.0, w.work_w[workflow])) / 8
            + k[2] * math.log1p(s.rank_t[t]) / 5
            + k[3] * math.log1p(s.runtime_t[t]) / 5
            + k[4] * (1.0 if s.request_tr[t, GPU] > 0 else 0.0)
            - k[5] * w.ready_ms_t[t] / 300_000
            - k[6] * w.submitted_ms_w[workflow] / 300_000
        )
    return 0.0


@compiled
def _choose(m: Machines, s: Scenario, w: _World, rule: Rule, t: int) -> int:
    """The node of the best score; of equal ones the one that is drawn."""
    mask_n, scores_n = w.mask_n, w.score_n
    if rule.score == ANY:
        scores_n[:] = 0
    elif rule.score == IN_TURN:
        _in_turn(w, mask_n, scores_n)
    elif rule.score == LEAST_ALLOCATED:
        _kube(m, s, w, t, mask_n, scores_n)
    elif rule.score == CHEAPEST:
        _cheapest(m, s, w, t, mask_n, scores_n)
    elif rule.score == LEARNT:
        _learnt(m, s, w, rule, t)
    else:
        slowest = np.float32(0)
        if rule.score == SPARING_FINISH:
            for node in range(len(mask_n)):
                if mask_n[node]:
                    slowest = max(slowest, _finish(m, s, w, t, node))
        for node in range(len(mask_n)):
            if mask_n[node]:
                if rule.score == MOST_ALLOCATED:
                    scores_n[node] = _most_allocated(m, s, t, node)
                elif rule.score == ALIGNMENT:
                    scores_n[node] = _alignment(m, s, t, node)
                else:
                    finish = _finish(m, s, w, t, node)
                    if rule.score == SPARING_FINISH and m.capacity_nr[node, GPU] > 0 and s.request_tr[t, GPU] == 0:
                        finish += 1 + 2 * slowest
                    scores_n[node] = -finish
    best = -np.inf
    for node in range(len(mask_n)):
        if mask_n[node] and scores_n[node] > best:
            best = float(scores_n[node])
    drawn = s.draw_tk[t, w.ready_t[t] % s.draw_tk.shape[1]]
    if rule.temperature > 0:
        return _softly(mask_n, scores_n, best, rule.temperature, drawn)
    least = np.float32(best - 1e-6 * max(1.0, abs(best)))
    equal = 0
    for node in range(len(mask_n)):
        equal += mask_n[node] and scores_n[node] >= least
    nth = int(drawn * equal)
    for node in range(len(mask_n)):
        if mask_n[node] and scores_n[node] >= least:
            if nth == 0:
                return node
            nth -= 1
    return NOBODY


@compiled
def _softly(mask_n: np.ndarray, scores_n: np.ndarray, best: float, temperature: float, drawn: float) -> int:
    """The node that is drawn from the softmax over the scores."""
    total = 0.0
    for node in range(len(mask_n)):
        if mask_n[node]:
            total += math.exp((scores_n[node] - best) / temperature)
    reach, last = drawn * total, NOBODY
    for node in range(len(mask_n)):
        if mask_n[node]:
            weight = math.exp((scores_n[node] - best) / temperature)
            if weight > 0:
                last = node
            reach -= weight
            if reach < 0 and weight > 0:
                return node
    return last


@compiled
def _transfer(m: Machines, s: Scenario, w: _World, t: int, node: int) -> float:
    """Seconds to bring the inputs that lie elsewhere to the node."""
    total, local = 0.0, 0.0
    for e in range(s.parent_at_t[t], s.parent_at_t[t + 1]):
        total += s.bytes_e[e]
        if w.ran_on_t[s.parent_e[e]] == node:
            local += s.bytes_e[e]
    return (np.float32(total) - np.float32(local)) / np.float32(m.bandwidth_n[node])


@compiled
def _finish(m: Machines, s: Scenario, w: _World, t: int, node: int) -> float:
    """Seconds until the task would be done on the node, as predicted."""
    run = np.float32(s.runtime_t[t]) * np.float32(1 / m.speed_n[node])
    return _transfer(m, s, w, t, node) + run


@compiled
def _in_turn(w: _World, mask_n: np.ndarray, scores_n: np.ndarray) -> None:
    feasible = mask_n.sum()
    turn, at = w.counts[PLACEMENTS] % feasible, 0
    for node in range(len(mask_n)):
        if mask_n[node]:
            scores_n[node] = -((at - turn) % feasible)
            at += 1


@compiled
def _kube(m: Machines, s: Scenario, w: _World, t: int, mask_n: np.ndarray, scores_n: np.ndarray) -> None:
    """policy.kube.kube_default for tasks without labels, taints and wishes."""
    nodes = len(mask_n)
    scores_n[:] = -1
    present = 0
    for node in range(nodes):
        present += w.is_visible_n[node]
    count, start = nodes, 0
    if present >= 100:
        count = max(present * max(5, 50 - present // 125) // 100, 100)
        start = w.counts[PLACEMENTS] * count % nodes
    taken = 0
    for i in range(nodes):
        node = (start + i) % nodes
        if not mask_n[node] or taken >= count:
            continue
        taken += 1
        left, kinds = 0, 0
        for r in range(2):
            has = m.capacity_nr[node, r]
            if has > 0:
                left += max(has - m.used_nr[node, r] - s.request_tr[t, r], 0) * 100 // has
                kinds += 1
        scores_n[node] = left // max(kinds, 1) + _balance(m, s, t, node)


@compiled
def _balance(m: Machines, s: Scenario, t: int, node: int) -> int:
    after = _evenness(m, node, s.request_tr[t, CPU], s.request_tr[t, MEMORY])
    return 50 + (50 + after - _evenness(m, node, 0, 0)) // 2


@compiled
def _evenness(m: Machines, node: int, cpu: int, memory: int) -> int:
    cpu_share = min((m.used_nr[node, CPU] + cpu) / m.capacity_nr[node, CPU], 1.0)
    memory_share = min((m.used_nr[node, MEMORY] + memory) / m.capacity_nr[node, MEMORY], 1.0)
    return int((1 - abs(cpu_share - memory_share) / 2) * 100)


@compiled
def _most_allocated(m: Machines, s: Scenario, t: int, node: int) -> int:
    total, kinds = 0, 0
    for r in range(2):
        has = m.capacity_nr[node, r]
        if has > 0:
            total += min(m.used_nr[node, r] + s.request_tr[t, r], has) * 100 // has
            kinds += 1
    return total // max(kinds, 1)


@compiled
def _alignment(m: Machines, s: Scenario, t: int, node: int) -> float:
    total = 0.0
    for r in range(4):
        has = max(1, m.capacity_nr[node, r])
        total += s.request_tr[t, r] * ((m.capacity_nr[node, r] - m.used_nr[node, r]) / (float(has) * has))
    return total


@compiled
def _cheapest(m: Machines, s: Scenario, w: _World, t: int, mask_n: np.ndarray, scores_n: np.ndarray) -> None:
    """The lowest price of the run; of equal ones the earliest finish, as ranks."""
    least, finish = np.inf, np.float32(np.inf)
    for node in range(len(mask_n)):
        if mask_n[node]:
            cost = _price(m, s, t, node)
            if cost < least:
                least, finish = cost, _finish(m, s, w, t, node)
            elif cost == least:
                finish = min(finish, _finish(m, s, w, t, node))
    for node in range(len(mask_n)):
        if mask_n[node]:
            is_best = _price(m, s, t, node) == least and _finish(m, s, w, t, node) == finish
            scores_n[node] = 0 if is_best else -1


@compiled
def _price(m: Machines, s: Scenario, t: int, node: int) -> float:
    share = 0.0
    for r in range(4):
        share = max(share, s.request_tr[t, r] / max(1, m.capacity_nr[node, r]))
    run = np.float32(s.runtime_t[t]) * np.float32(1 / m.speed_n[node])
    return run / 3600.0 * share * m.price_n[node]


@compiled
def _learnt(m: Machines, s: Scenario, w: _World, rule: Rule, t: int) -> None:
    """The pair features, weighted as the scoring head weighs them for this task."""
    _pairs(m, s, w, t)
    weight_p = w.weight_p
    weight_p[:] = rule.weight_p
    hidden = rule.mix_hp.shape[0]
    if hidden > 0:
        _changing(m, s, w, t)
        for h in range(hidden):
            value = float(rule.hidden_th[t, h])
            for c in range(CHANGING):
                value += w.changing_c[c] * rule.changing_ch[c, h]
            if value > 0:
                for p in range(PAIRS):
                    weight_p[p] += value * rule.mix_hp[h, p]
    for node in range(len(w.mask_n)):
        if w.mask_n[node]:
            score = 0.0
            for p in range(PAIRS):
                score += weight_p[p] * w.pair_pn[p, node]
            w.score_n[node] = score


@compiled
def _changing(m: Machines, s: Scenario, w: _World, t: int) -> None:
    """What changes of the task and its pool, as policy.features has it."""
    workflow, c = s.workflow_t[t], w.changing_c
    c[0] = math.log1p(max(0.0, w.path_w[workflow])) / 5
    c[1] = math.log1p(max(0.0, w.work_w[workflow])) / 8
    c[2] = math.log1p(w.ready_t[t])
    for r in range(3):
        free, count = 0.0, 0
        for node in range(len(w.is_visible_n)):
            has = m.capacity_nr[node, r]
            if has > 0 and w.is_visible_n[node]:
                free += 1.0 - m.used_nr[node, r] / has
                count += 1
        c[3 + r] = free / max(1, count)
    c[6] = math.log1p(w.counts[QUEUED]) / 4


@compiled
def _pairs(m: Machines, s: Scenario, w: _World, t: int) -> None:
    """The pair features of the feasible nodes, as policy.pair_features has them."""
    now_ms = m.counters[NOW]
    mask_n, pair_pn = w.mask_n, w.pair_pn
    nodes = len(mask_n)
    takes_gpu = s.request_tr[t, GPU] > 0
    inverse_cpu, inverse_memory = 1 / (s.request_tr[t, CPU] + 1e-6), 1 / (s.request_tr[t, MEMORY] + 1e-6)
    inverse_gpu = 1 / (s.request_tr[t, GPU] + 1e-6)
    dearest = 0.0
    for node in range(nodes):
        dearest = max(dearest, m.price_n[node])
    input_bytes = 0.0
    for e in range(s.parent_at_t[t], s.parent_at_t[t + 1]):
        input_bytes += s.bytes_e[e]
    urgent = s.rank_t[t] / max(w.path_w[s.workflow_t[t]], 1e-6)
    best_finish, best_worth, best_crowded, most_hours = 0.0, 0.0, 0.0, 0.0
    for node in range(nodes):
        if mask_n[node]:
            finish = _finish(m, s, w, t, node)
            price = max(m.price_n[node] / dearest, 0.01) if dearest > 0 else 1.0
            worth = min(inverse_cpu * m.capacity_nr[node, CPU], inverse_memory * m.capacity_nr[node, MEMORY])
            if takes_gpu:
                worth = min(worth, inverse_gpu * m.capacity_nr[node, GPU])
            worth *= m.speed_n[node] / price
            others = m.used_nr[node, CPU] / m.capacity_nr[node, CPU]
            slowed = SLOWED / (1 - CROWDED) * max(0.0, others - CROWDED)
            crowded = 1 / (finish + slowed * s.runtime_t[t] / m.speed_n[node] + 1e-6)
            early = 1 / (finish + 1e-6)
            pair_pn[0, node], pair_pn[1, node], pair_pn[10, node] = early, worth, crowded
            best_finish, best_worth, best_crowded = (
                max(best_finish, early),
                max(best_worth, worth),
                max(best_crowded, crowded),
            )
            most_hours = max(most_hours, m.price_n[node] * finish)
    for node in range(nodes):
        if mask_n[node]:
            inverse = pair_pn[0, node]
            finish = 1 / inverse
            cpu = 1 - (m.used_nr[node, CPU] + s.request_tr[t, CPU]) / m.capacity_nr[node, CPU]
            memory = 1 - (m.used_nr[node, MEMORY] + s.request_tr[t, MEMORY]) / m.capacity_nr[node, MEMORY]
            free = min(cpu, memory)
            if takes_gpu:
                free = min(free, 1 - (m.used_nr[node, GPU] + s.request_tr[t, GPU]) / m.capacity_nr[node, GPU])
            left_s = max(0, w.busy_until_ms_n[node] - now_ms) / 1000 if m.held_n[node] > 0 else 0.0
            early = inverse / (best_finish + 1e-30)
            pair_pn[0, node] = early
            pair_pn[1, node] /= best_worth + 1e-30
            pair_pn[2, node] = free
            pair_pn[3, node] = min(free, ROOMY)
            pair_pn[4, node] = abs(cpu - memory)
            pair_pn[5, node] = 1.0 if m.capacity_nr[node, GPU] > 0 and not takes_gpu else 0.0
            pair_pn[6, node] = w.failure_n[node]
            pair_pn[7, node], pair_pn[8, node] = 0.0, 0.0
            if input_bytes > 0:
                transfer = _transfer(m, s, w, t, node)
                pair_pn[7, node] = transfer * inverse
                pair_pn[8, node] = (input_bytes - transfer * m.bandwidth_n[node]) / max(input_bytes, 1.0)
            pair_pn[9, node] = early * urgent
            pair_pn[10, node] /= best_crowded + 1e-30
            pair_pn[11, node] = m.price_n[node] * max(0.0, finish - left_s) / (most_hours + 1e-30)
            pair_pn[12, node] = 1.0 if m.held_n[node] == 0 else 0.0


@compiled
def _place(m: Machines, s: Scenario, w: _World, o: Outcome, t: int, node: int) -> None:
    """The attempt that waits goes to the node; one before it, of the same task, ends."""
    at = _row(w, t)
    attempt = w.attempt_q[at]
    _drop(w, at)
    if m.node_a[t] != FREE:
        before = m.node_a[t]
        physics.release(m, t)
        _free(w, before)
        _touch(m, w, before)
    k = attempt % s.run_chance_tk.shape[1]
    finish = _finish(m, s, w, t, node)
    remote = 0.0
    for e in range(s.parent_at_t[t], s.parent_at_t[t + 1]):
        if w.ran_on_t[s.parent_e[e]] != node:
            remote += s.bytes_e[e]
    transfer = physics.transfer_ms(m, node, remote, s.transfer_chance_tk[t, k])
    run = physics.run_ms(m, t, node, s.runtime_t[t], s.run_chance_tk[t, k])
    physics.accept(m, t, node, transfer, run, s.fails_tk[t, k])
    now_ms = m.counters[NOW]
    w.busy_until_ms_n[node] = max(w.busy_until_ms_n[node], now_ms + int(1000 * finish))
    w.attempt_t[t], w.on_t[t], w.started_ms_t[t], w.expected_s_t[t] = attempt, node, -1, finish
    w.turn_t[t] = w.counts[PLACEMENTS]
    if w.counts[PLACEMENTS] < len(o.log_l3):
        row = o.log_l3[w.counts[PLACEMENTS]]
        row[0], row[1], row[2] = t, attempt, node
    w.counts[PLACEMENTS] += 1
    _touch(m, w, node)
