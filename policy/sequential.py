"""Whether a canary does harm, asked after every observation without growing more likely to cry wolf.

Each guard bets against the hypothesis that the canary is no worse than allowed. A bettor who starts with 1 and whose
bets are fair or worse under the hypothesis ever has c with a probability of at most 1 / c (Ville's inequality), however
often one looks. So a guard that is violated at guards / alpha, of some guards, gives all of them together a false
alarm with a probability of at most alpha, for as long as they watch. Sources: Shafer 2021, doi 10.1111/rssa.12647;
bets on bounded means: Waudby-Smith and Ramdas 2024, doi 10.1093/jrsssb/qkad009; two groups of successes: Turner, Ly and
Grünwald 2024, doi 10.1016/j.jspi.2023.106116.

Where observations come in bursts (a stalled machine makes many decisions late), they say less than they seem to: that
is why a rate must be above its limit, and above that of the control group, which the same burst hits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from schemas.errors import InvalidConfiguration, StateLost

GUARDS = ("latency", "success", "turnaround", "cost")
ODDS = np.array([1.5, 2.0, 4.0, 10.0, 30.0, 100.0, 1000.0])
"""How many times the allowed odds the bets against a limit expect."""
CONTROL_RATES = np.array([1e-4, 1e-3, 1e-2, 1e-1])
CONTROL_ODDS = np.array([1.5, 3.0, 10.0, 100.0])
"""Rates of the control group that the bets on two groups expect, and how many times its odds are the canary's."""
SHARES = np.array([0.03, 0.1, 0.2, 0.4, 0.8])
"""Of the largest bet that cannot lose everything: bets on a mean."""
LEAST_CONTROL = 0.1
"""A control group with fewer observations than this share of the canary's is none."""


