"""Everything a pool's decisions depend on, folded from its records.

`State.apply(record)` is the only way the world enters the policy: Kafka, the simulator and the log drive the same fold.
It is idempotent: a record that is repeated, or comes after what it announces, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from policy import workflows
from policy.breaker import Breaker, BreakerSettings
from policy.ledger import AttemptKey, Ledger
from policy.nodes import NodeTable
from policy.queue import ReadyQueue, attempt_key
from policy.windows import NEVER, STEP_MS, Windows, runs
from policy.workflows import NONE, Status, TaskState, Workflow
from schemas.checks import check_samples, check_spec, sampled
from schemas.errors import InvalidConfiguration
from schemas.records import (
    METRICS,
    EventKind,
    NodeMetrics,
    NodeSpec,
    Outcome,
    Placement,
    TaskEvent,
    TaskReady,
    WorkflowSubmitted,
)

CPU_USED = METRICS.index("cpu_utilisation")
FAILURE_WEIGHT = 0.1
"""Of the newest attempt in a node's moving failure rate."""
LONGEST_S = 1e9
"""An expectation beyond it is none."""
REUSE_AFTER_MS = 10 * 60 * 1000
"""A lost node's column may be taken over after this time."""


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """How a pool's state judges what it is told."""

    stale_s: float = 60.0
    """A node whose newest sample is this much older than the pool's gets no tasks."""
    rollback_factor: float = 2.0
    """An attempt is migrated when it has run this many times as long as expected."""
    start_within_s: float = 300.0
    """A placement whose executor has not started it so long after its transfers could be done counts as rejected."""
    max_rollbacks: int = 2
    """Migrations of one task; the attempt after the last one runs to its end."""
    max_attempts: int = 10
    """A task that failed this often is refused."""
    remembered_ids: int = 20_000
    """Finished workflows whose repeats are recognised."""
    breaker: BreakerSettings = field(default_factory=BreakerSettings)

    def __post_init__(self) -> None:
        for name, least in (
            ("stale_s", 0),
            ("rollback_factor", 1),
            ("max_rollbacks", 0),
            ("max_attempts", 1),
            ("start_within_s", 1),
        ):
            value = getattr(self, name)
            if not least <= value < float("inf"):
                raise InvalidConfiguration(f"state.{name}", f"{value} is out of range", f"give {least} or more")


