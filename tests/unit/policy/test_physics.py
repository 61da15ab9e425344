"""Simulated nodes: events in order, room never oversold, every second of a node paid for once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import physics
from policy.physics import FREE, NOW, PLANNED, Machines, machines

HOUR_MS = 3_600_000


def some_machines(nodes: int = 2, places: int = 4, **changes: object) -> Machines:
    """Nodes of 4 cores at 1 an hour on which nothing goes wrong."""
    none_nk = np.zeros((nodes, 1), np.int64)
    values = {
        "capacity_nr": np.tile(np.array([4000, 2**30, 0, 0], np.int64), (nodes, 1)),
        "speed_n": np.ones(nodes),
        "bandwidth_n": np.full(nodes, 1e6),
        "price_n": np.ones(nodes),
        "loss_ms_nk": none_nk,
        "repair_ms_nk": none_nk,
        "slow_ms_nk": np.zeros((nodes, 0, 2), np.int64),
        "slow_factor": 1.0,
        "spike_ms_nk": np.zeros((nodes, 0, 2), np.int64),
        "latency_factor": 1.0,
        "crowding": 0.0,
        "places": places,
        "now_ms": 0,
    }
    m = machines(**{**values, **changes})
    m.request_ar[:] = (1000, 2**20, 0, 0)
    return m


def put(m: Machines, place: int, node: int, run_ms: int, transfer_ms: int = 0, fails: bool = False) -> None:
    assert physics.fits(m, place, node)
    physics.accept(m, place, node, transfer_ms, run_ms, fails)


def events(m: Machines, most: int = 100) -> list[tuple[int, int, int]]:
    """Everything that happens: when, what, to whom."""
    found = []
    while m.counters[PLANNED] and len(found) < most:
        what, index = physics.happen(m)
        found.append((int(m.counters[NOW]), what, index))
    return found


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 50))), max_size=60
    )  # a subject; when, or None: cancelled
)
def test_events_come_by_time_and_then_by_order_of_planning(steps):
    m = some_machines(nodes=2, places=8)
    planned: dict[int, tuple[int, int]] = {}
    for order, (subject, at_ms) in enumerate(steps):
        physics.cancel(m, subject)
        planned.pop(subject, None)
        if at_ms is not None:
            physics.plan(m, subject, at_ms)
            planned[subject] = (at_ms, order)

    came = []
    while m.counters[PLANNED]:
        came.append(int(m.heap_s[0]))
        physics.cancel(m, came[-1])

    assert came == sorted(planned, key=planned.__getitem__)


def test_an_attempt_starts_after_its_transfer_and_ends_after_its_run():
    m = some_machines()
    put(m, 0, 1, run_ms=500, transfer_ms=30)

    assert events(m) == [(30, physics.STARTED, 0), (530, physics.FINISHED, 0)]
    assert m.node_a[0] == FREE
    assert not m.used_nr.any()


def test_an_attempt_that_fails_says_so_and_leaves_its_room():
    m = some_machines()
    put(m, 2, 0, run_ms=10, fails=True)

    assert [what for _, what, _ in events(m)] == [physics.STARTED, physics.FAILED]
    assert not m.used_nr.any()


def test_a_full_node_takes_no_more():
    m = some_machines(places=5)
    for place in range(4):
        put(m, place, 0, run_ms=10)

    assert not physics.fits(m, 4, 0)
    assert physics.fits(m, 4, 1)


def test_a_lost_node_takes_its_attempts_along_and_comes_back():
    m = some_machines(loss_ms_nk=np.array([[100], [0]]), repair_ms_nk=np.array([[50], [0]]))
    put(m, 0, 0, run_ms=1000)
    put(m, 1, 1, run_ms=1000)

    first = events(m, most=4)

    assert first == [
        (0, physics.STARTED, 0),
        (0, physics.STARTED, 1),
        (100, physics.LOST, 0),
        (150, physics.REPAIRED, 0),
    ]
    assert m.node_a[:2].tolist() == [FREE, 1]
    assert m.used_nr[0].tolist() == [0, 0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 10**6), st.integers(0, 10**5)), min_size=1, max_size=8))
def test_what_attempts_cost_is_what_their_nodes_cost_while_they_held_anything(attempts):
    m = some_machines(places=8, price_n=np.array([1.0, 3.0]))
    held_ms = [0, 0]
    for place, (node, run_ms, transfer_ms) in enumerate(attempts):
        if physics.fits(m, place, node):
            put(m, place, node, run_ms, transfer_ms)
            held_ms[node] = max(held_ms[node], run_ms + transfer_ms)
    events(m)

    assert m.cost_a.sum() == pytest.approx((held_ms[0] * 1.0 + held_ms[1] * 3.0) / HOUR_MS)


def test_a_crowded_node_and_a_slow_spell_make_attempts_longer():
    m = some_machines(
        crowding=0.5, slow_factor=3.0, slow_ms_nk=np.array([[[0, 100]], [[0, 0]]]), speed_n=np.array([1.0, 2.0])
    )

    assert physics.run_ms(m, 0, 1, 10.0, 1.0) == 5000
    assert physics.run_ms(m, 0, 0, 10.0, 1.0) == 30_000
    m.used_nr[1, 0] = 3000  # of 4000: halfway from where neighbours are felt to where they hold all
    assert physics.run_ms(m, 0, 1, 10.0, 1.0) == 6250


def test_a_latency_spike_makes_transfers_longer_while_it_lasts_and_runs_not():
    m = some_machines(latency_factor=8.0, spike_ms_nk=np.array([[[0, 100]], [[200, 300]]]))

    assert [physics.transfer_ms(m, node, 1e6, 1.0) for node in (0, 1)] == [8000, 1000]
    assert physics.transfer_ms(m, 0, 0.0, 1.0) == 0
    assert physics.run_ms(m, 0, 0, 10.0, 1.0) == 10_000
    m.counters[NOW] = 100
    assert physics.transfer_ms(m, 0, 1e6, 1.0) == 1000


def test_room_for_more_places_changes_nothing_that_is_there():
    m = some_machines(places=2)
    put(m, 1, 0, run_ms=70)

    more = physics.grown(m, 5)
    put(more, 4, 1, run_ms=90)

    assert [(at, index) for at, what, index in events(more) if what == physics.FINISHED] == [(70, 1), (90, 4)]


def test_a_task_that_takes_nothing_leaves_the_bill_of_the_others_right():
    m = some_machines(nodes=1)
    m.request_ar[:] = [[0, 0, 0, 0], [1300, 0, 0, 0], [700, 0, 0, 0], [1000, 0, 0, 0]]
    put(m, 0, 0, run_ms=4 * HOUR_MS)
    put(m, 1, 0, run_ms=HOUR_MS)
    put(m, 2, 0, run_ms=HOUR_MS)
    while m.held_n[0] > 1:
        physics.happen(m)
    m.counters[NOW] = 2 * HOUR_MS
    put(m, 3, 0, run_ms=HOUR_MS)
    events(m)

    assert m.cost_a[1:3].sum() == pytest.approx(1.0)
    assert m.cost_a[3] == pytest.approx(1.0)
