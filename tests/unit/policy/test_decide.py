"""Rounds of decisions on a pool."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from policy.constraints import Constraints
from policy.decide import DecideSettings, Stamp, decide
from policy.heuristics import heuristic
from policy.observation import Policy, by_arrival, by_rank
from policy.state import StateSettings
from schemas.decisions import decisions_of
from schemas.errors import InvalidConfiguration, UnusableWeights
from schemas.records import EventKind, Outcome
from tests.builders import (
    GIB,
    a_lost_node,
    a_node,
    a_placement,
    a_ready,
    a_state,
    a_task,
    an_event,
    decided,
    ms,
    some_metrics,
    some_nodes,
    submit,
)
from tests.dump import dump
from tests.strategies import pools

RANDOM = heuristic("random")
HEFT = heuristic("heft")


def test_the_more_urgent_task_gets_the_only_room():
    state = a_state(a_node(cpu=1.0))
    submit(state, a_task("low", 100.0), a_task("high", 1.0, priority=5))

    placements = decided(state, HEFT)

    assert [(p.task_id, p.outcome) for p in placements] == [("high", Outcome.PLACED), ("low", Outcome.PENDING)]
    assert placements[1].reason == "0/1 nodes: 1 too little cpu"


def test_before_any_node_is_known_tasks_wait_and_then_are_placed():
    state = a_state()
    submit(state, a_task())
    (waiting,) = decided(state, HEFT)
    again = decided(state, HEFT)

    state.apply(some_metrics(a_node(), at_s=1))
    (placement,) = decided(state, HEFT)

    assert (waiting.outcome, waiting.reason) == (Outcome.PENDING, "0/0 nodes: no node of the pool is known yet")
    assert again == []
    assert (placement.outcome, placement.node_id, placement.attempt) == (Outcome.PLACED, "n0", 0)


def test_a_task_that_fits_no_node_ever_is_refused_with_counted_reasons():
    state = a_state(*some_nodes(3), a_node("small", cpu=2.0))
    submit(state, a_task("huge", cpu=9.0, gpu=1), a_task("child", after=("huge",)))

    (placement,) = decided(state, HEFT)

    assert placement.outcome == Outcome.REFUSED
    assert placement.reason == "0/4 nodes: 4 too little cpu"
    assert not state.workflows
    assert len(state.queue) == 0


def test_a_waiting_task_is_placed_when_another_releases_its_room():
    state = a_state(a_node(cpu=1.0))
    submit(state, a_task("first"), a_task("second"))
    decided(state, HEFT)

    state.apply(an_event(EventKind.FINISHED, task_id=the_running(state)))
    placements = decided(state, HEFT)

    assert [p.outcome for p in placements] == [Outcome.PLACED]


def test_a_waiting_task_is_placed_when_its_node_is_enlarged():
    state = a_state(a_node(cpu=1.0), a_node("n1", cpu=1.0))
    submit(state, *[a_task(f"t{i}") for i in range(3)])
    decided(state, HEFT)

    state.apply(some_metrics(a_node(cpu=2.0), at_s=1))

    assert [p.node_id for p in decided(state, HEFT)] == ["n0"]


def test_a_waiting_task_is_placed_when_a_lost_node_is_back():
    state = a_state(a_node())
    state.apply(a_lost_node(at_s=1))
    submit(state, a_task(), at_s=2)
    (waiting,) = decided(state, HEFT)

    state.apply(some_metrics("n0", at_s=3))
    (placement,) = decided(state, HEFT)

    assert waiting.reason == "0/1 nodes: 1 gone"
    assert placement.outcome == Outcome.PLACED


def test_a_migration_avoids_the_node_it_comes_from():
    state = a_state(a_node("n0", speed=9.0), a_node("n1"))
    submit(state, a_task())
    state.apply(a_placement("n0", expected_s=10.0))
    state.apply(an_event(EventKind.STARTED, at_s=0))
    state.apply(some_metrics("n0", "n1", at_s=20.001))
    (migration,) = state.overdue()
    state.apply(migration)

    (placement,) = decided(state, HEFT)

    assert migration.excluded_nodes == ("n0",)
    assert (placement.attempt, placement.node_id) == (1, "n1")


@given(pool=pools(most_nodes=4, most_tasks=12))
@settings(max_examples=50)
def test_a_round_leaves_nothing_that_could_still_be_placed(pool):
    state = pool.state()

    decided(state, RANDOM)

    waiting = [t for w in state.workflows.values() for t in w.tasks if t.status.name == "READY"]
    mask_bn = Constraints().mask(state, waiting, state.ledger.free_rn, state.fresh())
    assert not mask_bn.any()
    assert len(state.queue) == state.queue.waiting == len(waiting)
    assert decided(state, RANDOM) == []


@given(pool=pools())
@settings(max_examples=25)
def test_who_decides_on_the_same_state_decides_the_same(pool):
    one, other = pool.state(), pool.state()

    assert decided(one, RANDOM) == decided(other, RANDOM)
    assert dump(one) == dump(other)


def test_whoever_stops_between_two_batches_loses_nothing():
    state = a_state(*some_nodes(2))
    submit(state, *[a_task(f"t{i}") for i in range(4)])
    batches = decide(state, RANDOM, Constraints(), DecideSettings(batch=1), Stamp())

    first = [p.task_id for p in next(batches).placements]
    batches.close()
    rest = [p.task_id for p in decided(state, RANDOM)]

    assert sorted(first + rest) == ["t0", "t1", "t2", "t3"]


def test_a_batch_is_no_larger_than_a_share_of_the_nodes():
    state = a_state(*some_nodes(16))
    submit(state, *[a_task(f"t{i}") for i in range(5)])

    batches = list(decide(state, RANDOM, Constraints(), DecideSettings(batch_share=0.125), Stamp()))

    assert [len(batch.placements) for batch in batches] == [2, 2, 1]


def test_a_policy_that_sees_one_task_at_a_time_gets_one():
    state = a_state(*some_nodes(16))
    submit(state, *[a_task(f"t{i}") for i in range(3)])
    sizes = []

    def score(seen):
        sizes.append(len(seen.tasks))
        return np.zeros(seen.mask_bn.shape, np.float32)

    decided(state, Policy("single", score, by_arrival, max_batch=1))

    assert sizes == [1, 1, 1]


def test_within_a_batch_nothing_is_taken_twice():
    state = a_state(a_node("n0", cpu=2.0), *some_nodes(40, cpu=0.5)[1:])
    submit(state, *[a_task(f"t{i}") for i in range(5)])

    placements = decided(state, RANDOM)

    assert [p.outcome for p in placements].count(Outcome.PLACED) == 2
    assert (state.ledger.free_rn >= 0).all()


def test_the_evidence_is_what_the_decision_was_made_of():
    state = a_state(a_node("slow", speed=0.5), a_node("fast", speed=2.0), a_node("small", cpu=0.5))
    submit(state, a_task(runtime_s=10.0), at_s=3)
    stamp = Stamp(epoch=7, as_of=(1, 2, 3, 4))
    policy = replace(HEFT, temperature=1.0, version="v1")

    (batch,) = decide(state, policy, Constraints(), DecideSettings(candidates=2), stamp)

    (placement,), (decision,) = batch.placements, decisions_of(batch.evidence)
    assert (placement.node_id, placement.expected_s, placement.event_time_ms) == ("fast", 5.0, ms(3))
    assert (placement.policy, placement.model_version, placement.epoch) == ("heft", "v1", 7)
    assert (batch.evidence.as_of, batch.evidence.temperature, batch.evidence.epoch) == ((1, 2, 3, 4), 1.0, 7)
    assert (decision.node_id, decision.feasible) == ("fast", 2)
    assert (decision.candidates, decision.scores) == (("fast", "slow"), (-5.0, -20.0))
    assert sum(decision.probabilities) == pytest.approx(1.0)
    assert placement.log_prob == pytest.approx(np.log(decision.probabilities[0]))


def test_the_evidence_names_the_chosen_node_even_where_it_is_none_of_the_best():
    state = a_state(*some_nodes(9))
    submit(state, a_task())
    chosen = decided(a_state_like(state), replace(RANDOM, temperature=1e9))[0].node_id

    def score(seen):
        return np.array([[0.0 if spec.node_id == chosen else 1.0 for spec in seen.state.nodes.specs]], np.float32)

    policy = Policy("contrary", score, by_rank, temperature=1e9)
    (batch,) = decide(state, policy, Constraints(), DecideSettings(candidates=3), Stamp())

    (placement,), (decision,) = batch.placements, decisions_of(batch.evidence)
    assert placement.node_id == chosen
    assert chosen in decision.candidates
    assert len(decision.candidates) == 3


def test_the_evidence_has_every_task_of_its_batch_also_one_for_which_the_others_left_no_room():
    state = a_state(a_node(cpu=1.0), *some_nodes(16, cpu=0.5)[1:])
    submit(state, a_task("t0"), a_task("t1"))

    batch = next(decide(state, HEFT, Constraints(), DecideSettings(), Stamp()))

    decisions = list(decisions_of(batch.evidence))
    assert [(d.task_id, d.node_id, d.feasible) for d in decisions] == [("t0", "n0", 1), ("t1", None, 1)]
    assert [d.probabilities for d in decisions] == [(1.0,), (0.0,)]
    assert [p.task_id for p in batch.placements] == ["t0"]


def test_the_evidence_of_a_waiting_task_counts_why():
    state = a_state(a_node(cpu=1.0), a_node("n1", gpu=1))
    submit(state, a_task("t0", cpu=8.0), a_task("t1", cpu=8.0))

    batches = list(decide(state, HEFT, Constraints(), DecideSettings(), Stamp()))

    assert [dict(d.rejections) for batch in batches for d in decisions_of(batch.evidence)] == [{}, {"cpu": 2}]


def test_a_task_that_is_given_up_is_refused_once_with_the_reason():
    state = a_state(a_node(), settings=StateSettings(max_attempts=1))
    submit(state, a_task("t0"))
    decided(state, HEFT)
    state.apply(an_event(EventKind.FAILED, task_id="t0"))
    assert state.has_open_questions

    (refused,) = decided(state, HEFT)

    assert (refused.task_id, refused.attempt, refused.outcome) == ("t0", 1, Outcome.REFUSED)
    assert refused.reason == "1 attempts ended without success; state.max_attempts is 1"
    assert decided(state, HEFT) == []
    assert not state.has_open_questions


def test_who_has_read_that_a_task_is_given_up_does_not_say_it_again():
    first, second = (a_state(a_node(), settings=StateSettings(max_attempts=1)) for _ in range(2))
    for state in (first, second):
        submit(state, a_task("t0"))
        state.apply(a_placement("n0", task_id="t0"))
        state.apply(an_event(EventKind.FAILED, task_id="t0"))

    for placement in decided(first, HEFT):
        second.apply(placement)

    assert decided(second, HEFT) == []


def test_the_policy_that_really_answered_is_recorded():
    state = a_state(a_node())
    submit(state, a_task())

    def falls_back(policy, seen):
        return HEFT.score(seen), HEFT

    (batch,) = decide(state, RANDOM, Constraints(), DecideSettings(), Stamp(), falls_back)

    assert [p.policy for p in batch.placements] == [batch.evidence.policy] == ["heft"]


@pytest.mark.parametrize("score", [np.nan, -np.inf])
def test_a_policy_without_a_finite_score_is_an_error_and_no_endless_round(score):
    state = a_state(a_node())
    submit(state, a_task())
    broken = Policy("broken", lambda seen: np.full(seen.mask_bn.shape, score, np.float32), by_arrival)

    with pytest.raises(UnusableWeights, match="broken"):
        decided(state, broken)


def test_an_attempt_that_ended_before_its_placement_was_seen_is_not_decided():
    state = a_state(a_node())
    submit(state, a_task())

    (due,) = state.apply(an_event(EventKind.KILLED))

    assert decided(state, HEFT) == []
    state.apply(due)
    assert [p.attempt for p in decided(state, HEFT)] == [1]


def test_an_attempt_whose_successor_was_placed_is_not_decided():
    state = a_state(a_node())
    submit(state, a_task())

    state.apply(a_placement(attempt=1))

    assert decided(state, HEFT) == []
    assert len(state.ledger) == 1


def test_a_task_of_another_engine_is_placed_once():
    state = a_state(a_node())
    state.apply(a_ready(a_task("x", memory_bytes=GIB)))

    placements = decided(state, HEFT)
    state.apply(a_ready(a_task("x", memory_bytes=GIB)))

    assert [p.task_id for p in placements] == ["x"]
    assert decided(state, HEFT) == []


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"candidates": 0}, {"batch_share": 0.0}, {"batch_share": float("nan")}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidConfiguration, match="decide"):
        DecideSettings(**wrong)


def the_running(state):
    ((_, task_id, _),) = state.running
    return task_id


def a_state_like(state):
    """A pool of the same nodes with the same single task waiting."""
    twin = a_state(*state.nodes.specs)
    submit(twin, a_task())
    return twin
