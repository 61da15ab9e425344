"""A rejection says that an attempt was never run: it cannot be true of one that was."""

from __future__ import annotations

from policy.heuristics import heuristic
from schemas.records import EventKind
from tests.builders import a_node, a_state, an_event, decided, submit


def test_the_rejection_of_an_attempt_that_started_before_it_frees_nothing() -> None:
    state = a_state(a_node())
    submit(state)
    decided(state, heuristic("heft"))
    state.apply(an_event(EventKind.STARTED))

    due = state.apply(an_event(EventKind.REJECTED))

    assert due == []
    assert [key for key, _ in state.ledger] == [("w0", "t0", 0)]


def test_the_rejection_of_an_attempt_that_has_not_started_frees_its_node() -> None:
    state = a_state(a_node())
    submit(state)
    decided(state, heuristic("heft"))

    due = state.apply(an_event(EventKind.REJECTED))

    assert [(ready.task_id, ready.attempt) for ready in due] == [("t0", 1)]
    assert len(state.ledger) == 0


def test_a_repeated_rejection_makes_no_second_retry() -> None:
    state = a_state(a_node())
    submit(state)
    decided(state, heuristic("heft"))
    (again,) = state.apply(an_event(EventKind.REJECTED))
    state.apply(again)

    due = state.apply(an_event(EventKind.REJECTED))

    assert due == []
    assert len(state.queue) == 1
