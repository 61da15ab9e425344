"""Whole-episode search: CMA-ES over the weights of a linear score and of the tasks' order.

Every candidate of a generation plays the same episodes, so chance is the same for all of them. What comes out is the
bar for everything learnt later, the fallback where it fails, and the network that it starts from.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cma
import numpy as np
import torch

from policy.features import ORDER_FEATURES, PAIR_FEATURES
from policy.network import ActorCritic
from policy.reward import Baseline, reward
from policy.weight_set import write_weights
from schemas.errors import InvalidConfiguration
from trainer.arena import PAIRS, Rule
from trainer.clone import one_thread
from trainer.evaluate import USUAL, usual_baseline
from trainer.export import Origin, exported
from trainer.intervals import interval
from trainer.rules import HEURISTIC_RULES, linear
from trainer.scenarios import Course, run
from trainer.suite import EVALUATION, STANDARD, TRAINING, Workers, courses
from trainer.workloads import WorkloadSettings

START = {"crowded_finish": 6.0, "extra_cost": -2.0, "gpu_unneeded": -2.0}
START_ORDER = {"remaining_path": -2.0}
WISHES = 6.0
"""Weight of the soft wishes, which no training workload has."""


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
    """First standard deviation of the weights."""
    seed: int = 0
    processes: int | None = None
    """None: one for each processor."""

    def __post_init__(self) -> None:
        for name, least in (("generations", 1), ("candidates", 4), ("episodes", 1), ("pool", 1), ("checked", 2)):
            if getattr(self, name) < least:
                raise InvalidConfiguration(
                    f"search.{name}", f"{getattr(self, name)} is too small", f"give {least} or more"
                )
        if self.episodes > self.pool:
            raise InvalidConfiguration("search.episodes", "are more than the pool has", f"give {self.pool} at most")

    @property
    def command(self) -> str:
        """The command that makes these weights again."""
        return (
            f"headrace train search --generations {self.generations} --episodes {self.episodes} --pool {self.pool} "
            f"--seed {self.seed}"
        )


Report = Callable[[str], None]

_POOL: list[Course] = []
"""The scenarios, in each process."""
_USUAL: list[Baseline] = []


def search(settings: SearchSettings, report: Report = print) -> Path:
    """Find weights, compare them with the heuristics on fresh scenarios, and write them; returns their folder."""
    started = time.monotonic()
    best, usual = find(settings, report)
    weight_p, weight_k = best[:PAIRS], best[PAIRS:]
    evaluation = compare(settings, linear(weight_p, weight_k, settings.temperature), usual, report)
    order = dict(zip(ORDER_FEATURES, map(float, weight_k), strict=True))
    origin = Origin(settings.command, settings.seed, evaluation=evaluation, order=order)
    write_weights(exported(as_network(weight_p, settings.seed), origin), settings.out)
    report(f"{settings.out}: {time.monotonic() - started:.0f} s")
    return settings.out


def find(settings: SearchSettings, report: Report) -> tuple[np.ndarray, Baseline]:
    """The best weights [PAIRS + ORDERS], and the baseline of the reward that they were searched by."""
    started = time.monotonic()
    with Workers(settings.processes) as workers:
        usual = usual_baseline(workers)
        pool = _pool(workers, settings)
    report(f"{len(pool)} scenarios, {time.monotonic() - started:.0f} s")
    _POOL[:], _USUAL[:] = pool, [usual]
    return _search(settings, report), usual


def _pool(workers: Workers, settings: SearchSettings) -> list[Course]:
    """Scenarios of mixed sizes and loads."""
    sizes = ((0.5, 16), (0.7, 12), (0.9, 16), (1.1, 16), (0.8, 24), (0.7, 16))
    return list(
        workers.map(_training_course, [(settings.seed, at, *sizes[at % len(sizes)]) for at in range(settings.pool)])
    )


def _training_course(what: tuple[int, int, float, int]) -> Course:
    seed, at, load, nodes = what
    workload = WorkloadSettings(workflows=70, tasks=(3, 50), load=load)
    return replace(STANDARD[0], nodes=nodes, workload=workload).course(TRAINING, 100_000 * seed + at)


def _search(settings: SearchSettings, report: Report) -> np.ndarray:
    """The mean of the last generation's distribution [PAIRS + ORDERS]."""
    rng = np.random.default_rng((settings.seed, TRAINING))
    begin = [START.get(name, 0.0) for name in PAIR_FEATURES[:PAIRS]] + [START_ORDER.get(n, 0.0) for n in ORDER_FEATURES]
    options = {"popsize": settings.candidates, "seed": settings.seed + 1, "verbose": -9}
    strategy, first = cma.CMAEvolutionStrategy(begin, settings.step, options), 0
    checkpoint = Checkpoint(settings)
    if (saved := checkpoint.read()) is not None:
        strategy, rng, first = saved
        report(f"{checkpoint.path}: goes on after generation {first}")
    started = time.monotonic()
    usual = [reward(run(course, HEURISTIC_RULES[USUAL]).measured(), _USUAL[0]) for course in _POOL]
    with Workers(settings.processes) as workers:  # forked here: the processes have the scenarios
        for generation in range(first, settings.generations):
            chosen = rng.choice(settings.pool, settings.episodes, replace=False).tolist()
            candidates = strategy.ask()
            work = [(np.array(candidate), chosen, settings.temperature) for candidate in candidates]
            found = list(workers.map(_worth, work))
            strategy.tell(candidates, [-worth for worth in found])
            if generation % 10 == 9 or generation == settings.generations - 1:
                passed = time.monotonic() - started
                left = passed / (generation + 1 - first) * (settings.generations - generation - 1)
                checkpoint.write((strategy, rng, generation + 1))
                gain = np.mean(found) - np.mean([usual[at] for at in chosen])
                report(
                    f"generation {generation + 1}/{settings.generations}: {gain:+.4f} against {USUAL}, "
                    f"step {strategy.sigma:.2f}, {passed:.0f} s, {left:.0f} s left"
                )
    checkpoint.remove()
    return np.array(strategy.result.xfavorite)


