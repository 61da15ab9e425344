"""What happens on simulated nodes: arrays, and plain functions on them.

The live loop's simulated cluster calls these functions as they are; training compiles the same ones. Axes: N nodes,
R resources, A places for tasks (each holds one attempt at a time), S = N + A subjects of events: the nodes, then the
places. Every subject has at most one event to come. Times are whole milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from policy.resources import RESOURCES

CPU = 0
FREE = -1
"""The node of a place that holds no attempt."""
ROUNDING = 1e-9
"""Shares of a node below this are what sums and differences leave of nothing: tasks may take nothing at all."""
IDLE = -1
"""The position in the heap of a subject without an event."""

NOTHING, STARTED, FINISHED, FAILED, LOST, REPAIRED = range(6)
"""What can happen."""
NOW, PLANNED, ORDER = range(3)
"""Counters: the time of the newest event; events to come; events ever planned."""

CROWDED = 0.5
"""Share of a node's cpu above which those that hold it slow down who comes."""


class Machines(NamedTuple):
    """Nodes, the attempts on them, and what is to come. The arrays change; `grown` makes room for more places."""

    capacity_nr: np.ndarray
    """[N, R] int64"""
    used_nr: np.ndarray
    """[N, R] int64"""
    is_up_n: np.ndarray
    speed_n: np.ndarray
    bandwidth_n: np.ndarray
    """bytes per second"""
    price_n: np.ndarray
    """per hour"""
    loss_ms_nk: np.ndarray
    """[N, K] int64: how long the node is up before its k-th loss, in turn; 0: for ever"""
    repair_ms_nk: np.ndarray
    """[N, K] int64: how long it is gone then"""
    losses_n: np.ndarray
    """[N] int64, so far"""
    slow_ms_nk: np.ndarray
    """[N, K, 2] int64, from and to: attempts that start in these times take longer"""
    slow_factor: np.ndarray
    """[1] how many times as long"""
    spike_ms_nk: np.ndarray
    """[N, K, 2] int64, from and to: transfers that begin in these times take longer"""
    latency_factor: np.ndarray
    """[1] how many times as long; [0] without spikes: the digest of scenarios that have none is as it was before"""
    crowding: np.ndarray
    """[1] how much longer attempts take where others hold all other cpu, against a node that is CROWDED at most"""
    request_ar: np.ndarray
    """[A, R] int64, what the place's task takes"""
    node_a: np.ndarray
    """[A] int64, where its attempt is, or FREE"""
    transfer_ms_a: np.ndarray
    run_ms_a: np.ndarray
    fails_a: np.ndarray
    is_running_a: np.ndarray
    """Whether the attempt has its inputs and runs."""
    cost_a: np.ndarray
    """[A] what the place's attempts have cost so far"""
    share_a: np.ndarray
    """[A] the largest share of its node that the attempt takes"""
    since_a: np.ndarray
    """[A] the node's `bill_n` when the attempt came"""
    share_n: np.ndarray
    """[N] the sum of these shares"""
    held_n: np.ndarray
    """[N] int64, attempts"""
    bill_n: np.ndarray
    """[N] what one share of the node has cost since the beginning: its price is shared out while it holds anything"""
    billed_ms_n: np.ndarray
    """[N] int64, up to when"""
    cost_n: np.ndarray
    """[N] what the node has cost up to then"""
    at_ms_s: np.ndarray
    order_s: np.ndarray
    heap_s: np.ndarray
    """The subjects that have an event to come, as a binary heap by time and order of planning."""
    position_s: np.ndarray
    """Where in the heap each subject is, or IDLE."""
    counters: np.ndarray


def machines(
    capacity_nr: np.ndarray,
    speed_n: np.ndarray,
    bandwidth_n: np.ndarray,
    price_n: np.ndarray,
    loss_ms_nk: np.ndarray,
    repair_ms_nk: np.ndarray,
    slow_ms_nk: np.ndarray,
    slow_factor: float,
    spike_ms_nk: np.ndarray,
    latency_factor: float,
    crowding: float,
    places: int,
    now_ms: int,
) -> Machines:
    """Nodes on which nothing runs; the first loss of each is planned."""
    nodes = len(capacity_nr)
    subjects = nodes + places
    new = Machines(
        capacity_nr,
        np.zeros((nodes, len(RESOURCES)), np.int64),
        np.ones(nodes, np.bool_),
        speed_n,
        bandwidth_n,
        price_n,
        loss_ms_nk,
        repair_ms_nk,
        np.zeros(nodes, np.int64),
        slow_ms_nk,
        np.full(1, slow_factor),
        spike_ms_nk,
        np.full(min(1, spike_ms_nk.shape[1]), latency_factor),
        np.full(1, crowding),
        np.zeros((places, len(RESOURCES)), np.int64),
        np.full(places, FREE, np.int64),
        np.zeros(places, np.int64),
        np.zeros(places, np.int64),
        np.zeros(places, np.bool_),
        np.zeros(places, np.bool_),
        np.zeros(places),
        np.zeros(places),
        np.zeros(places),
        np.zeros(nodes),
        np.zeros(nodes, np.int64),
        np.zeros(nodes),
        np.full(nodes, now_ms, np.int64),
        np.zeros(nodes),
        np.zeros(subjects, np.int64),
        np.zeros(subjects, np.int64),
        np.zeros(subjects, np.int64),
        np.full(subjects, IDLE, np.int64),
        np.array([now_ms, 0, 0], np.int64),
    )
    for node in range(nodes):
        if loss_ms_nk[node, 0] > 0:
            plan(new, node, now_ms + loss_ms_nk[node, 0])
    return new


