"""Whether a candidate has shown for long enough that it is better than the incumbent.

The rule is "7 days in a row better on 95 % of samples". A sample is not a single workflow (even a candidate that is
better without doubt is worse on a third of those) but the day drawn again: its hours, with replacement, each with all
of its workflows, since those of one hour share their queues. The candidate is better on a drawn day where the weighted
mean difference is, so that 95 % of drawn days are a one-sided 95 % bound by hours. docs/decisions/0016 has what that
does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from schemas.errors import InvalidConfiguration, StateLost

BLOCKS = 24
"""Parts of a day that are drawn as a whole."""
KEPT_DAYS = 60
"""Judged days that are remembered."""


@dataclass(frozen=True, kw_only=True)
class PromotionSettings:
    """How sure one must be, and for how long."""

    days: int = 7
    """In a row on which the candidate must be better."""
    share: float = 0.95
    """Of a day's samples on which it must be better, and not worse beyond either margin."""
    makespan_weight: float = 0.4
    """Of the makespan in what is compared: that of the reward."""
    cost_weight: float = 0.3
    """Of the cost."""
    makespan_margin: float = 0.02
    """By how much the mean makespan may be longer, however much is saved; in the unit of the differences."""
    cost_margin: float = 0.02
    """By how much the mean cost may be higher, however fast it is; in the unit of the differences."""
    least_samples: int = 100
    """Differences of a day below which it neither counts nor breaks the row; fewer where weights are uneven."""
    least_blocks: int = 6
    """Hours of a day with differences, the same."""
    most_skipped: int = 7
    """Days with too few within one row; with more, the row begins anew."""
    late_s: float = 21_600.0
    """How long after its end a day still takes differences; later ones are counted and left out."""
    day_s: float = 86_400.0
    """Length of a day, event time; its 24th part is an hour."""
    draws: int = 2000
    """Samples of a day."""

    def __post_init__(self) -> None:
        ranges = {"days": (1, 365), "share": (0.5, 1.0), "makespan_weight": (0.0, 100.0), "cost_weight": (0.0, 100.0)}
        ranges |= {"makespan_margin": (0.0, 100.0), "cost_margin": (0.0, 100.0), "least_samples": (2, 1e9)}
        ranges |= {"least_blocks": (2, BLOCKS), "most_skipped": (0, 365), "late_s": (0.0, 1e7), "day_s": (0.024, 1e7)}
        ranges |= {"draws": (100, 1e6)}
        for name, (least, most) in ranges.items():
            if not least <= getattr(self, name) <= most:
                raise InvalidConfiguration(
                    f"promotion.{name}", f"{getattr(self, name)} is out of range", f"give {least:g} to {most:g}"
                )
        if not self.makespan_weight + self.cost_weight > 0:
            raise InvalidConfiguration("promotion.cost_weight", "nothing is compared", "give one weight above 0")


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """What the candidate would have done to a workflow, or a decision, less what the incumbent did: below 0 is better.

    In shares of what is usual for its class (`policy.usual`), as in the reward: ratios of single workflows are so noisy
    that five times as many are needed. Differences of one workflow should have one time.
    """

    at_ms: int  # event time
    makespan: float
    cost: float
    weight: float = 1.0  # of an estimate by importance: its weight


class Finding(StrEnum):
    """What a day was."""

    BETTER = "better"
    NOT_BETTER = "not_better"
    TOO_FEW = "too_few"


@dataclass(frozen=True, slots=True)
class Day:
    """A judged day."""

    day: int  # event time / length of a day
    finding: Finding
    differences: int
    blocks: int  # hours that had some
    effective: float  # as many differences of equal weight would say as much
    makespan: float  # weighted mean difference
    cost: float
    better_share: float  # of the samples on which the weighted sum of both is below 0
    makespan_share: float  # of the samples on which the makespan is within its margin
    cost_share: float
    single_share: float  # of the single differences that are better: the rule read to the letter


