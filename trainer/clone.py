"""Behaviour cloning: the network learns to answer what a heuristic does, before it learns to do better."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from policy.actor import Actor, ActorSettings
from policy.arbiter import TIE
from policy.episode import POOL, Episode, EpisodeSettings
from policy.heuristics import heuristic
from policy.network import ActorCritic
from policy.observation import Observation, Policy
from policy.simulator import SimulatorSettings
from policy.summary import summarise
from policy.weight_set import WeightSet, write_weights
from schemas.errors import InvalidConfiguration
from schemas.records import NodeSpec, WorkflowSubmitted
from trainer.export import Origin, exported
from trainer.intervals import interval
from trainer.moments import Memory
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

TRAINING, HELD_OUT, EVALUATION = range(3)
"""What a stream of random numbers is for; episodes of one never appear in another."""


@dataclass(frozen=True, kw_only=True)
class CloneSettings:
    """What is cloned, from how much of its work, and how."""

    out: Path
    """The folder that gets the weights."""
    teacher: str = "heft"
    """The heuristic to clone."""
    episodes: int = 12
    """Episodes to learn from; every third is decided by chance, to know what to do after a mistake."""
    held_out: int = 3
    """Episodes of the teacher to measure the agreement on."""
    evaluated: int = 18
    """Episodes that actor, teacher and chance each play, for the comparison."""
    nodes: tuple[int, ...] = (8, 16, 24)
    """Sizes of the pools, in turn."""
    workflows: int = 30
    """Of an episode."""
    tasks: tuple[int, int] = (2, 40)
    """Least and most tasks of a workflow."""
    loads: tuple[float, ...] = (0.4, 0.7, 1.0)
    """Work offered, as a share of what the pool can do, in turn."""
    epochs: int = 5
    """Times that every decision is learnt from."""
    batch: int = 128
    """Decisions of one step, about."""
    learning_rate: float = 2e-3
    """Of the first step; it falls to 0 with the cosine."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("evaluated", 2),
            *((n, 1) for n in ("episodes", "held_out", "workflows", "epochs", "batch")),
        ):
            if getattr(self, name) < least:
                raise InvalidConfiguration(
                    f"clone.{name}", f"{getattr(self, name)} is too small", f"give {least} or more"
                )
        if not self.nodes or min(self.nodes) < 1 or not self.loads or not min(self.loads) > 0:
            raise InvalidConfiguration("clone", "nodes and loads are lists of positive numbers", "give some")
        if not 0 < self.learning_rate < 1:
            raise InvalidConfiguration("clone.learning_rate", f"{self.learning_rate} is out of range", "give 0 to 1")

    @property
    def command(self) -> str:
        """The command that makes these weights again."""
        return f"headrace train clone --teacher {self.teacher} --episodes {self.episodes} --seed {self.seed}"


Report = Callable[[str], None]


def clone(settings: CloneSettings, report: Report = print) -> Path:
    """Train a network to decide as the teacher does, and write its weights; returns their folder.

    One seed makes one set of weights, to the bit on one kind of processor.
    Raises InvalidConfiguration, UnusableWeights.
    """
    teacher = heuristic(settings.teacher)
    lessons = collect(settings, teacher, TRAINING, settings.episodes, report)
    exam = collect(settings, teacher, HELD_OUT, settings.held_out, report)
    with one_thread():
        torch.manual_seed(settings.seed)
        network = ActorCritic()
        fit(network, lessons, settings, report)
    agreement = agreed(network, exam, settings)
    report(f"held out: the same node as {teacher.name} in {agreement:.2%} of {len(exam.best)} decisions")
    origin = Origin(settings.command, settings.seed, evaluation={"agreement": agreement})
    weights = exported(network, origin)
    weights = evaluated(weights, settings, teacher, report)
    write_weights(weights, settings.out)
    report(f"{settings.out}: weights {weights.manifest.version}")
    return settings.out


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: sums over more depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True)
class Lessons:
    """Moments, and for each the nodes that the teacher likes best, of those that are feasible: best [N] bool."""

    memory: Memory
    best: list[np.ndarray]


def collect(settings: CloneSettings, teacher: Policy, purpose: int, episodes: int, report: Report) -> Lessons:
    """Play episodes, and keep what the teacher says of every decision in them, whoever decides."""
    lessons = Lessons(Memory(), [])
    started = time.monotonic()
    for at in range(episodes):
        decider = heuristic("random") if purpose == TRAINING and at % 3 == 2 else teacher
        _play(settings, purpose, at, _recorded(decider, teacher, lessons))
        lessons.memory.forget_workflows()
        report(f"episode {at + 1}/{episodes}: {len(lessons.best)} decisions, {time.monotonic() - started:.0f} s")
    return lessons


def _recorded(decider: Policy, teacher: Policy, lessons: Lessons) -> Policy:
    """The decider, with the teacher's opinion of each batch kept on the side."""

    def score(seen: Observation) -> np.ndarray:
        lessons.memory.keep(seen)
        wanted_bn = np.where(seen.mask_bn, teacher.score(seen), -np.inf)
        top_b1 = wanted_bn.max(axis=1, keepdims=True)
        lessons.best.extend(wanted_bn >= top_b1 - TIE * np.maximum(1, np.abs(top_b1)))
        return decider.score(seen)

    return replace(decider, score=score)


