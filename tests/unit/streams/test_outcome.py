"""What is told of submitted workflows, and when they are over."""

from __future__ import annotations

from dataclasses import replace

from schemas.records import EventKind, Outcome, Placement, TaskEvent, WorkflowSubmitted
from streams.outcome import Outcomes, Tally
from tests.builders import a_placement, a_task, a_workflow, an_event


def a_chain(workflow_id: str, *task_ids: str) -> WorkflowSubmitted:
    """Tasks that run one after the other."""
    before = ((), *((task_id,) for task_id in task_ids))
    tasks = [a_task(task_id, after=parents) for task_id, parents in zip(task_ids, before, strict=False)]
    return a_workflow(*tasks, workflow_id=workflow_id)


def placed(workflow_id: str, task_id: str, attempt: int = 0, outcome: Outcome = Outcome.PLACED) -> Placement:
    placement = a_placement("n1", task_id=task_id, attempt=attempt, workflow_id=workflow_id, outcome=outcome)
    return replace(placement, policy="srcp", reason="0/1 nodes: 1 too little gpu")


def ended(workflow_id: str, task_id: str, attempt: int = 0, kind: EventKind = EventKind.FINISHED) -> TaskEvent:
    return an_event(kind, task_id=task_id, attempt=attempt, workflow_id=workflow_id, node_id="n1")


def outcomes_of(*workflows: WorkflowSubmitted) -> tuple[Outcomes, list[str]]:
    lines: list[str] = []
    return Outcomes(workflows, lines.append), lines


def test_workflows_are_over_when_the_last_task_has_finished() -> None:
    outcomes, lines = outcomes_of(a_chain("etl", "load"), a_chain("ml", "train"))

    outcomes.take(placed("etl", "load"))
    outcomes.take(ended("etl", "load"))
    was_over = outcomes.are_over
    outcomes.take(placed("ml", "train"))
    outcomes.take(ended("ml", "train"))

    assert not was_over
    assert outcomes.are_over
    assert lines == [
        "etl/load#0 placed on n1 by srcp",
        "etl finished",
        "ml/train#0 placed on n1 by srcp",
        "ml finished",
    ]
    assert outcomes.tally() == Tally(workflows=2, tasks=2, finished=2, placements=2)
    assert outcomes.tally().is_complete


def test_a_repeated_record_is_told_and_counted_once() -> None:
    outcomes, lines = outcomes_of(a_chain("etl", "load"))

    for record in (placed("etl", "load"), ended("etl", "load")):
        outcomes.take(record)
        outcomes.take(record)

    assert lines == ["etl/load#0 placed on n1 by srcp", "etl finished"]
    assert outcomes.tally() == Tally(workflows=1, tasks=1, finished=1, placements=1)


def test_a_failed_attempt_leaves_its_task_open_for_the_next() -> None:
    outcomes, lines = outcomes_of(a_chain("etl", "load"))

    outcomes.take(placed("etl", "load"))
    outcomes.take(ended("etl", "load", kind=EventKind.FAILED))
    was_over = outcomes.are_over
    outcomes.take(placed("etl", "load", attempt=1))
    outcomes.take(ended("etl", "load", attempt=1))

    assert not was_over
    assert outcomes.are_over
    assert "etl/load#0 failed on n1" in lines
    assert outcomes.tally().placements == 2


def test_what_comes_after_a_refused_task_is_not_waited_for() -> None:
    outcomes, lines = outcomes_of(a_chain("etl", "extract", "transform", "load"))

    outcomes.take(ended("etl", "extract"))
    outcomes.take(placed("etl", "transform", outcome=Outcome.REFUSED))

    assert outcomes.are_over
    assert not outcomes.tally().is_complete
    assert lines == ["etl/transform#0 refused: 0/1 nodes: 1 too little gpu"]


def test_an_attempt_that_waits_for_room_is_still_open() -> None:
    outcomes, _ = outcomes_of(a_chain("etl", "load"))

    outcomes.take(placed("etl", "load", outcome=Outcome.PENDING))

    assert not outcomes.are_over


def test_workflows_of_others_do_not_count() -> None:
    outcomes, lines = outcomes_of(a_chain("etl", "load"))

    outcomes.take(placed("other", "load"))
    outcomes.take(ended("other", "load"))

    assert lines == []
    assert outcomes.tally() == Tally(workflows=1, tasks=1, finished=0, placements=0)
