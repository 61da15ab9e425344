"""What is practised: from small workflows to large ones, and most of what the policy is worst at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from policy.simulator import SimulatorSettings
from trainer.anomalies import with_anomalies
from trainer.scenarios import Course
from trainer.suite import CLUSTER, TRAINING, Setup
from trainer.workloads import WorkloadSettings

CALM = "none"
TROUBLES: Mapping[str, SimulatorSettings] = {
    CALM: CLUSTER,
    "node losses": replace(CLUSTER, node_losses_per_hour=10 * CLUSTER.node_losses_per_hour),
    "stragglers": replace(CLUSTER, slow_spells_per_hour=10 * CLUSTER.slow_spells_per_hour, runtime_noise=0.6),
    "latency": replace(CLUSTER, latency_spikes_per_hour=4.0),
    "spot": replace(CLUSTER, spot_share=0.5, spot_interruptions_per_hour=1.0),
}
"""What the adversary may bring, beside the usual cluster."""
RECORDED = "recorded"
"""The trouble of episodes whose nodes are slow as real machines were."""
RECORDED_SHARE = 0.1
"""Of the episodes, where there are recordings."""

STAGES = ((0.0, (2, 5)), (0.1, (5, 10)), (0.2, (5, 20)), (0.35, (5, 50)))
"""From which share of the training on workflows have how many tasks."""
POOLS = ((0.7, 16), (0.9, 16), (0.7, 12), (1.1, 16), (0.8, 24))
"""Loads and nodes, in turn."""
NODES = max(nodes for _, nodes in POOLS)
TASKS = 900
"""Of an episode, about."""


@dataclass(frozen=True)
class Lesson:
    """What one episode is made of: the same again whenever it is made."""

    tasks: tuple[int, int]
    trouble: str
    at: int
    """Its number among those that are like it."""

    def course(self, seed: int, recorded: Sequence[np.ndarray] = ()) -> Course:
        """The scenario, of a training with this seed; `recorded`: spells of machines, for those with RECORDED."""
        cluster = TROUBLES.get(self.trouble, replace(CLUSTER, slow_spells_per_hour=0.0))
        load, nodes = POOLS[self.at % len(POOLS)]
        workload = WorkloadSettings(workflows=round(2 * TASKS / sum(self.tasks)), tasks=self.tasks, load=load)
        setup = Setup(name=self.trouble, nodes=nodes, workload=workload, cluster=cluster)
        number = 1_000_000 + 100_000 * seed + self.at
        course = setup.course(TRAINING, number)
        if self.trouble != RECORDED:
            return course
        return with_anomalies(course, recorded, np.random.default_rng((TRAINING, number, 1)))


def tasks_at(share: float, is_staged: bool) -> tuple[int, int]:
    """Least and most tasks of the workflows, when this share of the training is done."""
    if not is_staged:
        return STAGES[-1][1]
    return [tasks for begin, tasks in STAGES if begin <= share][-1]


@dataclass
class Adversary:
    """Brings trouble to half of the episodes: mostly where the policy does worst beside its start.

    What it remembers of each trouble is how much less than its start the policy lately got, in the same episode.
    """

    names: Sequence[str] = tuple(TROUBLES)
    loss: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*TROUBLES, RECORDED), 0.0))
    memory: float = 0.8
    sharpness: float = 0.01
    """How large a difference in reward makes one trouble e times as likely as another."""

    def choose(self, rng: np.random.Generator) -> str:
        """The trouble of the next episode."""
        if len(self.names) == 1 or rng.random() < 0.5:
            return CALM
        trouble = [name for name in self.names if name != CALM]
        weight = np.exp(np.clip(np.array([self.loss[name] for name in trouble]) / self.sharpness, -20, 20))
        return trouble[int(rng.choice(len(trouble), p=weight / weight.sum()))]

    def learn(self, trouble: str, gain: float) -> None:
        """An episode with this trouble is over: the policy got so much more reward than its start."""
        self.loss[trouble] = self.memory * self.loss[trouble] - (1 - self.memory) * gain
