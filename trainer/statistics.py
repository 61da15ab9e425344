"""What the features are like on the work that a policy is trained for: against it, what a cluster shows can be held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from policy.decide import DecideSettings
from policy.episode import Episode, EpisodeSettings
from policy.features import GRAPH_FEATURES, PAIR_FEATURES, POOL_FEATURES, TASK_FEATURES
from policy.observation import Observation, Policy
from trainer.moments import Memory
from trainer.scenarios import Course

NODES = 64
"""Most of a course's nodes that take part, and WORKFLOWS most of its workflows."""
WORKFLOWS = 40


def feature_statistics(policy: Policy, courses: Sequence[Course]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation and the 1st and 99th percentile of each feature, over the policy's own decisions.

    Of a pair of a task and a node only where the task may go there.
    """
    memory = Memory()

    def score(seen: Observation) -> np.ndarray:
        memory.keep(seen)
        return policy.score(seen)

    for course in courses:
        settings = EpisodeSettings(
            cluster=course.cluster, decide=DecideSettings(batch=1), start_ms=course.scenario.start_ms
        )
        Episode(course.specs[:NODES], course.workflows[:WORKFLOWS], replace(policy, score=score), settings).run()
        memory.forget_workflows()
    return {name: _described(values) for name, values in _columns(memory)}


def _columns(memory: Memory) -> Iterator[tuple[str, np.ndarray]]:
    together = memory.together(range(len(memory.moments)))
    graph_bf = together.graph_tf[together.task_b].numpy()
    for kind, names, values_bf in (
        ("graph", GRAPH_FEATURES, graph_bf),
        ("task", TASK_FEATURES, together.task_bf.numpy()),
        ("pool", POOL_FEATURES, together.pool_bf.numpy()),
    ):
        yield from ((f"{kind}.{name}", values_bf[:, at]) for at, name in enumerate(names))
    mask_bn, pair_bpn = together.mask_bn.numpy(), together.pair_bpn.numpy()
    yield from ((f"pair.{name}", pair_bpn[:, at][mask_bn]) for at, name in enumerate(PAIR_FEATURES))


def _described(values: np.ndarray) -> dict[str, float]:
    low, high = np.percentile(values, (1, 99))
    described: Mapping[str, float] = {"mean": values.mean(), "std": values.std(), "p1": low, "p99": high}
    return {name: round(float(value), 6) for name, value in described.items()}