def grown(m: Machines, places: int) -> Machines:
    """The same, with room for more places."""
    more = places - len(m.node_a)
    return m._replace(
        request_ar=np.concatenate([m.request_ar, np.zeros((more, len(RESOURCES)), np.int64)]),
        node_a=np.concatenate([m.node_a, np.full(more, FREE)]),
        **{
            name: np.concatenate([getattr(m, name), np.zeros(more, getattr(m, name).dtype)])
            for name in (
                *("transfer_ms_a", "run_ms_a", "fails_a", "is_running_a", "cost_a", "share_a", "since_a"),
                *("at_ms_s", "order_s", "heap_s"),
            )
        },
        position_s=np.concatenate([m.position_s, np.full(more, IDLE)]),
    )


# Chance comes from outside: the same numbers on every node and under every policy, so that policies can be compared.


def log_normal(normal: float, sigma: float) -> float:
    """A factor of mean 1."""
    return math.exp(sigma * normal - sigma * sigma / 2)


def run_ms(m: Machines, place: int, node: int, runtime_s: float, chance: float) -> int:
    """What the place's attempt, which is not there yet, would take on the node."""
    factor = chance / m.speed_n[node]
    others = m.used_nr[node, CPU] / m.capacity_nr[node, CPU]
    factor *= 1.0 + m.crowding[0] * max(0.0, others - CROWDED) / (1.0 - CROWDED)
    now_ms = m.counters[NOW]
    for k in range(m.slow_ms_nk.shape[1]):
        if m.slow_ms_nk[node, k, 0] <= now_ms < m.slow_ms_nk[node, k, 1]:
            factor *= m.slow_factor[0]
    return max(1, int(round(1000 * runtime_s * factor)))


def transfer_ms(m: Machines, node: int, remote_bytes: float, chance: float) -> int:
    """What it takes to bring so many bytes through the node's link, which may be in a latency spike."""
    factor = chance * latency(m, node)
    return int(math.ceil(1000 * remote_bytes / m.bandwidth_n[node] * factor))


def latency(m: Machines, node: int) -> float:
    """How many times as long as usual the node's link takes now."""
    factor = 1.0
    now_ms = m.counters[NOW]
    for k in range(m.spike_ms_nk.shape[1]):
        if m.spike_ms_nk[node, k, 0] <= now_ms < m.spike_ms_nk[node, k, 1]:
            factor *= m.latency_factor[0]
    return factor


def fits(m: Machines, place: int, node: int) -> bool:
    """Whether the node is up and has room for the place's task."""
    if not m.is_up_n[node]:
        return False
    for r in range(m.used_nr.shape[1]):
        want = m.request_ar[place, r]
        if want > 0 and m.used_nr[node, r] + want > m.capacity_nr[node, r]:
            return False
    return True


def accept(m: Machines, place: int, node: int, transfer: int, run: int, fails: bool) -> None:
    """An attempt comes to the node: it holds its room from now on, and starts when its inputs are there."""
    bill(m, node)
    share = 0.0
    for r in range(m.used_nr.shape[1]):
        m.used_nr[node, r] += m.request_ar[place, r]
        share = max(share, m.request_ar[place, r] / max(1, m.capacity_nr[node, r]))
    m.held_n[node] += 1
    m.share_n[node] += share
    m.share_a[place], m.since_a[place] = share, m.bill_n[node]
    m.node_a[place], m.is_running_a[place] = node, False
    m.transfer_ms_a[place], m.run_ms_a[place], m.fails_a[place] = transfer, run, fails
    plan(m, len(m.is_up_n) + place, m.counters[NOW] + transfer)


