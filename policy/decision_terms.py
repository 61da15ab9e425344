"""The terms of a decision's reward, each in [-1, 1].

    R = - 0.4 makespan / P95 - 0.3 cost / P95 + 0.2 SLA - 0.1 fragmentation + 0.05 balance [+ w pcie]

makespan       of its whole workflow: from the first task that was ready to the last that finished
cost           of the attempt, each kind up to its P95, over the sum of the three P95
sla            1 where the attempt started within SLA_S of becoming ready, else 0
fragmentation  mean over the nodes of the mean squared free share, after the decision
balance        1 - |load - mean| / mean, where load is the chosen node's share of reserved cpu, after the decision
pcie           share of the chosen node's PCIe bandwidth that is free, of a GPU task; 0 of others

The P95 are those of what finished in the last 7 days in workflows of the same class (`policy.usual`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from policy.billing import GPU
from policy.reward import RewardWeights


def signed(weights: RewardWeights) -> tuple[float, ...]:
    """The weights in the order of REWARD_TERMS, below 0 for what is bad."""
    w = weights
    return (-w.turnaround, -w.cost, -w.cost, -w.cost, w.sla, -w.fragmentation, w.imbalance, w.pcie)


def makespan_term(turnaround_s: float | None, p95_s: float | None) -> float:
    """Share of what is usual, 0 to 1; a workflow that can never finish, or the first one of all, has 1."""
    if turnaround_s is None or p95_s is None or turnaround_s >= p95_s:
        return 1.0
    return max(0.0, turnaround_s) / p95_s  # records that are late or contradict each other may tell of less than none


def cost_terms(costs: Iterable[float], costs_p95: Iterable[float]) -> tuple[float, ...]:
    """The kinds' parts of the cost's share of what is usual: 0 to 1 each, and together."""
    usual = tuple(costs_p95)
    total = sum(usual)
    return tuple(min(cost, p95) / total if total > 0 else 0.0 for cost, p95 in zip(costs, usual, strict=True))


def fragmentation(free_rn: np.ndarray, capacity_rn: np.ndarray) -> float:
    """Mean over the nodes of the mean over their resources of (free / total) squared: 0 to 1.

    free_rn, capacity_rn [R, N] amounts; a resource that a node lacks does not count.
    """
    has_rn = capacity_rn > 0
    share_rn = np.clip(free_rn / np.maximum(capacity_rn, 1), 0, 1)
    of_node_n = (share_rn**2 * has_rn).sum(axis=0) / np.maximum(has_rn.sum(axis=0), 1)
    return float(of_node_n.mean()) if len(of_node_n) else 0.0


def stranded_gpu(free_rn: np.ndarray, wanted_kr: np.ndarray) -> float | None:
    """Share of the free GPUs on nodes that have room for none of these tasks; None where no GPU is free, or wanted.

    free_rn [R, N], wanted_kr [K, R] amounts. After Weng et al. 2023, "Beware of Fragmentation" (USENIX ATC), with
    tasks that are there or not instead of their popularity.
    """
    free_gpu_n = np.maximum(free_rn[GPU], 0)
    if not len(wanted_kr) or not free_gpu_n.any():
        return None
    is_of_use_n = (wanted_kr[:, :, None] <= free_rn[None]).all(axis=1).any(axis=0)
    return float(free_gpu_n[~is_of_use_n].sum() / free_gpu_n.sum())


def balance(load: float, mean: float) -> float:
    """1 - |load - mean| / mean, at least -1; 1 where nothing is loaded."""
    return max(-1.0, 1.0 - abs(load - mean) / mean) if mean > 0 else 1.0


def free_pcie(in_use: float) -> float:
    """The share of the bandwidth that is free; 0 where it is not measured (NaN): unknown is nothing to be proud of."""
    return 0.0 if math.isnan(in_use) else 1.0 - min(max(in_use, 0.0), 1.0)
