"""An evaluation as a picture: of each setup, the differences of reward, turnaround and cost with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from policy.svg import line, picture, round_step, text
from trainer.evaluate import USUAL, Report

LABEL, PANEL, GAP, TOP, BLOCK, MARK = 250, 300, 30, 92, 20, 15
"""Points: the names, a panel, between panels, above the first row, around a row, for each mark of it."""
BLUE, ORANGE, GREY = "#1f6fb4", "#d95f02", "#888"
MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure: how its differences are called, and their factor."""

    name: str
    title: str
    better: str
    factor: float = 1.0


PANELS = (
    Panel("reward", "reward", "right is better"),
    Panel("turnaround_s", "mean turnaround, %", "left is better", 100.0),
    Panel("cost", "cost, %", "left is better", 100.0),
)


@dataclass(frozen=True, slots=True)
class _Mark:
    """The difference of one policy from another in one setup, and where and how it is drawn."""

    setup: str
    policy: str
    rival: str
    colour: str
    y: float


def draw(report: Report, subject: str | None = None) -> str:
    """The picture: of every setup the subject against `USUAL` and the best heuristic, and the latter against `USUAL`.

    Without a subject, the best heuristic against `USUAL` alone.
    """
    width = LABEL + len(PANELS) * (PANEL + GAP)
    body, marks, y = _legend(subject), [], float(TOP)
    for setup in report.figures:
        of_setup = _marks(report, setup, subject, y)
        body.append(text(4, y + MARK - 4, setup, size=12))
        body.append(text(4, y + 2 * MARK - 4, f"best heuristic: {report.best_heuristic(setup)}", size=9, fill="#777"))
        marks += of_setup
        y += MARK * max(2, len(of_setup)) + BLOCK
        body.append(line(0, y - BLOCK / 2, width, y - BLOCK / 2))
    for i, panel in enumerate(PANELS):
        body += _panel(report, panel, LABEL + i * (PANEL + GAP), y - BLOCK / 2, marks)
    title = f"headrace evaluate: suite {report.settings.suite}, {report.settings.seeds} scenarios a row"
    return picture(width, y + 4, title, "paired differences; bars are 95 % intervals", body)


def _marks(report: Report, setup: str, subject: str | None, y: float) -> list[_Mark]:
    best = report.best_heuristic(setup)
    pairs = [(best, USUAL, GREY)]
    if subject is not None:
        pairs = [(subject, USUAL, BLUE), (subject, best, ORANGE), *pairs]
    shown = [pair for pair in pairs if pair[0] != pair[1]]
    return [_Mark(setup, *pair, y + (i + 0.5) * MARK) for i, pair in enumerate(shown)]


def _legend(subject: str | None) -> list[str]:
    entries = [(GREY, f"best heuristic - {USUAL}")]
    if subject is not None:
        entries = [(BLUE, f"{subject} - {USUAL}"), (ORANGE, f"{subject} - best heuristic"), *entries]
    parts = []
    for i, (colour, words) in enumerate(entries):
        x = LABEL + 200 * i
        parts += [_dot(x, 52, colour), text(x + 10, 56, words)]
    return parts


def _panel(report: Report, panel: Panel, left: float, bottom: float, marks: Sequence[_Mark]) -> list[str]:
    """One figure of every mark that has it, on a scale that all of them fit."""
    of_mark = [(mark, report.against(mark.setup, mark.policy, mark.rival, panel.name)) for mark in marks]
    known = [(mark, difference, margin) for mark, (difference, margin) in of_mark if math.isfinite(difference)]
    spans = [(panel.factor * (d - margin), panel.factor * (d + margin)) for _, d, margin in known]
    low, high = min([0.0, *(a for a, _ in spans)]), max([0.0, *(b for _, b in spans)])
    if low == high:
        low, high = -1.0, 1.0
    scale = PANEL / (high - low)

    def at(value: float) -> float:
        return left + (value - low) * scale

    parts = [text(left, TOP - 22, panel.title, size=12), text(left + PANEL, TOP - 22, panel.better, anchor="end")]
    step = round_step(high - low, MOST_TICKS)
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        x, is_zero = at(number * step), number == 0
        parts.append(line(x, TOP - 4, x, bottom, stroke="#555" if is_zero else "#e5e5e5"))
        parts.append(text(x, TOP - 8, f"{number * step:+.4g}" if number else "0", size=9, fill="#777", anchor="middle"))
    for (mark, difference, _), (begin, end) in zip(known, spans, strict=True):
        parts.append(line(at(begin), mark.y, at(end), mark.y, stroke=mark.colour, width=2))
        parts.append(_dot(at(panel.factor * difference), mark.y, mark.colour))
    return parts


def _dot(x: float, y: float, colour: str) -> str:
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'/>"
