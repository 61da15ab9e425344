"""Whole-episode search: CMA-ES over the weights of a policy.

Of a linear score and the tasks' order first: the bar for everything learnt later, the fallback where it fails, and what
the network starts from; then of hidden units that weigh the pair features by task. Every candidate of a generation
plays the same episodes, so chance is the same for all of them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import cma
import numpy as np

from policy.features import ORDER_FEATURES, PAIR_FEATURES
from policy.heuristics import HEURISTICS
from policy.network import HIDDEN
from policy.reward import Baseline, baseline, reward
from policy.weight_set import read_weights, write_weights
from schemas.errors import InvalidConfiguration
from schemas.records import WorkflowClass
from trainer import acceptance
from trainer.arena import ORDERS, PAIRS, Rule
from trainer.checkpoint import Checkpoint
from trainer.evaluate import USUAL, usual_baseline
from trainer.export import Origin, exported
from trainer.intervals import interval
from trainer.residual import Residual
from trainer.rules import HEURISTIC_RULES, rule_of
from trainer.scenarios import CLASSES, Course, RuleOf, digest, run
from trainer.statistics import feature_statistics
from trainer.suite import EVALUATION, STANDARD, TRAINING, courses
from trainer.workers import Workers, start_workers
from trainer.workloads import SHAPES, Variation, WorkloadSettings

START = {"crowded_finish": 6.0, "extra_cost": -2.0, "gpu_unneeded": -2.0}
START_ORDER = {"remaining_path": -2.0}
SIZES = ((0.5, 16), (0.7, 12), (0.9, 16), (1.1, 16), (0.8, 24), (0.7, 16))
"""Load and nodes of the scenarios to learn from, in turn."""
TASKS = 1900
"""Of a scenario, about."""
BEGINNING = 9
"""What the random numbers of the first hidden units, and of the kinds of work, are for."""


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How long is searched, on what."""

    out: Path
    """The folder that gets the weights."""
    generations: int = 120
    candidates: int = 16
    """Of a generation."""
    episodes: int = 8
    """That each candidate plays."""
    pool: int = 96
    """Scenarios of which each generation draws its episodes."""
    checked: int = 24
    """Fresh scenarios of each load, for the comparison at the end."""
    temperature: float = 0.3
    """As served."""
    step: float = 2.0
    """First standard deviation of the weights, in their units."""
    hidden: int = 0
    """Hidden units; none: a linear policy."""
    start: Path | None = None
    """Weights to begin with, in a folder; None: by hand."""
    seed: int = 0
    processes: int | None = None
    """None: one for each processor."""
    ray: str | None = None
    """Address of the Ray cluster that plays; None: processes of this machine."""

    def __post_init__(self) -> None:
        for name, least in (("generations", 1), ("candidates", 4), ("episodes", 1), ("pool", 1), ("checked", 2)):
            if getattr(self, name) < least:
                raise InvalidConfiguration(
                    f"search.{name}", f"{getattr(self, name)} is too small", f"give {least} or more"
                )
        if not 0 <= self.hidden <= HIDDEN:
            raise InvalidConfiguration("search.hidden", f"{self.hidden} is out of range", f"give 0 to {HIDDEN}")
        if self.episodes > self.pool:
            raise InvalidConfiguration("search.episodes", "are more than the pool has", f"give {self.pool} at most")

    @property
    def essence(self) -> str:
        """All that the course of the search depends on, the start and the number of generations aside."""
        kept = replace(self, out=Path(), generations=1, start=None, checked=2, processes=None, ray=None)
        return repr(kept)

    def command(self, before: str | None = None) -> str:
        """What makes these weights again; `before`: what made those that it begins with."""
        first = "" if before is None else f"{before} --out start && "
        start = "" if before is None else " --start start"
        return (
            f"{first}headrace train search --generations {self.generations} --candidates {self.candidates} "
            f"--episodes {self.episodes} --pool {self.pool} --step {self.step:g} --hidden {self.hidden} "
            f"--seed {self.seed}{start}"
        )


Report = Callable[[str], None]


@dataclass(frozen=True)
class Practice:
    """What a search learns from."""

    courses: Sequence[Course]
    usual: Sequence[Baseline]
    """What is usual in each of them."""
    reference: Baseline
    """And on the scenarios that policies are compared on."""


