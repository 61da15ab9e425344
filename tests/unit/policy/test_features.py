"""What the actor is shown: the formulas by hand, and what must hold of them whatever the pool."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from policy import features
from policy.encodings import dag_of, node_inputs
from policy.features import GRAPH_FEATURES, NODE_FEATURES, PAIR_FEATURES, TASK_FEATURES, WINDOW_FEATURES
from policy.pair_features import FINISH, Workspace, pair_features
from policy.windows import STEPS
from schemas.records import (
    METRICS,
    Edge,
    Effect,
    EventKind,
    Preference,
    Spread,
    Taint,
    Toleration,
    WorkflowClass,
)
from tests.builders import (
    GIB,
    a_node,
    a_placement,
    a_ready,
    a_state,
    a_task,
    an_event,
    an_observation,
    some_metrics,
    some_nodes,
    submit,
)
from tests.strategies import pools


def pairs(seen):
    """Of each pair feature its values [B, N]."""
    pair_bpn = pair_features(seen, features.free_shares(seen), Workspace())
    return {name: pair_bpn[:, at] for at, name in enumerate(PAIR_FEATURES)}


def column(array_f, names, name):
    return array_f[..., names.index(name)]


def test_a_window_is_scaled_and_what_was_not_measured_has_no_mask_bit():
    state = a_state(a_node())
    values_nm = np.full((1, len(METRICS)), np.nan)
    values_nm[0, METRICS.index("cpu_utilisation")] = 0.5
    values_nm[0, METRICS.index("network_bytes_per_s")] = np.expm1(10.0)
    state.apply(some_metrics("n0", at_s=15.0, values_nm=values_nm))

    window_tf = features.window_features(state.windows.read(1))[0]

    assert window_tf.shape == (STEPS, len(WINDOW_FEATURES))
    last_f = window_tf[-1]
    assert column(last_f, WINDOW_FEATURES, "cpu_utilisation") == 0.5
    assert column(last_f, WINDOW_FEATURES, "network_bytes_per_s") == pytest.approx(0.5)
    assert column(last_f, WINDOW_FEATURES, "cpu_utilisation_measured") == 1
    assert column(last_f, WINDOW_FEATURES, "disk_utilisation_measured") == 0
    assert column(window_tf, WINDOW_FEATURES, "cpu_utilisation_measured").tolist() == [0] * (STEPS - 2) + [1, 1]
    assert np.isfinite(window_tf).all()


def test_a_metric_beyond_all_measure_is_cut():
    state = a_state(a_node())
    state.apply(some_metrics("n0", at_s=15.0, values_nm=np.full((1, len(METRICS)), 1e30)))

    window_tf = features.window_features(state.windows.read(1))[0]

    assert window_tf.max() == 2


def test_a_node_is_shown_with_what_is_free_of_it():
    state = a_state(a_node(cpu=8.0, speed=2.0, price_per_hour=1.0), a_node("n1", gpu=2, gpu_memory_bytes=16 * GIB))
    submit(state, a_task(cpu=2.0))
    state.apply(a_placement("n0"))

    node_nf = node_inputs(state).node_nf

    assert node_nf.shape == (2, len(NODE_FEATURES))
    assert column(node_nf, NODE_FEATURES, "cpu_free").tolist() == [0.75, 1.0]
    assert column(node_nf, NODE_FEATURES, "has_gpu").tolist() == [0.0, 1.0]
    assert column(node_nf, NODE_FEATURES, "speed")[0] == pytest.approx(np.log(2))
    assert column(node_nf, NODE_FEATURES, "gpu_memory_free").tolist() == [0.0, 1.0]


def test_a_graph_has_every_edge_both_ways_and_each_task_to_itself():
    state = a_state(a_node())
    submit(state, a_task("a"), a_task("b", after=["a"]), a_task("c", after=["a", "b"]))

    graph = features.graphs([state.workflows["w0"].tasks])

    edges = sorted(zip(*graph.edges_2e.tolist(), strict=True))
    assert edges == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


def test_a_lone_task_still_has_an_edge():
    state = a_state(a_node())
    submit(state, a_task())

    graph = features.graphs([state.workflows["w0"].tasks])

    assert graph.edges_2e.tolist() == [[0], [0]]


def test_graphs_side_by_side_are_the_same_as_each_alone():
    state = a_state(a_node())
    submit(state, a_task("a"), a_task("b", after=["a"]))
    submit(state, a_task("c"), a_task("d", after=["c"]), a_task("e", after=["d"]), workflow_id="w1")
    dags = [workflow.tasks for workflow in state.workflows.values()]

    both, alone = features.graphs(dags), [features.graphs([dag]) for dag in dags]

    edges = {tuple(edge) for edge in both.edges_2e.T.tolist()}
    assert edges == {tuple(e) for e in alone[0].edges_2e.T} | {tuple(e) for e in alone[1].edges_2e.T + 2}
    assert both.graph_tf.tolist() == np.concatenate([g.graph_tf for g in alone]).tolist()
    assert both.weight_gt[0].tolist() == [*alone[0].weight_gt[0], 0, 0, 0]
    assert both.weight_gt[1].tolist() == [0, 0, *alone[1].weight_gt[0]]


def test_a_dag_is_weighted_by_priority_and_criticality():
    state = a_state(a_node())
    submit(state, a_task("a", priority=10), a_task("b", critical=True), a_task("c", priority=10, critical=True))

    graph = features.graphs([state.workflows["w0"].tasks])

    assert graph.weight_gt[0] == pytest.approx(np.array([2, 2, 3]) / 7)


def test_the_fixed_features_of_a_task_begin_as_the_contract_says():
    state = a_state(a_node())
    submit(
        state,
        a_task("a"),
        a_task("b", 100.0, after=["a"], cpu=3.0, memory_bytes=7 * GIB, gpu=1, priority=4, critical=True),
        a_task("c", after=["b"]),
        a_task("d", 50.0, after=["b"]),
        workflow_class=WorkflowClass.AI_TRAINING,
    )

    b_f = features.graph_features(state.workflows["w0"].tasks)[1]

    by_hand = [np.log(101) / 5, np.log(4) / 2, np.log(8) / 3, np.log(2), 0.4, 1, np.log(2) / 2, np.log(3) / 2]
    assert b_f[:8] == pytest.approx(by_hand)
    assert column(b_f, GRAPH_FEATURES, "rank") == pytest.approx(np.log(151) / 5)
    assert column(b_f, GRAPH_FEATURES, "is_ai_training") == 1
    assert sum(b_f[9:]) == 1


def test_the_changing_features_of_a_task_follow_its_workflow():
    state = a_state(a_node())
    submit(state, a_task("a", 9.0), a_task("b", 30.0, after=["a"]), a_task("c", 99.0))

    task_bf = features.task_features(an_observation(state))

    assert column(task_bf, TASK_FEATURES, "remaining_path") == pytest.approx([np.log(100) / 5] * 2)
    assert column(task_bf, TASK_FEATURES, "remaining_work") == pytest.approx([np.log(139) / 8] * 2)
    assert column(task_bf, TASK_FEATURES, "attempt").tolist() == [0, 0]


def test_the_pool_is_shown_by_what_is_free_of_the_nodes_that_have_any():
    state = a_state(a_node(cpu=8.0), a_node("n1", cpu=8.0), a_node("n2", cpu=8.0, gpu=4))
    submit(state, a_task("a", cpu=6.0), a_task("b", gpu=1), a_task("c"))
    state.apply(a_placement("n0", task_id="a"))
    state.apply(a_placement("n2", task_id="b"))
    seen = an_observation(state)

    pool_f = features.pool_features(seen, features.free_shares(seen))

    assert pool_f[0] == pytest.approx((0.25 + 1 + 0.875) / 3)
    assert pool_f[2] == pytest.approx(0.75)
    assert pool_f[3] == pytest.approx(np.log(2) / 4)


def test_finish_is_the_earliest_feasible_finish_over_each_nodes():
    state = a_state(a_node("n0", speed=4.0, cpu=1.0), a_node("n1", speed=2.0), a_node("n2"))
    submit(state, a_task(runtime_s=10.0, cpu=2.0))

    finish_n = pairs(an_observation(state))["finish"][0]

    assert finish_n[1:] == pytest.approx([1.0, 0.5])


def test_transfers_are_shown_as_a_share_of_the_time_and_inputs_as_a_share_of_the_bytes():
    state = a_state(*some_nodes(2, bandwidth_bytes_per_s=1e6))
    submit(state, a_task("a"), a_task("b", 10.0, after=[Edge("a", 10_000_000)]))
    state.apply(a_placement("n1", task_id="a"))
    for ready in state.apply(an_event(EventKind.FINISHED, task_id="a", node_id="n1")):
        state.apply(ready)

    shown = pairs(an_observation(state))

    assert shown["transfer_share"][0] == pytest.approx([0.5, 0.0])
    assert shown["local_share"][0] == pytest.approx([0.0, 1.0])
    assert shown["finish"][0] == pytest.approx([0.5, 1.0])


def test_cost_is_the_cheapest_feasible_run_over_each_nodes():
    state = a_state(
        a_node("n0", cpu=8.0, price_per_hour=1.0),
        a_node("n1", cpu=8.0, price_per_hour=2.0),
        a_node("n2", cpu=16.0, price_per_hour=2.0),
        a_node("n3", cpu=8.0, price_per_hour=4.0, speed=2.0),
    )
    submit(state, a_task(cpu=4.0, memory_bytes=0))

    cost_n = pairs(an_observation(state))["cost"][0]

    assert cost_n == pytest.approx([1.0, 0.5, 1.0, 0.5])


def test_nodes_that_cost_nothing_compare_by_what_a_task_takes_of_them_and_by_speed():
    state = a_state(a_node("n0"), a_node("n1", speed=2.0), a_node("n2", cpu=16.0, memory_bytes=64 * GIB))
    submit(state, a_task())

    cost_n = pairs(an_observation(state))["cost"][0]

    assert cost_n == pytest.approx([0.5, 1.0, 1.0])


def test_room_is_shown_as_it_is_with_the_task():
    state = a_state(a_node(cpu=8.0, memory_bytes=32 * GIB), a_node("n1", cpu=16.0, memory_bytes=64 * GIB, gpu=4))
    submit(state, a_task("a", cpu=2.0, memory_bytes=8 * GIB), a_task("b", cpu=4.0, memory_bytes=4 * GIB))
    submit(state, a_task("c", cpu=1.0, memory_bytes=GIB, gpu=3), workflow_id="w1")
    state.apply(a_placement("n0", task_id="a"))

    shown = pairs(an_observation(state))

    assert shown["free_after"][0] == pytest.approx([0.25, 0.75])
    assert shown["crowding"][0] == pytest.approx([0.25, 0.5])
    assert shown["imbalance"][0] == pytest.approx([0.375, 0.1875])
    assert shown["free_after"][1, 1] == pytest.approx(0.25)
    assert shown["gpu_unneeded"].tolist() == [[0, 1], [0, 0]]


def test_soft_wishes_raise_a_node_and_soft_taints_lower_it():
    soft = Taint("spot", "true", Effect.PREFER_NO_SCHEDULE)
    state = a_state(
        a_node("n0", labels={"disk": "ssd", "zone": "a"}),
        a_node("n1", labels={"zone": "a"}, taints=(soft,)),
        a_node("n2", labels={"zone": "b"}),
    )
    wish = Preference(30, "disk", ("ssd",)), Preference(10, "zone", ("a", "b"))
    submit(
        state,
        a_task("a"),
        a_task("b", preferences=wish),
        a_task("c", tolerations=(Toleration("spot"),), spread=(Spread("zone"),)),
    )
    state.apply(a_placement("n0", task_id="a"))

    wishes_bn = pairs(an_observation(state))["wishes"]

    assert wishes_bn[0] == pytest.approx([1.0, 0.25 - 1.0, 0.25])
    assert wishes_bn[1] == pytest.approx([-1.0, -1.0, 0.0])


def test_a_spread_over_hosts_needs_no_label():
    state = a_state(*some_nodes(2))
    submit(state, a_task("a"), a_task("b", spread=(Spread("kubernetes.io/hostname"),)))
    state.apply(a_placement("n1", task_id="a"))

    wishes_bn = pairs(an_observation(state))["wishes"]

    assert wishes_bn[0].tolist() == [0.0, -1.0]


def test_a_nodes_failures_are_shown():
    state = a_state(*some_nodes(2))
    submit(state, a_task("a"), a_task("b"))
    state.apply(a_placement("n0", task_id="a"))
    for ready in state.apply(an_event(EventKind.FAILED, task_id="a")):
        state.apply(ready)

    failure_bn = pairs(an_observation(state))["failure_rate"]

    assert failure_bn[0] == pytest.approx([0.1, 0.0])


@given(pool=pools())
@settings(max_examples=60, deadline=None)
def test_everything_that_is_shown_is_finite_and_the_best_is_one(pool):
    seen = an_observation(pool.state())
    if not seen.tasks:
        return

    pair_bpn = pair_features(seen, features.free_shares(seen), Workspace())

    assert np.isfinite(pair_bpn).all()
    assert np.isfinite(features.task_features(seen)).all()
    best_b = np.where(seen.mask_bn, pair_bpn[:, FINISH], 0).max(axis=1)
    assert best_b == pytest.approx(np.ones(len(best_b)))


@given(pool=pools())
@settings(max_examples=30, deadline=None)
def test_a_batch_is_shown_as_its_tasks_are_one_by_one(pool):
    seen = an_observation(pool.state())
    space = Workspace()
    if not seen.tasks:
        return

    together = pair_features(seen, features.free_shares(seen), space).copy()

    for row in range(len(seen.tasks)):
        one = type(seen)(seen.state, seen.tasks[row : row + 1], [0], seen.mask_bn[row : row + 1], seen.free_rn)
        alone = pair_features(one, features.free_shares(one), space)
        assert together[row] == pytest.approx(alone[0], rel=1e-6)


def test_tasks_of_an_open_workflow_are_dags_of_their_own():
    state = a_state(a_node())
    state.apply(a_ready(a_task("a"), workflow_id="open"))
    state.apply(a_ready(a_task("b", after=["a"]), task_id="b", workflow_id="open"))

    dags = [dag_of(task) for task in state.workflows["open"].tasks]

    assert [row for _, row in dags] == [0, 0]
    assert dags[0][0] is not dags[1][0]


def test_the_fingerprint_follows_the_names_and_their_order():
    assert len(features.SCHEMA) == 16
    assert features.fingerprint(PAIR_FEATURES[::-1]) != features.fingerprint(PAIR_FEATURES)
