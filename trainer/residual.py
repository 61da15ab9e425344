"""A policy as one vector of numbers: what whole-episode search looks for, and the network that it amounts to."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch

from policy.features import GRAPH_FEATURES, ORDER_FEATURES, POOL_FEATURES, TASK_FEATURES
from policy.network import CONTEXT, HIDDEN, ActorCritic
from schemas.errors import InvalidConfiguration
from trainer.arena import CHANGING, LEARNT, LEARNT_ORDER, ORDERS, PAIRS, Rule
from trainer.clone import one_thread
from trainer.scenarios import Course

WISHES = 6.0
"""Weight of the soft wishes, which no training workload has."""
FIXED = len(GRAPH_FEATURES)
assert len(TASK_FEATURES) + len(POOL_FEATURES) == CHANGING


@dataclass(frozen=True)
class Residual:
    """A linear score and order, and what H hidden units of the scoring head add to the weights of the pair features.

    weight_p [PAIRS], weight_k [ORDERS]                     the linear policy
    fixed_fh [FIXED, H], changing_ch [CHANGING, H], bias_h  a task's and its pool's features into the hidden units
    mix_hp   [H, PAIRS]                                     what each unit adds; all 0: the linear policy alone
    """

    weight_p: np.ndarray
    weight_k: np.ndarray
    fixed_fh: np.ndarray
    changing_ch: np.ndarray
    bias_h: np.ndarray
    mix_hp: np.ndarray

    @classmethod
    def linear(cls, weight_p: np.ndarray, weight_k: np.ndarray, hidden: int, rng: np.random.Generator) -> Residual:
        """The linear policy, with hidden units that look at everything and have no say yet."""
        inputs = FIXED + CHANGING
        into = rng.standard_normal((inputs, hidden)) / np.sqrt(inputs)
        return cls(
            weight_p, weight_k, into[:FIXED], into[FIXED:], rng.standard_normal(hidden) / 4, np.zeros((hidden, PAIRS))
        )

    @classmethod
    def from_vector(cls, vector: np.ndarray, hidden: int) -> Residual:
        """The policy that `vector` made this of."""
        shapes = shapes_of(hidden)
        ends = np.cumsum([np.prod(shape) for shape in shapes], dtype=int)
        return cls(*(part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)))

    def vector(self) -> np.ndarray:
        """All its numbers, one after the other."""
        return np.concatenate([getattr(self, field.name).ravel() for field in fields(self)])

    def rule(self, course: Course, temperature: float) -> Rule:
        """How it decides in this course."""
        return Rule(
            LEARNT_ORDER,
            LEARNT,
            self.weight_p,
            self.weight_k,
            temperature,
            (course.graphs.graph_tf @ self.fixed_fh + self.bias_h).astype(np.float32),
            self.changing_ch.astype(np.float32),
            self.mix_hp.astype(np.float32),
        )

    def network(self, seed: int) -> ActorCritic:
        """The network that decides as this policy does: all else in it has no say yet."""
        hidden = len(self.bias_h)
        if hidden > HIDDEN:
            raise InvalidConfiguration("search.hidden", f"{hidden} is more than the network has", f"give {HIDDEN}")
        with one_thread():
            torch.manual_seed(seed)
            network = ActorCritic()
        head = network.head
        with torch.no_grad():
            head.weight.bias.copy_(torch.tensor([*self.weight_p, WISHES], dtype=torch.float32))
            if hidden:
                into_hc = np.zeros((hidden, CONTEXT), np.float32)
                into_hc[:, :FIXED] = self.fixed_fh.T
                into_hc[:, changing_columns()] = self.changing_ch.T
                head.mix[0].weight[:hidden] = torch.from_numpy(into_hc)
                head.mix[0].bias[:hidden] = torch.tensor(self.bias_h, dtype=torch.float32)
                head.weight.weight[:PAIRS, :hidden] = torch.tensor(self.mix_hp.T, dtype=torch.float32)
        return network


def shapes_of(hidden: int) -> list[tuple[int, ...]]:
    """The shapes of a residual's arrays."""
    return [(PAIRS,), (ORDERS,), (FIXED, hidden), (CHANGING, hidden), (hidden,), (hidden, PAIRS)]


def changing_columns() -> slice:
    """Where in the scoring head's context the features lie that change."""
    first = FIXED + 2 * HIDDEN
    return slice(first, first + CHANGING)


assert len(ORDER_FEATURES) == ORDERS
