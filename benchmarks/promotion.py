"""What the promotion rule makes of a better, an equal and a worse candidate, over simulated weeks.

The differences are those of real pairs: the actor and a heuristic play the same episodes of the compiled simulator. A
day is some episodes, in their order, so that what hits all workflows of an episode stays together. Of a pair

    better          the actor against srcp_spare_gpu
    far better      the actor against kube_default
    equal           the pair less its mean: the same noise, and no difference
    slightly worse  the equal one, and a quarter of what the better one gains lost
    worse           srcp_spare_gpu against the actor
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.line import report
from replay.promotion import Finding, PairedDifference, Promotion, PromotionSettings

try:
    from scipy.stats import beta

    from policy.reward import Baseline, Run, baseline
    from policy.weight_set import shipped_weights
    from trainer.arena import Rule
    from trainer.rules import HEURISTIC_RULES, rule_of
    from trainer.scenarios import CLASSES, RuleOf, run
    from trainer.suite import EVALUATION, REFERENCE, STANDARD
except ImportError as error:
    sys.exit(f"benchmarks promotion: needs more packages ({error}); install headrace[train]")

EPISODES = 24
SETUP = STANDARD[1]
TEMPERATURE = 0.3
WEEKS = 200
MANY_WEEKS = 1000
"""Of those that must not be promoted: 200 weeks without a promotion only say that fewer than 1.8 % are."""
DAY_MS = 86_400_000
Draw = Callable[[np.random.Generator], np.ndarray]
"""One day's differences."""


@dataclass(frozen=True)
class Pair:
    """Two who played the same episodes."""

    episodes: Sequence[np.ndarray]
    """Differences [W, 2] of each: makespan and cost, by time of submission."""

    def mean(self) -> np.ndarray:
        """Makespan and cost [2]."""
        return np.concatenate(self.episodes).mean(axis=0)

    def shifted(self, by: np.ndarray) -> Pair:
        return Pair([episode + by for episode in self.episodes])

    def turned(self) -> Pair:
        return Pair([-episode for episode in self.episodes])

    def day(self, episodes: int, rng: np.random.Generator) -> np.ndarray:
        """So many episodes one after the other, drawn with replacement: [W, 2]."""
        return np.concatenate([self.episodes[i] for i in rng.integers(len(self.episodes), size=episodes)])


def main() -> None:
    """Play, then one line a candidate and number of workflows a day."""
    pairs = candidates()
    for name, pair in pairs.items():
        differences = np.concatenate(pair.episodes)
        together = differences @ (0.4, 0.3)
        spread = float(together.std()), float(np.std([(e @ (0.4, 0.3)).mean() for e in pair.episodes], ddof=1))
        facts = {"makespan": float(differences[:, 0].mean()), "cost": float(differences[:, 1].mean())}
        facts |= {"spread": spread[0], "spread_of_episodes": spread[1], "better_single": float((together < 0).mean())}
        report("difference of a pair", "reward", [float(together.mean())], candidate=name, **facts)
    for episodes in (1, 2, 4):
        for name, pair in pairs.items():
            draw = partial(pair.day, episodes)
            per_day = episodes * len(pair.episodes[0])
            weeks = WEEKS if "better" in name else MANY_WEEKS
            played = [_week(draw, np.random.default_rng((1, week))) for week in range(weeks)]
            for figure, is_so in (
                ("weeks that promote", [week.is_promoted for week in played]),
                ("first days found better", [week.days[0].finding == Finding.BETTER for week in played]),
            ):
                report(figure, "share", [sum(is_so) / weeks], **_facts(name, per_day, sum(is_so), weeks))
            if "better" in name:
                waits = [days_until_promoted(draw, seed) for seed in range(20)]
                report("days until promoted", "days", waits, candidate=name, workflows_a_day=per_day)
    for name, promoted in simpler_rules(pairs).items():
        report(name, "share", [promoted / WEEKS], **_facts("", 2 * len(pairs["equal"].episodes[0]), promoted, WEEKS))