@dataclass(frozen=True, kw_only=True)
class GuardrailSettings:
    """What a canary may do, and how sure one must be that it does more."""

    alpha: float = 0.01
    """Probability of at most so much that a harmless canary is ever called harmful, by any of the guards."""
    latency_p99_s: float = 0.015
    """99 of 100 decisions must be faster."""
    success_rate: float = 0.9999
    """Share of the attempts that must succeed."""
    turnaround_margin: float = 0.02
    """How much larger than the control group's the slowdown may be (geometric means)."""
    cost_margin: float = 0.05
    """How much larger than the control group's the cost may be (geometric means)."""
    slowdown_range: tuple[float, float] = (1.0, 30.0)
    """Slowdowns outside count as its ends: one workflow can prove only so much."""
    cost_range: tuple[float, float] = (0.1, 10.0)
    """The same for cost ratios."""

    def __post_init__(self) -> None:
        ranges = {"alpha": (1e-9, 0.5), "latency_p99_s": (1e-6, 3600.0), "success_rate": (0.5, 1 - 1e-9)}
        ranges |= {"turnaround_margin": (0.0, 10.0), "cost_margin": (0.0, 10.0)}
        for name, (least, most) in ranges.items():
            if not least <= getattr(self, name) <= most:
                raise InvalidConfiguration(
                    f"guardrails.{name}", f"{getattr(self, name)} is out of range", f"give {least:g} to {most:g}"
                )
        for name in ("slowdown_range", "cost_range"):
            low, high = getattr(self, name)
            if not 0 < low < high < math.inf:
                raise InvalidConfiguration(f"guardrails.{name}", f"{low} to {high} is no range", "give 0 < low < high")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the guards say now. A violation stays."""

    guard: str | None = None
    """The first that was violated; None: go on."""
    cause: str | None = None
    """The same with its numbers, for a person."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """By guard, how far it is from a violation: 1 is one."""

    @property
    def is_violated(self) -> bool:
        """Whether the canary must go back."""
        return self.guard is not None


class Evidence:
    """The wealth of bets against a hypothesis, from 1 on: one bet an observation, for each of J alternatives.

    With every bet a little of what was kept back is staked, 1 - 1 / log2(bets + 2) of it in all: harm that begins
    late is seen as one that begins at once, but for the logarithm of the bets before it, where all in one stake would
    have been lost by then.
    """

    def __init__(self, alternatives: int) -> None:
        self.bets = 0
        self.stakes_j = np.zeros(alternatives)

    @property
    def wealth(self) -> float:
        """What is kept back, and what the stakes have become."""
        return _kept_back(self.bets) + float(self.stakes_j.sum())

    def bet(self, factor_j: np.ndarray) -> None:
        """Multiply the stakes by what each alternative makes of the observation: [J], at least 0, fair: mean 1."""
        newly = _kept_back(self.bets) - _kept_back(self.bets + 1)
        self.bets += 1
        self.stakes_j += newly / len(self.stakes_j)
        self.stakes_j *= factor_j

    def to_plain(self) -> dict[str, Any]:
        return {"bets": self.bets, "stakes": self.stakes_j.tolist()}

    def put_back(self, plain: Mapping[str, Any]) -> None:
        """Go on from what `to_plain` gave. Raises ValueError where that is not of these alternatives."""
        stakes_j = np.array(plain["stakes"], np.float64)
        if stakes_j.shape != self.stakes_j.shape or not (np.isfinite(stakes_j) & (stakes_j >= 0)).all():
            raise ValueError(f"{stakes_j.shape} stakes, not {self.stakes_j.shape} finite ones")
        self.bets, self.stakes_j = int(plain["bets"]), stakes_j


@dataclass(slots=True)
class Group:
    """Observations of one group."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value

    @property
    def mean(self) -> float:
        """Of no observations: 0."""
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class TwoGroups:
    """The canary's observations and the control group's: all, and a block that is open until it has some of both.

    Blocks compare what happened at about one time, so that a change of load, which hits both groups, is no evidence.
    A block ends by whose turn it was alone, not by what was observed.
    """

    canary: Group = field(default_factory=Group)
    control: Group = field(default_factory=Group)
    open_canary: Group = field(default_factory=Group)
    open_control: Group = field(default_factory=Group)

    def add(self, is_canary: bool, value: float) -> tuple[Group, Group] | None:
        """Take an observation in; returns the block, canary and control, that ends with it."""
        for group in (self.canary, self.open_canary) if is_canary else (self.control, self.open_control):
            group.add(value)
        if not (self.open_canary.count and self.open_control.count):
            return None
        block = self.open_canary, self.open_control
        self.open_canary, self.open_control = Group(), Group()
        return block

    @property
    def has_control(self) -> bool:
        """Whether there are enough of the control group to compare with."""
        return self.control.count >= LEAST_CONTROL * self.canary.count and self.control.count > 0

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    def put_back(self, plain: Mapping[str, Any]) -> None:
        self.canary, self.control, self.open_canary, self.open_control = (
            Group(int(plain[name]["count"]), float(plain[name]["total"]))
            for name in ("canary", "control", "open_canary", "open_control")
        )


