"""What a run's records say of its attempts, its nodes and their losses."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from policy.physics import CROWDED
from policy.trace import ENDS, Attempt, Trace
from schemas.records import EventKind, NodeMetrics, NodeSpec, TaskEvent, WorkflowSubmitted

SHORTEST_S = 0.02
"""Expected times below this are lost in the rounding to milliseconds."""
END_MS = 2**62


class RunLog:
    """Folds a run's records, in any order. What cannot be used is counted in `remarks`."""

    def __init__(self, specs: Iterable[NodeSpec] = ()) -> None:
        self.trace = Trace()
        self.specs = {spec.node_id: spec for spec in specs}
        self.workflows: dict[str, WorkflowSubmitted] = {}
        self.losses: dict[str, set[int]] = defaultdict(set)
        """Node -> when it was lost, ms."""
        self.sampled: dict[int, set[str]] = defaultdict(set)
        """When samples were taken, ms -> of which nodes."""
        self.remarks: Counter[str] = Counter()

    def apply(self, record: object) -> None:
        """Take one record in; those of other kinds do not matter."""
        if isinstance(record, NodeMetrics):
            self.sampled[record.event_time_ms].update(record.nodes)
            self.specs.update((spec.node_id, spec) for spec in record.specs)
            return
        if isinstance(record, TaskEvent):
            if any(s is not None and not (math.isfinite(s) and s >= 0) for s in (record.runtime_s, record.transfer_s)):
                self.remarks["events with a negative or unusable time, left out"] += 1
                return
            if record.kind == EventKind.NODE_LOST:
                self.losses[record.node_id].add(record.event_time_ms)
        elif isinstance(record, WorkflowSubmitted):
            self.workflows.setdefault(record.workflow_id, record)
        self.trace.apply(record)

    def policy(self) -> str:
        """Who placed most attempts; empty where nobody is named."""
        names = Counter(p.policy for p in self.trace.placements.values() if p.policy)
        return names.most_common(1)[0][0] if names else ""


@dataclass(frozen=True)
class Runs:
    """The attempts that ran on known nodes, by node and time of reservation; A attempts."""

    log_ratio_a: np.ndarray
    """Logarithm of run time / prediction on that node; of a censored attempt, when it was stopped."""
    is_censored_a: np.ndarray
    """Whether it was stopped before it ended: migrated, or lost with its node."""
    crowd_a: np.ndarray
    """How far above CROWDED the others' share of its node's cpu was when it came, of what is there: 0 to 1."""
    gap_s_a: np.ndarray
    """Seconds since the attempt before on the same node; inf for a node's first."""

    @property
    def finished(self) -> int:
        """Attempts whose run time is known."""
        return int((~self.is_censored_a).sum())


@dataclass(frozen=True)
class Measured:
    """What can be compared with the simulator's settings."""

    runs: Runs
    transfer_log_ratio_a: np.ndarray
    """Logarithm of transfer time / (bytes / bandwidth), of started attempts that had bytes to bring."""
    failed: int
    ended: int
    """Attempts that failed, finished, or were migrated: they had not failed until then.

    Without the migrated ones, which are the slow ones, the rate would come out too high (by their share: 5 %).
    """
    lost: int
    """Losses of nodes on which something ran."""
    busy_h: float
    """Hours in which nodes ran something: as long as a loss would have been seen."""
    repair_s_l: np.ndarray
    """From a loss to the node's next sample; half of the time between two samples is taken off."""
    remarks: Counter[str]


def measure(log: RunLog) -> Measured:
    """The figures of a run."""
    remarks = Counter(log.remarks)
    # Of attempts that came to a node in one millisecond, the one that was placed first made it fuller for the others.
    turn = {key: i for i, key in enumerate(log.trace.placements)}
    attempts = sorted(_usable(log, remarks), key=lambda a: turn.get((a.workflow_id, a.task_id, a.attempt), len(turn)))
    by_node: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_node[attempt.node_id].append(attempt)
    runs = [_runs(log, log.specs[node], found, remarks) for node, found in by_node.items() if node in log.specs]
    unknown = sum(len(found) for node, found in by_node.items() if node not in log.specs)
    if unknown:
        remarks["attempts on nodes of unknown speed, left out of run and transfer times (name them with --nodes)"] = (
            unknown
        )
    whole_pool = _whole_pool_losses(log)
    if whole_pool:
        remarks["losses of all nodes at once, not counted: a cluster that was started anew"] = len(whole_pool)
    exposed = [_exposure(log, node, found, whole_pool) for node, found in by_node.items()]
    ends = Counter(
        e.kind for key, e in log.trace.ended.items() if e.kind != EventKind.KILLED or key in log.trace.started
    )
    return Measured(
        _joined(runs),
        np.array(list(_transfers(log, attempts))),
        ends[EventKind.FAILED],
        ends.total(),
        sum(lost for lost, _ in exposed),
        sum(busy_s for _, busy_s in exposed) / 3600,
        np.array(list(_repairs(log, whole_pool))),
        remarks,
    )


def _usable(log: RunLog, remarks: Counter[str]) -> Iterator[Attempt]:
    """The ended attempts that make sense."""
    started = 0
    for attempt in log.trace.attempts():
        started += 1
        if attempt.finish_s is None:
            remarks["attempts without an end, left out"] += 1
        elif attempt.finish_s < attempt.start_s:
            remarks["attempts that ended before they started, left out"] += 1
        else:
            yield attempt
    without_task = len(log.trace.started) - started
    if without_task:
        remarks["attempts of unknown tasks, left out (give the records of their workflows as well)"] += without_task
    never_started = sum(e.kind in ENDS and k not in log.trace.started for k, e in log.trace.ended.items())
    if never_started:
        remarks["attempts without a start, left out of run times"] += never_started


