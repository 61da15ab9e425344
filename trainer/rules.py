"""Policies as numbers for `trainer.arena`."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np

from policy.features import ORDER_FEATURES, PAIR_FEATURES
from policy.weight_set import NETWORK, WeightSet
from schemas.errors import UnusableWeights
from trainer import arena
from trainer.arena import CHANGING, ORDERS, PAIRS, Rule

assert PAIR_FEATURES[PAIRS:] == ("wishes",)
assert len(ORDER_FEATURES) == ORDERS


NO_HIDDEN = (np.zeros((0, 0), np.float32), np.zeros((CHANGING, 0), np.float32), np.zeros((0, PAIRS), np.float32))


def _rule(order: int, score: int) -> Rule:
    return Rule(order, score, np.zeros(PAIRS), np.zeros(ORDERS), 0.0, *NO_HIDDEN)


HEURISTIC_RULES: Mapping[str, Rule] = {
    "random": _rule(arena.ARRIVAL, arena.ANY),
    "round_robin": _rule(arena.ARRIVAL, arena.IN_TURN),
    "sjf": _rule(arena.RUNTIME, arena.FINISH),
    "srpt": _rule(arena.WORK, arena.FINISH),
    "srcp": _rule(arena.PATH, arena.FINISH),
    "srcp_spare_gpu": _rule(arena.PATH, arena.SPARING_FINISH),
    "kube_default": _rule(arena.ARRIVAL, arena.LEAST_ALLOCATED),
    "most_allocated": _rule(arena.ARRIVAL, arena.MOST_ALLOCATED),
    "tetris": _rule(arena.WORK, arena.ALIGNMENT),
    "heft": _rule(arena.RANK, arena.FINISH),
    "cost_greedy": _rule(arena.RANK, arena.CHEAPEST),
}
"""The heuristics of `policy.heuristics`, by their names there."""


def linear(weight_p: np.ndarray, weight_k: np.ndarray, temperature: float) -> Rule:
    """A linear score of the pair features, and a linear order."""
    weights = weight_p.astype(np.float64), weight_k.astype(np.float64)
    return Rule(arena.LEARNT_ORDER, arena.LEARNT, *weights, temperature, *NO_HIDDEN)


def rule_of(weights: WeightSet, temperature: float) -> Rule:
    """The rule that a set of weights amounts to, where its network adds nothing to the linear score.

    Raises UnusableWeights where it does: the arena plays linear scores only.
    """
    with np.load(io.BytesIO(weights.files[NETWORK]), allow_pickle=False) as container:
        for name in ("head.query.weight", "head.query.bias", "head.weight.weight", "nodes.bias.weight"):
            if container[name].any():
                raise UnusableWeights(f"weights {weights.manifest.version}: {name} is not 0, so they are not linear")
        weight_p = container["head.weight.bias"][:PAIRS]
    order = weights.manifest.order
    return linear(weight_p, np.array([order.get(name, 0.0) for name in ORDER_FEATURES]), temperature)
