"""The parts of which pictures in SVG are put together."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def picture(width: float, height: float, title: str, subtitle: str, body: Iterable[str]) -> str:
    """A whole picture with a white ground; title and subtitle take its uppermost 40 points."""
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
            f"viewBox='0 0 {width:.0f} {height:.0f}'>",
            "<rect width='100%' height='100%' fill='white'/>",
            text(4, 20, title, size=16),
            text(4, 36, subtitle, fill="#555"),
            *body,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, *, size: int = 11, fill: str = "#000", anchor: str = "start") -> str:
    """Words on a line; `anchor`: which end of them lies at x, `start`, `middle` or `end`."""
    font = f"font-family='sans-serif' font-size='{size}' fill='{fill}' text-anchor='{anchor}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {font}>{escape(words)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str = "#ddd", width: float = 1) -> str:
    """A straight line."""
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{stroke}' stroke-width='{width:g}'/>"


def round_step(span: float, most: int) -> float:
    """The smallest of …, 1, 2, 5, 10, … that divides the span into `most` parts at most."""
    steps = (mantissa * 10.0**power for power in range(-6, 12) for mantissa in (1, 2, 5))
    return next((step for step in steps if span / step <= most), span)