def _finish_s(attempt: Attempt) -> float:
    assert attempt.finish_s is not None, "only ended attempts come here"
    return attempt.finish_s


def _run_s(log: RunLog, attempt: Attempt) -> float:
    """The measured run time; where nobody measured it, the time between its events."""
    end = log.trace.ended.get((attempt.workflow_id, attempt.task_id, attempt.attempt))
    if end is not None and end.runtime_s is not None:
        return end.runtime_s
    return _finish_s(attempt) - attempt.start_s


def _runs(log: RunLog, spec: NodeSpec, attempts: Sequence[Attempt], remarks: Counter[str]) -> np.ndarray:
    """The attempts of one node that did not fail, in order: [A, 4] as the fields of Runs.

    Failed ones say nothing of how long they would have run, and fail independently of that.
    """
    crowd_a = _crowd(spec, attempts)
    rows = []
    before_s = -math.inf
    for i in sorted(range(len(attempts)), key=lambda i: attempts[i].reserved_s):
        attempt = attempts[i]
        key = (attempt.workflow_id, attempt.task_id, attempt.attempt)
        has_failed = attempt.end == "failed" and key in log.trace.ended
        predicted_s, run_s = attempt.task.runtime_s / spec.speed, _run_s(log, attempt)
        if has_failed:
            continue
        if not predicted_s >= SHORTEST_S or run_s <= 0:
            remarks["attempts without a usable prediction or run time, left out of run times"] += 1
            continue
        gap_s = attempt.reserved_s - before_s
        rows.append((math.log(run_s / predicted_s), attempt.end != "finished", crowd_a[i], gap_s))
        before_s = attempt.reserved_s
    return np.array(rows, np.float64).reshape(-1, 4)


def _crowd(spec: NodeSpec, attempts: Sequence[Attempt]) -> np.ndarray:
    """How crowded the node was with others when each attempt came [A]."""
    # Whole milliseconds: an attempt that ended in the one in which another came has made room for it.
    come_ms = np.rint([1000 * a.reserved_s for a in attempts])
    end_ms = np.rint([1000 * _finish_s(a) for a in attempts])
    cpu_a = np.array([a.task.cpu for a in attempts])
    by_come, by_end = np.argsort(come_ms, kind="stable"), np.argsort(end_ms, kind="stable")
    come_cpu, end_cpu = np.cumsum(cpu_a[by_come]), np.cumsum(cpu_a[by_end])
    gone_a = np.concatenate([[0.0], end_cpu])[np.searchsorted(end_ms[by_end], come_ms[by_come], side="right")]
    others_a = np.empty(len(attempts))
    others_a[by_come] = (come_cpu - cpu_a[by_come] - gone_a) / spec.cpu
    return np.clip((others_a - CROWDED) / (1.0 - CROWDED), 0.0, 1.0)


def _joined(runs: Sequence[np.ndarray]) -> Runs:
    joined = np.concatenate([np.zeros((0, 4)), *runs])
    return Runs(joined[:, 0], joined[:, 1] > 0, joined[:, 2], joined[:, 3])


def _transfers(log: RunLog, attempts: Sequence[Attempt]) -> Iterator[float]:
    """Logarithms of measured / expected transfer times."""
    finished_on = {key[:2]: e.node_id for key, e in log.trace.ended.items() if e.kind == EventKind.FINISHED}
    for attempt in attempts:
        spec = log.specs.get(attempt.node_id)
        if spec is None or attempt.transfer_s <= 0:
            continue
        parents = attempt.task.parents
        remote = sum(e.bytes for e in parents if finished_on.get((attempt.workflow_id, e.task_id)) != attempt.node_id)
        expected_s = remote / spec.bandwidth_bytes_per_s
        if expected_s >= SHORTEST_S:
            yield math.log(attempt.transfer_s / expected_s)


def _whole_pool_losses(log: RunLog) -> set[int]:
    """When all nodes were lost in one millisecond."""
    times = Counter(at_ms for losses in log.losses.values() for at_ms in losses)
    nodes = len(log.losses)
    return {at_ms for at_ms, count in times.items() if nodes > 1 and count == nodes}


def _exposure(log: RunLog, node: str, attempts: Sequence[Attempt], but: set[int]) -> tuple[int, float]:
    """Losses of a node while something ran on it, and how long something did, seconds.

    From starts on, not reservations: that an attempt started shows that its node was not lost until then.
    """
    spells: list[list[float]] = []
    for attempt in sorted(attempts, key=lambda a: a.start_s):
        finish_s = _finish_s(attempt)
        if spells and attempt.start_s <= spells[-1][1]:
            spells[-1][1] = max(spells[-1][1], finish_s)
        else:
            spells.append([attempt.start_s, finish_s])
    lost_s = [at_ms / 1000 for at_ms in log.losses.get(node, ()) if at_ms not in but]
    lost = sum(any(begin_s < at_s <= end_s for begin_s, end_s in spells) for at_s in lost_s)
    return lost, sum(end_s - begin_s for begin_s, end_s in spells)


def _repairs(log: RunLog, but: set[int]) -> Iterator[float]:
    """How long lost nodes were away, as far as samples tell."""
    times_ms = sorted(log.sampled)
    for node, losses in log.losses.items():
        in_order = [at_ms for at_ms in sorted(losses) if at_ms not in but]
        for at_ms, next_ms in zip(in_order, [*in_order, END_MS][1:], strict=True):
            later = [t for t in times_ms if at_ms < t < next_ms]
            back = next((i for i, t in enumerate(later) if node in log.sampled[t]), None)
            if back is not None:
                since_ms = later[back - 1] if back else at_ms
                yield ((later[back] + since_ms) / 2 - at_ms) / 1000
