"""Plans of single workflows on an empty cluster, for people: tables, files, pictures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from policy.lookahead import LookaheadSettings, lookahead, search_bound
from policy.observation import Policy
from policy.plan import Plan, cost
from policy.plan_bounds import lower_bound
from policy.plan_problem import Problem, problem_of
from policy.plan_trace import decided_plan, trace_of
from policy.planners import PLANNERS
from policy.trace import cluster_object
from schemas.errors import InvalidConfiguration
from schemas.records import NodeSpec, WorkflowSubmitted
from streams import front as front_picture
from streams import gantt

LOOKAHEAD = "lookahead"
Front = Callable[[Problem, Sequence[Plan]], list[Plan]]
"""Plans of which none is both faster and cheaper, the fastest first; it begins with the given ones."""


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What is planned, how, and what it is compared with."""

    planner: str = LOOKAHEAD
    """`lookahead`, or a planner without search."""
    lookahead: LookaheadSettings = field(default_factory=LookaheadSettings)
    search_ms: float = 60_000.0
    """Of a comparison: how long the search for its bound may take."""

    def __post_init__(self) -> None:
        if self.planner not in (LOOKAHEAD, *PLANNERS):
            known = ", ".join((LOOKAHEAD, *PLANNERS))
            raise InvalidConfiguration("plan.planner", f"'{self.planner}' is unknown", f"known are {known}")
        if not self.search_ms >= 0:
            raise InvalidConfiguration("plan.search_ms", f"{self.search_ms} is below 0", "give 0 or more")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a comparison. Of a bound only the makespan is known."""

    planner: str
    makespan_s: float
    cost: float | None
    took_ms: float
    evaluations: int | None = None
    """Plans that a search tried."""


class Planning:
    """One workflow, and every way to plan it; each is gone once at most."""

    def __init__(
        self, workflow: WorkflowSubmitted, specs: Sequence[NodeSpec], policy: Policy, settings: PlanSettings
    ) -> None:
        self.workflow = replace(workflow, event_time_ms=0)
        self.specs = specs
        self.problem = problem_of(workflow, specs)
        self._policy = policy
        self._settings = settings
        self.lines: dict[str, Line] = {}

    def made(self, name: str) -> Plan:
        """The plan of this planner."""
        return self._searched if name == LOOKAHEAD else self._simple[name]

    @cached_property
    def _simple(self) -> dict[str, Plan]:
        """The plans without search, and that of the policy which decides task by task."""
        makers: dict[str, Callable[[], Plan]] = {n: partial(planner, self.problem) for n, planner in PLANNERS.items()}
        makers[self.online] = lambda: decided_plan(self.workflow, self.specs, self.problem, self._policy)
        return {name: self._timed(name, maker) for name, maker in makers.items()}

    @property
    def online(self) -> str:
        """What the policy that decides task by task is called here."""
        return f"{self._policy.name}, task by task"

    @cached_property
    def _searched(self) -> Plan:
        candidates = list(self._simple.values())
        began_ms = _now_ms()
        found = lookahead(self.problem, candidates, self._settings.lookahead, _now_ms)
        return self._noted(LOOKAHEAD, found.plan, _now_ms() - began_ms, found.evaluations)

    def compare(self, front: Front | None) -> list[Plan]:
        """Plan in every way; returns the front, empty where nobody is there to find it."""
        candidates = [self._searched, *self._simple.values()]
        plans: list[Plan] = []
        if front is not None:
            began_ms = _now_ms()
            plans = front(self.problem, candidates)
            took_ms = _now_ms() - began_ms
            for name, plan in (("NSGA-II, fastest", plans[0]), ("NSGA-II, cheapest", plans[-1])):
                self._noted(name, plan, took_ms)
        began_ms = _now_ms()
        found = search_bound(self.problem, candidates, self._settings.search_ms, _now_ms)
        self._noted("search bound", found.plan, _now_ms() - began_ms, found.evaluations)
        began_ms = _now_ms()
        bound_s = lower_bound(self.problem) / 1000
        self.lines["lower bound"] = Line("lower bound", bound_s, None, _now_ms() - began_ms)
        return plans

    def _timed(self, name: str, make: Callable[[], Plan]) -> Plan:
        began_ms = _now_ms()
        plan = make()
        return self._noted(name, plan, _now_ms() - began_ms)

    def _noted(self, name: str, plan: Plan, took_ms: float, evaluations: int | None = None) -> Plan:
        self.lines[name] = Line(name, plan.makespan_ms / 1000, cost(self.problem, plan), took_ms, evaluations)
        return plan


def run(
    workflow: WorkflowSubmitted,
    specs: Sequence[NodeSpec],
    policy: Policy,
    settings: PlanSettings,
    console: Console,
    compared_with: Front | None = None,
    is_compared: bool = False,
    out: Path | None = None,
) -> None:
    """Plan one workflow, show the plan, compare it if wanted, and write the files. Raises InvalidWorkflow."""
    planning = Planning(workflow, specs, policy, settings)
    plan = planning.made(settings.planner)
    console.print(plan_table(planning, plan, settings.planner))
    console.print(in_words(planning, settings.planner))
    plans: list[Plan] = []
    if is_compared:
        plans = planning.compare(compared_with)
        console.print(comparison_table(list(planning.lines.values())))
    if out is not None:
        folder = out / workflow.workflow_id
        written = write(planning, plan, settings.planner, plans, folder, is_compared)
        console.print(f"[dim]wrote {', '.join(written)} to {folder}[/]")


def plan_table(planning: Planning, plan: Plan, name: str) -> Table:
    """One line a task, in the order in which they start."""
    title = f"{planning.workflow.workflow_id}: plan of {name} on {len(planning.specs)} nodes, seconds from submission"
    table = Table(title=title)
    for column in ("task", "node"):
        table.add_column(column)
    for column in ("start", "finish"):
        table.add_column(column, justify="right")
    for row in rows(planning, plan):
        table.add_row(str(row["task_id"]), str(row["node_id"]), f"{row['start_s']:,.1f}", f"{row['finish_s']:,.1f}")
    return table


def rows(planning: Planning, plan: Plan) -> list[dict[str, object]]:
    """The tasks of a plan in the order in which they start; seconds from the submission.

    From `come_s` on a task holds its room, until `start_s` for its inputs.
    """
    order = sorted(range(planning.problem.tasks), key=lambda t: (plan.start_ms_t[t], plan.finish_ms_t[t]))
    return [
        {
            "task_id": planning.workflow.tasks[task].task_id,
            "node_id": planning.specs[plan.node_t[task]].node_id,
            "come_s": plan.come_ms_t[task] / 1000,
            "start_s": plan.start_ms_t[task] / 1000,
            "finish_s": plan.finish_ms_t[task] / 1000,
        }
        for task in order
    ]


def in_words(planning: Planning, name: str) -> str:
    """The figures of a plan."""
    line, bound_s = planning.lines[name], lower_bound(planning.problem) / 1000
    return (
        f"makespan {line.makespan_s:,.1f} s (no plan is below {bound_s:,.1f} s), cost {line.cost:.4f}, "
        f"planned in {line.took_ms:,.0f} ms"
    )


def comparison_table(lines: Sequence[Line]) -> Table:
    """One line a planner."""
    table = Table(title="the same workflow, planned in every way")
    table.add_column("planner")
    for column in ("makespan", "cost", "took", "plans tried"):
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(
            line.planner,
            f"{line.makespan_s:,.1f} s",
            "" if line.cost is None else f"{line.cost:.4f}",
            f"{line.took_ms:,.0f} ms",
            "" if line.evaluations is None else f"{line.evaluations:,}",
        )
    return table


def write(
    planning: Planning, plan: Plan, name: str, plans: Sequence[Plan], folder: Path, is_compared: bool
) -> list[str]:
    """plan.json, trace.jsonl, cluster.json, gantt.svg; of a comparison also comparison.json and front.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    trace = trace_of(planning.workflow, planning.specs, plan, name)
    title = f"{planning.workflow.workflow_id}: plan of {name} on {len(planning.specs)} nodes"
    head = {"workflow_id": planning.workflow.workflow_id, **asdict(planning.lines[name])}
    texts: Mapping[str, str] = {
        "plan.json": _json({**head, "tasks": rows(planning, plan)}),
        "trace.jsonl": "".join(json.dumps(row) + "\n" for row in trace.rows()),
        "cluster.json": _json(cluster_object(tuple(planning.specs))),
        "gantt.svg": gantt.draw(list(trace.attempts()), planning.specs, title),
    }
    if is_compared:
        points = [(plan.makespan_ms / 1000, cost(planning.problem, plan)) for plan in plans]
        lines = list(planning.lines.values())
        named = [(line.planner, (line.makespan_s, line.cost)) for line in lines if line.cost is not None]
        front = [{"makespan_s": makespan_s, "cost": price} for makespan_s, price in points]
        texts = {
            **texts,
            "comparison.json": _json({"planners": [asdict(line) for line in lines], "front": front}),
            "front.svg": front_picture.draw(points, named, f"{planning.workflow.workflow_id}: makespan and cost"),
        }
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return list(texts)


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def _now_ms() -> float:
    return 1000 * time.perf_counter()
