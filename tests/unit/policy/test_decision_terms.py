"""The terms of a decision's reward, by hand and within their range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.decision_terms import (
    balance,
    cost_terms,
    fragmentation,
    free_pcie,
    makespan_term,
    signed,
    stranded_gpu,
)
from policy.reward import RewardWeights
from schemas.records import REWARD_TERMS

AMOUNT = st.floats(0, 1e9)


def test_the_weights_are_those_of_the_design_with_their_signs():
    assert dict(zip(REWARD_TERMS, signed(RewardWeights()), strict=True)) == {
        "makespan": -0.4,
        "cost_cpu": -0.3,
        "cost_gpu": -0.3,
        "cost_storage": -0.3,
        "sla": 0.2,
        "fragmentation": -0.1,
        "balance": 0.05,
        "pcie": 0.0,
    }


@pytest.mark.parametrize(
    ("turnaround_s", "p95_s", "term"),
    [
        (50.0, 200.0, 0.25),
        (300.0, 200.0, 1.0),
        (None, 200.0, 1.0),
        (50.0, None, 1.0),
        (0.0, 0.0, 1.0),
        (-9.0, 0.1, 0.0),
    ],
)
def test_the_makespan_is_a_share_of_what_is_usual(turnaround_s, p95_s, term):
    assert makespan_term(turnaround_s, p95_s) == term


def test_each_kind_of_cost_counts_up_to_its_own_percentile():
    assert cost_terms((1.0, 9.0, 0.5), (2.0, 6.0, 2.0)) == pytest.approx((0.1, 0.6, 0.05))


def test_where_nothing_costs_anything_the_terms_are_nothing():
    assert cost_terms((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)) == (0.0, 0.0, 0.0)


@given(st.tuples(AMOUNT, AMOUNT, AMOUNT), st.tuples(AMOUNT, AMOUNT, AMOUNT))
def test_the_kinds_together_are_one_term(costs, usual):
    terms = cost_terms(costs, usual)

    assert min(terms) >= 0
    assert sum(terms) <= 1 + 1e-9


def test_fragmentation_is_the_mean_squared_free_share_of_what_the_nodes_have():
    capacity_rn = np.array([[8, 4], [100, 100], [2, 0]])
    free_rn = np.array([[4, 4], [50, 0], [2, 0]])

    # n0: (1/4 + 1/4 + 1) / 3; n1 has no GPU: (1 + 0) / 2
    assert fragmentation(free_rn, capacity_rn) == pytest.approx((0.5 + 0.5) / 2)


def test_a_pool_without_nodes_is_not_fragmented():
    assert fragmentation(np.zeros((3, 0)), np.zeros((3, 0))) == 0.0


def test_a_free_gpu_is_stranded_where_no_task_finds_the_rest_that_it_needs():
    free_rn = np.array([[1000, 8000], [100, 100], [3, 1], [30, 10]])  # n0: 3 GPUs and one core; n1: 1 and 8
    wanted_kr = np.array([[4000, 10, 1, 0], [2000, 10, 2, 0]])

    assert stranded_gpu(free_rn, wanted_kr) == pytest.approx(3 / 4)
    assert stranded_gpu(free_rn, wanted_kr[1:]) == 1.0
    assert stranded_gpu(free_rn, np.array([[500, 10, 1, 0]])) == 0.0


def test_no_gpu_is_stranded_where_none_is_free_or_wanted():
    free_rn = np.array([[8000], [100], [0], [0]])

    assert stranded_gpu(free_rn, np.array([[1000, 1, 1, 0]])) is None
    assert stranded_gpu(free_rn + 1, np.zeros((0, 4), np.int64)) is None


@pytest.mark.parametrize(
    ("load", "mean", "term"), [(0.5, 0.5, 1.0), (0.25, 0.5, 0.5), (0.75, 0.5, 0.5), (1.0, 0.1, -1.0), (0.0, 0.0, 1.0)]
)
def test_balance_falls_with_the_distance_from_the_mean(load, mean, term):
    assert balance(load, mean) == pytest.approx(term)


@given(AMOUNT, AMOUNT)
def test_balance_stays_in_its_range(load, mean):
    assert -1 <= balance(load, mean) <= 1


def test_a_full_bus_is_worth_nothing_and_an_unknown_one_neither():
    assert [free_pcie(in_use) for in_use in (0.0, 0.75, 1.3, float("nan"))] == [1.0, 0.25, 0.0, 0.0]
