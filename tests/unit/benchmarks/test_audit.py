"""The audit of a log finds what must never be."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.audit import Log, problems
from schemas.records import EventKind, Outcome, Placement, TaskEvent
from tests.builders import a_lost_node, a_node, a_placement, a_task, a_workflow, an_event

STARTED, FINISHED, REJECTED = EventKind.STARTED, EventKind.FINISHED, EventKind.REJECTED
NODES = [a_node("n0", cpu=2.0), a_node("n1", cpu=2.0)]


def a_log(tasks: int, *records: Placement | TaskEvent) -> Log:
    """Records of a workflow of tasks t0, t1, … of one core; a placement's decision had seen the events before it."""
    log = Log()
    log.trace.apply(a_workflow(*[a_task(f"t{i}") for i in range(tasks)]))
    for record in records:
        if isinstance(record, Placement):
            log.placements.append((len(log.placements), replace(record, as_of=(0, 0, len(log.events), 0))))
        else:
            log.events.append((len(log.events), record))
        log.trace.apply(record)
    return log


def an_owner() -> Placement:
    return a_placement(None, task_id="", workflow_id="", outcome=Outcome.OWNER)


def a_life(task_id: str, from_s: float, to_s: float, node_id: str = "n0", attempt: int = 0) -> list[TaskEvent]:
    known = {"task_id": task_id, "node_id": node_id, "attempt": attempt}
    return [an_event(STARTED, at_s=from_s, **known), an_event(FINISHED, at_s=to_s, **known)]


def test_tasks_that_run_once_where_they_were_placed_are_well() -> None:
    log = a_log(2, a_placement(task_id="t0"), a_placement(task_id="t1"), *a_life("t0", 0, 9), *a_life("t1", 1, 8))

    assert problems(log, NODES) == []


def test_a_task_that_never_finished_is_found() -> None:
    log = a_log(1, a_placement())

    assert problems(log, NODES) == ["w0/t0 finished 0 times"]


def test_a_task_that_finished_twice_is_found() -> None:
    first, again = a_life("t0", 0, 9), a_life("t0", 10, 19, attempt=1)
    log = a_log(1, a_placement(), *first, a_placement(attempt=1), *again)

    assert problems(log, NODES) == ["w0/t0 finished 2 times"]


def test_a_second_placement_of_an_attempt_is_found() -> None:
    log = a_log(1, a_placement(), a_placement("n1"), *a_life("t0", 0, 9))

    assert "w0/t0#0 has 2 effective placements" in problems(log, NODES)


def test_what_a_former_owner_placed_behind_the_claim_of_another_is_void() -> None:
    late, ours = replace(a_placement("n1"), epoch=0), replace(a_placement(), epoch=1)
    log = a_log(1, an_owner(), an_owner(), late, ours, *a_life("t0", 0, 9))

    assert problems(log, NODES) == []


def test_an_attempt_that_ran_where_it_was_not_placed_is_found() -> None:
    log = a_log(1, a_placement(), *a_life("t0", 0, 9, "n1"))

    assert problems(log, NODES) == ["w0/t0#0 ran on n1, placed on n0"]


def test_a_node_that_was_given_away_twice_is_found() -> None:
    placements = [a_placement(task_id=f"t{i}") for i in range(3)]
    log = a_log(3, *placements, *a_life("t0", 0, 9), *a_life("t1", 0, 9), *a_life("t2", 9, 18))

    assert problems(log, NODES) == ["n0 was given 3 of 2 cpu at w0/t2#0"]


def test_a_node_may_be_given_again_when_its_attempt_has_ended_or_it_was_lost() -> None:
    placements = [a_placement(task_id=f"t{i}") for i in range(4)]
    lives = [a_life(f"t{i}", 10 * i, 10 * i + 9) for i in range(4)]
    before, after = [*placements[:2], *lives[0], placements[2], *lives[1]], [placements[3], *lives[2], *lives[3]]
    log = a_log(4, *before, a_lost_node(at_s=1), *after)

    assert problems(log, NODES) == []


def test_the_rejection_of_an_attempt_that_had_started_gives_nothing_back() -> None:
    placements = [a_placement(task_id=f"t{i}") for i in range(3)]
    start, end = a_life("t0", 0, 9)
    rejection = an_event(REJECTED, task_id="t0", at_s=5)
    log = a_log(3, *placements[:2], start, rejection, placements[2], end, *a_life("t1", 0, 9), *a_life("t2", 9, 18))

    assert problems(log, NODES) == ["n0 was given 3 of 2 cpu at w0/t2#0"]


def test_attempts_that_took_more_than_the_node_has_are_found() -> None:
    first, *rest = [a_placement(task_id=f"t{i}") for i in range(3)]
    log = a_log(3, first, *a_life("t0", 0, 9), *rest, *a_life("t1", 8, 18), *a_life("t2", 8.5, 18))

    assert problems(log, NODES) == ["n0 at 1767225608.500: 3 of 2 cpu with w0/t2#0"]
