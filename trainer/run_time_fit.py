"""The simulator's run times fitted to measured ones, by maximum likelihood.

The model is that of `policy.simulator`: log(run time / prediction) is normal, shifted by crowding, and by `slow_factor`
while the node is in a slow spell. Spells come and go as a Markov chain in continuous time, one chain a node; attempts
that were stopped count by the probability that they would have run at least as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from policy.simulator import SimulatorSettings
from trainer.run_log import Runs

HOUR_S = 3600.0
LEAST_SIGMA = 0.001
"""Run times are whole milliseconds: none are exactly as predicted."""
QUANTILE = 1.96
"""Of the normal distribution, for intervals of 95 %."""
STARTS = ((0.2, 300.0, 2.5), (1.0, 60.0, 1.6))
"""Spells an hour, their seconds and factor, from where the search begins."""
LOG_RANGES = ((1e-3, 3600.0), (1.0, 1e6), (1.15, 1000.0))
"""Of the same. A smaller factor would pass for noise."""
STEP = 1e-3


@dataclass(frozen=True)
class Spells:
    """When nodes are slow."""

    per_hour: float
    lasts_s: float
    factor: float

    @property
    def share(self) -> float:
        """Of the time, in the long run."""
        busy = self.per_hour * self.lasts_s / HOUR_S
        return busy / (1 + busy)


@dataclass(frozen=True)
class RunTimes:
    """How run times are distributed."""

    mean_ratio: float
    """Mean of run time / prediction without crowding and spells; 1 where predictions are right."""
    sigma: float
    crowding: float
    spells: Spells | None

    def mean_log(self) -> float:
        """Mean of the logarithm without crowding and spells."""
        return math.log(self.mean_ratio) - self.sigma**2 / 2


@dataclass(frozen=True)
class Estimate:
    """A fitted number, with its interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RunTimeFit:
    """What fits best."""

    best: RunTimes
    mean_ratio: Estimate
    sigma: Estimate
    crowding: Estimate | None
    """None: the log does not tell, and the crowding was taken as given."""
    spells: tuple[Estimate, Estimate, Estimate] | None
    """Per hour, seconds, factor. None: there is no sign of slow spells."""
    most_spells_per_hour: float
    """Without a sign of spells: more than this would have shown."""


def settings_run_times(settings: SimulatorSettings) -> RunTimes:
    """How the simulator's run times are distributed under these settings."""
    spells = Spells(settings.slow_spells_per_hour, settings.slow_spell_s, settings.slow_factor)
    has_spells = spells.share > 0 and spells.factor > 1
    return RunTimes(1.0, max(LEAST_SIGMA, settings.runtime_noise), settings.crowding, spells if has_spells else None)


def fit_run_times(runs: Runs, now: SimulatorSettings, fits_crowding: bool) -> RunTimeFit:
    """The run times of the model that explain the log best.

    now  its crowding is kept where it is not to be fitted; its spells are those that would have shown
    Spells are only assumed where they explain the log so much better that the Bayesian criterion accepts three numbers.
    """
    log_ratio_a = runs.log_ratio_a[~runs.is_censored_a]
    spread = float(np.subtract(*np.percentile(log_ratio_a, (75, 25)))) / 1.349  # of a normal distribution
    first = [float(np.median(log_ratio_a)), math.log(max(LEAST_SIGMA, spread))]
    if fits_crowding:
        first.append(0.1)
    fixed = None if fits_crowding else now.crowding
    plain = _Search(runs, fixed, len(first))
    without = plain.best(first)
    found = [plain.best([*without.at, *np.log(start)]) for start in STARTS]
    slow = max(found, key=lambda f: f.log_likelihood)
    gain = slow.log_likelihood - without.log_likelihood
    if gain > 1.5 * math.log(len(runs.log_ratio_a)) and slow.is_inside:
        return plain.fit(slow, math.inf)
    given = Spells(1.0, now.slow_spell_s or 300.0, max(1.5, now.slow_factor))
    return plain.fit(without, _most_spells(runs, plain.run_times(without.at), given))


@dataclass(frozen=True)
class _Found:
    at: np.ndarray
    log_likelihood: float
    is_inside: bool
    """Whether no number of the spells stands at the end of its range."""


@dataclass(frozen=True)
class _Search:
    """Places are [mean log, log sigma, crowding where it is fitted, logarithms of the spells' numbers if there are]."""

    runs: Runs
    crowding: float | None
    plain: int
    """Numbers of a place without spells."""

    def run_times(self, at: Sequence[float] | np.ndarray) -> RunTimes:
        sigma = math.exp(at[1])
        crowding = float(at[2]) if self.crowding is None else self.crowding
        spells = Spells(*np.exp(at[self.plain :]).tolist()) if len(at) > self.plain else None
        return RunTimes(math.exp(at[0] + sigma**2 / 2), sigma, crowding, spells)

    def best(self, first: Sequence[float]) -> _Found:
        """The most likely place, from this one on."""
        from scipy.optimize import minimize

        # Below 0, crowding is nonsense, but an interval that ends at 0 would be too narrow.
        ranges = [(-20.0, 20.0), (math.log(LEAST_SIGMA), math.log(5.0)), (-0.5, 50.0)][: self.plain]
        ranges += [tuple(np.log(r).tolist()) for r in LOG_RANGES[: len(first) - self.plain]]
        lows, highs = zip(*ranges, strict=True)
        done = minimize(
            lambda at: -log_likelihood(self.runs, self.run_times(at)),
            np.clip(first, lows, highs),
            method="L-BFGS-B",
            bounds=ranges,
        )
        own, ends = done.x[self.plain :], np.array(ranges[self.plain :]).reshape(-1, 2)
        is_inside = bool(((own > ends[:, 0] + 0.01) & (own < ends[:, 1] - 0.01)).all())
        return _Found(done.x, -float(done.fun), is_inside)

    def fit(self, found: _Found, most_spells_per_hour: float) -> RunTimeFit:
        """The place with the intervals that the likelihood's curvature gives."""
        best = self.run_times(found.at)
        covariance = np.linalg.pinv(_hessian(lambda at: -log_likelihood(self.runs, self.run_times(at)), found.at))
        half = QUANTILE * np.sqrt(np.maximum(0.0, np.diag(covariance)))
        sigma = _of_log(found.at[1], half[1])
        # The mean ratio is exp(mean log + sigma²/2), and both are uncertain.
        along = np.zeros(len(found.at))
        along[0], along[1] = 1.0, best.sigma**2
        mean_ratio = _of_log(math.log(best.mean_ratio), QUANTILE * math.sqrt(max(0.0, along @ covariance @ along)))
        crowding = None
        if self.crowding is None:
            low, value, high = (max(0.0, float(found.at[2] + h)) for h in (-half[2], 0.0, half[2]))
            crowding = Estimate(value, low, high)
        numbers = [_of_log(found.at[i], half[i]) for i in range(self.plain, len(found.at))]
        spells = (numbers[0], numbers[1], numbers[2]) if numbers else None
        return RunTimeFit(best, mean_ratio, sigma, crowding, spells, most_spells_per_hour)


