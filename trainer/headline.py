"""The headline table of the source design beside ours: 100 ETL submissions.

What the source design reports is its claim. It says neither on what nodes, nor at what load, nor of what tasks; so the
two experiments share the question, not the set-up, and only the relative differences may be held against each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from trainer.evaluate import USUAL, Report
from trainer.figures import RATIOS


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure of the source design."""

    heading: str
    usual: float
    """Of the cluster's own scheduler."""
    learnt: float
    factor: float = 1.0
    """From our unit to theirs."""
    form: str = ".1f"


CLAIMS: Mapping[str, Claim] = {
    "makespan_s": Claim("makespan, min", 58.7, 42.3, 1 / 60),
    "gpu_cost": Claim("GPU cost", 18.90, 12.40, 1.0, ".2f"),
    "sla": Claim("started within 5 min, %", 92.1, 99.8, 100.0),
    "load_std": Claim("node load std", 0.35, 0.18, 1.0, ".2f"),
}


def show_beside(report: Report, console: Console, subject: str) -> None:
    """Our figures beside those that the source design claims."""
    for setup in report.figures:
        console.print(_table(report, setup, subject))
    console.print(
        "source design: as it reports them, on nodes and a load that it does not name; not measured here",
        markup=False,
        highlight=False,
    )


def _table(report: Report, setup: str, subject: str) -> Table:
    best = report.best_heuristic(setup)
    table = Table(title=f"{setup}, {report.settings.seeds} times", title_justify="left")
    table.add_column("")
    for claim in CLAIMS.values():
        table.add_column(claim.heading, justify="right")
    table.add_row(f"source design, {USUAL}", *(f"{c.usual:{c.form}}" for c in CLAIMS.values()))
    table.add_row("source design, its policy", *(f"{c.learnt:{c.form}}" for c in CLAIMS.values()))
    table.add_row("  difference", *(_claimed(name, claim) for name, claim in CLAIMS.items()), end_section=True)
    for policy in dict.fromkeys((USUAL, best, subject)):
        means = (f"{c.factor * report.mean(setup, policy, name):{c.form}}" for name, c in CLAIMS.items())
        table.add_row(f"headrace, {policy}", *means)
        if policy != USUAL:
            table.add_row("  difference ± 95 %", *(_measured(report, setup, policy, name) for name in CLAIMS))
    return table


def _claimed(name: str, claim: Claim) -> str:
    if name in RATIOS:
        return f"{claim.learnt / claim.usual - 1:+.1%}"
    return f"{claim.learnt - claim.usual:+{claim.form}}"


def _measured(report: Report, setup: str, policy: str, name: str) -> str:
    claim = CLAIMS[name]
    difference, margin = report.against(setup, policy, USUAL, name)
    if not math.isfinite(difference):
        return "-"
    if name in RATIOS:
        return f"{difference:+.1%} ± {margin:.1%}"
    return f"{claim.factor * difference:+{claim.form}} ± {claim.factor * margin:{claim.form}}"
