"""Decisions kept to learn from come back as they were seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from policy.features import free_shares
from policy.pair_features import Workspace, pair_features
from tests.builders import a_ready, a_state, a_task, an_observation, some_metrics, some_nodes, submit
from trainer.moments import Memory


def test_decisions_of_several_pools_come_back_together():
    memory, seen = Memory(), []
    for nodes in (2, 4):
        state = a_state(*some_nodes(nodes))
        submit(state, a_task("a", 5.0 * nodes), a_task("b", after=["a"]), a_task("c", cpu=2.0))
        seen.append(an_observation(state))
        memory.keep(seen[-1])

    moments = memory.together(range(4))

    assert moments.window_sntf.shape[:2] == (2, 4)
    assert moments.present_sn.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert moments.mask_bn.tolist() == [[True, True, False, False]] * 2 + [[True] * 4] * 2
    assert moments.snapshot_b.tolist() == [0, 0, 1, 1]
    assert moments.task_b.tolist() == [0, 2, 3, 5]
    for at, one in enumerate(seen):
        pair_bpn = pair_features(one, free_shares(one), Workspace())
        rows = slice(2 * at, 2 * at + 2)
        assert np.array_equal(moments.pair_bpn[rows, :, : pair_bpn.shape[2]], pair_bpn)


def test_a_part_of_what_was_kept_is_as_the_whole():
    memory = Memory()
    state = a_state(*some_nodes(3))
    for at in range(4):
        submit(state, a_task("a", 1.0 + at), a_task("b", after=["a"]), workflow_id=f"w{at}")
    memory.keep(an_observation(state))

    whole, part = memory.together(range(4)), memory.together([3, 1])

    assert torch.equal(part.graph_tf[part.task_b], whole.graph_tf[whole.task_b][[3, 1]])
    assert part.dag_b.tolist() == [1, 0]
    assert part.weight_gt.shape == (2, 4)
    assert part.weight_gt.sum(dim=1) == pytest.approx([1, 1])


def test_decisions_of_one_step_share_a_snapshot():
    memory = Memory()
    state = a_state(*some_nodes(3))
    submit(state, a_task())
    memory.keep(an_observation(state))
    memory.keep(an_observation(state))
    state.apply(some_metrics("n0", at_s=15.0))
    memory.keep(an_observation(state))

    assert [m.snapshot for m in memory.moments] == [0, 0, 1]
    assert [m.dag for m in memory.moments] == [0, 0, 0]


def test_what_happens_later_does_not_change_what_was_kept():
    memory = Memory()
    state = a_state(*some_nodes(2))
    submit(state, a_task())
    memory.keep(an_observation(state))
    before = memory.together([0])

    state.apply(some_metrics("n0", "n1", at_s=1.0, values_nm=np.ones((2, 8))))
    submit(state, a_task("x", 77.0), workflow_id="w1")
    memory.keep(an_observation(state))

    after = memory.together([0])
    assert torch.equal(before.window_sntf, after.window_sntf)
    assert torch.equal(before.pair_bpn, after.pair_bpn)


def test_batches_hold_every_chosen_decision_once_and_keep_snapshots_whole():
    memory = Memory()
    state = a_state(*some_nodes(2))
    for at in range(12):
        state.apply(some_metrics("n0", "n1", at_s=15.0 * at))
        state.apply(a_ready(a_task(f"t{at}"), task_id=f"t{at}", workflow_id="open"))
        memory.keep(an_observation(state))
    chosen = range(3, len(memory.moments))

    batches = list(memory.by_snapshot(chosen, np.random.default_rng(0), 10))

    assert sorted(at for batch in batches for at in batch) == list(chosen)
    assert all(len(batch) >= 10 for batch in batches[:-1])
    homes = [{memory.moments[at].snapshot for at in batch} for batch in batches]
    assert sum(map(len, homes)) == len(set().union(*homes))
