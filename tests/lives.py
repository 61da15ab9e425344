"""Lives of a state, drawn by chance: the usual course of things, and any record at any time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from policy.constraints import Constraints
from policy.decide import Batch, DecideSettings, Stamp, decide
from policy.heuristics import HEURISTICS
from policy.snapshot import dump
from policy.state import State
from schemas.records import (
    METRICS,
    Edge,
    EventKind,
    NodeMetrics,
    NodeSpec,
    Outcome,
    Placement,
    Task,
    TaskEvent,
    TaskReady,
    WorkflowSubmitted,
)
from tests.builders import (
    POOL,
    a_lost_node,
    a_node,
    a_placement,
    a_ready,
    a_task,
    a_workflow,
    an_event,
    some_metrics,
)

SMALL_BATCHES = DecideSettings(batch=3, batch_share=1.0)
MOST_BATCHES = 1000
NODES = tuple(f"n{i}" for i in range(5))
TASKS = ("a", "b", "c", "d")
ENDS = (EventKind.FINISHED, EventKind.FINISHED, EventKind.FAILED, EventKind.KILLED, EventKind.REJECTED)

Move = Callable[[State, Constraints], Any]
"""Does something to a state, and returns all that the state answers."""


class Life:
    """What happens to a state; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.at_s = 0.0

    def moves(self, count: int) -> list[Move]:
        """The next ones. A life begins with free nodes and something to do."""
        first = [some_metrics(*map(self.spec, NODES)), self.workflow(), self.workflow()] if self.at_s == 0 else []
        return [*map(applied, first), *[self.move() for _ in range(count)]]

    def move(self) -> Move:
        self.at_s += self.one_of(0.0, 0.0, 1.0, 15.0, 100.0)
        if self.random.random() < 0.3:
            records = (self.samples, self.workflow, self.workflow, self.ready, self.placement, self.event, self.loss)
            return applied(self.one_of(*records)())
        usual = (announce, announce, self.round(), self.round(), self.course(), self.course(), self.migration(), keep)
        return self.one_of(*usual)

    def one_of(self, *things: Any) -> Any:
        return self.random.choice(things)

    def some_of(self, things: Sequence[str], most: int) -> list[str]:
        return self.random.sample(things, self.random.randint(0, most))

    def time_s(self) -> float:
        """Mostly now."""
        return max(0.0, self.at_s + self.one_of(0.0, 0.0, 0.0, -20.0, 20.0, -400.0))

    def round(self) -> Move:
        return decided_by(self.one_of(*HEURISTICS))

    def course(self) -> Move:
        kinds = self.one_of((EventKind.STARTED,), (self.one_of(*ENDS),), (EventKind.STARTED, self.one_of(*ENDS)))
        return gone_on(kinds, self.random.randrange(100), self.one_of(0.0, 5.0, 60.0))

    def migration(self) -> Move:
        return self.one_of(migrate, give_up, moved(self.random.randrange(100), self.one_of(*NODES)))

    def samples(self) -> NodeMetrics:
        """Of some nodes, with the specifications of some of them, which may be others than before."""
        nodes = [self.spec(n) if self.random.random() < 0.7 else n for n in self.some_of(NODES, len(NODES))]
        noise = np.random.default_rng(self.random.getrandbits(32))
        values_nm = noise.uniform(-0.1, 1.0, (len(nodes), len(METRICS)))
        return some_metrics(*nodes, at_s=self.time_s(), values_nm=values_nm)

    def spec(self, node_id: str) -> NodeSpec:
        return a_node(
            node_id,
            cpu=self.one_of(2.0, 4.0, 4.5),
            gpu=self.one_of(0, 0, 2),
            speed=self.one_of(0.5, 1.0, 2.0),
            labels=self.one_of({}, {"zone": "a"}),
        )

    def workflow(self) -> WorkflowSubmitted:
        names = TASKS[: self.random.randint(1, 4)]
        parents = [self.some_of(names[:at], min(at, 2)) for at in range(len(names))]
        return a_workflow(
            *[self.task(name, after) for name, after in zip(names, parents, strict=True)],
            workflow_id=self.one_of("w0", "w1", "w2", "w3"),
            at_s=self.time_s(),
            deadline_s=self.one_of(None, 60.0),
        )

    def task(self, task_id: str, after: Sequence[str] = ()) -> Task:
        return a_task(
            task_id,
            self.one_of(0.1, 10.0, 33.3),
            after=[Edge(parent, self.one_of(0, 10**9)) for parent in after],
            cpu=self.one_of(0.0, 1.0, 1.0, 2.0, 4.5),
            gpu=self.one_of(0, 0, 0, 1),
            priority=self.one_of(0, 5),
            node_selector=self.one_of({}, {}, {"zone": "a"}),
        )

    def ready(self) -> TaskReady:
        """From an engine of the user's own, or a repeat, or one that comes too early."""
        task_id = self.one_of(*TASKS)
        return a_ready(
            self.one_of(None, self.task(task_id), self.task(task_id)),
            task_id=task_id,
            workflow_id=self.one_of("o0", "o1", "w0"),
            attempt=self.one_of(0, 0, 0, 1, 2),
            at_s=self.time_s(),
            excluded_nodes=tuple(self.some_of(NODES, 1)),
        )

    def placement(self) -> Placement:
        """By an earlier owner."""
        return a_placement(
            self.one_of(*NODES),
            **self.attempt(),
            outcome=self.one_of(Outcome.PLACED, Outcome.PENDING, Outcome.REFUSED),
            expected_s=self.one_of(None, 0.0, 5.0, float("nan")),
        )

    def event(self) -> TaskEvent:
        return an_event(self.one_of(EventKind.STARTED, *ENDS), **self.attempt())

    def attempt(self) -> dict[str, Any]:
        workflow_id = self.one_of("w0", "w0", "w1", "w2", "o0", "unheard-of")
        return {
            "workflow_id": workflow_id,
            "task_id": self.one_of(*TASKS),
            "attempt": self.one_of(0, 0, 1, 2, 3),
            "at_s": self.time_s(),
        }

    def loss(self) -> TaskEvent:
        return a_lost_node(self.one_of(*NODES, "unheard-of"), self.time_s())