class RateGuard:
    """Something bad happens to the canary more often than the limit allows, and more often than to the control group.

    Against the limit: likelihood ratios, which are fair or worse at every rate up to it. Against the control group: of
    each block, the likelihood under rates (p, q), p > q, over that under their mean, weighted by the block. The mean
    of that is at most 1 wherever the canary's rate is at most the control's: it grows with the former and shrinks with
    the latter, and where they are equal it is at most 1 by the inequality of means.
    """

    def __init__(self, what: tuple[str, str], limit: float) -> None:
        """`what` is counted and what is bad about it, in words; `limit` the share that may be so."""
        self.what = what
        self.limit = limit
        self.groups = TwoGroups()
        odds_j = limit / (1 - limit) * ODDS
        rate_j = odds_j / (1 + odds_j)
        self.against_limit = Evidence(len(ODDS))
        self._bad_j, self._good_j = rate_j / limit, (1 - rate_j) / (1 - limit)
        control_j = np.repeat(CONTROL_RATES, len(CONTROL_ODDS))
        odds_j = control_j / (1 - control_j) * np.tile(CONTROL_ODDS, len(CONTROL_RATES))
        self.against_control = Evidence(len(control_j))
        self._control_j, self._canary_j = control_j, odds_j / (1 + odds_j)

    @property
    def wealth(self) -> float:
        """The smaller of both: the hypothesis holds where the canary keeps to one of them."""
        if not self.groups.has_control:
            return self.against_limit.wealth
        return min(self.against_limit.wealth, self.against_control.wealth)

    def observe(self, is_canary: bool, is_bad: bool) -> None:
        if is_canary:
            self.against_limit.bet(self._bad_j if is_bad else self._good_j)
        block = self.groups.add(is_canary, float(is_bad))
        if block is not None:
            self.against_control.bet(self._factor(*block))

    def numbers(self) -> str:
        """What was seen, in words."""
        counted, is_bad = self.what
        canary, control = self.groups.canary, self.groups.control
        return (
            f"{canary.total:.0f} of the canary's {canary.count} {counted} {is_bad} ({100 * canary.mean:.3g} %), "
            f"{100 * self.limit:.3g} % may; of the control group's {control.count} {control.total:.0f} "
            f"({100 * control.mean:.3g} %)"
        )

    def _factor(self, canary: Group, control: Group) -> np.ndarray:
        together_j = (canary.count * self._canary_j + control.count * self._control_j) / (canary.count + control.count)
        log_j = np.zeros(len(together_j))
        for group, rate_j in ((canary, self._canary_j), (control, self._control_j)):
            log_j += group.total * np.log(rate_j / together_j)
            log_j += (group.count - group.total) * np.log((1 - rate_j) / (1 - together_j))
        return np.exp(log_j)

    def to_plain(self) -> dict[str, Any]:
        return {
            "groups": self.groups.to_plain(),
            "limit": self.against_limit.to_plain(),
            "control": self.against_control.to_plain(),
        }

    def put_back(self, plain: Mapping[str, Any]) -> None:
        self.groups.put_back(plain["groups"])
        self.against_limit.put_back(plain["limit"])
        self.against_control.put_back(plain["control"])


class MeanGuard:
    """The logarithm of something is larger on average for the canary than for the control group and a margin.

    Of each block, the difference d of the means less the margin: it is bounded since the values are, and has a mean
    of at most 0 under the hypothesis, so that 1 + bet * d is fair or worse.
    """

    def __init__(self, what: str, margin: float, bounds: tuple[float, float]) -> None:
        """`what` is compared, in words; `margin` as a share; values outside of `bounds` count as these."""
        self.what = what
        self.margin = margin
        self.bounds = bounds
        self.groups = TwoGroups()
        self.evidence = Evidence(len(SHARES))
        self._bet_j = SHARES / (math.log(bounds[1] / bounds[0]) + math.log1p(margin))

    @property
    def wealth(self) -> float:
        return self.evidence.wealth

    def observe(self, is_canary: bool, ratio: float) -> None:
        """Take a value in; NaN says that it is not known."""
        if math.isnan(ratio):
            return
        block = self.groups.add(is_canary, math.log(min(max(ratio, self.bounds[0]), self.bounds[1])))
        if block is not None:
            canary, control = block
            self.evidence.bet(1 + self._bet_j * (canary.mean - control.mean - math.log1p(self.margin)))

    def numbers(self) -> str:
        """What was seen, in words."""
        canary, control = self.groups.canary, self.groups.control
        return (
            f"the {self.what} of the canary's {canary.count} workflows is {math.exp(canary.mean):.3g}, "
            f"{100 * math.expm1(canary.mean - control.mean):+.1f} % against the {math.exp(control.mean):.3g} of the "
            f"control group's {control.count} (geometric means); {100 * self.margin:.3g} % more may be"
        )

    def to_plain(self) -> dict[str, Any]:
        return {"groups": self.groups.to_plain(), "evidence": self.evidence.to_plain()}

    def put_back(self, plain: Mapping[str, Any]) -> None:
        self.groups.put_back(plain["groups"])
        self.evidence.put_back(plain["evidence"])


