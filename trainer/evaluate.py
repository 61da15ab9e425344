"""Policies side by side on the same scenarios: what each is better or worse by, and how sure that is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from policy.heuristics import HEURISTICS
from policy.reward import Baseline, baseline
from schemas.errors import InvalidConfiguration
from trainer.arena import Rule
from trainer.figures import NAMES, RATIOS, Figures, measured
from trainer.intervals import interval
from trainer.rules import HEURISTIC_RULES
from trainer.scenarios import CLASSES, run
from trainer.suite import (
    EVALUATION,
    REFERENCE,
    STANDARD,
    SUITES,
    TRACE_NAMES,
    WITH_TRACES,
    Setup,
    courses,
    rows_of,
    trace_of,
)
from trainer.trace_workloads import TraceSettings
from trainer.workers import Workers, start_workers

USUAL = "kube_default"
"""Whose runs make the reward's baseline, and with whom everybody is compared."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What is compared, on what."""

    suite: str = "standard"
    seeds: int = 24
    """Scenarios of each row."""
    first_seed: int = 0
    processes: int | None = None
    ray: str | None = None
    """Address of the Ray cluster that plays; None: processes of this machine."""
    traces: Path | None = None
    """A folder of traces (`trainer.traces`), whose rows the suites `standard` and `traces` then have."""
    heuristics: tuple[str, ...] = tuple(HEURISTIC_RULES)
    """Those that take part, beside `USUAL`."""

    def __post_init__(self) -> None:
        if self.suite not in SUITES:
            raise InvalidConfiguration("evaluate.suite", f"'{self.suite}' is unknown", f"give {' or '.join(SUITES)}")
        if self.seeds < 2:
            raise InvalidConfiguration("evaluate.seeds", f"{self.seeds} give no interval", "give 2 or more")
        unknown = [name for name in self.heuristics if name not in HEURISTIC_RULES]
        if unknown:
            known = ", ".join(HEURISTIC_RULES)
            raise InvalidConfiguration("evaluate.heuristics", f"'{unknown[0]}' is unknown", f"known are {known}")


@dataclass(frozen=True)
class Report:
    """For each setup and policy, the figures of each seed; seeds of one setup are paired."""

    settings: EvaluationSettings
    figures: Mapping[str, Mapping[str, Sequence[Figures]]] = field(default_factory=dict)
    notes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of each setup made from traces: what was left out of them or changed, and how often."""
    left_out: Sequence[str] = ()
    """Setups of the suite that were not played, since no traces were given."""

    def mean(self, setup: str, policy: str, name: str) -> float:
        """The mean over the seeds."""
        return float(np.mean([getattr(f, name) for f in self.figures[setup][policy]]))

    def against(self, setup: str, policy: str, rival: str, name: str) -> tuple[float, float]:
        """The paired difference, or relative difference for RATIOS, and half of its 95 % interval.

        NaN where a ratio means nothing: the rival has 0 of it, or somebody never finished.
        """
        pairs = zip(self.figures[setup][policy], self.figures[setup][rival], strict=True)
        values = [(getattr(a, name), getattr(b, name)) for a, b in pairs]
        return interval([_relative(a, b) if name in RATIOS else a - b for a, b in values])

    def relative_reward(self, setup: str, policy: str, rival: str) -> float:
        """The difference of the mean rewards, as a share of the size of the rival's."""
        of_rival = self.mean(setup, rival, "reward")
        return (self.mean(setup, policy, "reward") - of_rival) / max(abs(of_rival), 1e-9)

    def best_heuristic(self, setup: str) -> str:
        """The heuristic with the largest mean reward."""
        known = [name for name in self.figures[setup] if name in HEURISTICS]
        return max(known, key=lambda name: self.mean(setup, name, "reward"))


def _relative(value: float, rival: float) -> float:
    if not (math.isfinite(value) and math.isfinite(rival)):
        return math.nan
    if value == rival:
        return 0.0
    return value / rival - 1 if rival else math.nan


def evaluate(settings: EvaluationSettings, others: Mapping[str, Rule], report: Callable[[str], None] = print) -> Report:
    """Play the heuristics and these other rules on the suite. The same seeds give the same figures.

    Raises InvalidInput where the traces cannot be read.
    """
    chosen = {name: rule for name, rule in HEURISTIC_RULES.items() if name in (*settings.heuristics, USUAL)}
    rules = {**chosen, **others}
    setups = rows_of(settings.suite, settings.traces)
    # Read before there are worker processes, which then have them too; those on Ray read them where they are.
    notes = {setup.name: trace_of(setup).notes for setup in setups if isinstance(setup.workload, TraceSettings)}
    figures: dict[str, dict[str, list[Figures]]] = {}
    with start_workers(settings.processes, settings.ray) as workers:
        usual = usual_baseline(workers)
        for setup in setups:
            own = usual_baseline(workers, setup) if setup.name in notes else usual
            seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
            rows = list(workers.map(partial(_play, setup, rules, own), seeds))
            figures[setup.name] = {name: [row[name] for row in rows] for name in rules}
            report(f"{setup.name}: {len(rules)} policies on {settings.seeds} scenarios")
    are_left_out = settings.suite in WITH_TRACES and settings.traces is None
    return Report(settings, figures, notes, TRACE_NAMES if are_left_out else ())


