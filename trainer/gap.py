"""How far the simulator is from a logged run: which settings the log contradicts, and what they should be."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console
from rich.table import Table

from policy.episode import EpisodeSettings
from policy.observation import Policy
from policy.physics import CROWDED
from policy.simulator import SimulatorSettings
from schemas.errors import InvalidRecord
from trainer.play_again import play_again, to_play, turnarounds_s, waits_s
from trainer.run_log import SHORTEST_S, Measured, RunLog, Runs, measure
from trainer.run_time_fit import Estimate, RunTimeFit, RunTimes, fit_run_times, settings_run_times, share_below

LEAST_RUNS = 50
LEAST_TRANSFERS = 30
LEAST_ATTEMPTS = 30
LEAST_BUSY_H = 1.0
LEAST_REPAIRS = 5
LEAST_CROWDED, CROWDED_FROM = 30, 0.25
"""Attempts on nodes at least this crowded, and as many on others."""
SHOWN = (5, 25, 50, 75, 95, 99)
"""Percentiles."""
KEEP, CHANGE, UNKNOWN = "keep", "change", "unknown"
PREDICTED_RUN, PREDICTED_TRANSFER = "run time / predicted", "transfer / predicted"
WAIT, TURNAROUND = "ready to placed, s", "turnaround, s"


@dataclass(frozen=True)
class Finding:
    """What the log says of one number."""

    name: str
    """Of the simulator's setting; of the predictions, in words."""
    samples: int
    now: float
    verdict: str
    """keep, change, or unknown: the log does not tell."""
    advice: str
    logged: Estimate | None = None
    distance_now: float | None = None
    """KS distance of the logged distribution from the simulated one."""
    distance_after: float | None = None
    """The same with all suggested settings."""

    @property
    def is_setting(self) -> bool:
        """Whether the simulator has a setting for it."""
        return self.name in {f.name for f in dataclasses.fields(SimulatorSettings)}


@dataclass(frozen=True)
class Quantiles:
    """A distribution at SHOWN, as logged, and as simulated now and with the suggested settings."""

    logged: tuple[float, ...]
    now: tuple[float, ...]
    after: tuple[float, ...]
    distance_now: float
    distance_after: float


@dataclass(frozen=True)
class Gap:
    """Everything that was found."""

    now: SimulatorSettings
    findings: tuple[Finding, ...]
    quantiles: Mapping[str, Quantiles]
    remarks: Mapping[str, int]

    def changes(self) -> dict[str, float]:
        """The settings that the log contradicts, and what they should be."""
        return {
            f.name: f.logged.value
            for f in self.findings
            if f.verdict == CHANGE and f.is_setting and f.logged is not None
        }

    def suggested(self) -> SimulatorSettings:
        """The settings with these changes."""
        return replace(self.now, **self.changes())


BY_HAND = (
    "latency_spikes_per_hour",
    "latency_spike_s",
    "latency_factor",
    "spot_share",
    "spot_price_factor",
    "spot_interruptions_per_hour",
    "spot_repair_s",
)
"""Settings that are not fitted: losses do not say which were interruptions, nor transfers which met a spike."""


def gap_of(log: RunLog, episode: EpisodeSettings, policy: Policy) -> Gap:
    """Compare a run with the simulator, and with its own workflows played again under this policy.

    Raises InvalidRecord where there is nothing to compare.
    """
    gap = find_gap(measure(log), episode.cluster)
    workflows = to_play(log)
    if not workflows or not log.specs:
        remarks = {**gap.remarks, **log.remarks, "workflows that could be played again (tasks, nodes are needed)": 0}
        return replace(gap, remarks=remarks)
    settings = [episode, replace(episode, cluster=gap.suggested())]
    traces = [log.trace, *(play_again(log, workflows, policy, s) for s in settings)]
    played = {
        WAIT: [waits_s(trace, workflows) for trace in traces],
        TURNAROUND: [turnarounds_s(trace, workflows) for trace in traces],
    }
    quantiles = {name: _compared(*three) for name, three in played.items() if all(len(values) for values in three)}
    return replace(gap, quantiles={**gap.quantiles, **quantiles}, remarks={**gap.remarks, **log.remarks})