def candidates() -> Mapping[str, Pair]:
    """The candidates of the module's docstring."""
    actor: Rule | RuleOf = rule_of(shipped_weights(), TEMPERATURE)
    kube, srcp = HEURISTIC_RULES["kube_default"], HEURISTIC_RULES["srcp_spare_gpu"]
    usual = baseline([run(STANDARD[0].course(REFERENCE, s), kube).measured() for s in range(8)], len(CLASSES))
    played = [
        [shares(run(course, rule).measured(), usual) for rule in (actor, srcp, kube)]
        for course in (SETUP.course(EVALUATION, seed) for seed in range(EPISODES))
    ]
    better = Pair([of_actor - of_srcp for of_actor, of_srcp, _ in played])
    equal = better.shifted(-better.mean())
    return {
        "better": better,
        "far better": Pair([of_actor - of_kube for of_actor, _, of_kube in played]),
        "equal": equal,
        "slightly worse": equal.shifted(-better.mean() / 4),
        "worse": better.turned(),
    }


def shares(measured: Run, usual: Baseline) -> np.ndarray:
    """Turnaround and cost of each workflow as the reward counts them: [W, 2], shares of what is usual, 1 at most."""
    return np.clip(
        np.stack(
            [
                measured.turnaround_s_w / usual.turnaround_s_c[measured.class_w],
                measured.cost_w / usual.cost_c[measured.class_w],
            ],
            axis=1,
        ),
        0,
        1,
    )


def _week(draw: Draw, rng: np.random.Generator) -> Promotion:
    """A week by itself, as far as it still may meet the rule."""
    promotion = Promotion(PromotionSettings(late_s=0))
    for day in range(promotion.settings.days):
        take_day(promotion, day, draw(rng))
        if len(promotion.row) <= day:
            break  # one day was not better: this week cannot promote any more
    return promotion


def days_until_promoted(draw: Draw, seed: int, most: int = 7 * WEEKS) -> int:
    """How long a candidate that is watched day after day takes; `most`: it was not promoted."""
    rng, promotion = np.random.default_rng((2, seed)), Promotion(PromotionSettings(late_s=0))
    for day in range(most):
        take_day(promotion, day, draw(rng))
        if promotion.is_promoted:
            return day + 1
    return most


def take_day(promotion: Promotion, day: int, differences_w2: np.ndarray) -> None:
    """A day's differences, spread over it in their order."""
    at_ms = (day + (np.arange(len(differences_w2)) + 0.5) / len(differences_w2)) * DAY_MS
    for at, (makespan, cost) in zip(at_ms.astype(int).tolist(), differences_w2.tolist(), strict=True):
        promotion.observe(PairedDifference(at, makespan, cost))
    promotion.pass_time((day + 1) * DAY_MS)


def simpler_rules(pairs: Mapping[str, Pair]) -> Mapping[str, int]:
    """Weeks of 200 that other readings of the rule promote: 7 days in a row with …"""
    readings: Mapping[str, Callable[[np.ndarray], bool]] = {
        "95 % of single workflows better": lambda together_w: float((together_w < 0).mean()) >= 0.95,
        "a better mean": lambda together_w: float(together_w.mean()) < 0,
    }
    found = {}
    for reading, is_met in readings.items():
        for name in ("better", "equal"):
            weeks = (np.random.default_rng((3, week)) for week in range(WEEKS))
            found[f"7 days with {reading}: {name}"] = sum(
                all(is_met(pairs[name].day(2, rng) @ (0.4, 0.3)) for _ in range(7)) for rng in weeks
            )
    return found


def _facts(candidate: str, per_day: int, promoted: int, weeks: int) -> dict[str, object]:
    """What belongs to a share, with its 95 % interval (Clopper and Pearson)."""
    low = float(beta.ppf(0.025, promoted, weeks - promoted + 1)) if promoted else 0.0
    high = float(beta.ppf(0.975, promoted + 1, weeks - promoted)) if promoted < weeks else 1.0
    facts: dict[str, object] = {"candidate": candidate} if candidate else {}
    return facts | {"workflows_a_day": per_day, "weeks": weeks, "low": low, "high": high}
