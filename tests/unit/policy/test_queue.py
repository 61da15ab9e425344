"""The waiting attempts: their order, and who is looked at again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policy.observation import by_arrival, by_rank
from policy.queue import ReadyQueue, attempt_key
from policy.workflows import TaskState, Workflow, from_record
from tests.builders import GIB, a_task, a_workflow

NAMES = [f"t{i}" for i in range(70)]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.sampled_from((1.0, 2.0, 3.0))), max_size=12))
def test_the_order_is_priority_critical_urgency_arrival(kinds):
    tasks = [a_task(f"t{i}", rank_s, priority=p, critical=c) for i, (p, c, rank_s) in enumerate(kinds)]
    queue = a_queue(*tasks)
    rows = queue.candidates()

    first = rows.first(len(rows), by_rank(rows))

    expected = sorted(tasks, key=lambda t: (-t.priority, -t.critical, -t.runtime_s, int(t.task_id[1:])))
    assert [task.task.task_id for task, _ in first] == [t.task_id for t in expected]


def test_only_as_many_as_asked_for_are_given():
    queue = a_queue(*[a_task(f"t{i}") for i in range(5)])
    rows = queue.candidates()

    first = rows.first(2, by_arrival(rows))

    assert [(task.task.task_id, attempt) for task, attempt in first] == [("t0", 0), ("t1", 0)]


def test_the_columns_are_those_of_the_tasks_and_their_workflows():
    workflow = from_record(a_workflow(a_task("a", 3.0), a_task("b", 4.0, after=("a",)), a_task("c", 2.0)), 0)
    queue = ReadyQueue()
    queue.push(workflow.tasks[0], 0)
    queue.push(workflow.tasks[2], 0)

    rows = queue.candidates()

    assert rows.rank_p.tolist() == [7.0, 2.0]
    assert rows.runtime_p.tolist() == [3.0, 2.0]
    assert rows.arrival_p.tolist() == [0, 1]
    assert rows.work_p.tolist() == [9.0, 9.0]
    assert rows.path_p.tolist() == [7.0, 7.0]


def test_room_wakes_only_those_that_fit_into_it():
    queue = a_queue(a_task("small"), a_task("large", cpu=4.0), a_task("gpu", gpu=1))
    for task, attempt in everything(queue):
        queue.block(attempt_key(task, attempt))

    queue.unblock(np.array([[2000, 1000], [GIB, 0], [0, 1], [0, 0]]))

    assert [task.task.task_id for task, _ in everything(queue)] == ["small"]
    assert queue.waiting == 2


def test_no_room_at_all_wakes_nobody_and_no_argument_wakes_all():
    queue = a_queue(a_task("a"), a_task("b"))
    for task, attempt in everything(queue):
        queue.block(attempt_key(task, attempt))

    queue.unblock(np.zeros((4, 0), np.int64))
    asleep = queue.waiting
    queue.unblock()

    assert (asleep, queue.waiting) == (2, 0)


def test_being_blocked_is_news_once():
    queue = a_queue(a_task())
    key = ("w0", "t0", 0)

    assert [queue.block(key), queue.block(key)] == [True, False]


class QueueMachine(RuleBasedStateMachine):
    """Pushes, drops and blocks in any order, beside a dict that does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ReadyQueue()
        self.workflow = a_queue_workflow()
        self.model: dict[tuple[str, str, int], bool] = {}

    @rule(name=st.sampled_from(NAMES), attempt=st.integers(0, 1))
    def push(self, name, attempt):
        self.queue.push(self.task(name), attempt)
        self.model.setdefault(("w0", name, attempt), False)

    @rule(count=st.integers(30, 70))
    def push_many(self, count):
        for name in NAMES[:count]:
            self.push(name, 0)

    @rule(name=st.sampled_from(NAMES), attempt=st.integers(0, 1))
    def drop(self, name, attempt):
        key = ("w0", name, attempt)
        assert self.queue.drop(key) == (self.model.pop(key, None) is not None)

    @rule(name=st.sampled_from(NAMES), attempt=st.integers(0, 1))
    def block(self, name, attempt):
        key = ("w0", name, attempt)
        if key in self.model:
            assert self.queue.block(key) == (not self.model[key])
            self.model[key] = True

    @rule()
    def unblock(self):
        self.queue.unblock()
        self.model = dict.fromkeys(self.model, False)

    @invariant()
    def holds_the_same(self):
        assert len(self.queue) == len(self.model)
        assert self.queue.waiting == sum(self.model.values())
        assert all(key in self.queue for key in self.model)
        candidates = {attempt_key(task, attempt) for task, attempt in everything(self.queue)}
        assert candidates == {key for key, is_blocked in self.model.items() if not is_blocked}

    def task(self, name: str) -> TaskState:
        task = self.workflow.get(name)
        assert task is not None
        return task


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=30, stateful_step_count=20)


def a_queue_workflow() -> Workflow:
    return from_record(a_workflow(*[a_task(name) for name in NAMES]), 0)


def a_queue(*tasks) -> ReadyQueue:
    queue = ReadyQueue()
    workflow = from_record(a_workflow(*tasks), 0) if tasks else None
    for task in workflow.tasks if workflow else ():
        queue.push(task, 0)
    return queue


def everything(queue: ReadyQueue) -> list[tuple[TaskState, int]]:
    rows = queue.candidates()
    return rows.first(len(rows), by_arrival(rows))