def _compared(logged: np.ndarray, now: np.ndarray, after: np.ndarray) -> Quantiles:
    from scipy import stats

    distances = [float(stats.ks_2samp(logged, values).statistic) for values in (now, after)]
    return Quantiles(_at_shown(logged), _at_shown(now), _at_shown(after), *distances)


def find_gap(measured: Measured, now: SimulatorSettings) -> Gap:
    """Compare a run with the simulator under these settings. Raises InvalidRecord where there is nothing to compare."""
    if not measured.ended and not measured.runs.finished:
        said = "".join(f"; {count} {remark}" for remark, count in measured.remarks.items())
        raise InvalidRecord(
            "logs", f"no attempt started and ended{said}", "give the task-events of a run, and its workflows"
        )
    findings = (
        *_of_run_times(measured.runs, now),
        *_of_transfers(measured.transfer_log_ratio_a, now),
        _of_failures(measured, now),
        _of_losses(measured, now),
        _of_repairs(measured.repair_s_l, now),
        *(
            _unknown(name, 0, getattr(now, name), "it is not fitted; set what you know of your cluster")
            for name in BY_HAND
        ),
    )
    gap = Gap(now, findings, {}, measured.remarks)
    after = gap.suggested()
    findings = tuple(_with_distances(f, findings, measured, now, after) for f in findings)
    return replace(gap, findings=findings, quantiles=_quantiles(measured, now, after))


def _judged(name: str, samples: int, now: float, logged: Estimate, advice: str = "", most: float = math.inf) -> Finding:
    """The setting is to change where its interval says so; `most` is what the simulator takes."""
    if logged.low <= now <= logged.high:
        return Finding(name, samples, now, KEEP, advice or "fits the log", logged)
    value = float(f"{min(most, logged.value):.4g}")
    return Finding(name, samples, now, CHANGE, advice or f"set it to {value:g}", replace(logged, value=value))


def _unknown(name: str, samples: int, now: float, needs: str) -> Finding:
    return Finding(name, samples, now, UNKNOWN, f"the log does not tell: {needs}")


def _of_run_times(runs: Runs, now: SimulatorSettings) -> list[Finding]:
    """Of what makes run times differ from predictions."""
    names = ("runtime_noise", "crowding", "slow_spells_per_hour", "slow_spell_s", "slow_factor")
    if runs.finished < LEAST_RUNS:
        needs = f"{LEAST_RUNS} finished attempts are needed, {LEAST_RUNS - runs.finished} more"
        return [_unknown(name, runs.finished, getattr(now, name), needs) for name in names]
    crowded = int((runs.crowd_a >= CROWDED_FROM).sum())
    tells_crowding = min(crowded, len(runs.crowd_a) - crowded) >= LEAST_CROWDED
    fit = fit_run_times(runs, now, tells_crowding)
    findings = [
        _of_bias(PREDICTED_RUN, runs.finished, fit.mean_ratio, "run times"),
        _judged("runtime_noise", runs.finished, now.runtime_noise, fit.sigma, most=3.0),
    ]
    if fit.crowding is None:
        share = CROWDED + CROWDED_FROM * (1 - CROWDED)
        needs = f"{LEAST_CROWDED} attempts on nodes above {share:.0%} cpu, and {LEAST_CROWDED} on others, are needed"
        findings.append(_unknown("crowding", crowded, now.crowding, f"{needs}; it has {crowded}"))
    else:
        findings.append(_judged("crowding", crowded, now.crowding, fit.crowding))
    return findings + _of_spells(runs, fit, now)


