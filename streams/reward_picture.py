"""Rewards as a picture: the terms of the newest decisions, and the means of all over time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from schemas.records import REWARD_TERMS, Reward

WIDTH, LEFT, RIGHT = 1200, 60, 20
HEAD, PANEL, GAP, NAMES = 84, 300, 44, 96
DECISIONS = 80
"""The newest ones, that are drawn one by one."""
POINTS = 400
"""Most points of a line."""
COLOURS = ("#4e79a7", "#e15759", "#b07aa1", "#9c755f", "#59a14f", "#f28e2b", "#76b7b2", "#edc948")
"""Of the terms, in their order."""
FONT = "font-family='sans-serif' font-size='11'"
SMALL = "font-family='sans-serif' font-size='9'"
LABELLED = 40
"""With more decisions than this, their names are left to the tooltips."""


def draw(rewards: Sequence[Reward], title: str) -> str:
    """An SVG picture of these decisions, which come in the order in which they were decided."""
    newest = rewards[-DECISIONS:]
    middle = HEAD + PANEL + GAP + (NAMES if len(newest) <= LABELLED else 0)
    height = middle + PANEL + 40
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' "
            f"viewBox='0 0 {WIDTH} {height}'>",
            "<rect width='100%' height='100%' fill='white'/>",
            f"<text x='4' y='20' font-family='sans-serif' font-size='16'>{escape(title)}</text>",
            *_legend(),
            f"<text x='4' y='{HEAD - 12}' {FONT} fill='#555'>the newest {len(newest)} decisions, each with the "
            "contributions of its terms (dot: their sum; pale: not all measured yet)</text>",
            *_decisions(newest),
            f"<text x='4' y='{middle - 12}' {FONT} fill='#555'>all {len(rewards)} decisions over time, means of "
            f"{_window(len(rewards))} in a row (dashed: the weights changed)</text>",
            *_over_time(rewards, middle),
            "</svg>\n",
        ]
    )


class _Scale:
    """Where a value lies in a panel that shows these, and zero."""

    def __init__(self, values: Sequence[float], top: float) -> None:
        self.least, self.most = 1.08 * min(-0.05, *values), 1.08 * max(0.05, *values)
        self._top = top

    def y(self, value: float) -> float:
        return self._top + (self.most - value) / (self.most - self.least) * PANEL

    def lines(self) -> list[str]:
        """Lines at round values."""
        step = 0.1 if self.most - self.least < 1.2 else 0.2
        first, last = int(self.least / step), int(self.most / step)
        parts = []
        for number in range(first, last + 1):
            y = self.y(number * step)
            stroke = "#888" if number == 0 else "#eee"
            parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='{stroke}'/>")
            parts.append(f"<text x='{LEFT - 34}' y='{y + 4:.1f}' {FONT} fill='#777'>{number * step:+.1f}</text>")
        return parts


def _legend() -> list[str]:
    parts = []
    for at, (name, colour) in enumerate(zip(REWARD_TERMS, COLOURS, strict=True)):
        x = 4 + 130 * at
        parts.append(f"<rect x='{x}' y='32' width='12' height='12' fill='{colour}'/>")
        parts.append(f"<text x='{x + 17}' y='42' {FONT}>{name.replace('_', ': ')}</text>")
    x = 4 + 130 * len(REWARD_TERMS)
    return [*parts, f"<circle cx='{x + 6}' cy='38' r='3'/>", f"<text x='{x + 17}' y='42' {FONT}>reward</text>"]


def _decisions(rewards: Sequence[Reward]) -> list[str]:
    """A bar for each decision: what is good above zero, what is bad below."""
    good = [sum(c for c in r.contributions if c > 0) for r in rewards]
    bad = [sum(c for c in r.contributions if c < 0) for r in rewards]
    scale = _Scale([*good, *bad, 0.0], HEAD)
    parts = scale.lines()
    step = (WIDTH - LEFT - RIGHT) / max(1, len(rewards))
    width = min(28.0, 0.8 * step)
    for at, reward in enumerate(rewards):
        x = LEFT + (at + 0.5) * step
        above = below = 0.0
        opacity = "1" if reward.stage == "settled" else "0.45"
        parts.append(f"<g fill-opacity='{opacity}'><title>{escape(_words(reward))}</title>")
        for contribution, colour in zip(reward.contributions, COLOURS, strict=True):
            if contribution == 0:
                continue
            begin = above if contribution > 0 else below
            top, bottom = scale.y(max(begin, begin + contribution)), scale.y(min(begin, begin + contribution))
            above, below = above + max(contribution, 0.0), below + min(contribution, 0.0)
            parts.append(
                f"<rect x='{x - width / 2:.1f}' y='{top:.1f}' width='{width:.1f}' height='{bottom - top:.2f}' "
                f"fill='{colour}'/>"
            )
        parts.append(f"</g><circle cx='{x:.1f}' cy='{scale.y(reward.reward):.1f}' r='2.5'/>")
        if len(rewards) <= LABELLED:
            name = f"{reward.task_id[:16]}#{reward.attempt}"
            y = HEAD + PANEL + 10
            parts.append(f"<text {SMALL} transform='translate({x - 3:.1f},{y}) rotate(60)'>{escape(name)}</text>")
    return parts


def _words(reward: Reward) -> str:
    terms = ", ".join(f"{name} {c:+.3f}" for name, c in zip(REWARD_TERMS, reward.contributions, strict=True))
    name = f"{reward.workflow_id}/{reward.task_id}#{reward.attempt} on {reward.node_id}"
    return f"{name} ({reward.stage}): {reward.reward:+.3f} = {terms}"


def _window(decisions: int) -> int:
    return max(1, min(100, decisions // 10))


def _over_time(rewards: Sequence[Reward], top: float) -> list[str]:
    """A line for each term, one for their sum, and where the weights changed."""
    if not rewards:
        return []
    begin_ms, span_ms = rewards[0].decided_ms, max(1, rewards[-1].decided_ms - rewards[0].decided_ms)

    def x(reward: Reward) -> float:
        return LEFT + (reward.decided_ms - begin_ms) / span_ms * (WIDTH - LEFT - RIGHT)

    columns = [*zip(*(r.contributions for r in rewards), strict=True), tuple(r.reward for r in rewards)]
    means = [_rolling(column, _window(len(rewards))) for column in columns]
    scale = _Scale([value for mean in means for value in mean], top)
    parts = [*scale.lines(), *_times(span_ms, top)]
    shown = range(0, len(rewards), max(1, len(rewards) // POINTS))
    for mean, colour, width in zip(means, (*COLOURS, "black"), (*[1.5] * len(COLOURS), 2.5), strict=True):
        if any(mean):
            points = " ".join(f"{x(rewards[at]):.1f},{scale.y(mean[at]):.1f}" for at in shown)
            parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='{width}'/>")
    for before, after in pairwise(rewards):
        if before.weights != after.weights:
            parts += _change(before, after, x(after), top)
    return parts


def _rolling(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and those before it, as many as the window holds."""
    means, total = [], 0.0
    for at, value in enumerate(values):
        total += value - (values[at - window] if at >= window else 0.0)
        means.append(total / min(at + 1, window))
    return means


