"""What policies are measured on: named sets of scenarios that training never sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from policy.episode import POOL, EpisodeSettings
from policy.simulator import SimulatorSettings
from trainer.scenarios import Course, course_of
from trainer.workers import Workers
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

START_MS = EpisodeSettings().start_ms
TRAINING, EVALUATION, REFERENCE = range(3)
"""What a stream of random numbers is for; scenarios of one never appear in another."""
CLUSTER = SimulatorSettings(
    runtime_noise=0.35,
    transfer_noise=0.3,
    failure_rate=0.02,
    node_losses_per_hour=0.05,
    slow_spells_per_hour=0.1,
    crowding=0.4,
)
"""Noise, crowding and slow spells that no policy is told of."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One row of a suite: nodes and load, of which every seed makes another scenario."""

    name: str
    nodes: int = 16
    workload: WorkloadSettings
    cluster: SimulatorSettings = CLUSTER

    def course(self, purpose: int, seed: int) -> Course:
        """The scenario of this seed."""
        rng = np.random.default_rng((purpose, seed))
        specs = example_nodes(self.nodes)
        workflows = random_workload(rng, specs, self.workload, POOL, START_MS)
        return course_of(specs, workflows, replace(self.cluster, seed=int(rng.integers(2**31))), START_MS, rng)


def _setup(name: str, load: float, nodes: int = 16, workflows: int = 120, **cluster: float) -> Setup:
    workload = WorkloadSettings(workflows=workflows, tasks=(5, 50), load=load)
    return Setup(name=name, nodes=nodes, workload=workload, cluster=replace(CLUSTER, **cluster))


STANDARD = (
    _setup("load 0.7", 0.7),
    _setup("load 0.9", 0.9),
    Setup(name="large DAGs", workload=WorkloadSettings(workflows=60, tasks=(30, 100), load=0.8)),
    _setup("64 nodes", 0.8, nodes=64, workflows=480),
    _setup("no failures", 0.9, failure_rate=0.0, node_losses_per_hour=0.0),
    _setup("3 x failures", 0.9, failure_rate=0.06, node_losses_per_hour=0.15),
)
SUITES: Mapping[str, Sequence[Setup]] = {"standard": STANDARD, "quick": STANDARD[:2]}


def courses(workers: Workers, setup: Setup, purpose: int, seeds: Iterable[int]) -> list[Course]:
    """The scenarios of these seeds."""
    return list(workers.map(partial(setup.course, purpose), seeds))