def release(m: Machines, place: int) -> None:
    """The place's attempt is over, however it ended."""
    node = m.node_a[place]
    bill(m, node)
    for r in range(m.used_nr.shape[1]):
        m.used_nr[node, r] -= m.request_ar[place, r]
    m.held_n[node] -= 1
    left = m.share_n[node] - m.share_a[place]
    m.share_n[node] = left if left > ROUNDING else 0.0
    m.cost_a[place] += m.share_a[place] * (m.bill_n[node] - m.since_a[place])
    m.node_a[place] = FREE
    cancel(m, len(m.is_up_n) + place)


def bill(m: Machines, node: int) -> None:
    """Share out what the node has cost since the last time."""
    if m.share_n[node] > 0:
        passed_ms = m.counters[NOW] - m.billed_ms_n[node]
        cost = passed_ms / 3_600_000 * m.price_n[node]
        m.bill_n[node] += cost / m.share_n[node]
        m.cost_n[node] += cost
    m.billed_ms_n[node] = m.counters[NOW]


def happen(m: Machines) -> tuple[int, int]:
    """Let the next event happen; returns what it is, and to which node or place."""
    subject = m.heap_s[0]
    m.counters[NOW] = max(m.counters[NOW], m.at_ms_s[subject])
    cancel(m, subject)
    nodes = len(m.is_up_n)
    if subject >= nodes:
        place = subject - nodes
        if not m.is_running_a[place]:
            m.is_running_a[place] = True
            plan(m, subject, m.counters[NOW] + m.run_ms_a[place])
            return STARTED, place
        release(m, place)
        return (FAILED if m.fails_a[place] else FINISHED), place
    turn = m.losses_n[subject] % m.loss_ms_nk.shape[1]
    if m.is_up_n[subject]:
        m.is_up_n[subject] = False
        for place in range(len(m.node_a)):
            if m.node_a[place] == subject:
                release(m, place)
        plan(m, subject, m.counters[NOW] + m.repair_ms_nk[subject, turn])
        m.losses_n[subject] += 1
        return LOST, subject
    m.is_up_n[subject] = True
    plan(m, subject, m.counters[NOW] + m.loss_ms_nk[subject, turn])
    return REPAIRED, subject


# The heap of events.


def plan(m: Machines, subject: int, at_ms: int) -> None:
    """The subject's event comes at this time; of equal times, the one that was planned first."""
    m.at_ms_s[subject] = at_ms
    m.counters[ORDER] += 1
    m.order_s[subject] = m.counters[ORDER]
    m.heap_s[m.counters[PLANNED]] = subject
    m.position_s[subject] = m.counters[PLANNED]
    m.counters[PLANNED] += 1
    rise(m, m.position_s[subject])


def cancel(m: Machines, subject: int) -> None:
    """The subject has no event to come any more."""
    position = m.position_s[subject]
    if position == IDLE:
        return
    m.position_s[subject] = IDLE
    m.counters[PLANNED] -= 1
    last = m.heap_s[m.counters[PLANNED]]
    if last != subject:
        m.heap_s[position], m.position_s[last] = last, position
        rise(m, position)
        sink(m, m.position_s[last])


def is_before(m: Machines, one: int, other: int) -> bool:
    """Whether the one subject's event comes before the other's."""
    if m.at_ms_s[one] != m.at_ms_s[other]:
        return bool(m.at_ms_s[one] < m.at_ms_s[other])
    return bool(m.order_s[one] < m.order_s[other])


def rise(m: Machines, position: int) -> None:
    """Move what stands here up to where it belongs."""
    while position > 0:
        parent = (position - 1) // 2
        if not is_before(m, m.heap_s[position], m.heap_s[parent]):
            return
        swap(m, position, parent)
        position = parent


def sink(m: Machines, position: int) -> None:
    """Move what stands here down to where it belongs."""
    while True:
        child = 2 * position + 1
        if child >= m.counters[PLANNED]:
            return
        if child + 1 < m.counters[PLANNED] and is_before(m, m.heap_s[child + 1], m.heap_s[child]):
            child += 1
        if not is_before(m, m.heap_s[child], m.heap_s[position]):
            return
        swap(m, position, child)
        position = child


def swap(m: Machines, one: int, other: int) -> None:
    """Exchange two positions of the heap."""
    m.heap_s[one], m.heap_s[other] = m.heap_s[other], m.heap_s[one]
    m.position_s[m.heap_s[one]], m.position_s[m.heap_s[other]] = one, other


COMPILABLE: tuple[Callable[..., object], ...] = (
    *(log_normal, run_ms, transfer_ms, latency, fits, accept, release, bill, happen),
    *(plan, cancel, is_before, rise, sink, swap),
)
"""What may be compiled, with each other."""
