"""Plans keep to the rules, make what the literature says they make, and happen as planned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.heuristics import heuristic
from policy.plan import Plan, build, cost
from policy.plan_bounds import lower_bound
from policy.plan_problem import Problem, in_order, problem_of, side_by_side
from policy.plan_trace import QUIET, decided_plan, trace_of
from policy.planners import PLANNERS
from policy.simulator import SimulatedCluster
from policy.summary import summarise
from schemas.errors import InvalidWorkflow
from schemas.records import Edge, EventKind, Taint
from tests.builders import GIB, START_MS, a_node, a_placement, a_task, a_workflow, some_nodes
from tests.plan_rules import Case, cases, violations

PLANNER_NAMES = st.sampled_from(sorted(PLANNERS))
Comm = dict[tuple[int, int], int]


def literature(run_tn: list[list[int]], comm: Comm) -> Problem:
    """A problem as papers have it: one task at a time on a processor, tasks numbered from 1."""
    parents_t: list[list[int]] = [[] for _ in run_tn]
    comm_t: list[list[int]] = [[] for _ in run_tn]
    for (parent, child), time in comm.items():
        parents_t[child - 1].append(parent - 1)
        comm_t[child - 1].append(time)
    tasks, nodes = len(run_tn), len(run_tn[0])
    whole = [1000, 0, 0, 0]
    return Problem(
        parents_t,
        run_tn,
        comm_t,
        np.array([whole] * tasks),
        np.array([whole] * nodes),
        np.ones((tasks, nodes), bool),
        [0.0] * nodes,
        side_by_side(parents_t, comm_t),
    )


TOPCUOGLU = literature(
    [
        *([14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10]),
        *([13, 16, 9], [7, 15, 11], [5, 11, 14], [18, 12, 20], [21, 7, 16]),
    ],
    {
        **{(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23},
        **{(4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13},
    },
)
"""Topcuoglu, Hariri, Wu 2002, figure 2 and table 1."""

ARABNEJAD = literature(
    [
        *([22, 21, 36], [22, 18, 18], [32, 27, 43], [7, 10, 4], [29, 27, 35]),
        *([26, 17, 24], [14, 25, 30], [29, 23, 36], [15, 21, 8], [13, 16, 33]),
    ],
    {
        **{(1, 2): 17, (1, 3): 31, (1, 4): 29, (1, 5): 13, (1, 6): 7, (2, 8): 3, (2, 9): 30, (3, 7): 16},
        **{(4, 8): 11, (4, 9): 7, (5, 9): 57, (6, 8): 5, (7, 10): 9, (8, 10): 42, (9, 10): 7},
    },
)
"""Arabnejad, Barbosa 2014, the sample of its section 5."""


@pytest.mark.parametrize(
    ("problem", "planner", "makespan"),
    [(TOPCUOGLU, "heft", 80), (TOPCUOGLU, "cpop", 86), (ARABNEJAD, "peft", 122), (ARABNEJAD, "heft", 133)],
    ids=["HEFT", "CPoP", "PEFT", "HEFT in PEFT's paper"],
)
def test_the_published_examples_come_out_as_published(problem: Problem, planner: str, makespan: int) -> None:
    assert PLANNERS[planner](problem).makespan_ms == makespan


def test_min_min_takes_the_shortest_task_first_and_max_min_the_longest() -> None:
    problem = literature([[2], [9], [5]], {})

    shortest, longest = PLANNERS["min_min"](problem), PLANNERS["max_min"](problem)

    assert shortest.order == [0, 2, 1]
    assert longest.order == [1, 2, 0]


def test_a_task_is_put_into_a_gap_that_is_long_enough_for_it() -> None:
    workflow = a_workflow(a_task("wide", 10, cpu=8), a_task("narrow", 10, cpu=2), a_task("short", 9, cpu=6))
    problem = problem_of(workflow, some_nodes(1))

    plan = build(problem, [1, 0, 2], [0, 0, 0])

    assert list(plan.come_ms_t) == [10_000, 0, 0]


def test_a_task_that_is_too_long_for_a_gap_waits() -> None:
    workflow = a_workflow(a_task("wide", 10, cpu=8), a_task("narrow", 10, cpu=2), a_task("long", 11, cpu=6))
    problem = problem_of(workflow, some_nodes(1))

    plan = build(problem, [1, 0, 2], [0, 0, 0])

    assert list(plan.come_ms_t) == [10_000, 0, 20_000]


def test_bytes_that_lie_elsewhere_come_through_the_link_of_the_node_one_after_the_other() -> None:
    child = a_task("c", 5, after=[Edge("a", 10**9), Edge("b", 2 * 10**9)])
    workflow = a_workflow(a_task("a", 5), a_task("b", 5), child)
    problem = problem_of(workflow, [a_node("n0", bandwidth_bytes_per_s=1e9), a_node("n1", bandwidth_bytes_per_s=5e8)])

    apart = build(problem, [0, 1, 2], [0, 0, 1])
    half = build(problem, [0, 1, 2], [0, 1, 0])

    assert (apart.come_ms_t[2], apart.start_ms_t[2], apart.finish_ms_t[2]) == (5000, 11_000, 16_000)
    assert (half.come_ms_t[2], half.start_ms_t[2], half.finish_ms_t[2]) == (5000, 7000, 12_000)


def test_a_node_costs_its_price_while_it_holds_anything() -> None:
    workflow = a_workflow(a_task("a", 1800), a_task("b", 3600), a_task("c", 1800, after=["b"]))
    problem = problem_of(workflow, [a_node("n0", price_per_hour=2.0), a_node("n1", price_per_hour=10.0)])

    assert cost(problem, build(problem, [0, 1, 2], [0, 0, 0])) == pytest.approx(3.0)
    assert cost(problem, build(problem, [0, 1, 2], [0, 0, 1])) == pytest.approx(2.0 + 5.0)


def test_a_task_that_no_node_may_run_is_named() -> None:
    workflow = a_workflow(a_task("fine"), a_task("odd", node_selector={"disk": "ssd"}))

    with pytest.raises(InvalidWorkflow, match="workflow w0: task 'odd': none of 1 nodes"):
        problem_of(workflow, [a_node(taints=(Taint("spot"),)), a_node("n1")][1:])


def test_the_bound_counts_work_that_lies_between_other_work() -> None:
    first, last = a_task("first", 10), a_task("last", 20, after=[f"m{i}" for i in range(6)])
    workflow = a_workflow(first, *(a_task(f"m{i}", 30, cpu=4, after=["first"]) for i in range(6)), last)

    assert lower_bound(problem_of(workflow, some_nodes(1))) == 10_000 + 3 * 30_000 + 20_000


def test_the_bound_knows_that_some_tasks_are_confined_to_some_nodes() -> None:
    workflow = a_workflow(*(a_task(f"t{i}", 10, gpu=1) for i in range(4)))
    with_gpu = a_node("gpu", gpu=1, gpu_memory_bytes=16 * GIB)

    assert lower_bound(problem_of(workflow, [with_gpu, *some_nodes(9)])) == 40_000


@settings(deadline=None)
@given(cases(), PLANNER_NAMES)
def test_every_plan_keeps_to_the_rules(case: Case, planner: str) -> None:
    workflow, specs = case

    plan = PLANNERS[planner](problem_of(workflow, specs))

    assert violations(workflow, specs, plan) == []


@settings(deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_so_does_every_plan_that_is_built_from_any_order_and_nodes(case: Case, random: st.random.Random) -> None:
    workflow, specs = case
    problem = problem_of(workflow, specs)
    order = in_order(problem, [random.random() for _ in range(problem.tasks)])

    plan = build(problem, order, [random.choice(allowed) for allowed in problem.allowed_t])

    assert violations(workflow, specs, plan) == []
    assert lower_bound(problem) <= plan.makespan_ms


@settings(deadline=None)
@given(cases(), PLANNER_NAMES)
def test_a_plan_built_again_in_its_own_order_is_nowhere_later(case: Case, planner: str) -> None:
    problem = problem_of(*case)
    plan = PLANNERS[planner](problem)

    again = build(problem, plan.order, plan.node_t)

    assert (np.array(again.finish_ms_t) <= plan.finish_ms_t).all()


def played(case: Case, plan: Plan) -> tuple[dict[str, tuple[int, int]], float]:
    """When each task started and finished on simulated nodes that got the plan's placements, and what they billed."""
    workflow, specs = case
    cluster = SimulatedCluster(workflow.pool, specs, QUIET, START_MS)
    events = cluster.learn(workflow)
    for at in plan.order:
        events += cluster.advance(START_MS + plan.come_ms_t[at])
        task_id, node_id = workflow.tasks[at].task_id, specs[plan.node_t[at]].node_id
        events += cluster.place(a_placement(node_id, task_id=task_id))
    events += cluster.advance(START_MS + plan.makespan_ms)
    times = {
        kind: {event.task_id: event.event_time_ms - START_MS for event in events if event.kind == kind}
        for kind in (EventKind.STARTED, EventKind.FINISHED)
    }
    started, finished = times.values()
    return {task_id: (started[task_id], finished[task_id]) for task_id in finished}, cluster._machines.cost_a.sum()


