"""Policies as numbers for `trainer.arena`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from policy.features import ORDER_FEATURES, PAIR_FEATURES
from policy.sessions import CPU, Session, open_session
from policy.weight_set import NETWORK, WeightSet, file_name
from schemas.errors import UnusableWeights
from trainer import arena
from trainer.arena import CHANGING, ORDERS, PAIRS, Rule
from trainer.residual import FIXED, changing_columns
from trainer.scenarios import Course

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


@dataclass(frozen=True)
class NetworkRule:
    """How a network decides whose scoring head weighs the pair features by task. H: hidden units that have a say."""

    linear: Rule
    into_hc: np.ndarray
    """[H, CONTEXT] and their biases [H]"""
    bias_h: np.ndarray
    mix_hp: np.ndarray
    encoder: bytes | None
    """The DAG encoder, where the hidden units look at what it says."""

    def __call__(self, course: Course) -> Rule:
        """The rule in this course."""
        fixed_tc = course.graphs.graph_tf
        if self.encoder is not None:
            fixed_tc = np.concatenate([fixed_tc, *_encoded(self.encoder, course)], axis=1)
        hidden_th = fixed_tc @ self.into_hc[:, : fixed_tc.shape[1]].T + self.bias_h
        return self.linear._replace(
            hidden_th=hidden_th.astype(np.float32),
            changing_ch=np.ascontiguousarray(self.into_hc[:, changing_columns()].T),
            mix_hp=np.ascontiguousarray(self.mix_hp),
        )


def rule_of(weights: WeightSet, temperature: float) -> Rule | NetworkRule:
    """The rule that a set of weights amounts to, its DAG encoder included.

    Raises UnusableWeights where the nodes' windows have a say: the arena has none.
    """
    with np.load(io.BytesIO(weights.files[NETWORK]), allow_pickle=False) as container:
        network = {name: container[name] for name in container.files}
    into_hc, mix_hp = network["head.mix.0.weight"], network["head.weight.weight"][:PAIRS].T
    has_say_h = mix_hp.any(axis=1)
    into_hc, mix_hp, bias_h = into_hc[has_say_h], mix_hp[has_say_h], network["head.mix.0.bias"][has_say_h]
    windows = {
        **{name: network[name] for name in ("head.query.weight", "head.query.bias", "nodes.bias.weight")},
        "head.mix.0.weight of the pool's state": into_hc[:, changing_columns().stop :],
    }
    for name, array in windows.items():
        if array.any():
            raise UnusableWeights(
                f"weights {weights.manifest.version}: {name} is not 0, so that they look at the nodes' windows; "
                "the compiled episodes have none"
            )
    weight_k = np.array([weights.manifest.order.get(name, 0.0) for name in ORDER_FEATURES])
    score = linear(network["head.weight.bias"][:PAIRS], weight_k, temperature)
    if not has_say_h.any():
        return score
    sees_dag = into_hc[:, FIXED : changing_columns().start].any()
    return NetworkRule(score, into_hc, bias_h, mix_hp, weights.files[file_name("dag")] if sees_dag else None)


def _encoded(encoder: bytes, course: Course) -> tuple[np.ndarray, np.ndarray]:
    """Of each task of the course, its embedding and its DAG's vector: [T, HIDDEN] each."""
    together = course.graphs
    embedding_th, vector_gh = _session(encoder).run(
        {"graph_tf": together.graph_tf, "edges_2e": together.edges_2e, "weight_gt": together.weight_gt}
    )
    return embedding_th, np.repeat(vector_gh, np.diff(course.scenario.first_w), axis=0)


@cache
def _session(encoder: bytes) -> Session:
    return open_session("dag", encoder, CPU)
