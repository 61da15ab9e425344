"""The contract that every heuristic keeps, and the idea of each by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.constraints import Constraints
from policy.heuristics import HEURISTICS, heuristic
from schemas.errors import InvalidConfiguration
from schemas.records import Edge, EventKind
from tests.builders import (
    GIB,
    a_node,
    a_placement,
    a_state,
    a_task,
    an_event,
    an_observation,
    decided,
    some_nodes,
    submit,
)
from tests.dump import dump
from tests.strategies import pools

EVERY = pytest.mark.parametrize("policy", HEURISTICS.values(), ids=HEURISTICS.keys())
UNORDERED = pytest.mark.parametrize(
    "policy", [p for p in HEURISTICS.values() if p.name != "round_robin"], ids=lambda p: p.name
)
"""Those for which the order of the nodes means nothing."""


@EVERY
@given(pool=pools())
@settings(max_examples=15)
def test_scores_have_one_row_a_task_and_are_finite_where_a_node_is_feasible(policy, pool):
    seen = an_observation(pool.state())

    scores_bn = policy.score(seen)

    assert scores_bn.shape == (len(seen.tasks), len(pool.nodes))
    assert scores_bn.dtype == np.float32
    assert np.isfinite(scores_bn[seen.mask_bn]).all()


@EVERY
@given(pool=pools())
@settings(max_examples=15)
def test_a_second_look_finds_the_same_and_nothing_changed(policy, pool):
    state = pool.state()
    seen = an_observation(state)
    before, mask_bn, free_rn = dump(state), seen.mask_bn.copy(), seen.free_rn.copy()

    first_bn, second_bn = policy.score(seen), policy.score(seen)
    urgency_p = policy.urgency(state.queue.candidates())

    np.testing.assert_array_equal(first_bn, second_bn)
    np.testing.assert_array_equal(seen.mask_bn, mask_bn)
    np.testing.assert_array_equal(seen.free_rn, free_rn)
    assert np.isfinite(urgency_p).all()
    assert len(urgency_p) == len(state.queue)
    assert dump(state) == before


@UNORDERED
@given(pool=pools(), random=st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_the_order_of_the_nodes_does_not_matter(policy, pool, random):
    order = list(range(len(pool.nodes)))
    random.shuffle(order)
    seen, shuffled = an_observation(pool.state()), an_observation(pool.state(order))

    scores_bn = policy.score(shuffled)

    np.testing.assert_array_equal(shuffled.mask_bn, seen.mask_bn[:, order])
    np.testing.assert_allclose(
        scores_bn[shuffled.mask_bn], policy.score(seen)[:, order][shuffled.mask_bn], rtol=1e-5, atol=1e-6
    )


@EVERY
@given(pool=pools())
@settings(max_examples=15)
def test_no_task_is_placed_where_it_must_not_be(policy, pool):
    state = pool.state()
    overfull_rn = state.ledger.free_rn < 0
    allowed = {
        task.task_id: state.nodes.is_present_n
        & Constraints().mask(state, [state.workflows["w0"].get(task.task_id)], state.nodes.capacity_rn, state.fresh())[
            0
        ]
        for task in pool.tasks[1:]
        if "w0" in state.workflows
    }

    placements = decided(state, policy)

    assert all(allowed[p.task_id][state.nodes.index[p.node_id]] for p in placements if p.node_id)
    assert ((state.ledger.free_rn >= 0) | overfull_rn).all()


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(InvalidConfiguration, match="'kube_defualt' is unknown; did you mean 'kube_default'"):
        heuristic("kube_defualt")


def test_every_policy_is_found_by_its_own_name():
    assert {name: heuristic(name).name for name in HEURISTICS} == {name: name for name in HEURISTICS}


def test_random_uses_all_nodes_about_equally():
    state = a_state(*some_nodes(4, cpu=200.0, memory_bytes=200 * GIB))
    submit(state, *[a_task(f"t{i}") for i in range(200)])

    nodes = Counter(p.node_id for p in decided(state, heuristic("random")))

    assert set(nodes) == {"n0", "n1", "n2", "n3"}
    assert min(nodes.values()) > 30


def test_round_robin_goes_on_with_the_next_feasible_node():
    state = a_state(*some_nodes(2), a_node("tiny", cpu=0.5), a_node("n2"))
    submit(state, *[a_task(f"t{i}") for i in range(5)])

    placements = decided(state, heuristic("round_robin"))

    assert [p.node_id for p in placements] == ["n0", "n1", "n2", "n0", "n1"]


def test_sjf_places_the_shortest_task_first_and_where_it_ends_first():
    state = a_state(a_node("slow", cpu=1.0, speed=1.0), a_node("fast", cpu=1.0, speed=2.0))
    submit(state, a_task("long", 20.0), a_task("short", 10.0))

    placements = decided(state, heuristic("sjf"))

    assert [(p.task_id, p.node_id) for p in placements] == [("short", "fast"), ("long", "slow")]


def test_earliest_finish_counts_the_transfer_of_the_inputs():
    state = a_state(a_node("near", bandwidth_bytes_per_s=1e6), a_node("fast", speed=2.0, bandwidth_bytes_per_s=1e6))
    submit(state, a_task("parent"), a_task("child", 10.0, after=(Edge("parent", 20_000_000),)))
    state.apply(a_placement("near", task_id="parent"))
    for ready in state.apply(an_event(EventKind.FINISHED, task_id="parent")):
        state.apply(ready)

    (placement,) = decided(state, heuristic("heft"))

    assert (placement.node_id, placement.expected_s) == ("near", 10.0)  # on the fast node 5 s after 20 s of transfer


def test_srpt_prefers_the_workflow_with_the_least_work_left():
    state = a_state(a_node())
    submit(state, a_task("a", 1.0), a_task("b", 50.0), workflow_id="much")
    submit(state, a_task("c", 30.0), workflow_id="little")

    placements = decided(state, heuristic("srpt"))

    assert [p.task_id for p in placements] == ["c", "a", "b"]


def test_srcp_prefers_the_workflow_with_the_shortest_critical_path():
    state = a_state(a_node())
    submit(state, a_task("a", 30.0), workflow_id="long")
    submit(state, *[a_task(f"b{i}", 20.0) for i in range(3)], workflow_id="wide")

    placements = decided(state, heuristic("srcp"))

    assert [p.task_id for p in placements] == ["b0", "b1", "b2", "a"]


def test_gpu_nodes_are_spared_for_tasks_that_need_them():
    gpus = a_node("gpus", cpu=2.0, gpu=1, gpu_memory_bytes=GIB, speed=4.0)
    state = a_state(gpus, a_node("plain", cpu=1.0))
    submit(state, a_task("a"), a_task("b"), a_task("train", gpu=1))

    placed = {p.task_id: p.node_id for p in decided(state, heuristic("srcp_spare_gpu"))}

    assert placed == {"a": "plain", "b": "gpus", "train": "gpus"}


def test_tetris_fills_what_a_node_has_most_of():
    state = a_state(a_node("cpus", 8.0, 8 * GIB), a_node("memory", 8.0, 8 * GIB))
    submit(state, a_task("x", cpu=0.0, memory_bytes=6 * GIB), a_task("y", cpu=6.0, memory_bytes=0))
    state.apply(a_placement("cpus", task_id="x"))
    state.apply(a_placement("memory", task_id="y"))
    submit(
        state,
        a_task("hungry", cpu=0.5, memory_bytes=GIB),
        a_task("busy", cpu=1.0, memory_bytes=GIB // 2),
        workflow_id="w1",
    )

    placed = {p.task_id: p.node_id for p in decided(state, heuristic("tetris"))}

    assert placed == {"hungry": "memory", "busy": "cpus"}


def test_tetris_scores_are_the_alignment_of_shares():
    state = a_state(a_node(cpu=8.0, memory_bytes=4 * GIB))
    submit(state, a_task("held", cpu=4.0, memory_bytes=GIB), a_task("next", cpu=2.0, memory_bytes=GIB))
    state.apply(a_placement(task_id="held"))

    scores_bn = heuristic("tetris").score(an_observation(state))

    assert scores_bn == pytest.approx(2 / 8 * 4 / 8 + 1 / 4 * 3 / 4)


def test_heft_places_the_task_with_the_longest_way_to_the_end_first():
    state = a_state(a_node())
    submit(state, a_task("b", 15.0), a_task("a", 10.0), a_task("after a", 10.0, after=("a",)))

    placements = decided(state, heuristic("heft"))

    assert [p.task_id for p in placements] == ["a", "b"]


def test_cost_greedy_takes_the_cheapest_run_and_of_equal_ones_the_earliest_finish():
    dear = a_node("dear", cpu=1.0, speed=2.0, price_per_hour=3.0)
    cheap = [a_node(f"cheap{i}", cpu=1.0, speed=speed, price_per_hour=speed) for i, speed in enumerate((0.5, 1.0))]
    state = a_state(dear, *cheap)
    submit(state, *[a_task(f"t{i}", memory_bytes=0) for i in range(3)])

    placements = decided(state, heuristic("cost_greedy"))

    assert [p.node_id for p in placements] == ["cheap1", "cheap0", "dear"]