def search(settings: SearchSettings, report: Report = print) -> Path:
    """Find weights, compare them with the heuristics on fresh scenarios, and write them; returns their folder."""
    started = time.monotonic()
    before = None if settings.start is None else read_weights(settings.start)
    best, practice = find(settings, report)
    rivals = {name: HEURISTIC_RULES[name] for name in (USUAL, "srcp_spare_gpu")}
    if before is not None:
        rivals[acceptance.START] = rule_of(before, settings.temperature)
    rule = partial(best.rule, temperature=settings.temperature)
    with start_workers(settings.processes, settings.ray) as workers:
        evaluation = compare(workers, settings.checked, rule, rivals, practice.reference, report)
    acceptance.refuse_worse(evaluation)
    origin = Origin(
        settings.command(None if before is None else before.manifest.command),
        settings.seed,
        parent=None if before is None else before.manifest.version,
        evaluation=evaluation,
        order=dict(zip(ORDER_FEATURES, map(float, best.weight_k), strict=True)),
        data=digest(practice.courses),
        config=hashlib.sha256(settings.essence.encode()).hexdigest(),
        statistics=feature_statistics(HEURISTICS["srcp"], practice.courses[: len(SIZES)]),
    )
    write_weights(exported(best.network(settings.seed), origin), settings.out)
    report(f"{settings.out}: {time.monotonic() - started:.0f} s")
    return settings.out


def find(settings: SearchSettings, report: Report) -> tuple[Residual, Practice]:
    """The best policy, and what it was learnt from."""
    started = time.monotonic()
    with start_workers(settings.processes, settings.ray) as workers:
        usual = usual_baseline(workers)
        pool = practice_courses(workers, settings.seed, settings.pool)
    own = [baseline([run(course, HEURISTIC_RULES[USUAL]).measured()], len(CLASSES)) for course in pool]
    practice = Practice(pool, [of_course if at % 2 else usual for at, of_course in enumerate(own)], usual)
    report(f"{len(pool)} scenarios, {time.monotonic() - started:.0f} s")
    return _search(settings, practice, report), practice


def practice_courses(workers: Workers, seed: int, count: int) -> list[Course]:
    """Scenarios to learn from: every second one is of the usual work, the others of work of any kind."""
    return list(workers.map(_practice_course, [(seed, at) for at in range(count)]))