def _of_spells(runs: Runs, fit: RunTimeFit, now: SimulatorSettings) -> list[Finding]:
    if fit.spells is not None:
        per_hour, lasts_s, factor = fit.spells
        return [
            _judged("slow_spells_per_hour", runs.finished, now.slow_spells_per_hour, per_hour, most=3600.0),
            _judged("slow_spell_s", runs.finished, now.slow_spell_s, lasts_s),
            _judged("slow_factor", runs.finished, now.slow_factor, factor),
        ]
    none = Estimate(0.0, 0.0, fit.most_spells_per_hour)
    needs = "there is no sign of slow spells"
    return [
        _judged("slow_spells_per_hour", runs.finished, now.slow_spells_per_hour, none),
        _unknown("slow_spell_s", 0, now.slow_spell_s, needs),
        _unknown("slow_factor", 0, now.slow_factor, needs),
    ]


def _of_bias(name: str, samples: int, ratio: Estimate, what: str) -> Finding:
    """Of predictions that are wrong on average: the simulator holds them to be right."""
    if ratio.low <= 1 <= ratio.high:
        return Finding(name, samples, 1.0, KEEP, "predictions are right on average", ratio)
    where = "divide the nodes' bandwidth" if what == "transfers" else "multiply the tasks' runtime"
    return Finding(
        name, samples, 1.0, CHANGE, f"{what} are {ratio.value:.3g} × as long: {where} by it; no setting does", ratio
    )


def _of_transfers(log_ratio_a: np.ndarray, now: SimulatorSettings) -> list[Finding]:
    from scipy import stats

    count = len(log_ratio_a)
    if count < LEAST_TRANSFERS:
        more = f"{LEAST_TRANSFERS - count} more"
        needs = f"{LEAST_TRANSFERS} transfers of {1000 * SHORTEST_S:g} ms or longer are needed, {more}"
        return [_unknown("transfer_noise", count, now.transfer_noise, needs)]
    sigma = float(np.std(log_ratio_a, ddof=1))
    low, high = (sigma * math.sqrt((count - 1) / stats.chi2.ppf(q, count - 1)) for q in (0.975, 0.025))
    mean = float(np.mean(log_ratio_a)) + sigma**2 / 2
    half = 1.96 * sigma * math.sqrt((1 + sigma**2 / 2) / count)
    ratio = Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
    return [
        _of_bias(PREDICTED_TRANSFER, count, ratio, "transfers"),
        _judged("transfer_noise", count, now.transfer_noise, Estimate(sigma, float(low), float(high)), most=3.0),
    ]


def _of_failures(measured: Measured, now: SimulatorSettings) -> Finding:
    """Share of the attempts; interval: Wilson's."""
    from scipy import stats

    name, count = "failure_rate", measured.ended
    if count < LEAST_ATTEMPTS:
        needs = f"{LEAST_ATTEMPTS} attempts that ended are needed, {LEAST_ATTEMPTS - count} more"
        return _unknown(name, count, now.failure_rate, needs)
    test = stats.binomtest(measured.failed, count)
    low, high = test.proportion_ci(method="wilson")
    return _judged(name, count, now.failure_rate, Estimate(measured.failed / count, float(low), float(high)), most=0.99)


def _of_losses(measured: Measured, now: SimulatorSettings) -> Finding:
    """Losses an hour in which a node ran something; interval: exact, of Poisson counts (Garwood 1936)."""
    from scipy import stats

    name, lost, hours = "node_losses_per_hour", measured.lost, measured.busy_h
    if hours < LEAST_BUSY_H:
        return _unknown(
            name, lost, now.node_losses_per_hour, f"{LEAST_BUSY_H:g} h of busy nodes are needed, of event time"
        )
    low = stats.chi2.ppf(0.025, 2 * lost) / 2 / hours if lost else 0.0
    high = stats.chi2.ppf(0.975, 2 * lost + 2) / 2 / hours
    return _judged(name, lost, now.node_losses_per_hour, Estimate(lost / hours, float(low), float(high)), most=3600.0)


def _of_repairs(repair_s_l: np.ndarray, now: SimulatorSettings) -> Finding:
    """Mean of an exponential distribution; interval: exact."""
    from scipy import stats

    count = len(repair_s_l)
    if count < LEAST_REPAIRS:
        return _unknown(
            "repair_s", count, now.repair_s, f"{LEAST_REPAIRS} lost nodes that node-metrics show again are needed"
        )
    total_s = float(repair_s_l.sum())
    low, high = (2 * total_s / stats.chi2.ppf(q, 2 * count) for q in (0.975, 0.025))
    return _judged("repair_s", count, now.repair_s, Estimate(total_s / count, float(low), float(high)))


