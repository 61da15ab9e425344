"""The compiled simulator: whole episodes, and single steps with features; CPU time of one processor."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.line import report

try:
    from policy.reward import baseline
    from trainer.rules import HEURISTIC_RULES
    from trainer.scenarios import CLASSES, Course, run
    from trainer.steps import Steps, prices
    from trainer.suite import TRAINING, Setup
    from trainer.workloads import WorkloadSettings
except ImportError as error:
    sys.exit(f"benchmarks simulate: needs more packages ({error}); install headrace[train]")

SMALL = 16
NODES = (SMALL, 64, 256, 1000, 5000)
FEW, MANY = 16, 64
"""Environments: what few of them touch fits into a processor's cache."""
ROUNDS = 7
STEPS = 400
"""Of each environment in a round; fewer on large pools, as REACH says."""
REACH = 4_000_000
"""Decisions times nodes of a round."""
EPISODES = ("kube_default", "srcp_spare_gpu", "heft")


def course(nodes: int) -> Course:
    """A scenario of this many nodes, at load 0.8."""
    workload = WorkloadSettings(workflows=60 if nodes == SMALL else 120, tasks=(5, 50), load=0.8)
    return Setup(name="bench", nodes=nodes, workload=workload).course(TRAINING, 0)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU time of the process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def episodes(scenario: Course) -> None:
    """Whole episodes inside compiled heuristics."""
    for name in EPISODES:
        rule = HEURISTIC_RULES[name]
        run(scenario, rule)
        rates = []
        for _ in range(ROUNDS):
            started = time.process_time()
            placements = sum(run(scenario, rule).placements for _ in range(5))
            rates.append(placements / (time.process_time() - started))
        report("whole episodes", "placements/CPU-s", rates, policy=name, nodes=SMALL, target=150_000)


def steps(scenario: Course, nodes: int, environments: int) -> list[float]:
    """CPU seconds of one environment step, features and reward included, in some rounds."""
    usual = baseline([run(scenario, HEURISTIC_RULES["srcp"]).measured()], len(CLASSES))
    count = int(np.clip(REACH // (nodes * environments), 10, STEPS))
    games, terms = Steps(environments, nodes), prices(scenario, usual)
    found = []
    for _ in range(ROUNDS + 1):
        for e in range(environments):
            games.put(e, scenario, HEURISTIC_RULES["srcp"], terms, skipped=15 * e)
        used_s = 0.0
        for _ in range(count):
            earliest_e = games.seen.pair_epn[:, 0].argmax(axis=1)
            used_s += cpu_s(partial(games.step, earliest_e))
        found.append(used_s / (count * environments))
    return found[1:]


def main() -> None:
    """Episodes at 16 nodes, then steps from 16 to 5,000."""
    episodes(course(SMALL))
    for nodes, environments in ((SMALL, MANY), *((nodes, FEW) for nodes in NODES)):
        costs = steps(course(nodes), nodes, environments)
        facts = {"nodes": nodes, "environments": environments, **({"target": 100_000} if nodes == SMALL else {})}
        report("environment steps with features", "steps/CPU-s", [1 / c for c in costs], **facts)
        report("a step, for each node", "ns", [1e9 * c / nodes for c in costs], nodes=nodes, environments=environments)