def _of_log(value: float, half: float) -> Estimate:
    return Estimate(math.exp(value), math.exp(value - half), math.exp(min(700.0, value + half)))


def _hessian(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Second derivatives by central differences."""
    steps = STEP * np.eye(len(at))

    def mixed(a: np.ndarray, b: np.ndarray) -> float:
        return function(at + a + b) - function(at + a - b) - function(at - a + b) + function(at - a - b)

    return np.array([[mixed(a, b) for b in steps] for a in steps]) / (4 * STEP**2)


def log_likelihood(runs: Runs, times: RunTimes) -> float:
    """How likely the log is under these run times."""
    normal_a = _from_mean(runs, times)
    if times.spells is None:
        return float(_log_density(runs, normal_a, times.sigma).sum())
    slow_a = normal_a - math.log(times.spells.factor)
    log_a2 = np.stack([_log_density(runs, of, times.sigma) for of in (normal_a, slow_a)], axis=1)
    most_a = log_a2.max(axis=1)
    steps_a22 = _transitions(runs.gap_s_a, times.spells) * np.exp(log_a2 - most_a[:, None])[:, None, :]
    return float(most_a.sum()) + _log_of_product(steps_a22)


def _from_mean(runs: Runs, times: RunTimes) -> np.ndarray:
    """How far each logarithm lies above its mean outside of spells [A]."""
    crowd_a = np.log(np.maximum(1e-9, 1 + times.crowding * runs.crowd_a))
    return runs.log_ratio_a - times.mean_log() - crowd_a


def _log_density(runs: Runs, above_a: np.ndarray, sigma: float) -> np.ndarray:
    """Of finished attempts the logarithm of the density; of stopped ones, that of running at least as long."""
    from scipy.special import log_ndtr

    z_a = above_a / sigma
    density_a = -z_a * z_a / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    return np.where(runs.is_censored_a, log_ndtr(-z_a), density_a)


def _transitions(gap_s_a: np.ndarray, spells: Spells) -> np.ndarray:
    """From normal and slow, to normal and slow, in these times [A, 2, 2]; after inf, whatever it was is forgotten."""
    share_2 = np.array([1 - spells.share, spells.share])
    rate = spells.per_hour / HOUR_S + 1 / spells.lasts_s
    kept_a = np.exp(-rate * gap_s_a)[:, None, None]
    return (1 - kept_a) * share_2[None, None, :] + kept_a * np.eye(2)[None]


def _log_of_product(steps_a22: np.ndarray) -> float:
    """Logarithm of the chain's likelihood, the first step being the same from both states."""
    log_scale = 0.0
    while len(steps_a22) > 1:
        if len(steps_a22) % 2:
            steps_a22 = np.concatenate([steps_a22, np.eye(2)[None]])
        steps_a22 = steps_a22[0::2] @ steps_a22[1::2]
        scale_a = np.maximum(steps_a22.max(axis=(1, 2)), 1e-300)
        log_scale += float(np.log(scale_a).sum())
        steps_a22 = steps_a22 / scale_a[:, None, None]
    return log_scale + math.log(max(1e-300, float(steps_a22[0, 0].sum())))


def _most_spells(runs: Runs, times: RunTimes, given: Spells) -> float:
    """Spells an hour of the given kind that are just not excluded at 95 %, one-sided."""
    rates = np.geomspace(1e-3, 100.0, 51)
    like = [
        log_likelihood(runs, _with(times, Spells(float(rate), given.lasts_s, given.factor))) for rate in rates.tolist()
    ]
    allowed = rates[np.array(like) > max(*like, log_likelihood(runs, times)) - QUANTILE**2 / 2]
    return float(allowed.max()) if len(allowed) else float(rates[0])


def _with(times: RunTimes, spells: Spells) -> RunTimes:
    return RunTimes(times.mean_ratio, times.sigma, times.crowding, spells)


def share_below(runs: Runs, times: RunTimes) -> np.ndarray:
    """Probability under these run times that the attempt runs no longer than it did [A]."""
    from scipy.special import ndtr

    above_a = _from_mean(runs, times)
    below_a = ndtr(above_a / times.sigma)
    if times.spells is None:
        return below_a
    slow_a = ndtr((above_a - math.log(times.spells.factor)) / times.sigma)
    return (1 - times.spells.share) * below_a + times.spells.share * slow_a
