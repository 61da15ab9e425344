"""Scores to placements: the mask, the temperature, the choice, the reservation within a batch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

NOWHERE = -1
TIE = 1e-6
"""Scores closer than this are equal where the temperature is 0."""
LEAST = 1e-200
"""Probabilities that are all smaller, against that of a node that is full, have lost digits."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for one task of a batch. `node` is NOWHERE when the batch's earlier tasks took all its room."""

    node: int
    log_prob: float
    probability_n: np.ndarray
    """[N] float64, over the nodes that could take it at its turn."""


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
    cumulated_bn = np.cumsum(weight_bn, axis=1)
    left: dict[int, np.ndarray] = {}
    choices = []
    for row, request_r in enumerate(request_br):
        full = [node for node, left_r in left.items() if (request_r > left_r).any()]
        weight_n, cumulated_n = weight_bn[row], cumulated_bn[row]
        if full and weight_n[full].any():
            weight_n = weight_n.copy()
            weight_n[full] = 0.0
            if weight_n.max() < LEAST:
                weight_n = _without(logits_bn[row], mask_bn[row], full, temperature)
            cumulated_n = np.cumsum(weight_n)
        total = cumulated_n[-1] if len(cumulated_n) else 0.0
        if not total > 0:
            choices.append(Choice(NOWHERE, 0.0, weight_n))
            continue
        node = int(np.searchsorted(cumulated_n, draw_b[row] * total, side="right"))
        if node >= len(weight_n) or weight_n[node] <= 0:  # the draw fell on the rounding of the last sum
            node = int(np.flatnonzero(weight_n)[-1])
        choices.append(Choice(node, float(np.log(weight_n[node] / total)), weight_n / total))
        left[node] = left.get(node, free_rn[:, node]) - request_r
    return choices


def _weights(logits_bn: np.ndarray, mask_bn: np.ndarray, temperature: float) -> np.ndarray:
    """Unnormalised probabilities [B, N], float64, exactly 0 where the mask is False."""
    logits_bn = np.where(mask_bn, logits_bn, -np.inf).astype(np.float64)
    best_b1 = logits_bn.max(axis=1, keepdims=True, initial=-np.inf)
    best_b1 = np.where(np.isfinite(best_b1), best_b1, 0.0)
    if temperature > 0:
        return np.exp((logits_bn - best_b1) / temperature)
    return (logits_bn >= best_b1 - TIE * np.maximum(1.0, np.abs(best_b1))).astype(np.float64)


def _without(logits_n: np.ndarray, mask_n: np.ndarray, full: list[int], temperature: float) -> np.ndarray:
    """Unnormalised probabilities [N] over the nodes that are not full."""
    mask_n = mask_n.copy()
    mask_n[full] = False
    return _weights(logits_n[None], mask_n[None], temperature)[0]


def draw(workflow_id: str, task_id: str, attempt: int) -> float:
    """The number in [0, 1) that decides for this attempt: the same whoever decides, and when."""
    key = f"{workflow_id}\0{task_id}\0{attempt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest()) / 2**56
