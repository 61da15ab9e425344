"""Which records of a log may be learnt from: those of prod work that can have happened as they say.

A log is read twice. The first time everything is looked at, since that a workflow is a test's, or an attempt never
ran, may show after most of its records; the second time gives what is left, in its order. What is told twice or
otherwise is left out beside what is right, so that broken and foreign records change nothing of what is learnt.

Memory: the last `workflows_kept` workflows and `attempts_kept` attempts, the nodes, and what is left out.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from policy.trace import ENDS
from replay.attempt_checks import AttemptLog, Told, judge
from replay.logged import Logged, Place
from replay.quality_report import BROKEN, NOTED, Kind, Report
from schemas.checks import check_samples, check_time
from schemas.errors import InvalidConfiguration, InvalidRecord, TooDirty
from schemas.records import (
    METRICS,
    Env,
    EventKind,
    NodeMetrics,
    NodeSpec,
    Outcome,
    Placement,
    Task,
    TaskEvent,
    TaskReady,
    WorkflowSubmitted,
)

SHARES = [METRICS.index(name) for name in METRICS if name.endswith(("utilisation", "failure_rate"))]
"""Columns of a sample that lie between 0 and 1."""
FEW_DELAYS = 20
"""So many records must have come before their clocks say anything."""
DELAYS = 501
"""Records whose delays are remembered to tell what is usual."""


@dataclass(frozen=True, kw_only=True)
class QualitySettings:
    """What is wrong with a record, and how much of that makes a log useless."""

    tolerance_s: float = 1.0
    """How much longer an attempt may have run than passed between its events, and by how much clocks may differ."""
    prediction_factor: float = 50.0
    """An attempt that ran so many times its prediction did something else."""
    gap_s: float = 75.0
    """Longest time between two samples of a node."""
    ahead_s: float = 60.0
    """A record that comes from so far in the future, against others of its time, is left out."""
    late_s: float = 600.0
    """One that comes so much later than others is noted."""
    node_clock_s: float = 30.0
    """A node or collector whose quickest record is so far from the others' is noted."""
    time_scale: float = 1.0
    """Seconds of event time that pass in one of the broker's: other than 1 for simulated clusters."""
    workflows_kept: int = 20_000
    """Workflows that may be under way at once; of one that was silent for longer, the rest counts as another."""
    attempts_kept: int = 500_000
    """Attempts, the same."""
    cut_s: float = 3600.0
    """Attempts that ran in so much time after the beginning may have been placed before it."""
    examples: int = 5
    """Of each kind in the report."""
    least_attempts: int = 20
    """Usable ones; with fewer there is nothing to learn."""
    most_broken: float = 0.05
    """Share of the records about attempts and nodes that may be broken."""
    most_mixed: float = 0.01
    """Share of the workflows whose records may disagree about their env."""
    most_duplicates: float = 0.2
    """Share of the records that may be repeats."""
    most_missing: float = 0.2
    """Share of the nodes' time that may lie in gaps between samples."""

    def __post_init__(self) -> None:
        shares = ("most_broken", "most_mixed", "most_duplicates", "most_missing")
        for name, value in vars(self).items():
            low = 1 if name.endswith("_kept") else 0
            most = 1.0 if name in shares else math.inf
            if not low <= value <= most:
                raise InvalidConfiguration(f"quality.{name}", f"{value} is out of range", f"give {low} to {most}")


@dataclass(slots=True)
class _Workflow:
    """What is remembered of a workflow."""

    submitted: WorkflowSubmitted | None = None
    envs: set[Env] = field(default_factory=set)
    """Those that its submission, or else the user's engine, gave."""
    place: Place = ("", 0, 0)
    """Of its first record."""
    records: int = 0
    ready: set[tuple[str, int]] = field(default_factory=set)
    attempts: dict[tuple[str, int], AttemptLog] = field(default_factory=dict)
    placements: set[tuple[str, int, int, str | None]] = field(default_factory=set)
    tasks: dict[str, Task] = field(default_factory=dict)


@dataclass(slots=True)
class Checked:
    """What the first reading found."""

    report: Report
    places: set[Place] = field(default_factory=set)
    """Records that are left out."""
    workflows: set[str] = field(default_factory=set)
    """Workflows of which all records are left out."""

    def clean(self, records: Iterable[Logged]) -> Iterator[Logged]:
        """The second reading: what may be learnt from, in its order."""
        for logged in records:
            if logged.place not in self.places and _workflow_id(logged.record) not in self.workflows:
                yield logged


