"""Whole lives of workflows on a small cluster, with everything going wrong that may."""

from __future__ import annotations

import random
from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.heuristics import heuristic
from policy.state import State, StateSettings
from policy.workflows import Status, Workflow
from schemas.records import EventKind, NodeMetrics, Outcome, Placement, Task, TaskReady
from tests.builders import a_lost_node, a_node, a_task, a_workflow, an_event, decided, some_metrics
from tests.dump import dump, queued

NODES = {f"n{i}": a_node(f"n{i}", cpu=2.0 + i) for i in range(3)}
POLICY = heuristic("random")

Attempt = tuple[str, str, int]


class Cluster:
    """An executor and its records, delivered late, again, and in any order between two attempts.

    Records of one attempt stay in order; a loss of a node overtakes all that its attempts still have to say.
    """

    def __init__(self, seed: int, workflows: list[tuple[Task, ...]], settings: StateSettings) -> None:
        self.random = random.Random(seed)
        self.state = State("pool", settings)
        self.at_s = 0.0
        self.in_flight: dict[Attempt | str, deque[object]] = defaultdict(deque)
        self.delivered: list[object] = []
        self.runs_on: dict[Attempt, str] = {}
        self.lost: set[str] = set()
        self.is_calm = False
        self.live: list[Workflow] = []
        self.deliver(some_metrics(*NODES.values()))
        for i, tasks in enumerate(workflows):
            self.deliver(a_workflow(*tasks, workflow_id=f"w{i}"))
            self.live.append(self.state.workflows[f"w{i}"])

    def deliver(self, record: object) -> None:
        for ready in self.state.apply(record):
            self.in_flight[ready.workflow_id, ready.task_id, ready.attempt].append(ready)
        self.delivered.append(record)
        self.check()

    def step(self) -> None:
        self.at_s += 1
        chances = [self.deliver_one] * 4 + [self.decide, self.run_on]
        if not self.is_calm:
            chances += [self.deliver_again, self.lose_node, self.sample, self.jump]
        self.random.choice(chances)()

    def deliver_one(self) -> None:
        waiting = [key for key, records in self.in_flight.items() if records]
        if waiting:
            self.deliver(self.in_flight[self.random.choice(sorted(waiting, key=str))].popleft())

    def deliver_again(self) -> None:
        """Any record that is not a sample, whose repeat is a newer sample of its step."""
        before, record = dump(self.state), self.random.choice(self.delivered)
        if not isinstance(record, NodeMetrics):
            self.deliver(record)
            assert dump(self.state) == before, record

    def decide(self) -> None:
        placements = decided(self.state, POLICY)
        self.delivered += placements
        for placement in placements:
            if placement.outcome == Outcome.PLACED:
                self.begin(placement)
        self.check()

    def begin(self, placement: Placement) -> None:
        """What the executor does with a placement: it ends older attempts, and starts or rejects this one."""
        key = placement.workflow_id, placement.task_id, placement.attempt
        for older in [k for k in self.runs_on if k[:2] == key[:2]]:
            self.end(older, EventKind.KILLED)
        if placement.node_id in self.lost or (not self.is_calm and self.random.random() < 0.1):
            self.say(key, EventKind.REJECTED, placement.node_id)
            return
        self.runs_on[key] = placement.node_id
        self.say(key, EventKind.STARTED, placement.node_id)

    def run_on(self) -> None:
        """Some attempt ends."""
        if self.runs_on:
            is_failure = not self.is_calm and self.random.random() < 0.3
            self.end(self.random.choice(sorted(self.runs_on)), EventKind.FAILED if is_failure else EventKind.FINISHED)

    def end(self, key: Attempt, kind: EventKind) -> None:
        self.say(key, kind, self.runs_on.pop(key))

    def say(self, key: Attempt, kind: EventKind, node_id: str) -> None:
        workflow_id, task_id, attempt = key
        event = an_event(
            kind, workflow_id=workflow_id, task_id=task_id, attempt=attempt, node_id=node_id, at_s=self.at_s
        )
        self.in_flight[key].append(event)

    def lose_node(self) -> None:
        here = sorted(NODES.keys() - self.lost)
        if len(here) > 1 and self.random.random() < 0.3:
            node_id = self.random.choice(here)
            self.lost.add(node_id)
            self.runs_on = {key: on for key, on in self.runs_on.items() if on != node_id}
            self.deliver(a_lost_node(node_id, at_s=self.at_s))

    def sample(self) -> None:
        """Every node, and some that were lost are back."""
        self.lost = {node_id for node_id in self.lost if self.random.random() < 0.5}
        self.deliver(some_metrics(*[spec for n, spec in NODES.items() if n not in self.lost], at_s=self.at_s))

    def jump(self) -> None:
        """Much time passes: what runs is late."""
        self.at_s += 50
        self.sample()
        for ready in self.state.overdue():
            self.in_flight[ready.workflow_id, ready.task_id, ready.attempt].append(ready)

    def settle(self) -> None:
        """Nothing goes wrong any more; all runs to its end."""
        self.is_calm = True
        self.lost.clear()
        self.at_s += 1
        self.deliver(some_metrics(*NODES.values(), at_s=self.at_s))
        for _ in range(2000):
            if not (self.runs_on or any(self.in_flight.values()) or self.state.workflows):
                return
            self.step()
        pytest.fail(f"never ends: {self.state.workflows.keys()} wait, {self.runs_on} run")

    def check(self) -> None:
        """What must hold after every record."""
        state = self.state
        assert (state.ledger.free_rn >= 0).all()
        held_rn = np.zeros_like(state.ledger.reserved_rn)
        for _, reservation in state.ledger:
            held_rn[:, reservation.node] += reservation.request
        assert (held_rn == state.ledger.reserved_rn).all()
        assert {key for key, _ in state.ledger} == set(state.running)
        attempts = queued(state)
        assert len({key[:2] for key in attempts}) == len(attempts)
        for workflow_id, task_id, attempt in attempts:
            task = state.workflows[workflow_id].get(task_id)
            assert not task.is_over
            assert attempt == task.ready_attempt > max(task.attempt, task.ended_attempt)


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[tuple[Task, ...]], int]:
    """A few small workflows, and how many steps of trouble they see."""
    workflows = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 5))
        parents = [draw(st.lists(st.integers(0, i - 1), unique=True, max_size=2)) if i else [] for i in range(count)]
        cpu = draw(
            st.lists(
                st.sampled_from((0.5, 1.0, 2.0, 9.0) if draw(st.booleans()) else (1.0,)), min_size=count, max_size=count
            )
        )
        workflows.append(tuple(a_task(f"t{i}", cpu=cpu[i], after=[f"t{p}" for p in parents[i]]) for i in range(count)))
    return workflows, draw(st.integers(0, 120))