@dataclass(slots=True)
class OpenDay:
    """Sums of a day that is not over. Axes: B blocks."""

    sum_b3: np.ndarray = field(default_factory=lambda: np.zeros((BLOCKS, 3)))
    """Weighted makespan, weighted cost, weight."""
    differences: int = 0
    better: int = 0
    squared_weight: float = 0.0


class Promotion:
    """Folds differences of one candidate and one incumbent, in any order; a day is judged when it is over.

    Save it together with how far its input was read: a difference that comes twice counts twice.
    """

    def __init__(self, settings: PromotionSettings | None = None) -> None:
        self.settings = settings or PromotionSettings()
        self.days: list[Day] = []
        """Judged, oldest first; those without any difference are not among them."""
        self.row: list[int] = []
        """The better days in a row that end with the newest."""
        self.promoted_day: int | None = None
        """With which the rule was met first; that stays."""
        self.left_out = 0
        """Differences that came after their day was judged, or were not finite."""
        self.newest_ms: int | None = None
        self._open: dict[int, OpenDay] = {}

    @property
    def is_promoted(self) -> bool:
        """Whether the rule was met."""
        return self.promoted_day is not None

    def observe(self, difference: PairedDifference) -> None:
        """Take a difference in, and judge the days that are over at its time."""
        d = difference
        is_usable = all(map(math.isfinite, (d.makespan, d.cost, d.weight))) and d.weight > 0
        day_ms = 1000 * self.settings.day_s
        day = int(d.at_ms // day_ms)
        if not is_usable or (self.newest_ms is not None and self._is_over(day, self.newest_ms)):
            self.left_out += 1
            return
        found = self._open.setdefault(day, OpenDay())
        block = min(int(BLOCKS * (d.at_ms % day_ms) / day_ms), BLOCKS - 1)
        found.sum_b3[block] += d.weight * d.makespan, d.weight * d.cost, d.weight
        found.differences += 1
        found.better += self._together(d.makespan, d.cost) < 0
        found.squared_weight += d.weight**2
        self.pass_time(d.at_ms)

    def pass_time(self, at_ms: int) -> None:
        """It is this event time at least: judge the days that are over."""
        self.newest_ms = at_ms if self.newest_ms is None else max(at_ms, self.newest_ms)
        for day in sorted(day for day in self._open if self._is_over(day, self.newest_ms)):
            self._take(judged(day, self._open.pop(day), self.settings))

    def _is_over(self, day: int, at_ms: int) -> bool:
        return at_ms >= 1000 * ((day + 1) * self.settings.day_s + self.settings.late_s)

    def _together(self, makespan: float, cost: float) -> float:
        return self.settings.makespan_weight * makespan + self.settings.cost_weight * cost

    def _take(self, day: Day) -> None:
        self.days = [*self.days, day][-KEPT_DAYS:]
        if day.finding == Finding.TOO_FEW:
            return
        skipped = day.day - self.row[0] - len(self.row) if self.row else 0
        if day.finding == Finding.NOT_BETTER or skipped > self.settings.most_skipped:
            self.row = []
        if day.finding == Finding.BETTER:
            self.row = [*self.row, day.day][-self.settings.days :]
        if len(self.row) == self.settings.days and self.promoted_day is None:
            self.promoted_day = day.day

    def to_plain(self) -> dict[str, Any]:
        """All of it as JSON knows it, but for the settings: a changed one holds for the days to come."""
        return {
            "day_s": self.settings.day_s,
            "days": [asdict(day) for day in self.days],
            "row": self.row,
            "promoted_day": self.promoted_day,
            "left_out": self.left_out,
            "newest_ms": self.newest_ms,
            "open": {str(day): asdict(found) | {"sum_b3": found.sum_b3.tolist()} for day, found in self._open.items()},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], settings: PromotionSettings | None = None) -> Promotion:
        """What `to_plain` gave, to go on. Raises StateLost: no such thing, damaged, or of days of another length."""
        found = cls(settings)
        try:
            if plain["day_s"] != found.settings.day_s:
                raise ValueError(f"its days last {plain['day_s']} s, not {found.settings.day_s}")
            found.days = [Day(**{**day, "finding": Finding(day["finding"])}) for day in plain["days"]]
            found.row = [int(day) for day in plain["row"]][-found.settings.days :]
            found.promoted_day = _whole(plain["promoted_day"])
            found.newest_ms = _whole(plain["newest_ms"])
            found.left_out = int(plain["left_out"])
            for day, sums in plain["open"].items():
                opened = OpenDay(**{**sums, "sum_b3": np.array(sums["sum_b3"], np.float64)})
                if opened.sum_b3.shape != (BLOCKS, 3):
                    raise ValueError(f"sums of the shape {opened.sum_b3.shape}")
                found._open[int(day)] = opened
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateLost(
                f"promotion: saved state cannot be used ({type(error).__name__}: {error}); begin to compare anew"
            ) from error
        return found


