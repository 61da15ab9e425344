"""What becomes of submitted workflows, told line by line until all of them are over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policy.ledger import AttemptKey
from policy.trace import TaskKey
from schemas.records import EventKind, Outcome, Placement, TaskEvent, WorkflowSubmitted
from streams.watch import Watch

SETTLE_S = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Tally:
    """How it went."""

    workflows: int
    tasks: int
    finished: int
    placements: int

    @property
    def is_complete(self) -> bool:
        """Whether every task finished."""
        return self.finished == self.tasks

    def __str__(self) -> str:
        return (
            f"{self.finished} of {self.tasks} tasks of {self.workflows} workflows finished, "
            f"{self.placements} placements"
        )


class Outcomes:
    """Follows some workflows by their pool's records."""

    def __init__(self, workflows: Sequence[WorkflowSubmitted], say: Say) -> None:
        self._say = say
        self._workflows = {workflow.workflow_id: workflow for workflow in workflows}
        self._left = {workflow.workflow_id: len(workflow.tasks) for workflow in workflows}
        self._placed: set[AttemptKey] = set()
        self._finished: set[TaskKey] = set()
        self._never: set[TaskKey] = set()

    @property
    def are_over(self) -> bool:
        """Whether every task finished, or never will run."""
        return len(self._finished | self._never) == sum(len(w.tasks) for w in self._workflows.values())

    def take(self, record: object) -> None:
        """Take one record in; those of other workflows do not matter."""
        if isinstance(record, Placement) and record.workflow_id in self._workflows:
            self._placement(record)
        elif isinstance(record, TaskEvent) and record.workflow_id in self._workflows:
            self._event(record)

    def _placement(self, placement: Placement) -> None:
        key = (placement.workflow_id, placement.task_id, placement.attempt)
        name = "{}/{}#{}".format(*key)
        if placement.outcome == Outcome.PLACED and key not in self._placed:
            self._placed.add(key)
            self._say(f"{name} placed on {placement.node_id} by {placement.policy}")
        elif placement.outcome == Outcome.PENDING:
            self._say(f"{name} waits: {placement.reason}")
        elif placement.outcome == Outcome.REFUSED:
            self._say(f"{name} refused: {placement.reason}")
            self._give_up(placement.workflow_id, placement.task_id)

    def _give_up(self, workflow_id: str, task_id: str) -> None:
        """The task never runs, nor does what comes after it."""
        self._never.add((workflow_id, task_id))
        for task in self._workflows[workflow_id].tasks:
            if (workflow_id, task.task_id) not in self._never and task_id in (edge.task_id for edge in task.parents):
                self._give_up(workflow_id, task.task_id)

    def _event(self, event: TaskEvent) -> None:
        workflow_id, key = event.workflow_id, (event.workflow_id, event.task_id)
        if event.kind == EventKind.FAILED:
            self._say(f"{workflow_id}/{event.task_id}#{event.attempt} failed on {event.node_id}")
        elif event.kind == EventKind.FINISHED and key not in self._finished:
            self._finished.add(key)
            self._left[workflow_id] -= 1
            if self._left[workflow_id] == 0:
                self._say(f"{workflow_id} finished")

    def tally(self) -> Tally:
        """How it went so far."""
        tasks = sum(len(workflow.tasks) for workflow in self._workflows.values())
        return Tally(len(self._workflows), tasks, len(self._finished), len(self._placed))


def follow(watch: Watch, workflows: Sequence[WorkflowSubmitted], say: Say, within_s: float = math.inf) -> Tally:
    """Read until every task finished, or never will run, or the time is up."""
    outcomes = Outcomes(workflows, say)
    watch.on_record = outcomes.take
    deadline_s = time.monotonic() + within_s
    while not outcomes.are_over and time.monotonic() < deadline_s:
        watch.poll()
    while watch.poll(SETTLE_S):  # the end of a task may be read before its placement: they lie in two topics
        continue
    return outcomes.tally()