def usual_baseline(workers: Workers, setup: Setup = STANDARD[0]) -> Baseline:
    """What is usual under the cluster's own scheduler: at load 0.7, or in another setup.

    Recorded work is measured against its own kind: its run times are not those of the random workloads.
    """
    reference = courses(workers, setup, REFERENCE, range(8))
    return baseline([run(course, HEURISTIC_RULES[USUAL]).measured() for course in reference], len(CLASSES))


def _play(setup: Setup, rules: Mapping[str, Rule], usual: Baseline, seed: int) -> dict[str, Figures]:
    course = setup.course(EVALUATION, seed)
    return {name: measured(course, rule, usual) for name, rule in rules.items()}


@dataclass(frozen=True, slots=True)
class _Column:
    """One figure in the table: of the mean and of a difference, their heading, factor and decimals."""

    name: str
    heading: str
    decimals: int
    factor: float = 1.0

    def mean(self, value: float) -> str:
        return f"{self.factor * value:.{self.decimals}f}"

    def difference(self, difference: float, margin: float) -> str:
        if not math.isfinite(difference):
            return "-"
        if self.name in RATIOS:
            decimals = 1 if abs(difference) < 1 else 0
            return f"{100 * difference:+.{decimals}f}±{100 * margin:.{decimals}f}%"
        return f"{self.factor * difference:+.{self.decimals}f}±{self.factor * margin:.{self.decimals}f}"


COLUMNS = (
    _Column("reward", "reward", 4),
    _Column("turnaround_s", "turnaround s", 0),
    _Column("turnaround_p95_s", "p95 s", 0),
    _Column("slowdown", "slowdown", 2),
    _Column("makespan_s", "makespan s", 0),
    _Column("cost", "cost", 1),
    _Column("gpu_cost", "GPU nodes", 1),
    _Column("cpu_cost", "other nodes", 1),
    _Column("sla", "SLA %", 1, 100),
    _Column("load_std", "load std", 3),
    _Column("fragmentation", "fragment.", 3),
)


def show(report: Report, console: Console, subject: str | None = None) -> None:
    """One table a setup; of `subject` also what it is better by than the best heuristic."""
    for setup in report.figures:
        console.print(_table(report, setup))
        for what, count in report.notes.get(setup, {}).items():
            console.print(f"  {count:,} {what}", markup=False, highlight=False)
        if subject is not None:
            console.print(_in_short(report, setup, subject) + "\n", markup=False, highlight=False)
    for name in report.left_out:
        console.print(f"{name}: left out, as no traces were given (--traces DIR)", markup=False, highlight=False)


def _table(report: Report, setup: str) -> Table:
    """Each policy's means, and below them its differences from `USUAL` and from the best heuristic."""
    rivals = tuple(dict.fromkeys((USUAL, report.best_heuristic(setup))))
    title = (
        f"{setup}: means of {report.settings.seeds} scenarios; below, "
        f"paired differences ± 95 % from {' and '.join(rivals)}"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True)
    policies = report.figures[setup]
    for policy in sorted(policies, key=lambda policy: -report.mean(setup, policy, "reward")):
        table.add_row(policy, *(column.mean(report.mean(setup, policy, column.name)) for column in COLUMNS))
        for rival in rivals:
            if rival != policy:
                differences = (
                    column.difference(*report.against(setup, policy, rival, column.name)) for column in COLUMNS
                )
                table.add_row(f"  - {rival}", *differences, style="dim")
    return table


def _in_short(report: Report, setup: str, subject: str) -> str:
    best = report.best_heuristic(setup)
    texts = [
        f"{label} {value:{form}} ± {margin:{form.lstrip('+')}}" if math.isfinite(value) else f"{label} -"
        for label, name, form in (
            ("reward", "reward", "+.4f"),
            ("turnaround", "turnaround_s", "+.1%"),
            ("cost", "cost", "+.1%"),
        )
        for value, margin in [report.against(setup, subject, best, name)]
    ]
    share = report.relative_reward(setup, subject, best)
    return f"{subject} against the best heuristic, {best}: {', '.join(texts)}; {share:+.1%} of its reward's size"


def _known(values: Iterable[float]) -> list[float | None]:
    """The values, None for those that JSON does not have."""
    return [value if math.isfinite(value) else None for value in values]


def as_json(report: Report) -> str:
    """The mean of every figure, and the paired differences from `kube_default` and from the best heuristic."""
    best = {setup: report.best_heuristic(setup) for setup in report.figures}
    setups = {
        setup: {
            policy: {
                "mean": dict(zip(NAMES, _known(report.mean(setup, policy, name) for name in NAMES), strict=True)),
                "against": {
                    rival: {name: _known(report.against(setup, policy, rival, name)) for name in NAMES}
                    | {"relative_reward": report.relative_reward(setup, policy, rival)}
                    for rival in dict.fromkeys((USUAL, best[setup]))
                },
            }
            for policy in policies
        }
        for setup, policies in report.figures.items()
    }
    about = {
        "suite": report.settings.suite,
        "seeds": report.settings.seeds,
        "first_seed": report.settings.first_seed,
        "usual": USUAL,
        "best_heuristics": best,
        "ratios": RATIOS,
        "notes": {setup: dict(notes) for setup, notes in report.notes.items()},
        "left_out": list(report.left_out),
    }
    return json.dumps({**about, "setups": setups}, indent=1, allow_nan=False) + "\n"
