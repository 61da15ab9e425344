"""Training from nothing to weights that serve: stage after stage, each kept only where it is better for sure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from policy.weight_set import WeightSet, read_weights, write_weights
from schemas.errors import InvalidConfiguration, UnusableWeights
from trainer import acceptance
from trainer.evaluate import USUAL
from trainer.learn import LearnSettings, learn
from trainer.search import SearchSettings, search

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How long each stage takes."""

    search: SearchSettings
    """Of a linear policy."""
    hidden: SearchSettings | None = None
    """Of hidden units on top of it; None: left out."""
    learn: LearnSettings
    """Of the network on top of it."""


PRESETS: Mapping[str, Preset] = {
    "quick": Preset(
        search=SearchSettings(out=Path(), generations=40, episodes=6, pool=48, checked=16),
        learn=LearnSettings(out=Path(), decisions=40_000, clip=0.2, epochs=2, checked=16),
    ),
    "full": Preset(
        search=SearchSettings(out=Path(), generations=100, episodes=12, pool=192),
        hidden=SearchSettings(out=Path(), generations=160, candidates=24, episodes=12, pool=192, hidden=16, step=0.5),
        learn=LearnSettings(out=Path(), decisions=2_000_000, clip=0.2, epochs=2, checked=48),
    ),
}


def train(name: str, out: Path, seed: int, processes: int | None = None, report: Report = print) -> Path:
    """Run the stages of a preset, and write the best weights of all into the folder; returns it.

    The stages' own weights lie beside it: OUT-linear, OUT-hidden, OUT-learnt. A stage whose weights are there already
    is not run again, so that who is stopped goes on. Raises InvalidConfiguration, UnusableWeights.
    """
    if name not in PRESETS:
        raise InvalidConfiguration("train.preset", f"'{name}' is unknown", f"give {' or '.join(PRESETS)}")
    preset = PRESETS[name]
    linear = _stage("linear", out)
    found = {linear: _made(linear, report, lambda: _searched(preset.search, linear, None, seed, processes, report))}
    if preset.hidden is not None:
        settings, hidden = preset.hidden, _stage("hidden", out)
        found[hidden] = _made(hidden, report, lambda: _searched(settings, hidden, linear, seed, processes, report))
    learnt = _stage("learnt", out)
    settings_of_learning = replace(preset.learn, out=learnt, start=linear, seed=seed, processes=processes)
    found[learnt] = _made(learnt, report, lambda: learn(settings_of_learning, report))
    best = best_of({folder: weights for folder, weights in found.items() if weights is not None}, linear)
    write_weights(best[1], out)
    evaluation = best[1].manifest.evaluation
    for key in (key for key in evaluation if key.endswith(f"over {USUAL}")):
        report(f"{key}: {evaluation[key]:+.4f} ± {evaluation[f'{key}, margin']:.4f}")
    report(f"{out}: weights {best[1].manifest.version}, those of {best[0]}")
    return out


def _stage(name: str, out: Path) -> Path:
    return out.with_name(f"{out.name}-{name}")


def _searched(
    settings: SearchSettings, out: Path, start: Path | None, seed: int, processes: int | None, report: Report
) -> Path:
    return search(replace(settings, out=out, start=start, seed=seed, processes=processes), report)


def _made(folder: Path, report: Report, make: Callable[[], Path]) -> WeightSet | None:
    """The weights of a stage, made where they are not there yet; None: they would be worse than its start's."""
    if folder.exists():
        report(f"{folder}: is there already")
        return read_weights(folder)
    try:
        return read_weights(make())
    except UnusableWeights as error:
        report(f"{folder.name}: {error}")
        return None


def best_of(found: Mapping[Path, WeightSet], linear: Path) -> tuple[Path, WeightSet]:
    """The weights that are better than the linear ones for sure, and by the most; else the linear ones."""
    gains = {folder: _gain(weights.manifest.evaluation) for folder, weights in found.items() if folder != linear}
    better = {folder: gain for folder, gain in gains.items() if gain is not None}
    best = max(better, key=lambda folder: better[folder], default=linear)
    return best, found[best]


def _gain(evaluation: Mapping[str, float]) -> float | None:
    """The least gain over the start, of all setups; None where one of them may be chance."""
    keys = [key for key in evaluation if key.endswith(f"over {acceptance.START}")]
    if not keys or any(evaluation[key] <= evaluation[f"{key}, margin"] for key in keys):
        return None
    return min(evaluation[key] for key in keys)