def _change(before: Reward, after: Reward, x: float, top: float) -> list[str]:
    pairs = zip(REWARD_TERMS, before.weights, after.weights, strict=True)
    changes = dict.fromkeys(f"{name.partition('_')[0]} {abs(new):g}" for name, old, new in pairs if old != new)
    return [
        f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{top + PANEL}' stroke='#333' stroke-dasharray='4 3'/>",
        f"<text x='{x + 3:.1f}' y='{top + PANEL - 6}' {SMALL}>{escape(', '.join(changes))}</text>",
    ]


def _times(span_ms: int, top: float) -> list[str]:
    """Times at round intervals of event time."""
    steps_s = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)
    step_s = next((s for s in steps_s if span_ms / 1000 / s <= 12), 86400 * (1 + span_ms // 1_036_800_000))
    parts = []
    for number in range(int(span_ms / 1000 / step_s) + 1):
        x = LEFT + number * step_s * 1000 / span_ms * (WIDTH - LEFT - RIGHT)
        seconds = number * step_s
        label = f"{seconds} s" if step_s < 60 else f"{seconds / 60:g} min" if step_s < 3600 else f"{seconds / 3600:g} h"
        parts.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{top + PANEL + 4}' stroke='#eee'/>")
        parts.append(f"<text x='{x + 2:.1f}' y='{top + PANEL + 16}' {FONT} fill='#777'>{label}</text>")
    return parts