class Guardrails:
    """The four guards of a canary, each at a fourth of alpha.

    Only what was decided since the canary began belongs here, in both groups. An observation takes the same time
    however many came before.
    """

    def __init__(self, settings: GuardrailSettings | None = None) -> None:
        self.settings = settings = settings or GuardrailSettings()
        late = f"took {1000 * settings.latency_p99_s:g} ms or longer"
        self.latency = RateGuard(("decisions", late), 0.01)
        self.success = RateGuard(("attempts", "did not succeed"), 1 - settings.success_rate)
        self.turnaround = MeanGuard("slowdown", settings.turnaround_margin, settings.slowdown_range)
        self.cost = MeanGuard("cost ratio", settings.cost_margin, settings.cost_range)
        self._violated: tuple[str, str] | None = None

    def observe_decision(self, is_canary: bool, latency_s: float) -> None:
        """A decision took so long. Decisions of one batch end together: give one observation for them all."""
        self.latency.observe(is_canary, not latency_s < self.settings.latency_p99_s)
        self._check("latency", self.latency)

    def observe_attempt(self, is_canary: bool, succeeded: bool) -> None:
        """An attempt ended."""
        self.success.observe(is_canary, not succeeded)
        self._check("success", self.success)

    def observe_workflow(self, is_canary: bool, slowdown: float, cost_ratio: float) -> None:
        """A workflow ended. `cost_ratio`: its cost over what workflows like it cost; NaN: not known."""
        self.turnaround.observe(is_canary, slowdown)
        self._check("turnaround", self.turnaround)
        self.cost.observe(is_canary, cost_ratio)
        self._check("cost", self.cost)

    @property
    def is_violated(self) -> bool:
        """Whether the canary must go back: what `verdict` says, at no cost."""
        return self._violated is not None

    def verdict(self) -> Verdict:
        """Whether to go on, and how far each guard is from a violation."""
        enough = self._enough
        evidence = {name: guard.wealth / enough for name, guard in self._guards().items()}
        guard, cause = self._violated or (None, None)
        return Verdict(guard, cause, evidence)

    def to_plain(self) -> dict[str, Any]:
        """All of it as JSON knows it, settings included: evidence holds only under those it was gathered under."""
        return {
            "settings": asdict(self.settings),
            "violated": list(self._violated) if self._violated else None,
            **{name: guard.to_plain() for name, guard in self._guards().items()},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Guardrails:
        """What `to_plain` gave, to go on. Raises StateLost: no such thing, or damaged."""
        try:
            given = dict(plain["settings"])
            ranges = {name: _pair(given[name]) for name in ("slowdown_range", "cost_range")}
            found = cls(GuardrailSettings(**{**given, **ranges}))
            for name, guard in found._guards().items():
                guard.put_back(plain[name])
            violated = plain["violated"]
            found._violated = None if violated is None else (str(violated[0]), str(violated[1]))
        except (LookupError, TypeError, ValueError, InvalidConfiguration) as error:
            raise StateLost(
                f"guardrails: saved state cannot be used ({type(error).__name__}: {error}); begin the canary anew"
            ) from error
        return found

    @property
    def _enough(self) -> float:
        return len(GUARDS) / self.settings.alpha

    def _guards(self) -> dict[str, RateGuard | MeanGuard]:
        return dict(zip(GUARDS, (self.latency, self.success, self.turnaround, self.cost), strict=True))

    def _check(self, name: str, guard: RateGuard | MeanGuard) -> None:
        wealth = guard.wealth
        if self._violated is None and wealth >= self._enough:
            self._violated = name, f"{name}: {guard.numbers()}; odds {wealth:.0f} to 1, {self._enough:.0f} are enough"


def _kept_back(bets: int) -> float:
    """What is not staked yet after so many bets."""
    return 1 / math.log2(bets + 2)


def _pair(values: Sequence[Any]) -> tuple[float, float]:
    low, high = values
    return float(low), float(high)
