"""A run as a picture: one row a node, one bar an attempt."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from policy.svg import line, picture, round_step, text
from policy.trace import Attempt
from schemas.records import NodeSpec

WIDTH, LABEL, ROW, BAR, GAP, TOP = 1200, 130, 16, 12, 8, 56
GOLDEN = 0.618034
"""Hues this far apart stay distinct, however many there are."""
LANES_SHOWN = 24
"""Bars of one node that are drawn above each other; further ones share the last lane."""


def draw(attempts: Sequence[Attempt], specs: Sequence[NodeSpec], title: str) -> str:
    """An SVG picture of the ended attempts; a workflow has one colour, a failed or migrated attempt is hatched."""
    ended = [a for a in attempts if a.finish_s is not None]
    begin_s = min((a.reserved_s for a in ended), default=0.0)
    span_s = max((a.finish_s or 0.0 for a in ended), default=1.0) - begin_s or 1.0
    scale = (WIDTH - LABEL - 20) / span_s
    body, y = [], TOP
    names = sorted({a.workflow_id for a in ended})
    colours = {name: f"hsl({round(360 * GOLDEN * i) % 360},60%,68%)" for i, name in enumerate(names)}
    for spec in specs:
        lanes = _lanes([a for a in ended if a.node_id == spec.node_id])
        gpu = f", {spec.gpu} gpu" if spec.gpu else ""
        body.append(text(4, y + BAR, spec.node_id))
        body.append(text(4, y + BAR + 12, f"{spec.cpu:g} cpu{gpu}", size=9, fill="#777"))
        for lane, attempt in lanes:
            x = LABEL + (attempt.reserved_s - begin_s) * scale
            body.append(_bar(attempt, colours[attempt.workflow_id], x, y + lane * ROW, scale))
        height = max(2, 1 + max((lane for lane, _ in lanes), default=0)) * ROW
        y += height + GAP
        body.append(line(0, y - GAP / 2, WIDTH, y - GAP / 2))
    subtitle = f"{len(names)} workflows, {len(ended)} attempts; a colour a workflow, dashed: failed or migrated"
    return picture(WIDTH, y + 10, title, subtitle, [*_axis(span_s, scale, y), *body])


def _lanes(attempts: Sequence[Attempt]) -> list[tuple[int, Attempt]]:
    """The attempts of one node, each on the first lane that is free."""
    free_from: list[float] = []
    placed = []
    for attempt in sorted(attempts, key=lambda a: a.reserved_s):
        lane = next((i for i, end_s in enumerate(free_from) if end_s <= attempt.reserved_s + 1e-9), len(free_from))
        lane = min(lane, LANES_SHOWN - 1)
        if lane == len(free_from):
            free_from.append(0.0)
        free_from[lane] = attempt.finish_s or attempt.reserved_s
        placed.append((lane, attempt))
    return placed


def _bar(attempt: Attempt, fill: str, x: float, y: float, scale: float) -> str:
    finish_s = attempt.finish_s or attempt.start_s
    width = max(0.6, (finish_s - attempt.reserved_s) * scale)
    faded = "" if attempt.end == "finished" else " fill-opacity='0.35' stroke='#c00' stroke-dasharray='2'"
    name = (
        f"{attempt.workflow_id}/{attempt.task_id}#{attempt.attempt}: {attempt.end}, {finish_s - attempt.start_s:.1f} s"
    )
    label = ""
    if width > 60:
        shown = attempt.task_id[: int(width / 6.5)]
        label = text(x + 3, y + BAR - 2, shown, size=9)
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{BAR}' rx='2' fill='{fill}'{faded}>"
        f"<title>{escape(name)}</title></rect>{label}"
    )


def _axis(span_s: float, scale: float, height: float) -> list[str]:
    """A line and its time at round intervals."""
    step_s = round_step(span_s, 12)
    lines = []
    for number in range(int(span_s / step_s) + 1):
        x = LABEL + number * step_s * scale
        lines.append(line(x, TOP - 6, x, height, stroke="#eee"))
        lines.append(text(x + 2, TOP - 6, f"{number * step_s:g} s", fill="#777"))
    return lines
