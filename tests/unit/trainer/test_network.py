"""The network: shapes, what each part may and may not depend on, and that all of it learns."""

from __future__ import annotations

import numpy as np
import torch

from policy.features import GRAPH_FEATURES, NODE_FEATURES, PAIR_FEATURES, POOL_FEATURES, TASK_FEATURES, WINDOW_FEATURES
from policy.network import CLOSED, CONTEXT, KEY, PAIR_PRIOR, ActorCritic, Moments
from policy.windows import STEPS


def a_network(seed: int = 0) -> ActorCritic:
    """A network in which no part is without a say."""
    torch.manual_seed(seed)
    network = ActorCritic().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return network


def some_moments(nodes: int = 5, decisions: int = 4) -> Moments:
    """Decisions on two snapshots and two DAGs of 3 and 2 tasks; the last node of the first snapshot is padding."""
    random = torch.Generator().manual_seed(1)
    mask_bn = torch.ones(decisions, nodes, dtype=torch.bool)
    mask_bn[0, 1] = False
    present_sn = torch.ones(2, nodes)
    present_sn[0, -1] = 0
    return Moments(
        torch.rand(2, nodes, STEPS, len(WINDOW_FEATURES), generator=random),
        torch.rand(2, nodes, len(NODE_FEATURES), generator=random),
        present_sn,
        torch.rand(5, len(GRAPH_FEATURES), generator=random),
        torch.tensor([[0, 1, 2, 3, 4, 0, 1, 3, 4], [0, 1, 2, 3, 4, 1, 0, 4, 3]]),
        torch.tensor([[0.5, 0.25, 0.25, 0, 0], [0, 0, 0, 0.5, 0.5]]),
        torch.arange(decisions) % 2,
        torch.arange(decisions) % 2,
        torch.tensor([0, 3, 1, 4])[torch.arange(decisions) % 4],
        torch.rand(decisions, len(TASK_FEATURES), generator=random),
        torch.rand(decisions, len(POOL_FEATURES), generator=random),
        torch.rand(decisions, len(PAIR_FEATURES), nodes, generator=random),
        mask_bn,
    )


def test_an_infeasible_node_is_closed_and_every_other_is_scored():
    moments = some_moments()

    logits_bn, value_b = a_network()(moments)

    assert logits_bn.shape == (4, 5)
    assert value_b.shape == (4,)
    assert logits_bn[0, 1].item() == CLOSED
    assert (logits_bn[moments.mask_bn].abs() < 1e4).all()
    assert torch.isfinite(value_b).all()


def test_a_network_that_has_learnt_nothing_is_the_linear_policy_of_its_prior():
    moments = some_moments()
    prior_p = torch.tensor([PAIR_PRIOR[name] for name in PAIR_FEATURES])

    logits_bn, value_b = ActorCritic()(moments)

    linear_bn = torch.einsum("p,bpn->bn", prior_p, moments.pair_bpn)
    assert torch.allclose(logits_bn[moments.mask_bn], linear_bn[moments.mask_bn], atol=1e-4)
    assert value_b.tolist() == [0.0] * 4


def test_many_pools_at_once_are_the_same_as_one_by_one():
    network, moments = a_network(), some_moments()

    key_skn, bias_sn, pool_sh = network.nodes(moments.window_sntf, moments.node_snf, moments.present_sn)

    for at in range(2):
        key_kn, bias_n, pool_h = network.nodes(moments.window_sntf[at], moments.node_snf[at], moments.present_sn[at])
        assert torch.allclose(key_kn, key_skn[at], atol=1e-6)
        assert torch.allclose(bias_n, bias_sn[at], atol=1e-6)
        assert torch.allclose(pool_h, pool_sh[at], atol=1e-6)


def test_the_head_scores_a_batch_on_one_pool_as_on_copies_of_it():
    network = a_network()
    context_bc, pair_bpn = torch.rand(3, CONTEXT), torch.rand(3, len(PAIR_FEATURES), 7)
    key_kn, bias_n = torch.rand(KEY, 7), torch.rand(7)

    one_bn = network.head(context_bc, key_kn, bias_n, pair_bpn)
    copies_bn = network.head(context_bc, key_kn.expand(3, -1, -1), bias_n.expand(3, -1), pair_bpn)

    assert torch.allclose(one_bn, copies_bn, atol=1e-5)


def test_a_node_that_is_gone_does_not_count_in_the_state_of_the_pool():
    network, moments = a_network(), some_moments()
    window_ntf, node_nf = moments.window_sntf[0], moments.node_snf[0]

    _, _, with_it_h = network.nodes(window_ntf, node_nf, moments.present_sn[0])
    _, _, without_h = network.nodes(window_ntf[:-1], node_nf[:-1], moments.present_sn[0][:-1])

    assert torch.allclose(with_it_h, without_h, atol=1e-6)


def test_the_key_of_a_node_does_not_depend_on_the_other_nodes():
    network, moments = a_network(), some_moments()
    window_ntf, node_nf, present_n = moments.window_sntf[0], moments.node_snf[0], moments.present_sn[0]

    key_kn, _, _ = network.nodes(window_ntf, node_nf, present_n)
    alone_kn, _, _ = network.nodes(window_ntf[2:3], node_nf[2:3], present_n[2:3])

    assert torch.allclose(key_kn[:, 2:3], alone_kn, atol=1e-6)


def test_dags_side_by_side_do_not_touch():
    network, moments = a_network(), some_moments()
    changed_tf = moments.graph_tf.clone()
    changed_tf[3:] += 1

    before_th, before_gh = network.dags(moments.graph_tf, moments.edges_2e, moments.weight_gt)
    after_th, after_gh = network.dags(changed_tf, moments.edges_2e, moments.weight_gt)

    assert torch.equal(before_th[:3], after_th[:3])
    assert torch.equal(before_gh[0], after_gh[0])
    assert not torch.allclose(before_gh[1], after_gh[1])


def test_a_task_hears_of_tasks_three_edges_away_and_no_farther():
    network = a_network()
    chain = torch.arange(6)
    ahead = torch.stack([chain[:-1], chain[1:]])
    edges_2e = torch.cat([ahead, ahead.flip(0), torch.stack([chain, chain])], dim=1)
    graph_tf, weight_gt = torch.rand(6, len(GRAPH_FEATURES)), torch.full((1, 6), 1 / 6)
    changed_tf = graph_tf.clone()
    changed_tf[0] += 1

    before_th, _ = network.dags(graph_tf, edges_2e, weight_gt)
    after_th, _ = network.dags(changed_tf, edges_2e, weight_gt)

    moved_t = (before_th - after_th).abs().amax(dim=1) > 1e-6
    assert moved_t.tolist() == [True] * 4 + [False] * 2


def test_every_parameter_takes_part():
    network, moments = a_network(), some_moments()

    logits_bn, value_b = network(moments)
    (logits_bn[moments.mask_bn].square().sum() + value_b.square().sum()).backward()

    silent = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


def test_the_critic_sees_only_feasible_nodes():
    network, moments = a_network(), some_moments()
    context_bc = torch.rand(4, CONTEXT)
    changed_bpn = moments.pair_bpn.clone()
    changed_bpn[0, :, 1] = 99.0

    before_b = network.critic(context_bc, moments.pair_bpn, moments.mask_bn)
    after_b = network.critic(context_bc, changed_bpn, moments.mask_bn)

    assert torch.equal(before_b, after_b)


def test_equal_seeds_make_equal_networks():
    one, other = a_network(3).state_dict(), a_network(3).state_dict()

    assert all(np.array_equal(one[name], other[name]) for name in one)
