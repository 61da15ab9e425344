"""The hard constraints, as masks and as counted reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from policy.constraints import REASONS, Constraints, in_words
from policy.state import State
from policy.workflows import TaskState
from schemas.errors import InvalidConfiguration
from schemas.records import Effect, Taint, Task, Toleration
from tests.builders import GIB, a_lost_node, a_node, a_placement, a_ready, a_state, a_task, some_metrics, submit
from tests.strategies import pools


@given(pool=pools())
@settings(max_examples=50)
def test_every_node_that_is_masked_has_exactly_one_counted_reason(pool):
    state = pool.state()
    tasks = [t for w in state.workflows.values() for t in w.tasks]
    constraints, free_rn, fresh_n = Constraints(), state.ledger.free_rn, state.fresh()

    mask_bn = constraints.mask(state, tasks, free_rn, fresh_n)

    for task, mask_n in zip(tasks, mask_bn, strict=True):
        reasons = constraints.rejections(state, task, free_rn, fresh_n)
        assert sum(reasons.values()) == (~mask_n).sum()
        assert set(reasons) <= set(REASONS)


@given(pool=pools())
@settings(max_examples=50)
def test_what_fits_now_could_fit_ever(pool):
    state = pool.state()
    constraints = Constraints()

    for task in [t for w in state.workflows.values() for t in w.tasks]:
        mask_bn = constraints.mask(state, [task], state.ledger.free_rn, state.fresh())
        assert constraints.could_ever(state, task) or not mask_bn.any()


@pytest.mark.parametrize(
    ("node", "task", "reason"),
    [
        (a_node(cpu=0.9), a_task(), "cpu"),
        (a_node(memory_bytes=GIB - 1), a_task(), "memory"),
        (a_node(gpu=1), a_task(gpu=2), "gpu"),
        (a_node(gpu=2, gpu_memory_bytes=4 * GIB), a_task(gpu=1, gpu_memory_bytes=5 * GIB), "device"),
        (a_node(labels={"disk": "hdd"}), a_task(node_selector={"disk": "ssd"}), "selector"),
        (a_node(), a_task(node_selector={"disk": ""}), "selector"),
        (a_node(taints=(Taint("gpu"),)), a_task(), "taint"),
        (a_node(taints=(Taint("gpu", "a"),)), a_task(tolerations=(Toleration("gpu", "b"),)), "taint"),
        (
            a_node(taints=(Taint("gpu"),)),
            a_task(tolerations=(Toleration("gpu", None, Effect.PREFER_NO_SCHEDULE),)),
            "taint",
        ),
    ],
)
def test_a_node_that_lacks_something_is_masked_for_that_reason(node, task, reason):
    state = a_state(node)

    assert not mask_of(state, task)[0]
    assert reasons_of(state, task) == {reason: 1}


@pytest.mark.parametrize(
    ("node", "task"),
    [
        (a_node(cpu=1.0, memory_bytes=GIB), a_task()),
        (a_node(cpu=0.3), a_task(cpu=0.1 + 0.2)),
        (a_node(gpu=2, gpu_memory_bytes=4 * GIB), a_task(gpu=2, gpu_memory_bytes=4 * GIB)),
        (a_node(gpu=0), a_task(gpu_memory_bytes=GIB)),
        (a_node(labels={"disk": "ssd", "zone": "a"}), a_task(node_selector={"disk": "ssd"})),
        (a_node(taints=(Taint("gpu", "a"),)), a_task(tolerations=(Toleration("gpu", "a"),))),
        (a_node(taints=(Taint("gpu", "a"), Taint("x"))), a_task(tolerations=(Toleration(),))),
        (a_node(taints=(Taint("spot", "", Effect.PREFER_NO_SCHEDULE),)), a_task()),
    ],
)
def test_a_node_with_exactly_what_is_asked_for_takes_the_task(node, task):
    state = a_state(node)

    assert mask_of(state, task)[0]
    assert reasons_of(state, task) == {}


def test_what_is_reserved_is_not_free():
    state = a_state(a_node(cpu=2.0))
    submit(state, a_task("t0", cpu=1.5), a_task("t1", cpu=1.0))
    state.apply(a_placement(task_id="t0"))

    mask_bn = Constraints().mask(state, [state.workflows["w0"].tasks[1]], state.ledger.free_rn, state.fresh())

    assert not mask_bn.any()


def test_an_excluded_node_is_masked_and_one_that_is_unknown_does_not_matter():
    state = a_state(a_node("n0"), a_node("n1"))
    state.apply(a_ready(a_task(), excluded_nodes=("n0", "elsewhere")))
    task = state.workflows["w0"].tasks[0]

    mask_bn = Constraints().mask(state, [task], state.ledger.free_rn, state.fresh())

    assert mask_bn.tolist() == [[False, True]]
    assert Constraints().rejections(state, task, state.ledger.free_rn, state.fresh()) == {"excluded": 1}


def test_lost_and_silent_nodes_are_told_apart():
    state = a_state(a_node("n0"), a_node("n1"), a_node("n2"), a_node("n3"))
    state.apply(some_metrics("n2", "n3", at_s=61))
    state.apply(a_lost_node("n0", at_s=61))

    assert mask_of(state, a_task()).tolist() == [False, False, True, True]
    assert reasons_of(state, a_task(gpu=1)) == {"gone": 1, "stale": 1, "gpu": 2}


def test_a_changed_node_is_judged_anew():
    node = a_node(labels={"disk": "hdd"})
    state, task, constraints = a_state(node), a_task(node_selector={"disk": "ssd"}), Constraints()
    before = mask_of(state, task, constraints)

    state.apply(some_metrics(replace(node, labels={"disk": "ssd"}), at_s=1))

    assert [before.tolist(), mask_of(state, task, constraints).tolist()] == [[False], [True]]


def test_a_rule_of_the_user_masks_nodes_and_is_counted():
    state = a_state(a_node("n0", labels={"zone": "a"}), a_node("n1", labels={"zone": "b"}))
    constraints = Constraints(["node.labels.zone == 'b' or task.critical"])

    assert mask_of(state, a_task(), constraints).tolist() == [False, True]
    assert mask_of(state, a_task(critical=True), constraints).tolist() == [True, True]
    assert reasons_of(state, a_task(), constraints) == {"rule": 1}


def test_a_rule_sees_what_is_free_now_and_what_was_measured_last():
    state = a_state(a_node("n0"), a_node("n1"))
    submit(state, a_task(cpu=6.0))
    state.apply(a_placement("n0"))
    state.apply(some_metrics("n1", at_s=1, values_nm=np.full((1, 8), 0.7)))

    assert mask_of(state, a_task(), Constraints(["node.cpu_free > 4"])).tolist() == [False, True]
    assert mask_of(state, a_task(), Constraints(["node.cpu_utilisation < 0.5"])).tolist() == [True, False]


def test_a_rule_sees_the_workflow_of_the_task():
    state = a_state(a_node())
    submit(state, a_task(), workflow_id="w0")
    task = state.workflows["w0"].tasks[0]

    for rule, is_ok in (("task.workflow_class == 'etl_batch'", True), ("task.env == 'prod'", False)):
        mask_bn = Constraints([rule]).mask(state, [task], state.ledger.free_rn, state.fresh())
        assert mask_bn.tolist() == [[is_ok]]


def test_a_rule_about_what_there_is_not_is_refused():
    with pytest.raises(InvalidConfiguration, match="cpu_fre"):
        Constraints(["node.cpu_fre > 1"])


def test_what_fits_on_no_node_even_empty_could_never_run():
    state = a_state(a_node(cpu=4.0), a_node("n1", cpu=8.0, taints=(Taint("x"),)))

    assert not Constraints().could_ever(state, waiting(state, a_task(cpu=5.0)))
    assert Constraints().could_ever(state, waiting(state, a_task(cpu=4.0)))


def test_a_lost_node_could_come_back():
    state = a_state(a_node())
    state.apply(a_lost_node(at_s=1))

    assert Constraints().could_ever(state, waiting(state, a_task()))


def test_the_largest_count_is_said_first():
    assert in_words({"stale": 4, "gpu": 12}, 16) == "0/16 nodes: 12 too little gpu, 4 stale"
    assert in_words({}, 0) == "0/0 nodes: no node of the pool is known yet"


def waiting(state: State, task: Task) -> TaskState:
    """The task in a workflow of its own."""
    workflow_id = f"w{len(state.workflows)}"
    submit(state, task, workflow_id=workflow_id)
    return state.workflows[workflow_id].tasks[0]


def mask_of(state: State, task: Task, constraints: Constraints | None = None) -> np.ndarray:
    tasks = [waiting(state, task)]
    return (constraints or Constraints()).mask(state, tasks, state.ledger.free_rn, state.fresh())[0]


def reasons_of(state: State, task: Task, constraints: Constraints | None = None) -> dict[str, int]:
    chosen = constraints or Constraints()
    return dict(chosen.rejections(state, waiting(state, task), state.ledger.free_rn, state.fresh()))
