"""Step by step, episodes are the compiled ones, and their rewards add up to what the whole is worth."""

from __future__ import annotations

import numpy as np
import pytest

from policy.reward import RewardWeights, baseline, reward, terms
from trainer.arena import NOBODY
from trainer.boards import Board, Head, encode, rule_in
from trainer.residual import Residual
from trainer.rules import HEURISTIC_RULES, linear
from trainer.scenarios import CLASSES, run
from trainer.steps import Steps, prices
from trainer.suite import TRAINING, Setup
from trainer.workloads import WorkloadSettings

TO_THE_END = 10**9
SETUP = Setup(name="small", nodes=12, workload=WorkloadSettings(workflows=40, tasks=(3, 20), load=0.9))
WEIGHT_P = np.array([0, 0, 0, 0, 0, -2, 0, 0, 0, 0, 6, -2, 0.0])
WEIGHT_K = np.array([-2.0, 0, 0, 0, 0, 0, 0])
POLICIES = {
    **{name: HEURISTIC_RULES[name] for name in ("kube_default", "random", "srcp_spare_gpu")},
    "linear": linear(WEIGHT_P, WEIGHT_K, 0.3),
}


@pytest.fixture(scope="module")
def courses():
    return [SETUP.course(TRAINING, seed) for seed in range(6)]


@pytest.fixture(scope="module")
def usual(courses):
    return baseline([run(c, HEURISTIC_RULES["kube_default"]).measured() for c in courses], len(CLASSES))


def test_the_rewards_of_an_episode_rank_policies_as_the_reward_without_imbalance_does(courses, usual):
    whole, summed = [], []
    steps, priced = Steps(1, 12), RewardWeights(imbalance=0)
    for rule in POLICIES.values():
        whole.append([reward(run(c, rule).measured(), usual, priced) for c in courses])
        sums = []
        for c in courses:
            steps.put(0, c, rule, prices(c, usual), TO_THE_END)
            sums.append(float(steps.seen.reward_e[0]) / len(c.workflows))
        summed.append(sums)
    whole_pc, summed_pc = np.array(whole), np.array(summed)

    best_first = np.argsort(-whole_pc.mean(axis=1))

    assert np.argsort(-summed_pc.mean(axis=1)).tolist() == best_first.tolist()
    assert np.corrcoef((whole_pc - whole_pc[0]).ravel(), (summed_pc - summed_pc[0]).ravel())[0, 1] > 0.95


def test_what_is_priced_as_turnaround_is_the_turnaround_but_for_what_nobody_can_change(courses, usual):
    steps = Steps(1, 12)
    weights = RewardWeights(cost=0, sla=0, fragmentation=0)
    differences = []
    for rule in POLICIES.values():
        steps.put(0, courses[0], rule, prices(courses[0], usual, weights), TO_THE_END)
        term = terms(run(courses[0], rule).measured(), usual)["turnaround"]
        differences.append(float(steps.seen.reward_e[0]) / len(courses[0].workflows) + weights.turnaround * term)

    assert np.ptp(differences) < 1e-9


def test_a_rule_and_whoever_chooses_the_same_nodes_come_to_the_same_end(courses, usual):
    course, rule = courses[0], HEURISTIC_RULES["srcp"]
    by_rule = run(course, rule, log=10_000)
    steps = Steps(2, 16)
    for e in range(2):
        steps.put(e, course, rule, prices(course, usual))

    for task, _, node in by_rule.outcome.log_l3[: by_rule.placements].tolist():
        assert steps.seen.task_e.tolist() == [task, task]
        assert steps.seen.mask_en[:, node].all()
        steps.step(np.array([node, node]))

    assert steps.seen.task_e.tolist() == [NOBODY, NOBODY]
    assert reward(steps.measured(1), usual) == reward(by_rule.measured(), usual)


def test_padding_and_infeasible_nodes_show_nothing(courses, usual):
    steps = Steps(1, 20)

    steps.put(0, courses[0], HEURISTIC_RULES["srcp"], prices(courses[0], usual), skipped=100)

    closed_n = ~steps.seen.mask_en[0]
    assert closed_n[12:].all()
    assert not steps.seen.pair_epn[0][:, closed_n].any()
    assert steps.seen.pair_epn[0][:, ~closed_n].any()


def test_the_head_as_arrays_chooses_as_the_rule_does(courses, usual):
    rng = np.random.default_rng(0)
    network = Residual(
        WEIGHT_P,
        WEIGHT_K,
        *(rng.standard_normal(shape) for shape in ((14, 8), (7, 8), (8,))),
        rng.standard_normal((8, 13)),
    ).network(seed=0)
    board = Board(courses[0])
    rule = rule_in(network, WEIGHT_K, 0.0, board)
    encode(network, [(board, w) for w in range(len(courses[0].workflows))])
    head = Head(network)
    played = run(courses[0], rule, log=10_000)
    steps = Steps(1, 12)
    steps.put(0, courses[0], rule, prices(courses[0], usual))

    same = 0
    for task, _, node in played.outcome.log_l3[: played.placements].tolist():
        seen = steps.seen
        logits_n = head.logits(board.fixed_tc[[task]], seen.changing_ec, seen.pair_epn)[0]
        same += int(np.where(seen.mask_en[0], logits_n, -np.inf).argmax() == node)
        steps.step(np.array([node]))

    assert same / played.placements > 0.9  # equal nodes are drawn
