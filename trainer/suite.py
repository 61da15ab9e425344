"""What policies are measured on: named sets of scenarios that training never sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from policy.episode import POOL, EpisodeSettings
from policy.simulator import SimulatorSettings
from schemas.errors import InvalidConfiguration
from schemas.node_file import read_nodes
from schemas.records import NodeSpec, WorkflowClass
from trainer.scenarios import Course, course_of
from trainer.trace_workloads import TraceSettings, fitted, trace_workload
from trainer.traces import Trace, read_trace
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
    node_file: Path | None = None
    """Where the nodes are drawn from; none: `example_nodes`."""
    workload: WorkloadSettings | TraceSettings
    cluster: SimulatorSettings = CLUSTER

    def specs(self) -> tuple[NodeSpec, ...]:
        """The nodes. Raises InvalidCluster where their file has none."""
        return example_nodes(self.nodes) if self.node_file is None else _nodes_of(self.node_file, self.nodes)

    def course(self, purpose: int, seed: int) -> Course:
        """The scenario of this seed. Raises InvalidInput where its traces cannot be read."""
        rng = np.random.default_rng((purpose, seed))
        specs = self.specs()
        if isinstance(self.workload, WorkloadSettings):
            workflows = random_workload(rng, specs, self.workload, POOL, START_MS)
        else:
            workflows = trace_workload(rng, specs, trace_of(self), self.workload, POOL, START_MS)
        return course_of(specs, workflows, replace(self.cluster, seed=int(rng.integers(2**31))), START_MS, rng)


@cache
def _nodes_of(path: Path, count: int) -> tuple[NodeSpec, ...]:
    return read_nodes(path, limit=count)


@cache
def trace_of(setup: Setup) -> Trace:
    """What a setup's traces hold for its nodes, read once a process. Raises InvalidInput."""
    assert isinstance(setup.workload, TraceSettings), setup.name
    return fitted(read_trace(setup.workload.folder, setup.workload.source), setup.specs(), setup.workload)


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
    _setup(
        "spot nodes, latency spikes",
        0.9,
        latency_spikes_per_hour=2.0,
        spot_share=0.5,
        spot_interruptions_per_hour=0.5,
    ),
)
NODES_PER_SIZE = (64, 256, 1000)
LARGE = (
    *(_setup(f"{nodes:,} nodes, 2 workflows a node", 0.8, nodes, 2 * nodes) for nodes in NODES_PER_SIZE),
    _setup("5,000 nodes, 1,000 workflows", 0.8, 5000, 1000),
)
"""Of one kind but for the size: as many workflows a node, so that what is won at 1,000 nodes compares with 64.

On 5,000 nodes that would take minutes a policy: their scenario ends before they are full.
"""
HEADLINE = (
    Setup(
        name="100 ETL submissions",
        workload=WorkloadSettings(workflows=100, tasks=(5, 50), load=0.9, classes=(WorkflowClass.ETL_BATCH,)),
    ),
)
"""What the source design reports its figures of."""
SUITES: Mapping[str, Sequence[Setup]] = {
    "standard": STANDARD,
    "quick": STANDARD[:2],
    "large": LARGE,
    "headline": HEADLINE,
    "traces": (),
}
"""The rows of each suite; `standard` and `traces` have those of `trace_rows` too, where traces are given."""
WITH_TRACES = ("standard", "traces")
TRACE_NAMES = ("WfFormat applications", "TPC-H queries", "Alibaba 2018 batch jobs", "Alibaba 2023 GPU pods")


def trace_rows(folder: Path) -> tuple[Setup, ...]:
    """The rows made from a folder of traces (`trainer.traces`), by the names `TRACE_NAMES`."""
    executions, queries, batch_jobs, pods = TRACE_NAMES
    return (
        Setup(
            name=executions,
            workload=TraceSettings(folder=folder, source="executions", tasks=6000, largest=1100),
        ),
        Setup(name=queries, workload=TraceSettings(folder=folder, source="queries", tasks=4000)),
        Setup(
            name=batch_jobs,
            workload=TraceSettings(folder=folder, source="batch_jobs", tasks=12_000, longest_s=600.0),
        ),
        Setup(
            name=pods,
            nodes=64,
            node_file=folder / "alibaba-gpu-2023" / "openb_node_list_all_node.csv",
            workload=TraceSettings(folder=folder, source="pods", tasks=4000),
        ),
    )


def rows_of(suite: str, traces: Path | None) -> tuple[Setup, ...]:
    """The rows of a suite, with those of the traces where they belong to it and are given.

    Raises InvalidConfiguration where nothing is left.
    """
    rows = (*SUITES[suite], *(trace_rows(traces) if traces is not None and suite in WITH_TRACES else ()))
    if not rows:
        raise InvalidConfiguration(f"evaluate.suite {suite}", "has no rows without traces", "give --traces DIR")
    return rows


def courses(workers: Workers, setup: Setup, purpose: int, seeds: Iterable[int]) -> list[Course]:
    """The scenarios of these seeds."""
    return list(workers.map(partial(setup.course, purpose), seeds))
