"""The reward: terms in [0, 1], better runs above worse ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policy.reward import Baseline, RewardWeights, Run, baseline, reward, terms
from schemas.errors import InvalidConfiguration

USUAL = Baseline(np.array([100.0, 1000.0]), np.array([2.0, 4.0]))
RUN = Run(np.array([0, 1]), np.array([50.0, 250.0]), np.array([1.0, 4.0]), np.array([1.0, 0.5]), 0.25, 0.5)


def test_each_term_is_a_share_of_what_is_usual_for_the_class():
    assert terms(RUN, USUAL) == {
        "turnaround": pytest.approx((0.5 + 0.25) / 2),
        "cost": pytest.approx((0.5 + 1.0) / 2),
        "sla": 0.75,
        "fragmentation": 0.25,
        "imbalance": 0.5,
    }


def test_the_reward_is_their_weighted_sum():
    expected = -0.4 * 0.375 - 0.3 * 0.75 + 0.2 * 0.75 - 0.1 * 0.25 - 0.05 * 0.5

    assert reward(RUN, USUAL) == pytest.approx(expected)


def test_a_workflow_that_never_ends_counts_as_much_as_one_can():
    stuck = replace(RUN, turnaround_s_w=np.array([50.0, np.inf]))

    assert terms(stuck, USUAL)["turnaround"] == pytest.approx((0.5 + 1.0) / 2)


def test_weights_can_be_changed():
    only_cost = RewardWeights(turnaround=0, cost=1, sla=0, fragmentation=0, imbalance=0)

    assert reward(RUN, USUAL, only_cost) == pytest.approx(-0.75)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), 1000.0])
def test_a_weight_that_is_none_is_refused_by_its_name(wrong):
    with pytest.raises(InvalidConfiguration, match=r"reward\.sla"):
        RewardWeights(sla=wrong)


def test_a_baseline_takes_a_missing_class_for_the_whole():
    usual = baseline([replace(RUN, class_w=np.array([0, 0]))], 2)

    assert usual.turnaround_s_c.tolist() == [pytest.approx(240.0)] * 2
