"""How well a run went, in a few figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policy.resources import MILLI
from policy.reward import SLA_S
from policy.trace import Attempt, Trace
from schemas.records import NodeSpec


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run; seconds, and the currency of the nodes' prices."""

    policy: str
    workflows: int
    tasks: int
    attempts: int
    turnaround_mean_s: float
    turnaround_p95_s: float
    makespan_s: float  # first submission to last finish
    cost: float  # of the hours in which a node ran anything
    gpu_cost: float  # of it, nodes with GPUs
    sla: float  # share of tasks started within SLA_S
    load_std: float  # time average of the standard deviation over nodes of the share of cpu in use


def summarise(trace: Trace, specs: Sequence[NodeSpec], policy: str) -> Summary:
    """The figures of the ended attempts of a run."""
    attempts = [a for a in trace.attempts() if a.finish_s is not None]
    ends: dict[str, float] = {}
    first_start: dict[tuple[str, str], Attempt] = {}
    for attempt in attempts:
        ends[attempt.workflow_id] = max(ends.get(attempt.workflow_id, 0.0), attempt.finish_s or 0.0)
        key = (attempt.workflow_id, attempt.task_id)
        if key not in first_start or attempt.start_s < first_start[key].start_s:
            first_start[key] = attempt
    turnaround = np.array([end - trace.submitted_s.get(w, end) for w, end in ends.items()] or [0.0])
    waits = np.array([a.start_s - a.ready_s for a in first_start.values()] or [0.0])
    busy_s = _busy_s(attempts)
    cost = {s.node_id: busy_s.get(s.node_id, 0.0) / 3600 * s.price_per_hour for s in specs}
    first_s = min(trace.submitted_s.values(), default=0.0)
    return Summary(
        policy,
        len(ends),
        len(first_start),
        len(attempts),
        float(turnaround.mean()),
        float(np.percentile(turnaround, 95)),
        max(ends.values(), default=first_s) - first_s,
        sum(cost.values()),
        sum(cost[s.node_id] for s in specs if s.gpu),
        float((waits <= SLA_S).mean()),
        _load_std(attempts, specs),
    )


def _busy_s(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Seconds in which each node held at least one attempt."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for attempt in attempts:
        spans.setdefault(attempt.node_id, []).append((attempt.reserved_s, attempt.finish_s or attempt.reserved_s))
    busy_s = {}
    for node_id, of_node in spans.items():
        total, until = 0.0, float("-inf")
        for start, finish in sorted(of_node):
            total += max(0.0, finish - max(start, until))
            until = max(until, finish)
        busy_s[node_id] = total
    return busy_s


def _load_std(attempts: Sequence[Attempt], specs: Sequence[NodeSpec]) -> float:
    """Sweep over starts and ends, with sums of the nodes' shares and of their squares."""
    index = {spec.node_id: at for at, spec in enumerate(specs)}
    milli_n = np.array([round(spec.cpu * MILLI) for spec in specs])
    changes = []
    for attempt in attempts:
        milli = round(attempt.task.cpu * MILLI)
        node = index.get(attempt.node_id)
        if node is not None:
            changes += [(attempt.reserved_s, milli, node), (attempt.finish_s or attempt.reserved_s, -milli, node)]
    used_n = np.zeros(len(specs), np.int64)
    total = squares = area = 0.0
    changes.sort()
    last_s = changes[0][0] if changes else 0.0
    begin_s = last_s
    for at_s, milli, node in changes:
        mean = total / len(specs)
        area += (at_s - last_s) * max(0.0, squares / len(specs) - mean * mean) ** 0.5
        last_s = at_s
        before = used_n[node] / milli_n[node]
        used_n[node] += milli
        after = used_n[node] / milli_n[node]
        total += after - before
        squares += after * after - before * before
    return float(area / (last_s - begin_s)) if last_s > begin_s else 0.0