def _practice_course(what: tuple[int, int]) -> Course:
    seed, at = what
    load, nodes = SIZES[at // 2 % len(SIZES)]
    workload = WorkloadSettings(workflows=70, tasks=(3, 50), load=load)
    if at % 2:
        workload = of_any_kind(np.random.default_rng((seed, at, BEGINNING)), load)
    return replace(STANDARD[0], nodes=nodes, workload=workload).course(TRAINING, 100_000 * seed + at)


def of_any_kind(rng: np.random.Generator, load: float) -> WorkloadSettings:
    """Work that may be tiny or long, wide or narrow, with GPUs or without, of one class or of several."""
    tasks = ((1, 1), (1, 10), (3, 50), (5, 50), (20, 150))[int(rng.integers(5))]
    kinds = rng.permutation(list(SHAPES))[: int(rng.integers(1, len(SHAPES) + 1))]
    variation = Variation(
        runtime=float(np.exp(rng.uniform(np.log(0.02), np.log(2)))),
        width=float(np.exp(rng.uniform(0, np.log(12)))),
        output=float(np.exp(rng.uniform(np.log(0.1), np.log(10)))),
        gpu_share=float(rng.choice((0.0, 0.0, 0.5, 1.0, 2.0))),
    )
    workflows = int(np.clip(TASKS / np.mean(tasks), 20, 800))
    return WorkloadSettings(
        workflows=workflows, tasks=tasks, load=load, classes=tuple(map(WorkflowClass, kinds)), variation=variation
    )


def _search(settings: SearchSettings, practice: Practice, report: Report) -> Residual:
    """The mean of the last generation's distribution."""
    rng = np.random.default_rng((settings.seed, TRAINING))
    begin, unit = _begin(settings)
    options = {"popsize": settings.candidates, "seed": settings.seed + 1, "verbose": -9}
    options |= {"CMA_diagonal": True} if settings.hidden else {}  # too many weights for all their covariances
    strategy, first = cma.CMAEvolutionStrategy(begin / unit, settings.step, options), 0
    checkpoint = checkpoint_of(settings)
    if (saved := checkpoint.read()) is not None:
        strategy, rng, first = saved
        report(f"{checkpoint.path}: goes on after generation {first}")
    started = time.monotonic()
    rival = HEURISTIC_RULES[USUAL]
    usual_rewards = [
        reward(run(course, rival).measured(), known)
        for course, known in zip(practice.courses, practice.usual, strict=True)
    ]
    with start_workers(settings.processes, settings.ray, (practice,)) as workers:
        for generation in range(first, settings.generations):
            chosen = rng.choice(settings.pool, settings.episodes, replace=False).tolist()
            candidates = strategy.ask()
            policies = [Residual.from_vector(candidate * unit, settings.hidden) for candidate in candidates]
            work = [(policy, chosen, settings.temperature) for policy in policies]
            found = list(workers.map(_worth, work))
            strategy.tell(candidates, [-worth for worth in found])
            if generation % 10 == 9 or generation == settings.generations - 1:
                passed = time.monotonic() - started
                left = passed / (generation + 1 - first) * (settings.generations - generation - 1)
                checkpoint.write((strategy, rng, generation + 1))
                gain = np.mean(found) - np.mean([usual_rewards[at] for at in chosen])
                report(
                    f"generation {generation + 1}/{settings.generations}: {gain:+.4f} against {USUAL}, "
                    f"step {strategy.sigma:.2f}, {passed:.0f} s, {left:.0f} s left"
                )
    checkpoint.remove()
    return Residual.from_vector(strategy.result.xfavorite * unit, settings.hidden)


def checkpoint_of(settings: SearchSettings) -> Checkpoint:
    """Where the search's state is kept meanwhile."""
    return Checkpoint(settings.out, (settings.essence, settings.start))


def by_hand() -> tuple[np.ndarray, np.ndarray]:
    """The linear weights [PAIRS] and [ORDERS] that training begins with where it has no others."""
    weight_p = np.array([START.get(name, 0.0) for name in PAIR_FEATURES[:PAIRS]])
    return weight_p, np.array([START_ORDER.get(name, 0.0) for name in ORDER_FEATURES])


def _begin(settings: SearchSettings) -> tuple[np.ndarray, np.ndarray]:
    """The first weights, and the unit in which each of them varies."""
    if settings.start is None:
        weight_p, weight_k = by_hand()
    else:
        start = rule_of(read_weights(settings.start), settings.temperature)
        if not isinstance(start, Rule):
            raise InvalidConfiguration("search.start", f"{settings.start} is not linear", "give linear weights")
        weight_p, weight_k = start.weight_p, start.weight_k
    rng = np.random.default_rng((settings.seed, BEGINNING))
    begin = Residual.linear(weight_p, weight_k, settings.hidden, rng)
    if not settings.hidden:
        return begin.vector(), np.ones(PAIRS + ORDERS)
    unit = Residual(
        1 + np.abs(weight_p) / 10,
        1 + np.abs(weight_k) / 10,
        np.full_like(begin.fixed_fh, 0.1),
        np.full_like(begin.changing_ch, 0.1),
        np.full_like(begin.bias_h, 0.1),
        np.full_like(begin.mix_hp, 1.0),
    )
    return begin.vector(), unit.vector()


def _worth(practice: Practice, what: tuple[Residual, Sequence[int], float]) -> float:
    """The mean reward of a candidate over these scenarios."""
    candidate, chosen, temperature = what
    played = [(at, run(practice.courses[at], candidate.rule(practice.courses[at], temperature))) for at in chosen]
    return float(np.mean([reward(one.measured(), practice.usual[at]) for at, one in played]))


def compare(
    workers: Workers,
    checked: int,
    rule: Rule | RuleOf,
    rivals: Mapping[str, Rule | RuleOf],
    usual: Baseline,
    report: Report,
) -> dict[str, float]:
    """How much better than its rivals the rule is on so many scenarios of each load that it has not seen, ± 95 %."""
    figures: dict[str, float] = {}
    for setup in STANDARD[:2]:
        fresh = courses(workers, setup, EVALUATION, range(checked))
        runs = [run(course, rule).measured() for course in fresh]
        for name, rival in rivals.items():
            others = [run(course, rival).measured() for course in fresh]
            gains = [reward(a, usual) - reward(b, usual) for a, b in zip(runs, others, strict=True)]
            key = f"{setup.name}, reward over {name}"
            figures[key], figures[f"{key}, margin"] = interval(gains)
            report(f"{key}: {figures[key]:+.4f} ± {figures[f'{key}, margin']:.4f}")
    return figures
