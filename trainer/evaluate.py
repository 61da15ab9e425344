"""Policies side by side on the same scenarios: what each is better or worse by, and how sure that is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from policy.heuristics import HEURISTICS
from policy.reward import Baseline, Run, baseline, reward
from schemas.errors import InvalidConfiguration
from trainer.arena import Rule
from trainer.intervals import interval
from trainer.rules import HEURISTIC_RULES
from trainer.scenarios import CLASSES, run
from trainer.suite import EVALUATION, REFERENCE, STANDARD, SUITES, Setup, courses
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

    def __post_init__(self) -> None:
        if self.suite not in SUITES:
            raise InvalidConfiguration("evaluate.suite", f"'{self.suite}' is unknown", f"give {' or '.join(SUITES)}")
        if self.seeds < 2:
            raise InvalidConfiguration("evaluate.seeds", f"{self.seeds} give no interval", "give 2 or more")


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, in the figures of the table."""

    reward: float
    turnaround_s: float
    turnaround_p95_s: float
    cost: float
    sla: float
    imbalance: float
    fragmentation: float


NAMES = tuple(Figures.__dataclass_fields__)
RATIOS = ("turnaround_s", "turnaround_p95_s", "cost")
"""Compared as ratios; the others as differences."""


@dataclass(frozen=True)
class Report:
    """For each setup and policy, the figures of each seed; seeds of one setup are paired."""

    settings: EvaluationSettings
    figures: Mapping[str, Mapping[str, Sequence[Figures]]] = field(default_factory=dict)

    def mean(self, setup: str, policy: str, name: str) -> float:
        """The mean over the seeds."""
        return float(np.mean([getattr(f, name) for f in self.figures[setup][policy]]))

    def against(self, setup: str, policy: str, rival: str, name: str) -> tuple[float, float]:
        """The paired difference, or relative difference for RATIOS, and half of its 95 % interval."""
        pairs = zip(self.figures[setup][policy], self.figures[setup][rival], strict=True)
        values = [(getattr(a, name), getattr(b, name)) for a, b in pairs]
        return interval([a / b - 1 if name in RATIOS else a - b for a, b in values])

    def best_heuristic(self, setup: str) -> str:
        """The heuristic with the largest mean reward."""
        known = [name for name in self.figures[setup] if name in HEURISTICS]
        return max(known, key=lambda name: self.mean(setup, name, "reward"))


def evaluate(settings: EvaluationSettings, others: Mapping[str, Rule], report: Callable[[str], None] = print) -> Report:
    """Play every heuristic and these other rules on the suite. The same seeds give the same figures."""
    rules = {**HEURISTIC_RULES, **others}
    figures: dict[str, dict[str, list[Figures]]] = {}
    with start_workers(settings.processes, settings.ray) as workers:
        usual = usual_baseline(workers)
        for setup in SUITES[settings.suite]:
            seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
            rows = list(workers.map(partial(_play, setup, rules, usual), seeds))
            figures[setup.name] = {name: [row[name] for row in rows] for name in rules}
            report(f"{setup.name}: {len(rules)} policies on {settings.seeds} scenarios")
    return Report(settings, figures)


def usual_baseline(workers: Workers) -> Baseline:
    """What is usual under the cluster's own scheduler, at load 0.7."""
    reference = courses(workers, STANDARD[0], REFERENCE, range(8))
    return baseline([run(course, HEURISTIC_RULES[USUAL]).measured() for course in reference], len(CLASSES))


def _play(setup: Setup, rules: Mapping[str, Rule], usual: Baseline, seed: int) -> dict[str, Figures]:
    course = setup.course(EVALUATION, seed)
    return {name: _figures(run(course, rule).measured(), usual) for name, rule in rules.items()}


def _figures(found: Run, usual: Baseline) -> Figures:
    return Figures(
        reward(found, usual),
        float(found.turnaround_s_w.mean()),
        float(np.percentile(found.turnaround_s_w, 95)),
        float(found.cost_w.sum()),
        float(found.sla_w.mean()),
        found.imbalance,
        found.fragmentation,
    )


def show(report: Report, console: Console, subject: str | None = None) -> None:
    """One table a setup; of `subject` also what it is better by than the best heuristic."""
    for setup, policies in report.figures.items():
        table = Table(title=f"{setup}: {report.settings.seeds} scenarios, against {USUAL}", title_justify="left")
        table.add_column("policy")
        for heading in ("reward", "± 95 %", "turnaround", "± 95 %", "p95", "cost", "± 95 %", "SLA", "imbalance"):
            table.add_column(heading, justify="right")
        for name in sorted(policies, key=lambda name: -report.mean(setup, name, "reward")):
            gain, gain_margin = report.against(setup, name, USUAL, "reward")
            time, time_margin = report.against(setup, name, USUAL, "turnaround_s")
            cost, cost_margin = report.against(setup, name, USUAL, "cost")
            table.add_row(
                name,
                f"{gain:+.4f}",
                f"{gain_margin:.4f}",
                f"{time:+.1%}",
                f"{time_margin:.1%}",
                f"{report.against(setup, name, USUAL, 'turnaround_p95_s')[0]:+.1%}",
                f"{cost:+.1%}",
                f"{cost_margin:.1%}",
                f"{report.mean(setup, name, 'sla'):.3f}",
                f"{report.mean(setup, name, 'imbalance'):.2f}",
            )
        console.print(table)
        if subject is not None:
            best = report.best_heuristic(setup)
            texts = [
                f"{label} {value:{form}} ± {margin:{form.lstrip('+')}}"
                for label, name, form in (
                    ("reward", "reward", "+.4f"),
                    ("turnaround", "turnaround_s", "+.1%"),
                    ("cost", "cost", "+.1%"),
                )
                for value, margin in [report.against(setup, subject, best, name)]
            ]
            console.print(f"{subject} against the best heuristic, {best}: {', '.join(texts)}\n")


def as_json(report: Report) -> str:
    """Every figure of every run, and the paired differences to `kube_default`."""
    setups = {
        setup: {
            policy: {
                "mean": {name: report.mean(setup, policy, name) for name in NAMES},
                "against": {name: report.against(setup, policy, USUAL, name) for name in NAMES},
            }
            for policy in policies
        }
        for setup, policies in report.figures.items()
    }
    settings = {"suite": report.settings.suite, "seeds": report.settings.seeds, "usual": USUAL}
    return json.dumps({**settings, "setups": setups}, indent=1) + "\n"
