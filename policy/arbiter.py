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
BLOCK = 64
"""A node is drawn in two steps, a block of nodes and one of its nodes: a sum over each node for each draw costs more
than the scores themselves."""


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


def masked(logits_bn: np.ndarray, mask_bn: np.ndarray) -> np.ndarray:
    """The scores [B, N] float32, -inf where the mask is False, whatever the score there."""
    return np.where(mask_bn, logits_bn, np.float32(-np.inf)).astype(np.float32, copy=False)


def arbitrate(
    score_bn: np.ndarray,
    request_br: np.ndarray,
    free_rn: np.ndarray,
    temperature: float,
    draw_b: np.ndarray,
) -> list[Choice]:
    """Choose a node for each task in turn; what one takes, the next does not find.

    score_bn    [B, N]  float32, from `masked`: -inf where the node may not take the task on its own
    request_br  [B, R]  int64 amounts; free_rn [R, N] int64 amounts left
    temperature of the softmax; 0: the best node, ties by the draw
    draw_b      [B]     numbers in [0, 1)
    An infeasible node has probability exactly 0. A task's probabilities are those of the softmax over the nodes that
    still take it, whatever the order in which they were computed.
    """
    weight_bn = _weights(score_bn, temperature)
    upto_bk = _upto(weight_bn)
    taken = _Taken(free_rn)
    choices = []
    for row, request in enumerate(request_br.tolist()):
        weight_n, upto_k = weight_bn[row], upto_bk[row]
        full = taken.full_for(request)
        if full and weight_n[full].any():
            weight_n = weight_n.copy()
            weight_n[full] = 0.0
            if weight_n.max() < LEAST:
                weight_n = _without(score_bn[row], full, temperature)
            upto_k = _upto(weight_n)
        total = float(upto_k[-1]) if len(upto_k) else 0.0
        if not total > 0:
            choices.append(Choice(NOWHERE, weight_n, 0.0))
            continue
        node = _drawn(weight_n, upto_k, draw_b[row] * total)
        choices.append(Choice(node, weight_n, total))
        taken.take(node, request)
    return choices


def _upto(weight_n: np.ndarray) -> np.ndarray:
    """[..., K] float64, the sum of the weights [..., N] up to the end of each block."""
    if not weight_n.shape[-1]:
        return np.zeros(weight_n.shape, np.float64)
    starts = np.arange(0, weight_n.shape[-1], BLOCK)
    return np.add.reduceat(weight_n, starts, axis=-1).cumsum(axis=-1, dtype=np.float64)


def _drawn(weight_n: np.ndarray, upto_k: np.ndarray, reach: float) -> int:
    """The node at which the running sum of the weights passes `reach`: below it, and of the others none of weight 0."""
    block = min(int(upto_k.searchsorted(reach, side="right")), len(upto_k) - 1)
    first = block * BLOCK
    if block:
        reach -= upto_k[block - 1]
    node = first + int(weight_n[first : first + BLOCK].cumsum(dtype=np.float64).searchsorted(reach, side="right"))
    if node < len(weight_n) and weight_n[node] > 0:
        return node
    before = np.flatnonzero(weight_n[:node])  # the draw fell on the rounding of the last sum
    return int(before[-1]) if len(before) else int(weight_n.argmax())


def _weights(score_bn: np.ndarray, temperature: float) -> np.ndarray:
    """Unnormalised probabilities [B, N], float32, exactly 0 where the score is -inf."""
    best_b1 = score_bn.max(axis=1, keepdims=True, initial=-np.inf)
    best_b1 = np.where(np.isfinite(best_b1), best_b1, np.float32(0))
    if temperature > 0:
        weight_bn = score_bn - best_b1
        weight_bn *= np.float32(1 / temperature)
        return np.exp(weight_bn, out=weight_bn)
    return (score_bn >= best_b1 - TIE * np.maximum(1, np.abs(best_b1))).astype(np.float32)


def _without(score_n: np.ndarray, full: list[int], temperature: float) -> np.ndarray:
    """Unnormalised probabilities [N] over the nodes that are not full."""
    score_n = score_n.copy()
    score_n[full] = -np.inf
    return _weights(score_n[None], temperature)[0]


def draw(workflow_id: str, task_id: str, attempt: int) -> float:
    """The number in [0, 1) that decides for this attempt: the same whoever decides, and when."""
    key = f"{workflow_id}\0{task_id}\0{attempt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest()) / 2**56