class State:
    """One pool: nodes, windows, ledger, workflows, queue. `now_ms` is the newest event time of all it was told."""

    def __init__(self, pool: str, settings: StateSettings | None = None) -> None:
        self.pool = pool
        self.settings = settings or StateSettings()
        self.nodes = NodeTable()
        self.windows = Windows()
        self.ledger = Ledger(self.nodes)
        self.queue = ReadyQueue()
        self.breaker = Breaker(self.settings.breaker)
        self.workflows: dict[str, Workflow] = {}
        self.finished: dict[str, None] = {}
        """Ids of finished workflows and of finished tasks of open ones, oldest first."""
        self.running: dict[AttemptKey, TaskState] = {}
        self.given_up: dict[AttemptKey, None] = {}
        """Attempts that will not be made, since those before failed too often; nobody has been told yet."""
        self.now_ms = 0
        self.placed = 0
        """Placements ever made, for round robin."""
        self.counts: Counter[str] = Counter()
        """What was noticed and left aside: repeats, late samples, records of unknown tasks or nodes."""
        self._failure_n = np.zeros(16)
        self._busy_until_ms_n = np.zeros(16, np.int64)
        self.looked_step = NEVER
        """The step of the windows at which waiting attempts were last looked at again."""
        self._looked_fresh_n = np.zeros(0, bool)
        self._samples = 0
        self._fresh_at = (-1, -1)
        self._fresh_n = np.zeros(0, bool)
        self._fold: dict[type, Callable[[object], list[TaskReady]]] = {
            NodeMetrics: self._metrics,  # type: ignore[dict-item]
            WorkflowSubmitted: self._submitted,  # type: ignore[dict-item]
            TaskReady: self._ready,  # type: ignore[dict-item]
            Placement: self._placement,  # type: ignore[dict-item]
            TaskEvent: self._event,  # type: ignore[dict-item]
        }

    def apply(self, record: object) -> list[TaskReady]:
        """Fold one record in; returns the attempts that it makes due, to be announced in task-ready.

        Raises InvalidRecord for a record that contradicts itself; the state is then as before.
        """
        return self._fold[type(record)](record)

    def due(self) -> list[TaskReady]:
        """Every attempt that is due and not yet announced: what a new owner announces again."""
        return [
            self._announcement(task)
            for workflow in self.workflows.values()
            for task in workflow.tasks
            if task.status == Status.DUE
        ]

    def overdue(self) -> list[TaskReady]:
        """Migrations of attempts that ran longer than `rollback_factor` times what was expected of them."""
        factor, most = self.settings.rollback_factor, self.settings.max_rollbacks
        found = []
        for key, task in self.running.items():
            is_superseded = key != attempt_key(task, task.attempt)
            if is_superseded or task.started_ms is None or task.expected_s is None or task.rollbacks >= most:
                continue
            is_late = self.now_ms - task.started_ms > 1000 * factor * task.expected_s
            if is_late and task.ready_attempt == task.attempt and not task.is_over:
                node_id = self.nodes.specs[task.node].node_id
                found.append(replace(self._announcement(task), excluded_nodes=(node_id,)))
        return found

    def unstarted(self) -> list[TaskEvent]:
        """Rejections of attempts that their executor never started: a reservation does not wait for ever.

        Folded like an executor's own rejection, each frees its node and makes the next attempt due.
        """
        found = []
        for key, task in self.running.items():
            if task.status != Status.PLACED or key != attempt_key(task, task.attempt):
                continue
            patience_s = self.settings.start_within_s + self.settings.rollback_factor * (task.expected_s or 0.0)
            if self.now_ms - task.placed_ms > 1000 * patience_s:
                node_id, env = self.nodes.specs[task.node].node_id, task.workflow.env
                reason = f"not started within {patience_s:.0f} s of its placement"
                found.append(TaskEvent(self.pool, *key, node_id, self.now_ms, EventKind.REJECTED, env, reason=reason))
        return found

    def nodes_to_reconsider(self, *, all_each_step: bool = False) -> list[int]:
        """Columns where room was made since the last call, and those that report again.

        all_each_step  all that report, at each new step of the windows: where rules look at what is measured
        """
        columns, self.ledger.freed = self.ledger.freed, set()
        if self.looked_step != self.windows.step:
            self.looked_step = self.windows.step
            before_n, fresh_n = self._looked_fresh_n, self.fresh()
            is_back_n = fresh_n.copy()
            if not all_each_step:
                is_back_n[: len(before_n)] &= ~before_n
            columns |= set(np.flatnonzero(is_back_n).tolist())
            self._looked_fresh_n = fresh_n
        return sorted(columns)

    @property
    def has_open_questions(self) -> bool:
        """Whether a round of decisions may find something to decide."""
        if self.given_up:
            return True
        waiting = len(self.queue)
        is_other = bool(self.ledger.freed) or self.looked_step != self.windows.step
        return waiting > 0 and (is_other or self.queue.waiting < waiting)

    @property
    def failure_n(self) -> np.ndarray:
        """Moving failure rate of each node [N], 0 to 1."""
        if len(self._failure_n) < len(self.nodes):
            self._failure_n = np.pad(self._failure_n, (0, 2 * len(self.nodes) - len(self._failure_n)))
        return self._failure_n[: len(self.nodes)]

    @property
    def busy_until_ms_n(self) -> np.ndarray:
        """When the attempts that were ever placed on each node were expected to be done, the last of them [N] int64."""
        if len(self._busy_until_ms_n) < len(self.nodes):
            self._busy_until_ms_n = np.pad(self._busy_until_ms_n, (0, 2 * len(self.nodes) - len(self._busy_until_ms_n)))
        return self._busy_until_ms_n[: len(self.nodes)]

    @property
    def held_for_s_n(self) -> np.ndarray:
        """How much longer each node is expected to hold anything [N] float32; 0 where it holds nothing."""
        left_ms_n = np.maximum(self.busy_until_ms_n - self.now_ms, 0)
        return (left_ms_n * (self.ledger.held_n > 0) / 1000).astype(np.float32)

    def fresh(self) -> np.ndarray:
        """The nodes that are there and were sampled lately: is_fresh_n [N].

        Lately is measured against the 90th percentile of the nodes' newest samples: neither a collector whose clock
        runs ahead nor a pause of all of them makes every node stale.
        """
        if self._fresh_at != (self.nodes.version, self._samples):
            self._fresh_at = (self.nodes.version, self._samples)
            self._fresh_n = self._find_fresh()
        return self._fresh_n

    def _find_fresh(self) -> np.ndarray:
        present_n, seen_ms_n = self.nodes.is_present_n, self.nodes.seen_ms_n
        if not present_n.any():
            return present_n.copy()
        seen_ms = np.sort(seen_ms_n[present_n])
        newest_ms = seen_ms[int(0.9 * (len(seen_ms) - 1))]
        return present_n & (seen_ms_n >= newest_ms - 1000 * self.settings.stale_s)

    # The folds, one for each kind of record.

    def _metrics(self, record: NodeMetrics) -> list[TaskReady]:
        check_samples(record)
        for spec in record.specs:
            check_spec(spec, f"node-metrics of {record.source}")
        for spec in record.specs:
            if not self._knows_newer(spec, record.event_time_ms):
                self._put(spec)
        self.apply_samples([record])
        return []

    def apply_samples(self, records: Sequence[NodeMetrics]) -> None:
        """Fold many records without specifications in, each checked by `check_samples`: as `apply` would one by one."""
        index = self.nodes.index
        columns = [index.get(node, NONE) for record in records for node in record.nodes]
        at_ms_n = np.repeat([r.event_time_ms for r in records], [len(r.nodes) for r in records])
        columns_n, values_nm = np.array(columns, np.int64), sampled(records)
        is_known_n = columns_n != NONE
        if not is_known_n.all():
            self.counts["sample_of_unknown_node"] += int((~is_known_n).sum())
            columns_n, values_nm, at_ms_n = columns_n[is_known_n], values_nm[is_known_n], at_ms_n[is_known_n]
        for run in runs(columns_n.tolist(), (at_ms_n // STEP_MS).tolist()):
            self._judge_load(int(at_ms_n[run.start]) // STEP_MS)
            self.ledger.freed.update(self.nodes.see(columns_n[run], at_ms_n[run]))
            self.windows.write(columns_n[run], values_nm[run], int(at_ms_n[run.start]))
        self._samples += 1
        self._advance(max(record.event_time_ms for record in records))

    def _judge_load(self, step: int) -> None:
        """When a step of the windows begins, how the load lay in the one before."""
        if step <= self.windows.step or self.windows.step == NEVER:
            return
        fresh_n = self._find_fresh()
        cpu_n = self.windows.latest(len(self.nodes))[:, CPU_USED]
        self.breaker.judge(cpu_n[fresh_n], self.ledger.held_n[fresh_n], STEP_MS * step)

    def _knows_newer(self, spec: NodeSpec, at_ms: int) -> bool:
        at = self.nodes.index.get(spec.node_id)
        return at is not None and bool(self.nodes.seen_ms_n[at] > at_ms)

    def _put(self, spec: NodeSpec) -> None:
        before = self.nodes.version
        at = self.nodes.put(spec, self._reusable() if spec.node_id not in self.nodes.index else None)
        if self.nodes.version != before:
            self.ledger.freed.add(at)

    def _reusable(self) -> int | None:
        """The column of a node that is lost for long and holds nothing."""
        if len(self.nodes) < 16 or self.nodes.is_present_n.all():
            return None
        gone_n = ~self.nodes.is_present_n & (self.nodes.seen_ms_n < self.now_ms - REUSE_AFTER_MS)
        for at in np.flatnonzero(gone_n).tolist():
            if not self.ledger.on_node(at):
                self.windows.forget(at)
                self.failure_n[at] = 0.0
                self.busy_until_ms_n[at] = 0
                return int(at)
        return None

    def _submitted(self, record: WorkflowSubmitted) -> list[TaskReady]:
        if record.workflow_id in self.workflows or record.workflow_id in self.finished:
            self.counts["repeated_workflow"] += 1
            return []
        self._advance(record.event_time_ms)
        # The pool's own time: a submitter's clock may be behind that of a cluster that is simulated or far away.
        workflow = workflows.from_record(record, self.now_ms)
        self.workflows[record.workflow_id] = workflow
        return [self._make_due(task, self.now_ms) for task in workflows.roots(workflow)]

    def _ready(self, record: TaskReady) -> list[TaskReady]:
        task = self._task_of(record)
        if task is None or task.is_over:
            return []
        if record.attempt <= max(task.ready_attempt, task.ended_attempt):
            self.counts["repeated_ready"] += 1
            return []
        self._advance(record.event_time_ms)
        if task.ready_attempt == NONE:
            task.ready_ms = record.event_time_ms
        elif task.status in (Status.PLACED, Status.RUNNING):
            task.rollbacks += 1
        if task.status in (Status.WAITING, Status.DUE):
            task.status = Status.READY
        self._withdraw(task)
        task.ready_attempt = record.attempt
        task.excluded_nodes = record.excluded_nodes
        self.queue.push(task, record.attempt)
        return []

    def _task_of(self, record: TaskReady) -> TaskState | None:
        workflow = self.workflows.get(record.workflow_id)
        if workflow is not None and (task := workflow.get(record.task_id)) is not None:
            return task
        if record.workflow_id in self.finished or _open_id(record) in self.finished:
            self.counts["repeated_ready"] += 1
            return None
        if record.task is None or (workflow is not None and not workflow.is_open):
            self.counts["ready_of_unknown_task"] += 1
            return None
        if workflow is None:
            workflow = self.workflows[record.workflow_id] = workflows.from_ready(record)
        return workflow.add(record.task)

    def _placement(self, record: Placement) -> list[TaskReady]:
        self.given_up.pop((record.workflow_id, record.task_id, record.attempt), None)
        task = self._find(record.workflow_id, record.task_id)
        if task is None or task.is_over:
            return []
        key = attempt_key(task, record.attempt)
        if record.outcome == Outcome.REFUSED:
            self.queue.drop(key)
            self._close(task, Status.REFUSED)
        elif record.outcome == Outcome.PENDING:
            task.pending_attempt = max(task.pending_attempt, record.attempt)
        elif record.outcome == Outcome.PLACED and record.attempt > max(task.attempt, task.ended_attempt):
            self._place(task, record)
        self._advance(record.event_time_ms)
        return []

    def _place(self, task: TaskState, record: Placement) -> None:
        node = self.nodes.index.get(record.node_id or "")
        if node is None:
            self.counts["placement_on_unknown_node"] += 1
            return
        key = attempt_key(task, record.attempt)
        if record.attempt >= task.ready_attempt:  # a placement may overtake its announcement: older ones wait in vain
            self._withdraw(task)
            task.ready_attempt = record.attempt
        task.attempt, task.node = record.attempt, node
        task.expected_s, task.started_ms, task.placed_ms = record.expected_s, None, record.event_time_ms
        task.status = Status.PLACED
        self.ledger.reserve(key, node, task.request)
        self.running[key] = task
        self.placed += 1
        self.breaker.placed()
        expected_s = record.expected_s or 0.0
        if 0 <= expected_s <= LONGEST_S:  # it comes from a topic, and may be anything
            until_ms = record.event_time_ms + int(1000 * expected_s)
            self.busy_until_ms_n[node] = max(self.busy_until_ms_n[node], until_ms)

    def _event(self, record: TaskEvent) -> list[TaskReady]:
        self._advance(record.event_time_ms)
        if record.kind == EventKind.NODE_LOST:
            return self._node_lost(record)
        task = self._find(record.workflow_id, record.task_id)
        if task is None:
            key = (record.workflow_id, record.task_id, record.attempt)
            if record.kind != EventKind.STARTED:
                self.ledger.release(key)
                self.running.pop(key, None)
            return []
        if record.kind == EventKind.STARTED:
            if record.attempt == task.attempt and task.status == Status.PLACED:
                task.status, task.started_ms = Status.RUNNING, record.event_time_ms
            return []
        if record.kind == EventKind.REJECTED and record.attempt == task.attempt and task.status == Status.RUNNING:
            self.counts["rejection_of_started_attempt"] += 1  # given up as never started, by who had not heard of it
            return []
        return self._ended(task, record)

    def _ended(self, task: TaskState, record: TaskEvent) -> list[TaskReady]:
        """An attempt is over: its node is free again, and the children or the next attempt become due."""
        key = attempt_key(task, record.attempt)
        held = self.ledger.release(key)
        self.running.pop(key, None)
        if task.is_over:
            return []
        if record.kind == EventKind.FINISHED:
            self._learn(held.node if held else NONE, failed=False)
            task.ran_on = held.node if held else NONE
            return self._close(task, Status.DONE, record.event_time_ms)
        if record.kind == EventKind.FAILED:
            self._learn(held.node if held else NONE, failed=True)
        task.ended_attempt = max(task.ended_attempt, record.attempt)
        return self._retry(task, record.attempt, record.event_time_ms)

    def _retry(self, task: TaskState, attempt: int, at_ms: int) -> list[TaskReady]:
        """The next attempt after this one, unless there is one already."""
        if task.attempt > attempt:
            return []
        task.node, task.started_ms, task.expected_s = NONE, None, None
        if task.ready_attempt > attempt:
            if task.status in (Status.PLACED, Status.RUNNING):
                task.status = Status.READY  # its migration waits alone now
            return []
        self._withdraw(task)  # an event may overtake its placement: the attempt still waits
        if attempt + 1 >= self.settings.max_attempts:
            self.given_up[attempt_key(task, attempt + 1)] = None
            self._close(task, Status.REFUSED)
            return []
        return [self._make_due(task, at_ms)]

    def _node_lost(self, record: TaskEvent) -> list[TaskReady]:
        node = self.nodes.index.get(record.node_id)
        if node is None:
            self.counts["event_of_unknown_node"] += 1
            return []
        is_back = bool(self.nodes.seen_ms_n[node] > record.event_time_ms)
        if not self.nodes.lose(node, record.event_time_ms):
            self.counts["repeated_loss"] += 1
            return []
        due: list[TaskReady] = []
        for key in sorted(self.ledger.on_node(node)):
            task = self.running.get(key)
            if is_back and task is not None and task.placed_ms >= record.event_time_ms:
                continue  # placed on the node that had come back: samples may be read before the loss is
            self.ledger.release(key)
            self.running.pop(key, None)
            if task is not None and not task.is_over:
                task.ended_attempt = max(task.ended_attempt, key[2])
                due += self._retry(task, key[2], record.event_time_ms)
        return due

    # What the folds share.

    def _advance(self, event_time_ms: int) -> None:
        self.now_ms = max(self.now_ms, event_time_ms)

    def _find(self, workflow_id: str, task_id: str) -> TaskState | None:
        workflow = self.workflows.get(workflow_id)
        task = None if workflow is None else workflow.get(task_id)
        if task is None and workflow_id not in self.finished:
            self.counts["record_of_unknown_task"] += 1
        return task

    def _make_due(self, task: TaskState, at_ms: int) -> TaskReady:
        task.status = Status.DUE
        if task.ready_attempt == NONE:
            task.ready_ms = at_ms
        return self._announcement(task, at_ms)

    def _announcement(self, task: TaskState, at_ms: int | None = None) -> TaskReady:
        workflow = task.workflow
        if at_ms is None:
            at_ms = task.ready_ms if task.ready_attempt == NONE else self.now_ms
        return TaskReady(
            self.pool,
            workflow.workflow_id,
            task.task.task_id,
            max(task.ready_attempt, task.ended_attempt) + 1,
            at_ms,
            workflow_class=workflow.workflow_class,
            env=workflow.env,
        )

    def _withdraw(self, task: TaskState) -> None:
        """Take the task's waiting attempt out of the queue."""
        if task.ready_attempt != NONE:
            self.queue.drop(attempt_key(task, task.ready_attempt))

    def _close(self, task: TaskState, status: Status, at_ms: int = 0) -> list[TaskReady]:
        """The task is over; its workflow too, when nothing of it is left that can run."""
        self._withdraw(task)
        workflow = task.workflow
        due = [self._make_due(child, at_ms) for child in workflow.end(task, status)]
        if workflow.is_open:
            self._remember(_open_id(task))
        if workflow.is_complete or (workflow.refused and workflow.is_stuck):
            self._finish(workflow)
        return due

    def _finish(self, workflow: Workflow) -> None:
        del self.workflows[workflow.workflow_id]
        if not workflow.is_open:
            self._remember(workflow.workflow_id)

    def _remember(self, name: str) -> None:
        self.finished[name] = None
        while len(self.finished) > self.settings.remembered_ids:
            del self.finished[next(iter(self.finished))]

    def _learn(self, node: int, *, failed: bool) -> None:
        if node != NONE:
            rate_n = self.failure_n
            rate_n[node] += FAILURE_WEIGHT * (float(failed) - rate_n[node])


def _open_id(ready: TaskReady | TaskState) -> str:
    """How a finished task of an open workflow is remembered."""
    if isinstance(ready, TaskReady):
        return f"{ready.workflow_id}\0{ready.task_id}"
    return f"{ready.workflow.workflow_id}\0{ready.task.task_id}"