def applied(record: object) -> Move:
    """The record is folded in."""
    return lambda state, _: state.apply(record)


def announce(state: State, _: Constraints) -> Any:
    """All that is due goes through task-ready."""
    return [(ready, state.apply(ready)) for ready in state.due()]


def migrate(state: State, _: Constraints) -> Any:
    """So does what is overdue."""
    return [(ready, state.apply(ready)) for ready in state.overdue()]


def give_up(state: State, _: Constraints) -> Any:
    """Placements that no executor started are taken back."""
    return [(event, state.apply(event)) for event in state.unstarted()]


def keep(state: State, _: Constraints) -> Any:
    """A snapshot is taken: what the state keeps of it must not spoil a later one."""
    return dump(state)


def decided_by(policy: str) -> Move:
    """A round of decisions."""

    def move(state: State, constraints: Constraints) -> list[Batch]:
        batches = decide(state, HEURISTICS[policy], constraints, SMALL_BATCHES, Stamp())
        return list(islice(batches, MOST_BATCHES))

    return move


def gone_on(kinds: Sequence[EventKind], number: int, after_s: float) -> Move:
    """An attempt that runs starts, ends, or both."""

    def move(state: State, _: Constraints) -> list[list[TaskReady]]:
        if not state.running:
            return []
        key = list(state.running)[number % len(state.running)]
        at_ms = state.now_ms + round(1000 * after_s)
        return [state.apply(TaskEvent(POOL, *key, "n0", at_ms, kind)) for kind in kinds]

    return move


def moved(number: int, node_id: str) -> Move:
    """The next attempt of a task that runs is placed, too."""

    def move(state: State, _: Constraints) -> list[TaskReady]:
        if not state.running:
            return []
        workflow_id, task_id, attempt = list(state.running)[number % len(state.running)]
        return state.apply(a_placement(node_id, workflow_id=workflow_id, task_id=task_id, attempt=attempt + 1))

    return move