def _with_distances(
    finding: Finding, all_of: Sequence[Finding], measured: Measured, now: SimulatorSettings, after: SimulatorSettings
) -> Finding:
    """The finding with the distances of the distribution that it is about; those of predictions: once corrected."""
    ratio = {f.name: f.logged.value if f.logged and f.verdict == CHANGE else 1.0 for f in all_of}
    if finding.name in (PREDICTED_RUN, "runtime_noise") and measured.runs.finished >= LEAST_RUNS:
        right = ratio[PREDICTED_RUN] if finding.name == PREDICTED_RUN else 1.0
        distances = run_distance(measured.runs, now, 1.0), run_distance(measured.runs, after, right)
    elif (
        finding.name in (PREDICTED_TRANSFER, "transfer_noise") and len(measured.transfer_log_ratio_a) >= LEAST_TRANSFERS
    ):
        right = ratio[PREDICTED_TRANSFER] if finding.name == PREDICTED_TRANSFER else 1.0
        logs_a = measured.transfer_log_ratio_a
        distances = transfer_distance(logs_a, now, 1.0), transfer_distance(logs_a, after, right)
    elif finding.name == "repair_s" and len(measured.repair_s_l) >= LEAST_REPAIRS:
        distances = repair_distance(measured.repair_s_l, now), repair_distance(measured.repair_s_l, after)
    else:
        return finding
    return replace(finding, distance_now=distances[0], distance_after=distances[1])


def run_distance(runs: Runs, settings: SimulatorSettings, mean_ratio: float) -> float:
    """KS distance of logged from simulated run times, each where its attempt ran; stopped attempts by Kaplan-Meier."""
    from scipy import stats

    times = replace(settings_run_times(settings), mean_ratio=mean_ratio)
    below_a = share_below(runs, times)
    sample = stats.CensoredData(below_a[~runs.is_censored_a], right=below_a[runs.is_censored_a])
    found = stats.ecdf(sample).cdf
    before = np.concatenate([[0.0], found.probabilities[:-1]])
    return float(np.maximum(abs(found.probabilities - found.quantiles), abs(before - found.quantiles)).max())


def transfer_distance(log_ratio_a: np.ndarray, settings: SimulatorSettings, mean_ratio: float) -> float:
    """The same of transfers."""
    from scipy import stats

    sigma = max(1e-3, settings.transfer_noise)
    return float(stats.kstest(log_ratio_a, stats.norm(math.log(mean_ratio) - sigma**2 / 2, sigma).cdf).statistic)


def repair_distance(repair_s_l: np.ndarray, settings: SimulatorSettings) -> float:
    """The same of repairs."""
    from scipy import stats

    return float(stats.kstest(repair_s_l, stats.expon(scale=max(1e-3, settings.repair_s)).cdf).statistic)


def _quantiles(measured: Measured, now: SimulatorSettings, after: SimulatorSettings) -> dict[str, Quantiles]:
    """Of run times and transfers, as far as there are enough."""
    found = {}
    runs, logs_a = measured.runs, measured.transfer_log_ratio_a
    if runs.finished >= LEAST_RUNS:
        simulated = [_simulated_runs(runs, settings_run_times(s)) for s in (now, after)]
        distances = [run_distance(runs, s, 1.0) for s in (now, after)]
        found[PREDICTED_RUN] = Quantiles(_logged_runs(runs), *simulated, *distances)
    if len(logs_a) >= LEAST_TRANSFERS:
        simulated = [_simulated_transfers(s) for s in (now, after)]
        distances = [transfer_distance(logs_a, s, 1.0) for s in (now, after)]
        found[PREDICTED_TRANSFER] = Quantiles(_at_shown(np.exp(logs_a)), *simulated, *distances)
    return found


def _at_shown(values: np.ndarray) -> tuple[float, ...]:
    return tuple(np.percentile(values, SHOWN).tolist())


