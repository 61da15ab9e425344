"""Policies without weights: what the learned one is measured against, and what stands in for it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import numpy as np

from policy.kube import kube_default, most_allocated
from policy.observation import Observation, Policy, by_arrival, by_rank
from policy.queue import Rows
from policy.resources import dominant_share
from schemas.errors import InvalidConfiguration

HOUR_S = 3600.0


def indifferent(seen: Observation) -> np.ndarray:
    """The same for every node: the draw decides."""
    return np.zeros(seen.mask_bn.shape, np.float32)


def next_in_turn(seen: Observation) -> np.ndarray:
    """The feasible nodes in turn, one step on with every placement that the pool ever made."""
    scores_bn = np.zeros(seen.mask_bn.shape, np.float32)
    for row, mask_n in enumerate(seen.mask_bn):
        feasible = np.flatnonzero(mask_n)
        if len(feasible):
            turn = (seen.state.placed + row) % len(feasible)
            scores_bn[row, np.roll(feasible, -turn)] = -np.arange(len(feasible))
    return scores_bn


def earliest_finish(seen: Observation) -> np.ndarray:
    """Where transfers and run time together are shortest."""
    return -seen.finish_bn


def earliest_finish_sparing_gpus(seen: Observation) -> np.ndarray:
    """Earliest finish; a node with GPUs only for a task that needs one, or where no other node is feasible."""
    has_gpu_n = seen.state.nodes.capacity_rn[2] > 0
    is_spared_bn = has_gpu_n & (seen.request_br[:, 2:3] == 0)
    slowest_b1 = np.where(seen.mask_bn, seen.finish_bn, 0).max(axis=1, keepdims=True, initial=0)
    return -(seen.finish_bn + is_spared_bn * (1 + 2 * slowest_b1)).astype(np.float32)


def alignment(seen: Observation) -> np.ndarray:
    """Where what the task takes points the same way as what is free: sum over r of request_r * free_r, as shares.

    Both are shares of the node's capacity. Source: Grandl et al., Multi-resource packing for cluster schedulers,
    SIGCOMM 2014, doi 10.1145/2619239.2626334. Its second term, shortest remaining work of the job, is the same for all
    nodes of a task: it stands in the order of the tasks, `by_work`.
    """
    capacity_rn = np.maximum(seen.state.nodes.capacity_rn, 1)
    return ((seen.request_br / 1.0) @ (seen.free_rn / capacity_rn**2.0)).astype(np.float32)


def cheapest(seen: Observation) -> np.ndarray:
    """The lowest price of the run: run time * dominant share * the node's price; of equal ones the earliest finish.

    The scores are ranks, since prices and seconds have no common unit.
    """
    share_bn = dominant_share(seen.request_br.T, seen.state.nodes.capacity_rn)
    cost_bn = seen.run_bn / HOUR_S * share_bn * seen.state.nodes.price_n
    rank_bn = np.empty(seen.mask_bn.shape, np.float32)
    for row in range(len(seen.tasks)):
        order = np.lexsort((seen.finish_bn[row], cost_bn[row]))
        cost_n, finish_n = cost_bn[row, order], seen.finish_bn[row, order]
        is_worse_n = (np.diff(cost_n) > 0) | (np.diff(finish_n) > 0)
        rank_bn[row, order] = np.concatenate(([0], np.cumsum(is_worse_n)))[: len(order)]
    return -rank_bn


def by_runtime(rows: Rows) -> np.ndarray:
    """The shortest task first."""
    return -rows.runtime_p


def by_work(rows: Rows) -> np.ndarray:
    """The workflow with the least work left first."""
    return -rows.work_p


def by_path(rows: Rows) -> np.ndarray:
    """The workflow with the shortest critical path left first."""
    return -rows.path_p


HEURISTICS: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("random", indifferent, by_arrival),
        Policy("round_robin", next_in_turn, by_arrival, max_batch=1),
        Policy("sjf", earliest_finish, by_runtime),
        Policy("srpt", earliest_finish, by_work),
        Policy("srcp", earliest_finish, by_path),
        Policy("srcp_spare_gpu", earliest_finish_sparing_gpus, by_path),
        Policy("kube_default", kube_default, by_arrival, max_batch=1),
        Policy("most_allocated", most_allocated, by_arrival, max_batch=1),
        Policy("tetris", alignment, by_work, max_batch=1),
        Policy("heft", earliest_finish, by_rank),
        Policy("cost_greedy", cheapest, by_rank),
    )
}
"""Every heuristic by its name."""


def heuristic(name: str, setting: str = "policy", others: tuple[str, ...] = ()) -> Policy:
    """The heuristic of this name. Raises InvalidConfiguration, which names the setting and the others it may have."""
    policy = HEURISTICS.get(name)
    if policy is None:
        known = [*others, *HEURISTICS]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise InvalidConfiguration(setting, f"'{name}' is unknown", f"{hint}known are {', '.join(known)}")
    return policy