def checked(read: Callable[[], Iterable[Logged]], settings: QualitySettings | None = None) -> Iterator[Logged]:
    """What may be learnt from of the records that `read` gives each time it is called. Raises TooDirty."""
    found = examine(read(), settings)
    if found.report.refusals:
        raise TooDirty(found.report.refusals)
    return found.clean(read())


def examine(
    records: Iterable[Logged], settings: QualitySettings | None = None, specs: Iterable[NodeSpec] = ()
) -> Checked:
    """Look at every record. `specs`: nodes that are known besides."""
    examiner = _Examiner(settings or QualitySettings(), specs)
    for logged in records:
        examiner.apply(logged)
    return examiner.end()


class _Examiner:
    """Folds the first reading."""

    def __init__(self, settings: QualitySettings, specs: Iterable[NodeSpec]) -> None:
        self.settings = settings
        self.report = Report(settings.examples)
        self.checked = Checked(self.report)
        self.workflows: OrderedDict[str, _Workflow] = OrderedDict()
        """The least lately heard of first."""
        self.attempts = 0
        self.known_nodes = {spec.node_id for spec in specs}
        self.sampled_ms: dict[str, int] = {}
        """Node -> time of its newest sample."""
        self.running: dict[str, dict[tuple[str, str, int], bool]] = {}
        """Node -> what runs there, and whether it is prod."""
        self.has_placements = False
        self.clocks = _Clocks(settings)

    def apply(self, logged: Logged) -> None:
        """Take one record in."""
        record = logged.record
        self.report.records += 1
        if isinstance(record, WorkflowSubmitted | TaskReady | Placement | TaskEvent | NodeMetrics):
            if not self._has_usable_times(logged, record.event_time_ms):
                return
            if isinstance(record, NodeMetrics):
                self._samples(logged, record)
            elif isinstance(record, TaskEvent):
                self._event(logged, record)
            elif isinstance(record, WorkflowSubmitted):
                self._submitted(logged, record)
            elif isinstance(record, TaskReady):
                self._ready(logged, record)
            elif record.outcome == Outcome.PLACED:
                self._placed(logged, record)

    def end(self) -> Checked:
        """Judge what is still open, and the whole."""
        while self.workflows:
            self._forget()
        report = self.report
        report.nodes = len(self.known_nodes)
        for source, place, off_s in self.clocks.off():
            report.add(Kind.NODE_CLOCK, place, f"the clock of {source} is {off_s:+.1f} s off")
        report.refusals = tuple(_refusals(report, self.settings))
        return self.checked

    def _add(self, kind: Kind, place: Place, what: str) -> None:
        if kind not in NOTED:
            if place in self.checked.places:
                return
            self.checked.places.add(place)
        self.report.add(kind, place, what)

    def _has_usable_times(self, logged: Logged, event_time_ms: int) -> bool:
        record, report = logged.record, self.report
        try:
            check_time(event_time_ms, type(record).__name__)
        except InvalidRecord as error:
            self._add(Kind.BAD_TIME, logged.place, error.problem)
            return False
        if isinstance(record, TaskEvent):
            for name in ("runtime_s", "transfer_s"):
                value = getattr(record, name)
                if value is not None and not (math.isfinite(value) and value >= 0):
                    self._add(Kind.BAD_TIME, logged.place, f"{_name(record)}: {name} is {value}")
                    return False
        elif isinstance(record, WorkflowSubmitted):
            for task in record.tasks:
                if not (math.isfinite(task.runtime_s) and task.runtime_s >= 0):
                    name = f"{record.workflow_id}/{task.task_id}"
                    self._add(Kind.BAD_TIME, logged.place, f"{name}: runtime_s is {task.runtime_s}")
                    return False
        fault = self.clocks.fault(logged, event_time_ms)
        if fault is not None:
            self._add(fault[0], logged.place, fault[1])
            if fault[0] == Kind.CLOCK_AHEAD:
                return False
        report.first_ms = min(event_time_ms, report.first_ms if report.first_ms is not None else event_time_ms)
        report.last_ms = max(event_time_ms, report.last_ms if report.last_ms is not None else event_time_ms)
        return True

    def _workflow(self, workflow_id: str, place: Place) -> _Workflow:
        found = self.workflows.get(workflow_id)
        if found is None:
            found = self.workflows[workflow_id] = _Workflow(place=place)
            while len(self.workflows) > self.settings.workflows_kept or self.attempts > self.settings.attempts_kept:
                if len(self.workflows) == 1:
                    break
                self._forget()
        self.workflows.move_to_end(workflow_id)
        found.records += 1
        return found

    def _submitted(self, logged: Logged, record: WorkflowSubmitted) -> None:
        workflow = self._workflow(record.workflow_id, logged.place)
        if workflow.submitted is not None:
            self._add(Kind.DUPLICATE, logged.place, f"{record.workflow_id} was submitted before")
        else:
            workflow.submitted = record
            workflow.tasks.update((task.task_id, task) for task in record.tasks)
        workflow.envs.add(record.env)

    def _ready(self, logged: Logged, record: TaskReady) -> None:
        workflow, key = self._workflow(record.workflow_id, logged.place), (record.task_id, record.attempt)
        if key in workflow.ready:
            self._add(Kind.DUPLICATE, logged.place, f"{_name(record)} was ready before")
        workflow.ready.add(key)
        if record.task is not None:
            workflow.tasks.setdefault(record.task_id, record.task)
            workflow.envs.add(record.env)

    def _placed(self, logged: Logged, record: Placement) -> None:
        self.has_placements = True
        workflow = self._workflow(record.workflow_id, logged.place)
        key = (record.task_id, record.attempt, record.epoch, record.node_id)
        if key in workflow.placements:
            self._add(Kind.DUPLICATE, logged.place, f"{_name(record)} was placed so before")
        workflow.placements.add(key)
        attempt = self._attempt(workflow, record)
        if record.epoch > attempt.epoch:
            attempt.placed_ms, attempt.node_id = record.event_time_ms, record.node_id
            attempt.epoch = record.epoch

    def _event(self, logged: Logged, record: TaskEvent) -> None:
        if record.kind == EventKind.NODE_LOST:
            self.running.pop(record.node_id, None)
            return
        workflow = self._workflow(record.workflow_id, logged.place)
        attempt, told = self._attempt(workflow, record), Told(logged.place, record)
        if any(known.event == record for known in attempt.events):
            self._add(Kind.DUPLICATE, logged.place, f"{_name(record)} {record.kind} came before")
            return
        key = (record.workflow_id, record.task_id, record.attempt)
        on_node = self.running.setdefault(record.node_id, {})
        if record.kind == EventKind.STARTED:
            attempt.starts.append(told)
            is_prod = record.env == Env.PROD
            if any(other != is_prod for other in on_node.values()):
                self._add(Kind.TEST_ON_SHARED_NODE, logged.place, f"{_name(record)} on {record.node_id}")
            on_node[key] = is_prod
        elif record.kind in ENDS:
            attempt.ends.append(told)
            on_node.pop(key, None)

    def _attempt(self, workflow: _Workflow, record: Placement | TaskEvent) -> AttemptLog:
        key = (record.task_id, record.attempt)
        if key not in workflow.attempts:
            self.attempts += 1
            workflow.attempts[key] = AttemptLog(_name(record))
        return workflow.attempts[key]

    def _samples(self, logged: Logged, record: NodeMetrics) -> None:
        try:
            check_samples(record)
        except InvalidRecord as error:
            self._add(Kind.BAD_SAMPLES, logged.place, error.problem)
            return
        self.known_nodes.update(record.nodes, (spec.node_id for spec in record.specs))
        repeats = sum(self._sample(logged, node, record.event_time_ms) for node in record.nodes)
        if repeats and repeats == len(record.nodes):
            self._add(Kind.DUPLICATE, logged.place, f"samples of {record.nodes[0]} at this time came before")
        values_nm = np.frombuffer(record.values, "<f4").reshape(-1, len(METRICS))[:, SHARES]
        for row, column in np.argwhere((values_nm < 0) | (values_nm > 1.001)):
            name = METRICS[SHARES[column]]
            self._add(Kind.OUT_OF_RANGE, logged.place, f"{name} of {record.nodes[row]} is {values_nm[row, column]:g}")

    def _sample(self, logged: Logged, node: str, at_ms: int) -> bool:
        """Note a node's sample; returns whether it came before."""
        newest_ms = self.sampled_ms.get(node)
        if newest_ms is None or at_ms > newest_ms:
            self.sampled_ms[node] = at_ms
        if newest_ms is None or at_ms == newest_ms:
            return newest_ms is not None
        passed_s = (at_ms - newest_ms) / 1000
        if passed_s < 0:
            self._add(Kind.OUT_OF_ORDER, logged.place, f"{node}: {-passed_s:.1f} s older than the sample before")
            return False
        self.report.sampled_s += passed_s
        if passed_s > self.settings.gap_s:
            self.report.missing_s += passed_s
            self._add(Kind.GAP, logged.place, f"{node}: no sample for {passed_s:.0f} s before")
        return False

    def _forget(self) -> None:
        """Judge the workflow that was silent for longest, and let it go."""
        workflow_id, workflow = self.workflows.popitem(last=False)
        self.attempts -= len(workflow.attempts)
        self.report.workflows += 1
        if self._is_prod(workflow_id, workflow):
            self.report.prod_workflows += 1
            for (task_id, _), attempt in workflow.attempts.items():
                self._judge(workflow, workflow.tasks.get(task_id), attempt)
            self._order(workflow)
        else:
            self.checked.workflows.add(workflow_id)

    def _is_prod(self, workflow_id: str, workflow: _Workflow) -> bool:
        """Whether it is prod work; its events that are not are then left out."""
        events = [told for attempt in workflow.attempts.values() for told in attempt.events]
        envs = workflow.envs or {told.event.env for told in events}
        if envs != {Env.PROD}:
            of_all = envs | {told.event.env for told in events}
            kind = Kind.MIXED_ENV if Env.PROD in of_all and of_all & {Env.TEST, Env.DEV} else Kind.NOT_PROD
            names = ", ".join(sorted(of_all)) or "nobody says what"
            count = 1 if kind == Kind.MIXED_ENV else workflow.records
            self.report.add(kind, workflow.place, f"{workflow_id} is {names}: {workflow.records} records", count)
            return False
        for attempt in workflow.attempts.values():
            for told in [t for t in attempt.events if t.event.env != Env.PROD]:
                kind = Kind.NOT_PROD if told.event.env == Env.UNKNOWN else Kind.MIXED_ENV
                self._add(kind, told.place, f"{attempt.name}, of prod, {told.event.kind} in {told.event.env}")
            attempt.starts = [t for t in attempt.starts if t.event.env == Env.PROD]
            attempt.ends = [t for t in attempt.ends if t.event.env == Env.PROD]
        return True

    def _judge(self, workflow: _Workflow, task: Task | None, attempt: AttemptLog) -> None:
        if not attempt.events:
            return
        self.report.attempts += 1
        if attempt.placed_ms is None and self.has_placements:
            first_ms = min(told.event.event_time_ms for told in attempt.events)
            is_cut = first_ms <= (self.report.first_ms or 0) + 1000 * self.settings.cut_s
            is_cut &= workflow.submitted is None
            for told in attempt.events:
                kind = Kind.CUT_OFF if is_cut else Kind.NEVER_PLACED
                self._add(kind, told.place, f"{attempt.name} {told.event.kind}, and was not placed")
            return
        settings = self.settings
        judgement = judge(attempt, task, frozenset(self.known_nodes), settings.tolerance_s, settings.prediction_factor)
        for kind, place, what in judgement.faults:
            self._add(kind, place, what)
        self.checked.places |= judgement.left_out
        self.report.usable_attempts += judgement.is_usable
        attempt.starts = [t for t in attempt.starts if t.place not in self.checked.places]
        attempt.ends = [t for t in attempt.ends if t.place not in self.checked.places]
        for told in attempt.ends[:1] if not attempt.starts else ():
            if told.event.kind in (EventKind.FINISHED, EventKind.FAILED):
                self._add(Kind.NO_START, told.place, f"{attempt.name} {told.event.kind}, and never started")
        for told in attempt.starts[:1]:
            early_s = ((attempt.placed_ms or told.event.event_time_ms) - told.event.event_time_ms) / 1000
            if early_s > settings.tolerance_s:
                self._add(
                    Kind.STARTED_BEFORE_PLACED,
                    told.place,
                    f"{attempt.name} started {early_s:.1f} s before it was placed",
                )

    def _order(self, workflow: _Workflow) -> None:
        """Note the tasks that started before a parent had ended."""
        finished_ms = {
            task_id: told.event.event_time_ms
            for (task_id, _), attempt in workflow.attempts.items()
            for told in attempt.ends
            if told.event.kind == EventKind.FINISHED
        }
        for (task_id, _), attempt in workflow.attempts.items():
            task = workflow.tasks.get(task_id)
            for told in attempt.starts[:1] if task else ():
                for edge in task.parents if task else ():
                    early_s = (finished_ms.get(edge.task_id, 0) - told.event.event_time_ms) / 1000
                    if early_s > self.settings.tolerance_s:
                        what = f"{attempt.name} started {early_s:.1f} s before its parent {edge.task_id} ended"
                        self._add(Kind.CHILD_BEFORE_PARENT, told.place, what)


