from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.dag import check_fits, check_workflow, topological_order
from schemas.errors import InvalidWorkflow
from schemas.records import (
    Edge,
    Env,
    NodeSpec,
    Preference,
    Spread,
    Task,
    WorkflowClass,
    WorkflowSubmitted,
)

GIB = 2**30


def a_task(task_id="a", *parents, **fields):
    return Task(task_id, **{"runtime_s": 10.0} | fields, parents=tuple(Edge(parent) for parent in parents))


def a_workflow(*tasks, **fields):
    workflow = WorkflowSubmitted("pool", "wf", 0, "wf", WorkflowClass.MIXED, Env.TEST, tasks)
    return replace(workflow, **fields)


@st.composite
def dags(draw, most=30):
    """Tasks of a DAG in any order, their edges going from lower to higher numbers."""
    count = draw(st.integers(1, most))
    tasks = []
    for i in range(count):
        parents = draw(st.sets(st.integers(0, i - 1), max_size=4)) if i else set()
        tasks.append(a_task(f"t{i}", *(f"t{parent}" for parent in parents)))
    return draw(st.permutations(tasks))


def ancestors_of(task_id, tasks):
    parents_of = {task.task_id: [edge.task_id for edge in task.parents] for task in tasks}
    found, waiting = set(), list(parents_of[task_id])
    while waiting:
        if (at := waiting.pop()) not in found:
            found.add(at)
            waiting.extend(parents_of[at])
    return found


@settings(deadline=None)
@given(dags())
def test_every_dag_passes(tasks):
    check_workflow(a_workflow(*tasks), "event")


@settings(deadline=None)
@given(dags())
def test_the_order_has_every_task_once_and_parents_before_children(tasks):
    order = topological_order(tasks)

    assert sorted(order) == list(range(len(tasks)))
    position = {tasks[i].task_id: place for place, i in enumerate(order)}
    for task in tasks:
        assert all(position[edge.task_id] < position[task.task_id] for edge in task.parents)


@settings(deadline=None)
@given(dags(most=7), st.data())
def test_a_dag_with_an_edge_back_to_an_ancestor_is_refused_with_the_cycle(tasks, data):
    pairs = [(old, task.task_id) for task in tasks for old in sorted(ancestors_of(task.task_id, tasks))]
    assume(pairs)
    ancestor, descendant = data.draw(st.sampled_from(pairs))
    cyclic = [
        replace(task, parents=(*task.parents, Edge(descendant))) if task.task_id == ancestor else task for task in tasks
    ]

    with pytest.raises(InvalidWorkflow, match="event: tasks wait for each other: ") as caught:
        check_workflow(a_workflow(*cyclic), "event")

    names = [name.strip("'") for name in caught.value.problem.removeprefix("tasks wait for each other: ").split(" -> ")]
    parents_of = {task.task_id: {edge.task_id for edge in task.parents} for task in cyclic}
    assert names[0] == names[-1]
    assert {ancestor, descendant} <= set(names)
    assert all(parent in parents_of[child] for parent, child in pairwise(names))


def test_the_order_keeps_the_files_order_where_it_may():
    assert topological_order([a_task("a"), a_task("b"), a_task("c", "a", "b"), a_task("d")]) == [0, 1, 3, 2]


def test_a_chain_of_a_hundred_thousand_tasks_is_ordered():
    tasks = [a_task("t0"), *(a_task(f"t{i}", f"t{i - 1}") for i in range(1, 100_000))]

    assert topological_order(tasks[::-1]) == list(range(99_999, -1, -1))


def test_a_long_cycle_is_shown_by_its_ends():
    tasks = [a_task(f"t{i}", f"t{(i - 1) % 1000}") for i in range(1000)]

    with pytest.raises(InvalidWorkflow) as caught:
        topological_order(tasks, "big.yaml")

    assert "(994 more)" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_tasks_behind_a_cycle_are_not_named_in_it():
    tasks = [a_task("behind", "b"), a_task("a", "b"), a_task("b", "a"), a_task("before")]

    with pytest.raises(InvalidWorkflow, match=r"'a' -> 'b' -> 'a'|'b' -> 'a' -> 'b'"):
        check_workflow(a_workflow(*tasks), "event")


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ((), "event: the workflow has no tasks; give it at least one"),
        ((a_task(""),), "event: task number 1: the task_id is empty"),
        ((a_task("a"), a_task("b"), a_task("a")), "event: task 'a': is both number 1 and number 3"),
        ((a_task("a\nb"),), r"event: task number 1: the task_id 'a\\nb' has .* unprintable characters"),
        ((a_task("x" * 254),), "event: task number 1: the task_id 'x+...' has more than 253"),
        ((a_task("a", "b"),), "event: task 'a': its parent 'b' is no task of this workflow; correct the parent's id"),
        ((a_task("a", "a"),), "event: task 'a': is its own parent"),
        ((a_task("a"), a_task("b", "a", "a")), "event: task 'b': names its parent 'a' twice"),
    ],
)
def test_a_broken_graph_is_refused_with_place_task_and_remedy(tasks, problem):
    with pytest.raises(InvalidWorkflow, match=problem) as caught:
        check_workflow(a_workflow(*tasks), "event")

    assert caught.value.remedy


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"runtime_s": 0.0}, "the runtime of 0 s is not above 0"),
        ({"runtime_s": -1.0}, "the runtime of -1 s"),
        ({"runtime_s": math.nan}, "the runtime of nan s"),
        ({"runtime_s": math.inf}, "the runtime of inf s"),
        ({"runtime_s": 1e12}, "the runtime of 1e\\+12 s"),
        ({"cpu": -0.5}, "cpu is -0.5; it must be from 0 to"),
        ({"cpu": math.nan}, "cpu is nan"),
        ({"cpu": math.inf}, "cpu is inf"),
        ({"memory_bytes": -1}, "memory is -1"),
        ({"memory_bytes": 2**62}, "memory is 4.6"),
        ({"gpu": -1}, "gpu is -1"),
        ({"gpu_memory_bytes": -1}, "gpu_memory is -1"),
        ({"priority": 11}, "priority is 11; it must be from 0 to 10"),
        ({"priority": -1}, "priority is -1"),
        ({"preferences": (Preference(0, "zone", ("a",)),)}, "a preference has the weight 0"),
        ({"preferences": (Preference(101, "zone", ("a",)),)}, "a preference has the weight 101"),
        ({"spread": (Spread("zone", 0),)}, "a spread has max_skew 0"),
    ],
)
def test_a_task_that_asks_for_the_impossible_is_refused(fields, problem):
    with pytest.raises(InvalidWorkflow, match=f"event: task 'bad': {problem}"):
        check_workflow(a_workflow(a_task("good"), a_task("bad", **fields)), "event")


