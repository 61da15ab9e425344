"""What a candidate's decisions would have been worth, estimated from those that were made and what came of them.

Two estimates of the mean reward of a decision, as differences from what was really earned: importance-weighted and
normalised by the sum of the weights (each decision counts as much more as the candidate was likelier to make it), and
doubly robust (a linear model of the reward, corrected by the weighted errors it makes where the outcome is known).
Intervals by resampling workflows, since the decisions of one share its makespan. Without the normalisation, a candidate
that always takes its best node would be judged mostly by how seldom it agrees with the decider.
Source: Dudik, Langford, Li 2011, arXiv 1103.4601.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_WEIGHT = 20.0
"""Larger weights count as this: a little bias for much less variance."""
RIDGE = 1.0
DRAWS = 500
LEAST = 20
"""Workflows below which no interval is told."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One decision and what came of it.

    weight      the candidate's probability of what was chosen, over the decider's
    chosen_p    [P] features of the chosen node; expected_p  [P] their mean over the candidate's choice
    """

    workflow_id: str
    weight: float
    reward: float
    chosen_p: np.ndarray
    expected_p: np.ndarray


@dataclass(frozen=True, slots=True)
class Estimate:
    """A difference of the mean reward of a decision, candidate less incumbent, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


@dataclass(frozen=True, slots=True)
class Estimates:
    """The estimates, and on how much they rest."""

    decisions: int
    workflows: int
    effective: float
    """Decisions that the weighted ones are worth."""
    importance: Estimate
    doubly_robust: Estimate


def estimates(decisions: Sequence[Weighed], seed: int = 0) -> Estimates | None:
    """The estimates from these decisions; None where there are too few workflows."""
    flows = {w: at for at, w in enumerate(dict.fromkeys(d.workflow_id for d in decisions))}
    if len(flows) < LEAST:
        return None
    flow_d = np.array([flows[d.workflow_id] for d in decisions])
    weight_d = np.minimum(np.array([d.weight for d in decisions]), MOST_WEIGHT)
    reward_d = np.array([d.reward for d in decisions])
    chosen_dp = np.array([np.append(d.chosen_p, 1.0) for d in decisions])
    expected_dp = np.array([np.append(d.expected_p, 1.0) for d in decisions])
    is_odd_d = flow_d % 2 == 1
    robust_d = np.empty(len(decisions))
    for is_half_d in (is_odd_d, ~is_odd_d):  # a model is not asked about what it was made from
        coefficient_p = _ridge(chosen_dp[~is_half_d], reward_d[~is_half_d])
        error_d = reward_d - chosen_dp @ coefficient_p
        robust_d[is_half_d] = (expected_dp @ coefficient_p + weight_d * error_d)[is_half_d]
    by_flow = [np.bincount(flow_d, of_d, len(flows)) for of_d in (weight_d * reward_d, weight_d, robust_d, reward_d)]
    count_f = np.bincount(flow_d, minlength=len(flows)).astype(float)
    draw_kf = np.random.default_rng(seed).multinomial(len(flows), np.full(len(flows), 1 / len(flows)), DRAWS)
    sums_kf = np.vstack([np.ones((1, len(flows))), draw_kf])  # the first row: all as they are
    weighted_k, weights_k, robust_k, earned_k = (sums_kf @ of_f for of_f in by_flow)
    count_k = sums_kf @ count_f
    return Estimates(
        len(decisions),
        len(flows),
        float(weight_d.sum() ** 2 / max(1e-12, (weight_d**2).sum())),
        _interval(weighted_k / np.maximum(weights_k, 1e-12) - earned_k / count_k),
        _interval((robust_k - earned_k) / count_k),
    )


def _ridge(features_dp: np.ndarray, reward_d: np.ndarray) -> np.ndarray:
    """coefficient_p [P]; the last feature, which is 1, is not held back."""
    held_pp = RIDGE * np.eye(features_dp.shape[1])
    held_pp[-1, -1] = 1e-9
    solved: np.ndarray = np.linalg.solve(features_dp.T @ features_dp + held_pp, features_dp.T @ reward_d)
    return solved


def _interval(values_k: np.ndarray) -> Estimate:
    low, high = np.percentile(values_k[1:], [2.5, 97.5])
    return Estimate(float(values_k[0]), float(low), float(high))
