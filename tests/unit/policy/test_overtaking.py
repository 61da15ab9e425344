"""Records that come before what they answer leave nothing in the queue that can never be placed."""

from __future__ import annotations

from itertools import islice

from policy.constraints import Constraints
from policy.decide import DecideSettings, Stamp, decide
from policy.heuristics import heuristic
from policy.state import State
from schemas.records import EventKind, Placement
from tests.builders import a_lost_node, a_node, a_placement, a_ready, a_state, an_event, submit

MOST_BATCHES = 20
"""More than any state below has to decide."""


def test_an_attempt_that_failed_before_its_placement_was_read_is_not_placed_again():
    state = a_state(a_node())
    submit(state)

    due = state.apply(an_event(EventKind.FAILED, attempt=0))
    state.apply(a_placement(attempt=0))

    assert [ready.attempt for ready in due] == [1]
    assert decided(state) == []


def test_a_placement_that_was_read_before_its_announcement_ends_the_wait_of_the_attempt_before():
    state = a_state(a_node())
    submit(state)

    state.apply(a_placement(attempt=1))
    state.apply(a_ready(attempt=1))

    assert decided(state) == []
    assert state.ledger.get(("w0", "t0", 1)) is not None


def test_a_migration_that_waits_survives_the_placement_of_the_attempt_before():
    state = a_state(a_node())
    submit(state)
    state.apply(a_ready(attempt=1))

    state.apply(a_placement(attempt=0))

    assert [placement.attempt for placement in decided(state)] == [1]


def test_the_next_attempt_is_placed_once_after_its_predecessor_was_lost_with_its_node():
    state = a_state(a_node("n0"), a_node("n1"))
    submit(state)
    state.apply(a_placement("n0"))

    for ready in state.apply(a_lost_node("n0")):
        state.apply(ready)

    assert [(p.attempt, p.node_id) for p in decided(state)] == [(1, "n1")]


def decided(state: State) -> list[Placement]:
    """Every placement of a round that ends by itself."""
    batches = decide(state, heuristic("heft"), Constraints(), DecideSettings(), Stamp())
    placements = [placement for batch in islice(batches, MOST_BATCHES) for placement in batch.placements]
    assert len(state.queue) == state.queue.waiting
    return placements