@settings(deadline=None)
@given(cases(), PLANNER_NAMES)
def test_a_plan_happens_on_the_simulated_nodes_as_planned_and_is_billed_as_said(case: Case, planner: str) -> None:
    problem = problem_of(*case)
    plan = PLANNERS[planner](problem)

    times, bill = played(case, plan)

    planned = zip(plan.start_ms_t, plan.finish_ms_t, strict=True)
    assert times == {task.task_id: span for task, span in zip(case[0].tasks, planned, strict=True)}
    if all(
        problem.request_t
    ):  # what rounding leaves of a node's shares is not 0 while a task is there that takes nothing
        assert bill == pytest.approx(cost(problem, plan), abs=1e-9)


@settings(deadline=None)
@given(cases(), PLANNER_NAMES)
def test_the_trace_of_a_plan_tells_the_plan(case: Case, planner: str) -> None:
    workflow, specs = case
    plan = PLANNERS[planner](problem_of(workflow, specs))

    trace = trace_of(workflow, specs, plan, planner)

    index = {task.task_id: at for at, task in enumerate(workflow.tasks)}
    attempts = {index[a.task_id]: a for a in trace.attempts()}
    assert trace.open_tasks == 0
    assert [attempts[at].reserved_s * 1000 for at in range(len(index))] == pytest.approx(list(plan.come_ms_t), abs=1e-3)
    assert [attempts[at].finish_s * 1000 for at in range(len(index))] == pytest.approx(list(plan.finish_ms_t))
    assert [attempts[at].node_id for at in range(len(index))] == [specs[node].node_id for node in plan.node_t]
    assert summarise(trace, specs, planner).makespan_s * 1000 == pytest.approx(plan.makespan_ms)


def test_what_a_policy_decides_task_by_task_is_a_plan_too() -> None:
    workflow = a_workflow(a_task("a", 10), a_task("b", 20, after=["a"]), a_task("c", 30, cpu=8, after=["a"]))
    specs = [a_node("n0"), a_node("n1", speed=2.0)]
    problem = problem_of(workflow, specs)

    plan = decided_plan(workflow, specs, problem, heuristic("heft"))

    assert violations(workflow, specs, plan) == []
    assert [specs[node].node_id for node in plan.node_t] == ["n1", "n0", "n1"]
    assert plan.makespan_ms == 5000 + 20_000