def _logged_runs(runs: Runs) -> tuple[float, ...]:
    """By Kaplan-Meier; nan where too many were stopped before."""
    from scipy import stats

    ratio_a = np.exp(runs.log_ratio_a)
    found = stats.ecdf(stats.CensoredData(ratio_a[~runs.is_censored_a], right=ratio_a[runs.is_censored_a])).cdf
    at = np.searchsorted(found.probabilities, np.array(SHOWN) / 100 - 1e-12)
    return tuple(float(found.quantiles[i]) if i < len(found.quantiles) else math.nan for i in at.tolist())


def _simulated_runs(runs: Runs, times: RunTimes) -> tuple[float, ...]:
    """Of the same attempts on nodes as crowded, none stopped."""
    logs = np.linspace(-6 * times.sigma - 1, 6 * times.sigma + 1 + math.log(50.0), 2000)
    crowds, counts = np.unique(np.round(runs.crowd_a, 2), return_counts=True)
    shares = np.zeros(len(logs))
    for crowd, count in zip(crowds, counts, strict=True):
        same = Runs(logs, np.zeros(len(logs), bool), np.full(len(logs), crowd), logs)
        shares += share_below(same, times) * count / counts.sum()
    return tuple(np.exp(np.interp(np.array(SHOWN) / 100, shares, logs)).tolist())


def _simulated_transfers(settings: SimulatorSettings) -> tuple[float, ...]:
    from scipy import stats

    sigma = settings.transfer_noise
    return tuple(np.exp(sigma * stats.norm.ppf(np.array(SHOWN) / 100) - sigma**2 / 2).tolist())


def as_json(gap: Gap) -> str:
    """Everything, the suggested settings among it."""
    whole = {
        "suggested": dataclasses.asdict(gap.suggested()),
        "changes": gap.changes(),
        "percentiles": SHOWN,
        **dataclasses.asdict(gap),
    }
    return json.dumps(_without_nan(whole), indent=1, ensure_ascii=False) + "\n"


def _without_nan(value: object) -> object:
    """JSON has no numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(gap: Gap, console: Console) -> None:
    """The findings, the quantiles behind them, and what was left out."""
    table = Table(title="the log and the simulator", title_justify="left")
    for heading in ("", "now", "logged", "95 % interval", "samples", "KS", "so"):
        table.add_column(heading, justify="left" if heading in ("", "so") else "right")
    for f in gap.findings:
        logged = (f"{f.logged.value:.3g}", f"{f.logged.low:.3g} to {f.logged.high:.3g}") if f.logged else ("", "")
        table.add_row(
            f.name,
            f"{f.now:g}",
            *logged,
            str(f.samples),
            _arrow(f.distance_now, f.distance_after),
            f.advice,
            style="bold" if f.verdict == CHANGE else "dim" if f.verdict == UNKNOWN else "",
        )
    console.print(table)
    console.print(_table_of_quantiles(gap))
    for remark, count in sorted(gap.remarks.items()):
        console.print(f"{count} {remark}", highlight=False)
    changes = ", ".join(f"{name} {value:g}" for name, value in gap.changes().items())
    console.print(f"settings to change: {changes or 'none'}", highlight=False)


def _table_of_quantiles(gap: Gap) -> Table:
    table = Table(
        title="distributions; KS: of the simulated from the logged, now → with the changes", title_justify="left"
    )
    table.add_column("")
    table.add_column("")
    for heading in (*(f"p{percent}" for percent in SHOWN), "KS"):
        table.add_column(heading, justify="right")
    for name, q in gap.quantiles.items():
        for label, values in (("logged", q.logged), ("simulated", q.now), ("with the changes", q.after)):
            is_first = label == "logged"
            table.add_row(
                name if is_first else "",
                label,
                *(f"{v:.3g}" for v in values),
                _arrow(q.distance_now, q.distance_after) if is_first else "",
                end_section=label == "with the changes",
            )
    return table


def _arrow(now: float | None, after: float | None) -> str:
    return "" if now is None or after is None else f"{now:.3f} → {after:.3f}"
