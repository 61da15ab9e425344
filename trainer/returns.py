"""From rewards to what each choice was worth. Axes: S steps, E environments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def advantages(
    reward_se: np.ndarray, discount_se: np.ndarray, value_se: np.ndarray, last_e: np.ndarray, trace: float
) -> np.ndarray:
    """How much better each choice was than its state let expect: generalised advantage estimates [S, E].

    discount_se  what the state after the choice counts; 0 where the episode was over
    last_e       what the states after the last step are worth
    trace        1: the whole return counts; 0: the next state's value alone
    Source: Schulman, Moritz, Levine, Jordan, Abbeel 2016, arXiv 1506.02438.
    """
    advantage_se = np.zeros_like(reward_se)
    after_e, next_e = np.zeros_like(last_e), last_e
    for s in reversed(range(len(reward_se))):
        surprise_e = reward_se[s] + discount_se[s] * next_e - value_se[s]
        after_e = surprise_e + discount_se[s] * trace * after_e
        advantage_se[s], next_e = after_e, value_se[s]
    return advantage_se


@dataclass
class Scale:
    """Running mean and deviation of the returns, by which the critic's targets become numbers of about 1."""

    mean: float = 0.0
    square: float = 0.0
    weight: float = 0.0
    memory: float = 0.95

    def learn(self, values: np.ndarray) -> None:
        """These returns are new."""
        self.mean = self.memory * self.mean + (1 - self.memory) * float(values.mean())
        self.square = self.memory * self.square + (1 - self.memory) * float((values**2).mean())
        self.weight = self.memory * self.weight + 1 - self.memory

    @property
    def centre(self) -> float:
        """The mean so far."""
        return self.mean / self.weight if self.weight else 0.0

    @property
    def spread(self) -> float:
        """The standard deviation so far, 1 at the beginning."""
        if not self.weight:
            return 1.0
        return float(max(self.square / self.weight - self.centre**2, 1e-12) ** 0.5)