@pytest.mark.parametrize("size", [-1, 2**62])
def test_an_edge_of_impossible_size_is_refused(size):
    child = replace(a_task("b"), parents=(Edge("a", size),))

    with pytest.raises(InvalidWorkflow, match=f"task 'b': its parent 'a' hands on {size} bytes"):
        check_workflow(a_workflow(a_task("a"), child), "event")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"workflow_id": ""}, "the workflow_id is empty"),
        ({"pool": ""}, "the pool is empty"),
        ({"deadline_s": 0.0}, "the deadline of 0 s is not above 0"),
        ({"deadline_s": -5.0}, "the deadline of -5 s"),
        ({"deadline_s": math.nan}, "the deadline of nan s"),
    ],
)
def test_a_workflow_without_id_pool_or_time_is_refused(fields, problem):
    with pytest.raises(InvalidWorkflow, match=f"event: {problem}"):
        check_workflow(a_workflow(a_task(), **fields), "event")


NODES = (
    NodeSpec("small", cpu=8, memory_bytes=32 * GIB),
    NodeSpec("wide", cpu=64, memory_bytes=64 * GIB),
    NodeSpec("gpu", cpu=16, memory_bytes=64 * GIB, gpu=2, gpu_memory_bytes=16 * GIB),
)


def test_tasks_as_large_as_the_largest_node_fit():
    check_fits(
        a_workflow(
            a_task("a", cpu=64.0, memory_bytes=64 * GIB),
            a_task("b", cpu=16.0, memory_bytes=64 * GIB, gpu=2, gpu_memory_bytes=16 * GIB),
            a_task("c", cpu=0.0),
        ),
        NODES,
        "etl.yaml",
    )


def test_cores_are_compared_as_the_ledger_counts_them():
    check_fits(a_workflow(a_task(cpu=0.1 + 0.2)), [NodeSpec("n", cpu=0.3, memory_bytes=GIB)], "etl.yaml")


@pytest.mark.parametrize(
    ("fields", "asked", "nearest"),
    [
        ({"cpu": 64.001}, "64.001 cpu, 0 GiB memory", "'wide', has 64 cpu, 64 GiB memory"),
        ({"memory_bytes": 65 * GIB}, "1 cpu, 65 GiB memory", "'wide', has 64 cpu, 64 GiB memory"),
        ({"gpu": 4, "gpu_memory_bytes": GIB}, "4 gpu of 1 GiB", "'gpu', has 16 cpu, 64 GiB memory, 2 gpu of 16 GiB"),
        ({"gpu": 1, "gpu_memory_bytes": 24 * GIB}, "1 gpu of 24 GiB", "'gpu', has"),
        ({"cpu": 32.0, "gpu": 1}, "32 cpu, 0 GiB memory, 1 gpu of 0 GiB", "'gpu', has"),
    ],
)
def test_a_task_larger_than_any_node_is_refused_with_what_it_asks_and_what_there_is(fields, asked, nearest):
    with pytest.raises(InvalidWorkflow) as caught:
        check_fits(a_workflow(a_task("fits"), a_task("big", **fields)), NODES, "etl.yaml")

    assert str(caught.value).startswith("etl.yaml: task 'big': asks for ")
    assert asked in caught.value.problem
    assert f"which none of 3 nodes has; the largest for it, {nearest}" in caught.value.problem


def test_nothing_fits_where_there_are_no_nodes():
    with pytest.raises(InvalidWorkflow, match="which none of 0 nodes has; ask for less, or add a larger node"):
        check_fits(a_workflow(a_task()), [], "etl.yaml")


@settings(deadline=None)
@given(dags(most=12), st.data())
def test_a_workflow_fits_exactly_when_each_task_fits_some_node(tasks, data):
    cores = data.draw(st.lists(st.integers(0, 80), min_size=len(tasks), max_size=len(tasks)))
    gpus = data.draw(st.lists(st.integers(0, 3), min_size=len(tasks), max_size=len(tasks)))
    sized = [replace(task, cpu=float(c), gpu=g) for task, c, g in zip(tasks, cores, gpus, strict=True)]
    fits = all(any(c <= node.cpu and g <= node.gpu for node in NODES) for c, g in zip(cores, gpus, strict=True))

    if fits:
        check_fits(a_workflow(*sized), NODES, "event")
    else:
        with pytest.raises(InvalidWorkflow):
            check_fits(a_workflow(*sized), NODES, "event")