def judged(day: int, found: OpenDay, settings: PromotionSettings) -> Day:
    """What a day says. The same sums give the same shares."""
    sum_b3 = found.sum_b3[found.sum_b3[:, 2] > 0]
    makespan, cost, weight = sum_b3.sum(axis=0)
    effective = float(weight**2 / found.squared_weight)
    makespan_d, cost_d = _drawn_means(sum_b3, np.random.default_rng(day), settings.draws)
    better_share = float(np.mean(settings.makespan_weight * makespan_d + settings.cost_weight * cost_d < 0))
    makespan_share = float(np.mean(makespan_d <= settings.makespan_margin))
    cost_share = float(np.mean(cost_d <= settings.cost_margin))
    if effective < settings.least_samples or len(sum_b3) < settings.least_blocks:
        finding = Finding.TOO_FEW
    else:
        finding = (
            Finding.BETTER if min(better_share, makespan_share, cost_share) >= settings.share else Finding.NOT_BETTER
        )
    return Day(
        day,
        finding,
        found.differences,
        len(sum_b3),
        effective,
        float(makespan / weight),
        float(cost / weight),
        better_share,
        makespan_share,
        cost_share,
        found.better / found.differences,
    )


def _drawn_means(sum_b3: np.ndarray, rng: np.random.Generator, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean makespan and cost of a day's blocks drawn with replacement: [draws] each."""
    blocks = len(sum_b3)
    times_db = rng.multinomial(blocks, np.full(blocks, 1 / blocks), draws)
    drawn_d3 = times_db @ sum_b3
    return drawn_d3[:, 0] / drawn_d3[:, 2], drawn_d3[:, 1] / drawn_d3[:, 2]


def in_words(promotion: Promotion) -> list[str]:
    """Where the candidate stands, and its newest days, each in a line."""
    settings, row = promotion.settings, promotion.row
    if promotion.is_promoted:
        stands = f"promoted: better on {settings.days} days in a row"
    else:
        stands = f"not promoted: better on {len(row)} of {settings.days} days in a row"
    lines = [f"{stands}; {promotion.left_out} differences came too late or were unusable"]
    return lines + [_line(day, settings) for day in promotion.days[-2 * settings.days :]]


def _line(day: Day, settings: PromotionSettings) -> str:
    begins = np.datetime64(round(1000 * day.day * settings.day_s), "ms").astype("datetime64[m]")
    return (
        f"{begins}  {day.finding}: {day.differences} differences in {day.blocks} hours; "
        f"better on {day.better_share:.1%} of samples ({settings.share:.0%} needed), "
        f"makespan {day.makespan:+.4f} and cost {day.cost:+.4f} within their margins on "
        f"{day.makespan_share:.1%} and {day.cost_share:.1%}; of single differences {day.single_share:.1%} are better"
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
