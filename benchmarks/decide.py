"""The core without Kafka: CPU time of one decision (features, policy, arbiter), and of the actor alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.line import report
from benchmarks.plant import POOL, START_MS, node_specs, samples, task_ready
from policy.constraints import Constraints
from policy.decide import DecideSettings, Stamp, decide
from policy.heuristics import heuristic
from policy.observation import Policy
from policy.state import State
from schemas.records import NodeMetrics
from streams import policies
from streams.policies import PolicySettings

ROUNDS = 200


def pool(nodes: int) -> State:
    """A pool whose windows are full."""
    state, specs, rng = State(POOL), node_specs(nodes), np.random.default_rng(0)
    ids = tuple(spec.node_id for spec in specs)
    for step in range(20):
        at_ms = START_MS + 15_000 * step
        state.apply(NodeMetrics(POOL, at_ms, "bench", ids, samples(rng, nodes), specs if step == 0 else ()))
    return state


def cpu_ms(work: Callable[[], object]) -> float:
    """CPU time of the calling thread, milliseconds."""
    started = time.thread_time()
    work()
    return 1000 * (time.thread_time() - started)


def rounds(nodes: int, batch: int, policy: Policy) -> list[float]:
    """CPU milliseconds of one decision, in rounds of `batch` new tasks each; every task brings a DAG of its own."""
    state, constraints = pool(nodes), Constraints()
    costs = []
    for number in range(ROUNDS):
        for task in range(batch):
            state.apply(task_ready(number * batch + task, "r"))
        costs.append(cpu_ms(lambda: list(decide(state, policy, constraints, DecideSettings(), Stamp()))) / batch)
    return costs[ROUNDS // 10 :]


def main() -> None:
    """At 100, 1,000 and 5,000 nodes, alone and in batches, beside kube_default, which scores as the real one does."""
    for nodes in (100, 1000, 5000):
        for batch in (1, 8, 64):
            actor = rounds(nodes, batch, policies.build(PolicySettings()))
            plain = rounds(nodes, 1, heuristic("kube_default")) if batch == 1 else None
            report(
                "features + actor + arbiter, CPU of one decision",
                "ms",
                actor,
                nodes=nodes,
                batch=batch,
                p99=float(np.percentile(actor, 99)),
                **({"kube_default": float(np.median(plain))} if plain else {}),
            )
