"""The fold: what each record does to a pool's state, and what a repeat does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.state import REUSE_AFTER_MS, State, StateSettings
from policy.workflows import Status
from schemas.errors import InvalidCluster, InvalidConfiguration, InvalidRecord
from schemas.records import METRICS, EventKind, NodeMetrics, Outcome, TaskReady
from tests.builders import (
    a_lost_node,
    a_node,
    a_placement,
    a_ready,
    a_state,
    a_task,
    a_workflow,
    an_event,
    ms,
    some_metrics,
    some_nodes,
    submit,
)
from tests.dump import dump

STARTED, FINISHED, FAILED = EventKind.STARTED, EventKind.FINISHED, EventKind.FAILED
KILLED, REJECTED = EventKind.KILLED, EventKind.REJECTED


def test_the_roots_of_a_workflow_are_due_at_once_and_children_after_their_parents():
    state = a_state(a_node())

    roots = state.apply(a_workflow(a_task("a"), a_task("b", after=("a",)), at_s=2))
    state.apply(roots[0])
    state.apply(a_placement(task_id="a"))
    children = state.apply(an_event(FINISHED, task_id="a", at_s=7))

    assert [(r.task_id, r.attempt, r.event_time_ms) for r in roots] == [("a", 0, ms(2))]
    assert [(r.task_id, r.attempt, r.event_time_ms) for r in children] == [("b", 0, ms(7))]
    assert state.due() == children


def test_what_is_due_is_announced_again_until_it_is_in_the_topic():
    state = a_state(a_node())
    due = state.apply(a_workflow(a_task("a"), a_task("b")))
    state.apply(due[0])

    assert state.due() == due[1:]


def test_a_workflow_that_is_done_leaves_nothing_behind():
    state = a_state(a_node())
    submit(state, a_task())
    state.apply(a_placement())
    state.apply(an_event(STARTED))

    state.apply(an_event(FINISHED, at_s=5))

    assert (state.workflows, state.running, len(state.ledger), len(state.queue)) == ({}, {}, 0, 0)


def test_a_repeat_of_a_finished_workflow_is_recognised():
    state = a_state(a_node())
    submit(state, a_task())
    state.apply(a_placement())
    state.apply(an_event(FINISHED))

    due = state.apply(a_workflow(a_task()))

    assert due == []
    assert state.workflows == {}
    assert state.counts["repeated_workflow"] == 1


def test_only_so_many_finished_workflows_are_remembered():
    state = a_state(a_node(), settings=StateSettings(remembered_ids=2))
    for i in range(3):
        submit(state, a_task(), workflow_id=f"w{i}")
        state.apply(an_event(FINISHED, workflow_id=f"w{i}"))

    assert list(state.finished) == ["w1", "w2"]


def test_an_attempt_that_failed_is_tried_again_elsewhere_in_its_time():
    state = running()

    (again,) = state.apply(an_event(FAILED, at_s=5))
    state.apply(again)

    assert (again.task_id, again.attempt, again.event_time_ms) == ("t0", 1, ms(5))
    assert len(state.ledger) == 0
    assert len(state.queue) == 1
    assert the_task(state).ready_ms == ms(0)


@pytest.mark.parametrize("kind", [FAILED, KILLED])
def test_a_repeated_end_of_an_attempt_makes_no_second_retry(kind):
    state = running()
    (again,) = state.apply(an_event(kind))
    state.apply(again)

    assert state.apply(an_event(kind)) == []
    assert len(state.queue) == 1


def test_a_task_that_failed_too_often_is_refused():
    state = a_state(a_node(), settings=StateSettings(max_attempts=2))
    submit(state, a_task("a"), a_task("b"))
    for attempt in range(2):
        state.apply(a_placement(task_id="a", attempt=attempt))
        for ready in state.apply(an_event(FAILED, task_id="a", attempt=attempt)):
            state.apply(ready)

    assert [t.status for t in state.workflows["w0"].tasks] == [Status.REFUSED, Status.READY]
    assert list(state.given_up) == [("w0", "a", 2)]
    assert len(state.queue) == 1


def test_only_failures_and_finishes_teach_how_a_node_fails():
    state = running()

    state.apply(an_event(KILLED))
    after_kill = state.failure_n.tolist()
    state.apply(a_placement(attempt=1))
    state.apply(an_event(FAILED, attempt=1))
    after_failure = state.failure_n.tolist()
    state.apply(a_placement(attempt=2))
    state.apply(an_event(FINISHED, attempt=2))

    assert (after_kill, after_failure, state.failure_n.tolist()) == ([0.0], [0.1], [pytest.approx(0.09)])


def test_a_lost_node_takes_its_attempts_with_it_and_they_are_due_again():
    state = a_state(a_node("n0"), a_node("n1"))
    submit(state, a_task("a"), a_task("b"))
    state.apply(a_placement("n0", task_id="a"))
    state.apply(a_placement("n1", task_id="b"))

    due = state.apply(a_lost_node("n0", at_s=4))

    assert [(r.task_id, r.attempt) for r in due] == [("a", 1)]
    assert state.ledger.on_node(0) == frozenset()
    assert state.fresh().tolist() == [False, True]


def test_a_repeated_loss_spares_the_attempts_that_came_after_it():
    state = running()
    (again,) = state.apply(a_lost_node(at_s=1))
    state.apply(again)
    state.apply(some_metrics("n0", at_s=2))
    state.apply(a_placement(attempt=1))

    due = state.apply(a_lost_node(at_s=1))

    assert due == []
    assert len(state.ledger) == 1
    assert state.fresh().tolist() == [True]


def test_a_loss_that_is_read_after_the_nodes_return_spares_what_was_placed_since():
    state = a_state(a_node())
    submit(state, a_task(), at_s=1.0)
    state.apply(some_metrics("n0", at_s=20.0))
    state.apply(a_placement(at_s=20.0))

    due = state.apply(a_lost_node(at_s=15.0))

    assert due == []
    assert len(state.ledger) == 1
    assert state.nodes.is_present_n.all()


def test_what_an_attempt_on_a_lost_node_still_reports_counts():
    state = running()
    (again,) = state.apply(a_lost_node(at_s=1))
    state.apply(again)

    state.apply(an_event(FINISHED, at_s=2))

    assert state.workflows == {}
    assert len(state.queue) == 0


def test_an_event_of_an_unknown_node_is_counted():
    state = a_state(a_node())

    state.apply(a_lost_node("elsewhere"))
    submit(state, a_task())
    state.apply(a_placement("elsewhere"))

    assert (state.counts["event_of_unknown_node"], state.counts["placement_on_unknown_node"]) == (1, 1)
    assert len(state.ledger) == 0


# Migrations


def test_an_attempt_beyond_twice_its_expected_time_is_offered_for_migration():
    state = running(expected_s=10.0)

    state.apply(some_metrics("n0", at_s=20))
    in_time = state.overdue()
    state.apply(some_metrics("n0", at_s=20.001))
    late = state.overdue()

    assert in_time == []
    assert [(r.task_id, r.attempt, r.excluded_nodes) for r in late] == [("t0", 1, ("n0",))]


def test_a_migration_is_offered_until_it_is_announced():
    state = running(expected_s=10.0)
    state.apply(some_metrics("n0", at_s=21))

    (offer,) = state.overdue()
    (same,) = state.overdue()
    state.apply(offer)

    assert offer == same
    assert state.overdue() == []
    assert the_task(state).status == Status.RUNNING


def test_an_attempt_that_waits_or_has_not_started_is_not_late():
    state = a_state(a_node())
    submit(state, a_task())
    state.apply(a_placement())

    state.apply(some_metrics("n0", at_s=1000))

    assert state.overdue() == []


def test_a_task_is_migrated_only_so_often():
    state = a_state(a_node("n0"), a_node("n1"), settings=StateSettings(max_rollbacks=1))
    submit(state, a_task())
    offers = []
    for attempt, at_s in enumerate((0, 100, 200)):
        state.apply(a_placement(f"n{attempt % 2}", attempt=attempt))
        state.apply(an_event(STARTED, attempt=attempt, at_s=at_s))
        state.apply(some_metrics("n0", "n1", at_s=at_s + 21))
        offers.append(state.overdue())
        for offer in offers[-1]:
            state.apply(offer)

    assert [len(offer) for offer in offers] == [1, 0, 0]


def test_two_late_attempts_of_one_task_make_one_migration():
    state = a_state(a_node("n0"), a_node("n1"))
    submit(state, a_task())
    for attempt in range(2):
        state.apply(a_placement(f"n{attempt}", attempt=attempt))
        state.apply(an_event(STARTED, attempt=attempt, node_id=f"n{attempt}"))

    state.apply(some_metrics("n0", "n1", at_s=21))

    assert [(r.attempt, r.excluded_nodes) for r in state.overdue()] == [(2, ("n1",))]


def test_the_first_attempt_to_finish_ends_the_task_and_the_other_keeps_its_node_until_it_is_killed():
    state = a_state(a_node("n0"), a_node("n1"))
    submit(state, a_task("t0"), a_task("child", after=("t0",)))
    state.apply(a_placement("n0"))
    state.apply(a_ready(attempt=1))
    state.apply(a_placement("n1", attempt=1))

    due = state.apply(an_event(FINISHED, attempt=0))
    held = [key for key, _ in state.ledger]
    after = state.apply(an_event(KILLED, attempt=1))

    assert [r.task_id for r in due] == ["child"]
    assert held == [("w0", "t0", 1)]
    assert after == []
    assert len(state.ledger) == 0
    assert state.workflows["w0"].get("t0").ran_on == 0


def test_a_task_whose_running_attempt_fails_while_its_migration_waits_is_nowhere():
    state = running()
    state.apply(a_ready(attempt=1, excluded_nodes=("n0",)))

    due = state.apply(an_event(FAILED, attempt=0))

    assert due == []
    assert the_task(state).status == Status.READY
    assert the_task(state).node == -1
    assert len(state.queue) == 1


def test_a_newer_announcement_takes_the_place_of_one_that_waits():
    state = a_state(a_node())
    submit(state, a_task())

    state.apply(a_ready(attempt=1, excluded_nodes=("n1",)))
    state.apply(a_ready(attempt=0))

    assert [("w0", "t0", attempt) in state.queue for attempt in range(2)] == [False, True]
    assert the_task(state).excluded_nodes == ("n1",)


def test_a_waiting_migration_is_withdrawn_when_the_task_is_done():
    state = running()
    state.apply(a_ready(attempt=1))

    state.apply(an_event(FINISHED, attempt=0))

    assert len(state.queue) == 0


# Records that overtake each other


def test_the_end_of_an_attempt_may_come_before_its_placement():
    state = a_state(a_node())
    submit(state, a_task())

    state.apply(an_event(FINISHED))
    state.apply(a_placement())

    assert (state.workflows, len(state.ledger), len(state.queue)) == ({}, 0, 0)


def test_a_placement_that_comes_after_its_attempt_failed_reserves_nothing():
    state = a_state(a_node())
    submit(state, a_task())

    (again,) = state.apply(an_event(FAILED))
    state.apply(a_placement())
    state.apply(again)

    assert len(state.ledger) == 0
    assert len(state.queue) == 1


def test_an_older_placement_does_not_replace_a_newer_one():
    state = a_state(a_node("n0"), a_node("n1"))
    submit(state, a_task())
    state.apply(a_placement("n1", attempt=1))

    state.apply(a_placement("n0", attempt=0))

    assert [key for key, _ in state.ledger] == [("w0", "t0", 1)]
    assert the_task(state).node == 1


def test_a_refused_attempt_ends_its_task():
    state = a_state(a_node())
    submit(state, a_task("a"), a_task("b", after=("a",)), a_task("c"))

    state.apply(a_placement(None, task_id="a", outcome=Outcome.REFUSED))

    assert [t.status for t in state.workflows["w0"].tasks] == [Status.REFUSED, Status.WAITING, Status.READY]
    assert len(state.queue) == 1


def test_an_owner_record_is_no_placement():
    state = running()
    before = dump(state)

    state.apply(a_placement(None, task_id="", workflow_id="", attempt=-1, outcome=Outcome.OWNER))

    assert dump(state) == before


# Open workflows: an engine of the user's own announces tasks


def test_tasks_of_an_unknown_workflow_come_with_their_task():
    state = a_state(a_node())

    state.apply(a_ready(a_task("x")))
    state.apply(a_ready(a_task("y")))

    assert [t.task.task_id for t in state.workflows["w0"].tasks] == ["x", "y"]
    assert len(state.queue) == 2


def test_a_task_without_its_specification_is_counted_when_its_workflow_is_unknown():
    state = a_state(a_node())

    state.apply(a_ready(task_id="x"))

    assert state.counts["ready_of_unknown_task"] == 1
    assert len(state.queue) == 0


def test_a_finished_task_of_an_open_workflow_is_not_run_again():
    state = a_state(a_node())
    state.apply(a_ready(a_task("x")))
    state.apply(a_placement(task_id="x"))
    state.apply(an_event(FINISHED, task_id="x"))

    state.apply(a_ready(a_task("x")))
    state.apply(a_ready(a_task("y")))

    assert [t.task.task_id for t in state.workflows["w0"].tasks] == ["y"]
    assert state.counts["repeated_ready"] == 1


# Nodes and time


def test_a_node_that_is_silent_for_too_long_is_stale():
    state = a_state(*some_nodes(3))

    state.apply(some_metrics("n1", "n2", at_s=60))
    fresh = state.fresh().tolist()
    state.apply(some_metrics("n1", "n2", at_s=61))

    assert (fresh, state.fresh().tolist()) == ([True, True, True], [False, True, True])


def test_a_collector_whose_clock_runs_ahead_makes_no_other_node_stale():
    state = a_state(*some_nodes(3))

    state.apply(some_metrics("n0", at_s=3600, source="ahead"))

    assert state.fresh().tolist() == [True, True, True]


def test_a_pause_of_all_collectors_makes_no_node_stale():
    state = a_state(*some_nodes(3))

    submit(state, a_task(), at_s=3600)

    assert state.fresh().tolist() == [True, True, True]


def test_samples_of_unknown_nodes_are_counted_and_the_others_kept():
    state = a_state(a_node("n0"), a_node("n1"))
    values_nm = np.array([[0.9] * 8, [0.1] * 8, [0.2] * 8])

    state.apply(some_metrics("elsewhere", "n1", "n0", at_s=15, values_nm=values_nm))

    assert state.counts["sample_of_unknown_node"] == 1
    assert state.windows.latest(2)[:, 0].tolist() == [np.float32(0.2), np.float32(0.1)]


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (replace(some_metrics("n0", at_s=1), values=b"\0" * 31), InvalidRecord),
        (replace(some_metrics("n0", at_s=1), event_time_ms=1_700_000_000), InvalidRecord),
        (some_metrics("n0", "n0", at_s=1), InvalidRecord),
        (some_metrics(a_node("new", cpu=4.0), a_node("n0", cpu=float("nan")), at_s=1), InvalidCluster),
    ],
    ids=["too short", "in seconds", "twice", "no machine"],
)
def test_a_record_that_contradicts_itself_changes_nothing(record, error):
    state = running()
    before = dump(state)

    with pytest.raises(error):
        state.apply(record)

    assert dump(state) == before


def test_what_cannot_have_been_measured_counts_as_not_measured():
    state = a_state(a_node())

    state.apply(some_metrics("n0", at_s=15, values_nm=np.array([[0.5, -1.0, np.inf, np.nan, 0, 0, 0, 0]])))

    latest_m = state.windows.read(1)[-1, 0]
    assert latest_m[0] == 0.5
    assert np.isnan(latest_m[1:4]).all()


def test_the_column_of_a_node_lost_for_long_is_used_again():
    state = a_state(*some_nodes(16))
    state.apply(a_lost_node("n3", at_s=0))
    later_s = REUSE_AFTER_MS / 1000 + 1

    state.apply(some_metrics(a_node("early"), at_s=later_s))
    state.apply(some_metrics(a_node("new", cpu=3.0), at_s=later_s))
    state.apply(some_metrics(a_node("newer"), at_s=later_s))

    assert [state.nodes.index[n] for n in ("early", "new", "newer")] == [16, 3, 17]
    assert "n3" not in state.nodes.index
    assert np.isnan(state.windows.read(18)[:-1, 3]).all()


def test_the_time_of_a_pool_never_goes_back():
    state = a_state(a_node())
    state.apply(some_metrics("n0", at_s=9))

    submit(state, a_task(), at_s=4)

    assert state.now_ms == ms(9)
    assert state.workflows["w0"].submitted_ms == ms(9)


@pytest.mark.parametrize(
    "wrong",
    [{"stale_s": -1}, {"rollback_factor": 0.5}, {"max_attempts": 0}, {"max_rollbacks": -1}, {"stale_s": float("nan")}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
        StateSettings(**wrong)


# Repeats


def every_kind_of_record() -> list[object]:
    """A short story in which every kind of record, and of event, occurs."""
    tasks = (a_task("a"), a_task("b", after=("a",)), a_task("c"), a_task("d"))
    return [
        some_metrics(*some_nodes(3), at_s=0),
        a_workflow(*tasks, at_s=1),
        *[TaskReady("pool", "w0", name, 0, ms(1)) for name in ("a", "c", "d")],
        a_placement("n0", task_id="a", at_s=1),
        a_placement(None, task_id="c", outcome=Outcome.PENDING, at_s=1),
        an_event(STARTED, task_id="a", at_s=2),
        some_metrics("n0", "n1", at_s=16),
        a_placement("n1", task_id="c", at_s=17),
        a_ready(a_task("x"), workflow_id="open", at_s=17),
        an_event(FINISHED, task_id="a", at_s=18),
        TaskReady("pool", "w0", "b", 0, ms(18)),
        a_placement("n0", task_id="b", at_s=18),
        a_placement("n2", task_id="x", workflow_id="open", at_s=18),
        an_event(STARTED, task_id="b", at_s=19),
        a_placement(None, task_id="d", outcome=Outcome.REFUSED, at_s=19),
        an_event(REJECTED, task_id="c", node_id="n1", at_s=20),
        TaskReady("pool", "w0", "c", 1, ms(20)),
        a_placement("n1", task_id="c", attempt=1, at_s=21),
        an_event(STARTED, task_id="c", attempt=1, node_id="n1", at_s=21),
        TaskReady("pool", "w0", "c", 2, ms(60), excluded_nodes=("n1",)),
        a_placement("n2", task_id="c", attempt=2, at_s=61),
        an_event(KILLED, task_id="c", attempt=1, node_id="n1", at_s=61),
        a_lost_node("n0", at_s=62),
        TaskReady("pool", "w0", "b", 1, ms(62)),
        some_metrics("n0", "n1", "n2", at_s=63),
        a_placement("n0", task_id="b", attempt=1, at_s=64),
        an_event(FAILED, task_id="b", attempt=1, at_s=70),
        TaskReady("pool", "w0", "b", 2, ms(70)),
        a_placement("n0", task_id="b", attempt=2, at_s=71),
        an_event(FINISHED, task_id="b", attempt=2, at_s=80),
        an_event(FINISHED, task_id="c", attempt=2, node_id="n2", at_s=81),
        an_event(FINISHED, task_id="x", workflow_id="open", node_id="n2", at_s=82),
    ]


def fold(records: list[object]) -> State:
    state = State("pool")
    for record in records:
        state.apply(record)
    return state


@pytest.mark.parametrize("at", range(len(every_kind_of_record())))
def test_a_record_folded_twice_is_a_record_folded_once(at):
    story = every_kind_of_record()[: at + 1]

    assert dump(fold([*story, story[-1]])) == dump(fold(story))


@pytest.mark.parametrize("at", range(len(every_kind_of_record())))
def test_a_record_that_is_delivered_again_at_the_end_changes_nothing(at):
    story = every_kind_of_record()

    assert dump(fold([*story, story[at]])) == dump(fold(story))


def test_at_the_end_of_the_story_nothing_is_left():
    state = fold(every_kind_of_record())

    assert (state.workflows, state.running, len(state.ledger), len(state.queue)) == ({}, {}, 0, 0)
    assert list(state.finished) == ["w0", "open\0x"]


def running(**placement: object) -> State:
    """A pool of one node on which the task t0 runs since the start."""
    state = a_state(a_node())
    submit(state, a_task())
    state.apply(a_placement(**placement))
    state.apply(an_event(STARTED))
    return state


def the_task(state: State):
    return state.workflows["w0"].tasks[0]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["n0", "n1", "n2", "unknown"]), min_size=1, max_size=3, unique=True),
            st.integers(0, 700),
            st.sampled_from([0.25, 0.75, float("nan")]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_samples_folded_together_are_those_folded_one_by_one(drawn):
    records = [
        NodeMetrics("pool", ms(at_s), "c", tuple(nodes), np.full((len(nodes), len(METRICS)), value, "<f4").tobytes())
        for nodes, at_s, value in drawn
    ]
    together, apart = a_state(*some_nodes(3)), a_state(*some_nodes(3))

    together.apply_samples(records)
    for record in records:
        apart.apply(record)

    assert dump(together) == dump(apart)
    assert together.counts == apart.counts
    assert together.windows.late_samples == apart.windows.late_samples
