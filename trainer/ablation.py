"""What each part of the training brings: with all of them, and with each left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from policy.reward import Baseline, reward
from schemas.errors import InvalidConfiguration
from trainer.boards import Board, rule_in
from trainer.clone import one_thread
from trainer.evaluate import usual_baseline
from trainer.learn import Beginning, LearnSettings, Training, beginning
from trainer.rollouts import RolloutSettings
from trainer.scenarios import Course, run
from trainer.suite import EVALUATION, STANDARD, courses
from trainer.workers import start_workers

Report = Callable[[str], None]

FULL = "everything"
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's t with 1, 2, … degrees of freedom; beyond, NORMAL is near enough."""
NORMAL = 1.96


@dataclass(frozen=True, kw_only=True)
class AblationSettings:
    """How much is trained and compared."""

    start: Path | None = None
    """Weights that all begin with; None: a linear policy by hand."""
    decisions: int = 80_000
    """Of each training."""
    trainings: int = 3
    """Seeds, of each variant."""
    checked: int = 16
    """Fresh scenarios of each load."""
    clip: float = 0.2
    epochs: int = 2
    learning_rate: float = 1e-3
    seed: int = 0
    processes: int | None = None
    """Trainings at the same time; None: one for each processor."""

    def __post_init__(self) -> None:
        for name, least in (("decisions", 1), ("trainings", 2), ("checked", 2)):
            if getattr(self, name) < least:
                raise InvalidConfiguration(
                    f"ablation.{name}", f"{getattr(self, name)} is too small", f"give {least} or more"
                )

    @property
    def command(self) -> str:
        """The command that makes this table again."""
        start = f" --start {self.start}" if self.start else ""
        return (
            f"headrace train ablation --decisions {self.decisions} --trainings {self.trainings} "
            f"--checked {self.checked} --seed {self.seed}{start}"
        )

    def learning(self, training: int) -> LearnSettings:
        """The settings of a training with everything."""
        seed = 1000 * self.seed + training
        return LearnSettings(
            out=Path(),
            start=self.start,
            decisions=self.decisions,
            clip=self.clip,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            seed=seed,
        )


def _rollouts(settings: LearnSettings, **changes: bool) -> LearnSettings:
    return replace(settings, rollouts=replace(settings.rollouts, **changes))


VARIANTS: Mapping[str, Callable[[LearnSettings], LearnSettings]] = {
    FULL: lambda settings: settings,
    "without the DAG encoder": partial(_rollouts, sees_dags=False),
    "without the curriculum": partial(_rollouts, is_staged=False),
    "without the adversary": partial(_rollouts, has_adversary=False),
    "without importance sampling": lambda settings: replace(settings, by_importance=False),
}
"""Importance sampling left out: as many decisions are learnt from, drawn evenly."""
assert set(vars(RolloutSettings())) >= {"sees_dags", "is_staged", "has_adversary"}


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: how much more reward than its start, and than everything; each with half of its 95 % interval."""

    variant: str
    gain: float
    gain_margin: float
    less: float
    less_margin: float
    gain_at: Mapping[str, float]
    """Of each setup."""


Scene = tuple[Beginning, Baseline, Sequence[Course], AblationSettings]
"""What every process works with."""


def ablation(settings: AblationSettings, report: Report = print) -> list[Row]:
    """Train every variant on every seed, and compare them on the same fresh scenarios."""
    with start_workers(settings.processes) as workers:
        usual = usual_baseline(workers)
        fresh = [c for setup in STANDARD[:2] for c in courses(workers, setup, EVALUATION, range(settings.checked))]
    begin = beginning(settings.learning(0))
    scene: Scene = (begin, usual, fresh, settings)
    base_v = _rewards(begin, begin, usual, fresh, settings)
    jobs = [(name, training) for training in range(settings.trainings) for name in VARIANTS]
    gains: dict[str, list[np.ndarray]] = {name: [] for name in VARIANTS}
    with start_workers(settings.processes, state=(scene,)) as workers:
        for (name, training), reward_v in zip(jobs, workers.map(_train, jobs), strict=True):
            gains[name].append(reward_v - base_v)
            report(f"{name}, training {training}: {gains[name][-1].mean():+.4f} against its start")
    return [_row(name, np.stack(gains[name]), np.stack(gains[FULL]), settings.checked) for name in VARIANTS]


def _train(scene: Scene, job: tuple[str, int]) -> np.ndarray:
    """Train one variant; returns its reward in each fresh scenario."""
    name, seed = job
    begin, usual, fresh, settings = scene
    with one_thread():
        training = Training(VARIANTS[name](settings.learning(seed)), begin, usual)
        training.run(lambda line: None)
        return _rewards(replace(begin, network=training.network), begin, usual, fresh, settings)


def _rewards(
    policy: Beginning, begin: Beginning, usual: Baseline, fresh: Sequence[Course], settings: AblationSettings
) -> np.ndarray:
    temperature = settings.learning(0).rollouts.temperature
    rules = (rule_in(policy.network, begin.weight_k, temperature, Board(course)) for course in fresh)
    return np.array([reward(run(c, rule).measured(), usual) for c, rule in zip(fresh, rules, strict=True)])


def _row(name: str, gain_sv: np.ndarray, full_sv: np.ndarray, checked: int) -> Row:
    gain, gain_margin = two_way_interval(gain_sv)
    less, less_margin = (0.0, 0.0) if name == FULL else two_way_interval(gain_sv - full_sv)
    at = {setup.name: float(gain_sv[:, i * checked : (i + 1) * checked].mean()) for i, setup in enumerate(STANDARD[:2])}
    return Row(name, gain, gain_margin, less, less_margin, at)


def two_way_interval(value_sv: np.ndarray) -> tuple[float, float]:
    """The mean over trainings S and scenarios V, and half of its 95 % interval.

    Both are drawn by chance: the variance of the mean is that of the trainings' means over S, plus that of the
    scenarios' means over V; the interval takes Student's t with S - 1 degrees of freedom, the fewer of the two.
    """
    trainings, scenarios = value_sv.shape
    variance = value_sv.mean(axis=1).var(ddof=1) / trainings + value_sv.mean(axis=0).var(ddof=1) / scenarios
    t = STUDENT_T[trainings - 2] if trainings - 2 < len(STUDENT_T) else NORMAL
    return float(value_sv.mean()), float(t * variance**0.5)


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    setups = tuple(rows[0].gain_at)
    lines = [
        f"{'':28}  {'reward over the start':>21}  {'over everything':>18}  " + "  ".join(f"{s:>8}" for s in setups)
    ]
    for row in rows:
        less = "" if row.variant == FULL else f"{row.less:+.4f} ± {row.less_margin:.4f}"
        at = "  ".join(f"{row.gain_at[s]:+8.4f}" for s in setups)
        lines.append(f"{row.variant:28}  {row.gain:+12.4f} ± {row.gain_margin:.4f}  {less:>18}  {at}")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], settings: AblationSettings) -> str:
    """The rows as JSON, with the command that makes them."""
    found = [{name: getattr(row, name) for name in Row.__dataclass_fields__} for row in rows]
    return json.dumps({"command": settings.command, "rows": found}, indent=1) + "\n"
