"""How long decisions are looked at twice: time in, a number of samples out.

The core knows no clock. What a sample takes is measured once, when a worker starts; the policy's name, which is in
every record, says how many are played, and with as many every decision can be made again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

import numpy as np

from policy.heuristics import heuristic
from policy.observation import Observation, Policy
from policy.online_lookahead import FEWEST_SAMPLES, RolloutSettings, with_lookahead
from policy.state import State
from schemas.errors import InvalidConfiguration
from schemas.records import METRICS, Env, NodeMetrics, NodeSpec, Task, WorkflowClass, WorkflowSubmitted

log = logging.getLogger("headrace.policy")

GIB = 2**30
NODES, TASKS, AT_MS = 100, 40, 1_700_000_000_000
"""Of the pool that is decided about for the measurement."""
MEASURED = 5


@dataclass(frozen=True, kw_only=True)
class OnlineLookaheadSettings:
    """Whether decisions are looked at twice (`policy.online_lookahead`)."""

    budget_ms: float = 0.0
    """Time for one task, about, so that no more than 1000 / budget_ms tasks a second are placed; 0: none, nothing is
    tried."""
    samples: int = 0
    """Samples for one task; 0: as many as take `budget_ms` here, measured at the start."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise InvalidConfiguration(f"policy.lookahead.{name}", f"{value} is out of range", "give 0 or more")
        if self.samples and not self.budget_ms:
            raise InvalidConfiguration(
                "policy.lookahead.samples", "nothing is looked at twice", "give policy.lookahead.budget_ms as well"
            )


def looking_twice(
    policy: Policy, settings: OnlineLookaheadSettings, clock_s: Callable[[], float] = time.perf_counter
) -> Policy:
    """The policy with a second look at its decisions, where there is time for one."""
    if not settings.budget_ms:
        return policy
    samples = settings.samples or affordable(settings.budget_ms, clock_s)
    facts = {"budget_ms": settings.budget_ms, "samples": samples}
    if samples < FEWEST_SAMPLES:
        log.warning("lookahead.off", extra=facts)
        return policy
    log.info("lookahead.on", extra=facts)
    return with_lookahead(policy, RolloutSettings(samples=samples))


@cache
def affordable(budget_ms: float, clock_s: Callable[[], float]) -> int:
    """How many samples take so long, as a measurement says that a process makes once; no more than are of use."""
    usual = RolloutSettings()
    few = replace(usual, samples=FEWEST_SAMPLES)
    policy, seen = with_lookahead(heuristic("srcp"), few), _a_decision()
    took_s = []
    for _ in range(MEASURED):
        began_s = clock_s()
        policy.score(seen)
        took_s.append(clock_s() - began_s)
    return min(usual.samples, int(budget_ms / 1000 / max(1e-9, median(took_s)) * FEWEST_SAMPLES))


def _a_decision() -> Observation:
    """About the first of many tasks that wait for a pool of equal nodes."""
    state = State("measured")
    specs = tuple(NodeSpec(f"n{at}", 16.0, 64 * GIB, price_per_hour=1.0) for at in range(NODES))
    values_nm = np.full((NODES, len(METRICS)), np.nan, "<f4")
    state.apply(NodeMetrics(state.pool, AT_MS, "measured", tuple(s.node_id for s in specs), values_nm.tobytes(), specs))
    tasks = tuple(Task(f"t{at}", 60.0 + at, memory_bytes=GIB) for at in range(TASKS))
    workflow = WorkflowSubmitted(state.pool, "w", AT_MS, "measured", WorkflowClass.UNKNOWN, Env.UNKNOWN, tasks)
    for ready in state.apply(workflow):
        state.apply(ready)
    (first, *_) = state.workflows["w"].tasks
    return Observation(state, [first], [0], np.ones((1, NODES), bool), state.ledger.free_rn)
