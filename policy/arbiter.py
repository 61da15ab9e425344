"""Scores to placements: the mask, the temperature, the choice, the reservation within a batch."""

from __future__ import annotations

import hashlib
import math
import operator
import sys
from dataclasses import dataclass

import numpy as np

NOWHERE = -1
TIE = 1e-6
"""Scores closer than this are equal where the temperature is 0."""
LEAST = 1e-30
"""Probabilities that are all smaller, against that of a node that is full, have lost digits."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for one task of a batch. `node` is NOWHERE when the batch's earlier tasks took all its room."""

    node: int
    weight_n: np.ndarray
    """[N] float32, 0 for a node that could not take it at its turn; divided by `total`: probabilities."""
    total: float

    @property
    def log_prob(self) -> float:
        """Of the chosen node."""
        return math.log(float(self.weight_n[self.node]) / self.total)

    @property
    def probability_n(self) -> np.ndarray:
        """[N] float64, over the nodes that could take the task at its turn."""
        return self.weight_n / np.float64(self.total or 1.0)


class _Taken:
    """What is left on the nodes that the batch has chosen so far. Plain integers: the nodes are few."""

    def __init__(self, free_rn: np.ndarray) -> None:
        self._free_rn = free_rn
        self._left: dict[int, list[int]] = {}
        self._least = [sys.maxsize] * len(free_rn)

    def take(self, node: int, request: list[int]) -> None:
        before = self._left.get(node) or self._free_rn[:, node].tolist()
        left = self._left[node] = [has - takes for has, takes in zip(before, request, strict=True)]
        self._least = [a if a < b else b for a, b in zip(self._least, left, strict=True)]

    def full_for(self, request: list[int]) -> list[int]:
        """The chosen nodes that have no room for the request."""
        if all(map(operator.le, request, self._least)):
            return []
        return [node for node, left in self._left.items() if any(map(operator.gt, request, left))]


def arbitrate(
    logits_bn: np.ndarray,
    mask_bn: np.ndarray,
    request_br: np.ndarray,
    free_rn: np.ndarray,
    temperature: float,
    draw_b: np.ndarray,
) -> list[Choice]:
    """Choose a node for each task in turn; what one takes, the next does not find.

    logits_bn   [B, N]  scores; where the mask is False they do not matter
    mask_bn     [B, N]  whether the node may take the task on its own
    request_br  [B, R]  int64 amounts; free_rn [R, N] int64 amounts left
    temperature of the softmax; 0: the best node, ties by the draw
    draw_b      [B]     numbers in [0, 1)
    An infeasible node has probability exactly 0. A task's probabilities are those of the softmax over the nodes that
    still take it, whatever the order in which they were computed.
    """
    weight_bn = _weights(logits_bn, mask_bn, temperature)
    cumulated_bn = np.cumsum(weight_bn, axis=1, dtype=np.float64)
    taken = _Taken(free_rn)
    choices = []
    for row, request in enumerate(request_br.tolist()):
        weight_n, cumulated_n = weight_bn[row], cumulated_bn[row]
        full = taken.full_for(request)
        if full and weight_n[full].any():
            weight_n = weight_n.copy()
            weight_n[full] = 0.0
            if weight_n.max() < LEAST:
                weight_n = _without(logits_bn[row], mask_bn[row], full, temperature)
            cumulated_n = np.cumsum(weight_n, dtype=np.float64)
        total = float(cumulated_n[-1]) if len(cumulated_n) else 0.0
        if not total > 0:
            choices.append(Choice(NOWHERE, weight_n, 0.0))
            continue
        node = int(cumulated_n.searchsorted(draw_b[row] * total, side="right"))
        if node >= len(weight_n) or weight_n[node] <= 0:  # the draw fell on the rounding of the last sum
            node = int(np.flatnonzero(weight_n)[-1])
        choices.append(Choice(node, weight_n, total))
        taken.take(node, request)
    return choices


def _weights(logits_bn: np.ndarray, mask_bn: np.ndarray, temperature: float) -> np.ndarray:
    """Unnormalised probabilities [B, N], float32, exactly 0 where the mask is False."""
    weight_bn = np.where(mask_bn, logits_bn, np.float32(-np.inf)).astype(np.float32, copy=False)
    best_b1 = weight_bn.max(axis=1, keepdims=True, initial=-np.inf)
    best_b1 = np.where(np.isfinite(best_b1), best_b1, np.float32(0))
    if temperature > 0:
        weight_bn -= best_b1
        weight_bn *= np.float32(1 / temperature)
        return np.exp(weight_bn, out=weight_bn)
    return (weight_bn >= best_b1 - TIE * np.maximum(1, np.abs(best_b1))).astype(np.float32)


def _without(logits_n: np.ndarray, mask_n: np.ndarray, full: list[int], temperature: float) -> np.ndarray:
    """Unnormalised probabilities [N] over the nodes that are not full."""
    mask_n = mask_n.copy()
    mask_n[full] = False
    return _weights(logits_n[None], mask_n[None], temperature)[0]


def draw(workflow_id: str, task_id: str, attempt: int) -> float:
    """The number in [0, 1) that decides for this attempt: the same whoever decides, and when."""
    key = f"{workflow_id}\0{task_id}\0{attempt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest()) / 2**56
