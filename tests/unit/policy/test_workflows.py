"""Live workflows: ranks, what is left, and which children become due."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.workflows import Status, from_ready, from_record, roots
from schemas.records import Edge, Task
from tests.builders import a_ready, a_task, a_workflow


@st.composite
def dags(draw: st.DrawFn) -> tuple[Task, ...]:
    """Tasks in an order of which parents know nothing."""
    count = draw(st.integers(1, 9))
    runtimes = draw(st.lists(st.sampled_from((0.5, 1.0, 4.0)), min_size=count, max_size=count))
    parents = [draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3)) if i else [] for i in range(count)]
    tasks = [a_task(f"t{i}", runtimes[i], after=[f"t{p}" for p in parents[i]]) for i in range(count)]
    return tuple(draw(st.permutations(tasks)))


@given(dags())
def test_the_upward_rank_is_the_longest_way_to_the_end(tasks):
    workflow = from_record(a_workflow(*tasks), 0)

    @cache
    def way_s(task_id: str) -> float:
        after = [t.task_id for t in tasks if any(e.task_id == task_id for e in t.parents)]
        return by_id(tasks)[task_id].runtime_s + max(map(way_s, after), default=0.0)

    assert {t.task.task_id: t.rank_s for t in workflow.tasks} == {t.task_id: way_s(t.task_id) for t in tasks}
    assert workflow.path_s == max(way_s(t.task_id) for t in tasks)


@given(dags(), st.randoms(use_true_random=False))
def test_a_child_becomes_due_once_when_its_last_parent_is_done(tasks, random):
    workflow = from_record(a_workflow(*tasks), 0)
    due = [t.task.task_id for t in roots(workflow)]
    done: set[str] = set()
    seen = list(due)

    while due:
        task_id = due.pop(random.randrange(len(due)))
        done.add(task_id)
        new = [t.task.task_id for t in workflow.end(workflow.tasks[workflow.index[task_id]], Status.DONE)]
        assert all({e.task_id for e in by_id(tasks)[n].parents} <= done for n in new)
        due += new
        seen += new
        left = [t for t in tasks if t.task_id not in done]
        assert workflow.work_s == pytest.approx(sum(t.runtime_s for t in left))
        assert workflow.path_s == pytest.approx(
            max((workflow.tasks[workflow.index[t.task_id]].rank_s for t in left), default=0.0)
        )

    assert sorted(seen) == sorted(t.task_id for t in tasks)
    assert workflow.is_complete


def test_a_refused_task_leaves_its_children_waiting_and_the_workflow_stuck():
    workflow = from_record(a_workflow(a_task("a"), a_task("b", after=("a",))), 0)

    due = list(workflow.end(workflow.tasks[0], Status.REFUSED))

    assert due == []
    assert (workflow.is_complete, workflow.is_stuck, workflow.refused) == (False, True, 1)


def test_two_edges_from_one_parent_are_two_parents_done_at_once():
    workflow = from_record(a_workflow(a_task("a"), a_task("b", after=(Edge("a", 1), Edge("a", 2)))), 0)

    due = list(workflow.end(workflow.tasks[0], Status.DONE))

    assert [t.task.task_id for t in due] == ["b"]


def test_an_open_workflow_takes_in_tasks_one_by_one():
    workflow = from_ready(a_ready(a_task("a", 5.0)))

    workflow.add(a_task("a", 5.0))
    workflow.add(a_task("b", 3.0))

    assert workflow.is_open
    assert (workflow.work_s, workflow.path_s) == (8.0, 5.0)
    assert workflow.get("b") is workflow.tasks[1]
    assert workflow.get("c") is None


def by_id(tasks: tuple[Task, ...]) -> dict[str, Task]:
    return {t.task_id: t for t in tasks}
