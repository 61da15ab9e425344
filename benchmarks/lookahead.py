"""What looking ahead at decision time gains: the same episodes with and without it, decided by the shipped actor."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.line import report
from policy.decide import DecideSettings
from policy.episode import POOL, Episode, EpisodeSettings
from policy.observation import Policy
from policy.online_lookahead import RolloutSettings, with_lookahead
from policy.reward import RewardWeights
from policy.trace import Trace
from schemas.records import NodeSpec, WorkflowSubmitted
from streams import policies
from streams.policies import PolicySettings

try:
    from trainer.intervals import interval
    from trainer.suite import CLUSTER
    from trainer.workloads import WorkloadSettings, example_nodes, random_workload
except ImportError as error:
    sys.exit(f"benchmarks lookahead: needs more packages ({error}); install headrace[train]")

NODES = 16
SEEDS = range(7000, 7030)
SAMPLES = (8, 24)
WORKLOAD = WorkloadSettings(workflows=15, tasks=(5, 30), load=0.9)


@dataclass(frozen=True)
class Measured:
    """Of one episode."""

    turnaround_s: float
    cost: float
    cpu_ms: float
    """Of one decision, the simulation included."""
    nodes: tuple[tuple[object, str], ...]
    """Where each first attempt went."""


def played(specs: Sequence[NodeSpec], workflows: Sequence[WorkflowSubmitted], policy: Policy, seed: int) -> Measured:
    """One episode; batches of one, since a second look is taken at one task at a time."""
    settings = EpisodeSettings(cluster=replace(CLUSTER, seed=seed), decide=DecideSettings(batch=1))
    episode = Episode(specs, workflows, policy, settings)
    started = time.thread_time()
    trace = episode.run()
    cpu_ms = 1000 * (time.thread_time() - started) / episode.decisions
    placed = [(key, p.node_id or "") for key, p in trace.placements.items() if key[2] == 0]
    return Measured(float(np.mean(list(turnarounds_s(trace)))), bill(trace, specs), cpu_ms, tuple(placed))


def turnarounds_s(trace: Trace) -> Iterator[float]:
    """Of each workflow, from its submission to its last finish."""
    end_s: dict[str, float] = defaultdict(float)
    for attempt in trace.attempts():
        end_s[attempt.workflow_id] = max(end_s[attempt.workflow_id], attempt.finish_s or 0.0)
    return (end_s[workflow] - begin_s for workflow, begin_s in trace.submitted_s.items())


def bill(trace: Trace, specs: Sequence[NodeSpec]) -> float:
    """The nodes' prices while they hold anything."""
    price = {spec.node_id: spec.price_per_hour for spec in specs}
    until_s: dict[str, float] = defaultdict(float)
    total = 0.0
    for attempt in sorted(trace.attempts(), key=lambda attempt: attempt.reserved_s):
        end_s, before_s = attempt.finish_s or attempt.start_s, until_s[attempt.node_id]
        total += max(0.0, end_s - max(before_s, attempt.reserved_s)) / 3600 * price[attempt.node_id]
        until_s[attempt.node_id] = max(before_s, end_s)
    return total


def main() -> None:
    """Paired differences in percent of what the actor alone reaches, below 0 is better; fresh seeds."""
    specs, actor, weights = example_nodes(NODES), policies.build(PolicySettings(device="cpu")), RewardWeights()
    work = {
        seed: random_workload(np.random.default_rng(seed), specs, WORKLOAD, POOL, EpisodeSettings().start_ms)
        for seed in SEEDS
    }
    alone = {seed: played(specs, work[seed], actor, seed) for seed in SEEDS}
    greedy = replace(actor, temperature=0.0)  # a switch leaves nothing to chance: what of a gain comes from that alone?
    looking = [with_lookahead(actor, RolloutSettings(samples=samples)) for samples in SAMPLES]
    for samples, policy in zip((0, *SAMPLES), (greedy, *looking), strict=True):
        with_it = {seed: played(specs, work[seed], policy, seed) for seed in SEEDS}
        turnaround = [100 * (with_it[seed].turnaround_s / alone[seed].turnaround_s - 1) for seed in SEEDS]
        cost = [100 * (with_it[seed].cost / alone[seed].cost - 1) for seed in SEEDS]
        total = weights.turnaround + weights.cost
        both = [(weights.turnaround * t + weights.cost * c) / total for t, c in zip(turnaround, cost, strict=True)]
        differ = [
            float(np.mean([dict(with_it[seed].nodes).get(key) != node for key, node in alone[seed].nodes]))
            for seed in SEEDS
        ]
        facts = {"samples": samples, "nodes": NODES}
        for name, values in (("turnaround", turnaround), ("cost", cost), ("both as in the reward", both)):
            mean, half = interval(values)
            report(
                f"lookahead at decision time, {name}", "% of without", values, mean=mean, half_interval=half, **facts
            )
        report("lookahead at decision time, other nodes", "share of tasks", differ, **facts)
        cpu_ms, plain_ms = ([m.cpu_ms for m in found.values()] for found in (with_it, alone))
        report(
            "lookahead at decision time, CPU", "ms/decision", cpu_ms, counterpart=float(np.median(plain_ms)), **facts
        )
