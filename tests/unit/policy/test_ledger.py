"""Reservations: what is taken is given back, once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policy.ledger import Ledger, Reservation
from policy.nodes import NodeTable
from tests.builders import GIB, some_nodes

KEYS = [("w0", f"t{i}", attempt) for i in range(4) for attempt in range(2)]
requests = st.tuples(st.sampled_from((0, 100, 1000)), st.sampled_from((0, GIB)), st.integers(0, 2), st.just(0))
changes = st.one_of(
    st.tuples(st.just("reserve"), st.sampled_from(KEYS), st.integers(0, 19), requests),
    st.tuples(st.just("release"), st.sampled_from(KEYS)),
)


@given(st.lists(changes, max_size=40))
def test_what_is_held_is_the_sum_of_the_reservations(steps):
    ledger, held = a_ledger(20), {}

    for kind, key, *how in steps:
        if kind == "reserve":
            ledger.reserve(key, *how)
            held.setdefault(key, Reservation(*how))
        else:
            assert ledger.release(key) == held.pop(key, None)

    assert dict(ledger) == held
    for node in range(20):
        here = [r.request for r in held.values() if r.node == node]
        assert ledger.reserved_rn[:, node].tolist() == np.sum([(0,) * 4, *here], axis=0).tolist()
        assert ledger.unasked_rn[:, node].tolist() == [sum(r[i] == 0 for r in here) for i in range(4)]
        assert ledger.on_node(node) == {key for key, r in held.items() if r.node == node}


@given(st.lists(changes, max_size=20))
def test_after_every_release_all_is_free_again(steps):
    ledger = a_ledger(20)
    empty_rn = ledger.free_rn
    for kind, key, *how in steps:
        if kind == "reserve":
            ledger.reserve(key, *how)

    for key, _ in list(ledger):
        ledger.release(key)

    assert len(ledger) == 0
    np.testing.assert_array_equal(ledger.free_rn, empty_rn)


def test_a_second_reservation_of_an_attempt_has_no_effect():
    ledger = a_ledger(2)
    ledger.reserve(KEYS[0], 0, (1000, GIB, 0, 0))

    ledger.reserve(KEYS[0], 1, (4000, GIB, 0, 0))

    assert ledger.get(KEYS[0]) == Reservation(0, (1000, GIB, 0, 0))
    assert ledger.free_rn[0].tolist() == [7000, 8000]


def test_a_node_where_room_was_made_is_remembered():
    ledger = a_ledger(2)
    ledger.reserve(KEYS[0], 1, (1000, GIB, 0, 0))

    ledger.release(KEYS[0])
    ledger.release(KEYS[1])

    assert ledger.freed == {1}


def a_ledger(nodes: int) -> Ledger:
    table = NodeTable()
    for spec in some_nodes(nodes):
        table.put(spec)
    return Ledger(table)