def fit(network: ActorCritic, lessons: Lessons, settings: CloneSettings, report: Report) -> None:
    """Raise the probability of the teacher's best nodes."""
    rng = np.random.default_rng((settings.seed, TRAINING))
    informative = [at for at, m in enumerate(lessons.memory.moments) if m.mask_n.sum() > lessons.best[at].sum()]
    optimiser = torch.optim.AdamW(_groups(network, settings.learning_rate), weight_decay=1e-4)
    steps = settings.epochs * -(-len(informative) // settings.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    network.train()
    for epoch in range(settings.epochs):
        started, total, count = time.monotonic(), 0.0, 0
        for chosen in lessons.memory.by_snapshot(informative, rng, settings.batch):
            loss = surprise(network, lessons, chosen)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total, count = total + float(loss.detach()) * len(chosen), count + len(chosen)
        seconds = time.monotonic() - started
        report(f"epoch {epoch + 1}/{settings.epochs}: cross-entropy {total / count:.4f}, {seconds:.0f} s")
    network.eval()


def _groups(network: ActorCritic, learning_rate: float) -> list[dict[str, object]]:
    """The weights of the pair features start far from where they belong, and are few: they take larger steps."""
    straight = [network.head.weight.bias]
    rest = [p for p in network.parameters() if p is not network.head.weight.bias]
    return [{"params": rest, "lr": learning_rate}, {"params": straight, "lr": 25 * learning_rate, "weight_decay": 0.0}]


def surprise(network: ActorCritic, lessons: Lessons, chosen: Sequence[int]) -> Tensor:
    """Mean over decisions of -log of the probability that the network gives the teacher's best nodes together."""
    logits_bn, best_bn = answers(network, lessons, chosen)
    of_best_b = torch.logsumexp(logits_bn.masked_fill(~best_bn, -torch.inf), dim=1)
    return (torch.logsumexp(logits_bn, dim=1) - of_best_b).mean()


def answers(network: ActorCritic, lessons: Lessons, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
    """logits_bn [B, N] of the network, and best_bn [B, N] bool of the teacher."""
    logits_bn, _ = network(lessons.memory.together(chosen))
    best_bn = torch.zeros_like(logits_bn, dtype=torch.bool)
    for row, at in enumerate(chosen):
        best_bn[row, : len(lessons.best[at])] = torch.from_numpy(lessons.best[at])
    return logits_bn, best_bn


@torch.no_grad()
def agreed(network: ActorCritic, lessons: Lessons, settings: CloneSettings) -> float:
    """The share of decisions in which the network's best node is one of the teacher's best."""
    rng = np.random.default_rng((settings.seed, HELD_OUT))
    hits = 0
    for chosen in lessons.memory.by_snapshot(range(len(lessons.best)), rng, settings.batch):
        logits_bn, best_bn = answers(network, lessons, chosen)
        hits += int(best_bn.gather(1, logits_bn.argmax(dim=1, keepdim=True)).sum())
    return hits / len(lessons.best)


def evaluated(weights: WeightSet, settings: CloneSettings, teacher: Policy, report: Report) -> WeightSet:
    """The weights, with how they did beside the teacher on episodes that neither has seen, in their manifest.

    `actor` is as it is served; `clone` the same, but with its tasks in the teacher's order.
    """
    actor = Actor(weights, ActorSettings(device="cpu")).policy()
    rivals = (replace(actor, name="clone", urgency=teacher.urgency), actor, heuristic("random"))
    ratios: dict[str, list[float]] = {policy.name: [] for policy in rivals}
    for at in range(settings.evaluated):
        base_s = _play(settings, EVALUATION, at, teacher)
        for policy in rivals:
            ratios[policy.name].append(_play(settings, EVALUATION, at, policy) / base_s)
    figures = dict(weights.manifest.evaluation)
    for name, values in ratios.items():
        mean, margin = interval(values)
        figures |= {f"turnaround_{name}_over_{teacher.name}": mean, f"turnaround_{name}_margin": margin}
        report(f"turnaround of {name}: {mean:.3f} ± {margin:.3f} times that of {teacher.name}, {len(values)} episodes")
    return WeightSet(replace(weights.manifest, evaluation=figures), weights.files)


def _play(settings: CloneSettings, purpose: int, at: int, policy: Policy) -> float:
    """Play one episode; returns the mean turnaround of its workflows, seconds."""
    specs, workflows, episode_settings = scenario(settings, purpose, at)
    trace = Episode(specs, workflows, policy, episode_settings).run()
    return summarise(trace, specs, policy.name).turnaround_mean_s


def scenario(
    settings: CloneSettings, purpose: int, at: int
) -> tuple[list[NodeSpec], list[WorkflowSubmitted], EpisodeSettings]:
    """The nodes, workflows and chance of an episode: the same whoever decides in it."""
    rng = np.random.default_rng((settings.seed, purpose, at))
    count = settings.nodes[at % len(settings.nodes)]
    load = settings.loads[at // len(settings.nodes) % len(settings.loads)]
    known = example_nodes(3 * count)
    specs = [_varied(known[kind], rng) for kind in rng.permutation(len(known))[:count].tolist()]
    cluster = SimulatorSettings(failure_rate=0.02, node_losses_per_hour=0.1, seed=int(rng.integers(2**31)))
    episode_settings = EpisodeSettings(cluster=cluster)
    workload = WorkloadSettings(workflows=settings.workflows, tasks=settings.tasks, load=load)
    return specs, random_workload(rng, specs, workload, POOL, episode_settings.start_ms), episode_settings


def _varied(spec: NodeSpec, rng: np.random.Generator) -> NodeSpec:
    """The node, a little faster or slower, dearer or cheaper."""
    speed, price = rng.lognormal(0, 0.15, 2)
    return replace(spec, speed=spec.speed * speed, price_per_hour=spec.price_per_hour * price)
