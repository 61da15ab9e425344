"""An episode in the simulator, with every record that a live run would leave in its topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policy.episode import POOL, Episode, EpisodeSettings
from policy.heuristics import heuristic
from policy.simulator import SimulatorSettings
from policy.state import State, StateSettings
from policy.trace import Trace
from schemas.records import NodeMetrics, NodeSpec, WorkflowSubmitted
from trainer.workloads import WorkloadSettings, example_nodes, random_workload


class _ListeningTrace(Trace):
    def __init__(self, records: list[object]) -> None:
        super().__init__()
        self.records = records

    def apply(self, record: object) -> None:
        self.records.append(record)
        super().apply(record)


class _ListeningState(State):
    """Hears the samples, which the trace does not."""

    def __init__(self, records: list[object], settings: StateSettings) -> None:
        super().__init__(POOL, settings)
        self.records = records

    def apply(self, record: Any) -> Any:
        if isinstance(record, NodeMetrics):
            self.records.append(record)
        return super().apply(record)


def recorded_episode(
    cluster: SimulatorSettings, *, workflows: int = 30, nodes: int = 8, load: float = 0.8
) -> tuple[list[object], Trace, tuple[NodeSpec, ...]]:
    """The records of made-up workflows that srcp placed, their trace, and the nodes."""
    rng, specs, settings = np.random.default_rng(cluster.seed), example_nodes(nodes), EpisodeSettings(cluster=cluster)
    submitted = random_workload(rng, specs, WorkloadSettings(workflows=workflows, load=load), POOL, settings.start_ms)
    return records_of(specs, submitted, settings)


def records_of(
    specs: Sequence[NodeSpec], submitted: Sequence[WorkflowSubmitted], settings: EpisodeSettings
) -> tuple[list[object], Trace, tuple[NodeSpec, ...]]:
    """The same of these workflows."""
    records: list[object] = []
    episode = Episode(specs, submitted, heuristic("srcp"), settings)
    episode.state = _ListeningState(records, episode.state.settings)
    episode.trace = _ListeningTrace(records)
    return records, episode.run(), tuple(specs)