class Checkpoint:
    """Where a search stands, beside the folder of its weights: who is stopped goes on from there."""

    def __init__(self, settings: SearchSettings) -> None:
        self.path = settings.out.with_name(f"{settings.out.name}.checkpoint")
        self._settings = replace(settings, generations=1, out=Path(), processes=None)  # these may change

    def read(self) -> tuple[cma.CMAEvolutionStrategy, np.random.Generator, int] | None:
        """What was written by a search of the same settings. Raises InvalidConfiguration for one of others."""
        try:
            settings, found = pickle.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except Exception as error:  # pickle raises whatever the bytes make it stumble over
            raise InvalidConfiguration(str(self.path), f"cannot be read: {error!r}", "remove it") from error
        if settings != self._settings:
            raise InvalidConfiguration(
                str(self.path), "is of a search with other settings", "remove it, or give another folder"
            )
        return found

    def write(self, where: tuple[cma.CMAEvolutionStrategy, np.random.Generator, int]) -> None:
        """Keep it, as a whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(self.path.name + ".part")
        part.write_bytes(pickle.dumps((self._settings, where)))
        part.replace(self.path)

    def remove(self) -> None:
        """The search is over."""
        self.path.unlink(missing_ok=True)


def _worth(what: tuple[np.ndarray, Sequence[int], float]) -> float:
    """The mean reward of a candidate over these scenarios."""
    candidate, chosen, temperature = what
    rule = linear(candidate[:PAIRS], candidate[PAIRS:], temperature)
    return float(np.mean([reward(run(_POOL[at], rule).measured(), _USUAL[0]) for at in chosen]))


def compare(settings: SearchSettings, rule: Rule, usual: Baseline, report: Report) -> dict[str, float]:
    """How much better than the heuristics' best the rule is on scenarios that it has not seen, with 95 % intervals."""
    figures: dict[str, float] = {}
    with Workers(settings.processes) as workers:
        for setup in STANDARD[:2]:
            fresh = courses(workers, setup, EVALUATION, range(settings.checked))
            runs = [run(course, rule).measured() for course in fresh]
            for name in (USUAL, "srcp_spare_gpu"):
                rivals = [run(course, HEURISTIC_RULES[name]).measured() for course in fresh]
                gains = [reward(a, usual) - reward(b, usual) for a, b in zip(runs, rivals, strict=True)]
                key = f"{setup.name}, reward over {name}"
                figures[key], figures[f"{key}, margin"] = interval(gains)
                report(f"{key}: {figures[key]:+.4f} ± {figures[f'{key}, margin']:.4f}")
    return figures


def as_network(weight_p: np.ndarray, seed: int) -> ActorCritic:
    """The network that scores as these weights do: all else in it has no say yet."""
    with one_thread():
        torch.manual_seed(seed)
        network = ActorCritic()
    with torch.no_grad():
        network.head.weight.bias.copy_(torch.tensor([*weight_p, WISHES], dtype=torch.float32))
    return network
