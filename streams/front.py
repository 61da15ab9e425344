"""Makespan against cost as a picture: the Pareto front as a line, planners as points."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 560, 80, 190, 50, 50
FONT = "font-family='sans-serif' font-size='11'"
GREY = f"{FONT} fill='#777'"
STEPS = 5
GAP = 13.0
"""Least distance of two names, one below the other."""

Point = tuple[float, float]
"""Seconds, cost."""


def draw(front: Sequence[Point], planners: Sequence[tuple[str, Point]], title: str) -> str:
    """An SVG picture; there is at least one point."""
    points = [*front, *(point for _, point in planners)]
    (least_s, most_s), (least_cost, most_cost) = (_span([p[axis] for p in points]) for axis in (0, 1))

    def x_of(makespan_s: float) -> float:
        return LEFT + (makespan_s - least_s) / (most_s - least_s) * (WIDTH - LEFT - RIGHT)

    def y_of(cost: float) -> float:
        return HEIGHT - BOTTOM - (cost - least_cost) / (most_cost - least_cost) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}'>",
        "<rect width='100%' height='100%' fill='white'/>",
        f"<text x='{LEFT}' y='24' font-family='sans-serif' font-size='16'>{escape(title)}</text>",
        f"<text x='{(LEFT + WIDTH - RIGHT) / 2:.0f}' y='{HEIGHT - 8}' {FONT} text-anchor='middle'>makespan, s</text>",
        f"<text x='8' y='{TOP - 12}' {FONT}>cost</text>",
    ]
    for step in range(STEPS + 1):
        makespan_s, cost = (a + step / STEPS * (b - a) for a, b in ((least_s, most_s), (least_cost, most_cost)))
        x, y = x_of(makespan_s), y_of(cost)
        parts += [
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{TOP}' y2='{HEIGHT - BOTTOM}' stroke='#eee'/>",
            f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#eee'/>",
            f"<text x='{x:.1f}' y='{HEIGHT - BOTTOM + 16}' {GREY} text-anchor='middle'>{makespan_s:,.4g}</text>",
            f"<text x='{LEFT - 6}' y='{y + 4:.1f}' {GREY} text-anchor='end'>{cost:,.4g}</text>",
        ]
    if front:
        line = " ".join(f"{x_of(s):.1f},{y_of(cost):.1f}" for s, cost in sorted(front))
        parts.append(f"<polyline points='{line}' fill='none' stroke='#36c' stroke-width='1.5'/>")
        parts += [f"<circle cx='{x_of(s):.1f}' cy='{y_of(cost):.1f}' r='3' fill='#36c'/>" for s, cost in front]
    parts += _named([(name, x_of(s), y_of(cost)) for name, (s, cost) in planners])
    return "\n".join([*parts, "</svg>\n"])


def _named(points: Sequence[tuple[str, float, float]]) -> list[str]:
    """The points, each with its name at the right edge and a line to it."""
    parts, free_y = [], float(TOP)
    for name, x, y in sorted(points, key=lambda p: p[2]):
        free_y = max(free_y, y)
        parts += [
            f"<line x1='{x:.1f}' y1='{y:.1f}' x2='{WIDTH - RIGHT + 8}' y2='{free_y:.1f}' stroke='#ccc'/>",
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='#c33'/>",
            f"<text x='{WIDTH - RIGHT + 12}' y='{free_y + 4:.1f}' {FONT}>{escape(name)}</text>",
        ]
        free_y += GAP
    return parts


def _span(values: Sequence[float]) -> Point:
    """The least and the largest, with a margin; never the same."""
    margin = 0.05 * (max(values) - min(values)) or 0.05 * abs(values[0]) or 1.0
    return min(values) - margin, max(values) + margin
