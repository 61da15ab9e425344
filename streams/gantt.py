"""A run as a picture: one row a node, one bar an attempt."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from policy.trace import Attempt
from schemas.records import NodeSpec

WIDTH, LABEL, ROW, BAR, GAP, TOP = 1200, 130, 16, 12, 8, 56
FONT = "font-family='sans-serif' font-size='11'"
SMALL = "font-family='sans-serif' font-size='9'"
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
        body.append(f"<text x='4' y='{y + BAR}' {FONT}>{escape(spec.node_id)}</text>")
        body.append(f"<text x='4' y='{y + BAR + 12}' {SMALL} fill='#777'>{spec.cpu:g} cpu{gpu}</text>")
        for lane, attempt in lanes:
            x = LABEL + (attempt.reserved_s - begin_s) * scale
            body.append(_bar(attempt, colours[attempt.workflow_id], x, y + lane * ROW, scale))
        height = max(2, 1 + max((lane for lane, _ in lanes), default=0)) * ROW
        y += height + GAP
        body.append(f"<line x1='0' x2='{WIDTH}' y1='{y - GAP / 2}' y2='{y - GAP / 2}' stroke='#ddd'/>")
    return "\n".join([*_head(title, ended, y), *_axis(span_s, scale, y), *body, "</svg>\n"])


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
        label = f"<text x='{x + 3:.1f}' y='{y + BAR - 2:.1f}' {SMALL}>{escape(shown)}</text>"
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{BAR}' rx='2' fill='{fill}'{faded}>"
        f"<title>{escape(name)}</title></rect>{label}"
    )


def _head(title: str, ended: Sequence[Attempt], height: float) -> list[str]:
    workflows = len({a.workflow_id for a in ended})
    return [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height + 10:.0f}' "
        f"viewBox='0 0 {WIDTH} {height + 10:.0f}'>",
        "<rect width='100%' height='100%' fill='white'/>",
        f"<text x='4' y='20' font-family='sans-serif' font-size='16'>{escape(title)}</text>",
        f"<text x='4' y='36' {FONT} fill='#555'>{workflows} workflows, {len(ended)} attempts; a colour a workflow, "
        "dashed: failed or migrated</text>",
    ]


def _axis(span_s: float, scale: float, height: float) -> list[str]:
    """A line and its time at round intervals."""
    step_s = next((s for s in _round_steps() if span_s / s <= 12), span_s)
    lines = []
    for number in range(int(span_s / step_s) + 1):
        x = LABEL + number * step_s * scale
        lines.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{TOP - 6}' y2='{height:.0f}' stroke='#eee'/>")
        lines.append(f"<text x='{x + 2:.1f}' y='{TOP - 6}' {FONT} fill='#777'>{number * step_s:g} s</text>")
    return lines


def _round_steps() -> list[float]:
    return [mantissa * 10.0**power for power in range(-2, 8) for mantissa in (1, 2, 5)]