@given(lives(), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_every_task_is_done_once_or_refused_whatever_happens(life, seed):
    workflows, trouble = life
    cluster = Cluster(seed, workflows, StateSettings(max_attempts=6))

    for _ in range(trouble):
        cluster.step()
    cluster.settle()

    state = cluster.state
    assert (state.workflows, state.running, len(state.ledger), len(state.queue)) == ({}, {}, 0, 0)
    for workflow in cluster.live:
        over = [t for t in workflow.tasks if t.is_over]
        assert workflow.over == len(over)
        assert workflow.work_s == pytest.approx(sum(t.task.runtime_s for t in workflow.tasks if not t.is_over))
        for task in workflow.tasks:
            assert task.is_over or is_below_a_refused_one(workflow, task.task)


def test_without_trouble_every_task_is_done_with_its_first_attempt():
    tasks = (a_task("a"), a_task("b", after=("a",)), a_task("c", after=("a",)), a_task("d", after=("b", "c")))
    cluster = Cluster(0, [tasks, tasks], StateSettings())

    cluster.settle()

    assert all(t.status == Status.DONE and t.attempt == 0 for w in cluster.live for t in w.tasks)
    assert cluster.state.placed == 8


def test_a_cluster_in_trouble_sees_every_kind_of_it():
    kinds: set[str] = set()
    for seed in range(20):
        cluster = Cluster(seed, [tuple(a_task(f"t{i}") for i in range(5))] * 2, StateSettings())
        for _ in range(100):
            cluster.step()
        kinds |= {str(getattr(r, "kind", type(r).__name__)) for r in cluster.delivered}
        kinds |= {"migration" for r in cluster.delivered if isinstance(r, TaskReady) and r.excluded_nodes}
        kinds |= {str(r.outcome) for r in cluster.delivered if isinstance(r, Placement)}

    assert {
        "started",
        "finished",
        "failed",
        "killed",
        "rejected",
        "node_lost",
        "migration",
        "placed",
        "pending",
    } <= kinds


def is_below_a_refused_one(workflow: Workflow, task: Task) -> bool:
    parents = [workflow.get(edge.task_id) for edge in task.parents]
    return any(p.status == Status.REFUSED or is_below_a_refused_one(workflow, p.task) for p in parents)