class _Clocks:
    """Which records come from the future, which late, and which nodes' clocks are off.

    A record's delay is the broker's time less its own. Delays are compared with each other, so that a clock of the
    broker's that is off, or event time that began at another date, is nothing wrong.
    """

    def __init__(self, settings: QualitySettings) -> None:
        self.settings = settings
        self.delays_s: deque[float] = deque(maxlen=DELAYS)
        self.usual_s = 0.0
        self.seen = 0
        self.least: dict[str, tuple[float, Place, int]] = {}
        """Node or collector -> its least delay, where, and how many records it sent."""

    def fault(self, logged: Logged, event_time_ms: int) -> tuple[Kind, str] | None:
        """What is wrong with a record's clock."""
        if logged.at_ms is None:
            return None
        delay_s = (logged.at_ms - event_time_ms / self.settings.time_scale) / 1000
        self.seen += 1
        self.delays_s.append(delay_s)
        if self.seen % FEW_DELAYS == 0:
            self.usual_s = float(np.median(self.delays_s))
        if self.seen < FEW_DELAYS:
            return None
        late_s = delay_s - self.usual_s
        if late_s < -self.settings.ahead_s:
            return Kind.CLOCK_AHEAD, f"{-late_s:.0f} s ahead of the others of its time"
        record = logged.record
        source = record.node_id if isinstance(record, TaskEvent) else getattr(record, "source", "")
        if source:
            least_s, place, count = self.least.get(source, (math.inf, logged.place, 0))
            self.least[source] = (late_s, logged.place, count + 1) if late_s < least_s else (least_s, place, count + 1)
        if late_s > self.settings.late_s:
            return Kind.LATE, f"{late_s:.0f} s later than the others of its time"
        return None

    def off(self) -> Iterator[tuple[str, Place, float]]:
        """Nodes and collectors whose quickest record is far from what is usual, and by how much their clock is off."""
        sure = {source: row for source, row in self.least.items() if row[2] >= FEW_DELAYS // 4}
        if len(sure) < 3:
            return
        usual_s = float(np.median([least_s for least_s, _, _ in sure.values()]))
        for source, (least_s, place, _) in sure.items():
            if abs(least_s - usual_s) > self.settings.node_clock_s:
                yield source, place, usual_s - least_s


def _refusals(report: Report, settings: QualitySettings) -> Iterator[str]:
    counts = report.counts
    broken = sum(counts[kind] for kind in BROKEN)
    for name, count, of, limit in (
        ("records are broken", broken, report.records, settings.most_broken),
        ("workflows say prod and test", counts[Kind.MIXED_ENV], report.workflows, settings.most_mixed),
        ("records are repeats", counts[Kind.DUPLICATE], report.records, settings.most_duplicates),
        ("seconds of nodes lie in gaps", report.missing_s, report.sampled_s, settings.most_missing),
    ):
        if count > limit * of:
            worst = max(BROKEN, key=lambda kind: counts[kind])
            hint = ", if not time_scale is another" if worst == Kind.CLOCK_AHEAD else ""
            cause = f", most: {worst}{hint}" if name == "records are broken" else ""
            yield f"{count:.0f} of {of:.0f} {name}{cause} ({limit:.0%} may)"
    if report.usable_attempts < settings.least_attempts:
        yield f"{report.usable_attempts} usable attempts of prod work, {settings.least_attempts} are needed"


def _name(record: TaskReady | Placement | TaskEvent) -> str:
    return f"{record.workflow_id}/{record.task_id}#{record.attempt}"


def _workflow_id(record: object) -> str:
    return getattr(record, "workflow_id", "")
