"""A log, a set of weights and some minutes -> weights that are no worse, or none, and a report either way.

What is learnt is judged twice before it is kept: beside its parent on fixed scenarios, and by an off-policy estimate on
workflows of the same log that were not learnt from. What is worse than its interval allows is dropped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from policy.billing import CostSettings
from policy.constraints import Constraints
from policy.credit import Credits
from policy.ledger import AttemptKey
from policy.network import ActorCritic
from policy.reward import RewardWeights
from policy.state import StateSettings
from policy.weight_set import WeightSet, write_weights
from replay.lessons import Outcome, Reader, Seen, is_held_out, newest, outcomes, together
from replay.logged import Logged, from_source
from replay.player import Player, Range
from replay.quality import QualitySettings, examine
from replay.source import Source
from schemas.codec import Codec
from schemas.errors import InvalidConfiguration, UnusableWeights
from schemas.steps import FOLD_ORDER
from schemas.topics import DECISIONS
from trainer.acceptance import START, refuse_worse
from trainer.evaluate import usual_baseline
from trainer.export import Origin, exported, restored
from trainer.fine_tune import FineTuneSettings, Lessons, Tuned, estimated_gain, fine_tune
from trainer.rules import rule_of
from trainer.search import compare
from trainer.workers import start_workers

MIB = 2**20
READ_SHARE, LEARN_SHARE = 0.4, 0.6
"""Of the budget: when reading ends, and when learning does. The rest is for the judgement, which is never cut short."""
ON_LOG = f"held-out decisions, reward over {START}"


class Kind(StrEnum):
    """Why weights are fine-tuned."""

    USUAL = "usual"
    NIGHTLY = "nightly"
    EMERGENCY = "emergency"


class Verdict(StrEnum):
    """What became of it."""

    ACCEPTED = "accepted"
    DROPPED = "dropped"  # worse than its parent
    TOO_LITTLE = "too_little"  # nothing to learn from, or to judge by
    TOO_DIRTY = "too_dirty"  # the log cannot be trusted
    UNCHANGED = "unchanged"  # not one step stayed within the bounds


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What is learnt from, and how it is judged."""

    out: Path
    """Folder that gets a folder for each set of weights, and a report for each run."""
    kind: Kind = Kind.USUAL
    tuning: FineTuneSettings = field(default_factory=FineTuneSettings)
    budget_s: float = 600.0
    """For all of it."""
    held_out: float = 0.25
    """Share of the workflows that are judged by, not learnt from."""
    negative: float = 0.5
    """What an attempt is worth less that was migrated or failed; a decision's whole reward is about 1."""
    memory_mib: int = 512
    """For decisions; beyond it, the newest count."""
    least_decisions: int = 200
    """To learn from, and"""
    least_workflows: int = 20
    """workflows held out; with fewer nothing is made."""
    skewed_above: float = 0.4
    """In an emergency only decisions count that were made while the nodes' CPU utilisation deviated by more."""
    scenarios: int = 16
    """Of each load, on which the candidate is compared with its parent."""
    temperature: float = 0.3
    """Of the policy there."""
    processes: int | None = None
    """That play them; None: one for each processor."""
    quality: QualitySettings = field(default_factory=QualitySettings)

    def __post_init__(self) -> None:
        for name, low, high in (("held_out", 0.01, 0.9), ("negative", 0.0, 100.0), ("budget_s", 1.0, 1e6)):
            if not low <= getattr(self, name) <= high:
                raise InvalidConfiguration(
                    f"fine_tune.{name}", f"{getattr(self, name)} is out of range", f"give {low:g} to {high:g}"
                )
        for name, least in (("memory_mib", 1), ("least_decisions", 1), ("least_workflows", 2), ("scenarios", 2)):
            if getattr(self, name) < least:
                raise InvalidConfiguration(
                    f"fine_tune.{name}", f"{getattr(self, name)} is too small", f"give {least} or more"
                )


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The pool whose log it is, and how decisions are made and valued there."""

    pool: str
    number: int
    """Of its partition."""
    state: StateSettings = field(default_factory=StateSettings)
    rules: tuple[str, ...] = ()
    reward: RewardWeights = field(default_factory=RewardWeights)
    costs: CostSettings = field(default_factory=CostSettings)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run did, and why its weights were kept or not."""

    kind: Kind
    verdict: Verdict
    why: str
    parent: str
    candidate: str | None = None
    """Its version; None: there was none."""
    learned_from: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """"topic/partition" -> the first offset that was read, and the one after the last."""
    decisions: int = 0
    """Learnt from."""
    negatives: int = 0
    """Of them, of attempts that were migrated or failed."""
    held_out: int = 0
    """Judged by."""
    is_cut_short: bool = False
    """Whether reading took too long, so that the newest decisions are missing."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Decisions that could not be learnt from, by why."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Records that may not be learnt from, by why."""
    steps: int = 0
    kl: float = 0.0
    ended_by: str = ""
    mean_weight: float = 0.0
    explained: float = 0.0
    evaluation: Mapping[str, float] = field(default_factory=dict)
    data: str = ""
    seconds: float = 0.0

    def as_json(self) -> str:
        """As JSON text."""
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    def in_words(self) -> str:
        """In one line."""
        version = f" {self.candidate}" if self.candidate else ""
        return (
            f"{self.verdict}{version}: {self.why}; learnt from {self.decisions} decisions "
            f"({self.negatives} negative), {self.steps} steps, KL {self.kl:.4f}, {self.seconds:.0f} s"
        )


@dataclass(frozen=True)
class Learnable:
    """What a log holds for a policy: decisions, what came of them, and what was left out."""

    learnt: Sequence[Seen]
    held: Sequence[Seen]
    outcomes: Mapping[AttemptKey, Outcome]
    learned_from: Mapping[str, tuple[int, int]]
    skipped: Mapping[str, int]
    left_out: Mapping[str, int]
    refusals: Sequence[str]
    is_cut_short: bool


Clock = Callable[[], float]
Learn = Callable[[ActorCritic, Lessons, FineTuneSettings, Callable[[], bool]], Tuned]
"""As `trainer.fine_tune.fine_tune`."""


def run(
    source: Source,
    codec: Codec,
    wanted: Range,
    parent: WeightSet,
    deployment: Deployment,
    settings: RunSettings,
    clock: Clock = time.monotonic,
    learn: Learn = fine_tune,
) -> tuple[Report, WeightSet | None]:
    """Fine-tune on this part of a history; writes the report, and the weights where they are accepted.

    `wanted` must have an end where the topics grow, so that the offsets that are told are those that were read.
    Raises HistoryLost, BrokerError, InvalidInput; UnusableWeights for a parent that cannot be fine-tuned.
    """
    started = clock()
    rule_of(parent, settings.temperature)  # one that looks at windows cannot be judged
    found = _read(source, codec, wanted, parent, deployment, settings, lambda: clock() - started)
    negatives = sum(found.outcomes[one.key].is_negative for one in found.learnt)
    about = Report(
        kind=settings.kind,
        verdict=Verdict.TOO_LITTLE,
        why="",
        parent=parent.manifest.version,
        learned_from=found.learned_from,
        decisions=len(found.learnt),
        negatives=negatives,
        held_out=len(found.held),
        skipped=found.skipped,
        left_out=found.left_out,
        is_cut_short=found.is_cut_short,
    )
    report, weights = _learn(found, parent, about, settings, lambda: clock() - started, learn)
    report = replace(report, seconds=round(clock() - started, 1))
    _keep(report, weights, settings.out)
    return report, weights


def _learn(
    found: Learnable, parent: WeightSet, about: Report, settings: RunSettings, passed_s: Clock, learn: Learn
) -> tuple[Report, WeightSet | None]:
    """From decisions to a candidate and its verdict."""
    if found.refusals:
        return replace(about, verdict=Verdict.TOO_DIRTY, why="; ".join(found.refusals)), None
    flows = len({one.key[0] for one in found.held})
    if len(found.learnt) < settings.least_decisions or flows < settings.least_workflows:
        why = (
            f"{len(found.learnt)} decisions to learn from and {flows} workflows to judge by, "
            f"{settings.least_decisions} and {settings.least_workflows} are needed"
        )
        return replace(about, why=why), None
    tuning = settings.tuning.emergency if settings.kind == Kind.EMERGENCY else settings.tuning
    lessons = together(found.learnt, found.outcomes, settings.negative)
    network = restored(parent)
    tuned = learn(network, lessons, tuning, lambda: passed_s() > LEARN_SHARE * settings.budget_s)
    about = replace(
        about,
        steps=tuned.steps,
        kl=tuned.kl,
        ended_by=tuned.ended_by,
        mean_weight=tuned.mean_weight,
        explained=tuned.explained,
        data=hashlib.sha256(f"{lessons.digest} {tuning}".encode()).hexdigest(),
    )
    if not tuned.steps:
        why = f"no step stayed within a KL of {tuning.most_kl:g}" if tuned.ended_by == "kl" else "there was no time"
        return replace(about, verdict=Verdict.UNCHANGED, why=why), None
    candidate = _exported(tuned, parent, about, settings.tuning)
    evaluation = judged(candidate, tuned, parent, found, settings)
    manifest = replace(candidate.manifest, evaluation=evaluation)
    about = replace(about, candidate=manifest.version, evaluation=evaluation)
    try:
        refuse_worse(evaluation)
    except UnusableWeights as error:
        return replace(about, verdict=Verdict.DROPPED, why=str(error)), None
    return replace(about, verdict=Verdict.ACCEPTED, why="no worse than its parent"), WeightSet(
        manifest, candidate.files
    )


def judged(
    candidate: WeightSet, tuned: Tuned, parent: WeightSet, found: Learnable, settings: RunSettings
) -> dict[str, float]:
    """How much better than its parent the candidate is: on fixed scenarios, and on the decisions held out; ± 95 %."""
    with start_workers(settings.processes) as workers:
        rules = rule_of(candidate, settings.temperature), rule_of(parent, settings.temperature)
        usual = usual_baseline(workers)
        figures = compare(workers, settings.scenarios, rules[0], {START: rules[1]}, usual, lambda line: None)
    flows = {name: at for at, name in enumerate(dict.fromkeys(one.key[0] for one in found.held))}
    figures[ON_LOG], figures[f"{ON_LOG}, margin"] = estimated_gain(
        tuned.network,
        restored(parent),
        together(found.held, found.outcomes, settings.negative),
        np.array([flows[one.key[0]] for one in found.held]),
        tuned.expectation,
    )
    return figures


def _read(
    source: Source,
    codec: Codec,
    wanted: Range,
    parent: WeightSet,
    deployment: Deployment,
    settings: RunSettings,
    passed_s: Clock,
) -> Learnable:
    """What the log holds: one reading for what may be learnt from, one for rewards, one for what was seen."""
    number = deployment.number

    def records() -> Iterable[Logged]:
        return from_source(source, codec, number, wanted.since_ms, wanted.until_ms)

    checked = examine(records(), settings.quality)
    credits = Credits(deployment.pool, deployment.reward, deployment.costs, deployment.state)
    ended = outcomes(checked.clean(records()), credits, number, source.topics.partitions)
    reader = Reader(restored(parent), Constraints(deployment.rules), deployment.pool, ended.__contains__)
    player = Player(source, codec, number, deployment.state)
    in_time = itertools.takewhile(lambda _: passed_s() < READ_SHARE * settings.budget_s, reader.read(player, wanted))
    seen = newest(in_time, settings.memory_mib * MIB)
    is_cut_short = passed_s() >= READ_SHARE * settings.budget_s
    spans, decisions = _spans(source, number, wanted), f"{DECISIONS.name}/{number}"
    if is_cut_short:
        low = spans[decisions][0]
        spans[decisions] = (low, seen[-1].offset + 1 if seen else low)
    is_emergency = settings.kind == Kind.EMERGENCY
    held = [one for one in seen if is_held_out(one.key[0], settings.held_out)]
    learnt = [
        one
        for one in seen
        if not is_held_out(one.key[0], settings.held_out) and (not is_emergency or one.skew > settings.skewed_above)
    ]
    return Learnable(
        learnt,
        held,
        ended,
        spans,
        reader.skipped,
        {str(kind): count for kind, count in checked.report.counts.items()},
        checked.report.refusals,
        is_cut_short,
    )


def _spans(source: Source, number: int, wanted: Range) -> dict[str, tuple[int, int]]:
    """The offsets of each topic that lie in this range."""
    spans = {}
    for topic in (*FOLD_ORDER, DECISIONS):
        low, high = source.bounds(topic, number)
        if wanted.since_ms is not None:
            low = max(low, source.offset_at(topic, number, wanted.since_ms))
        if wanted.until_ms is not None:
            high = min(high, source.offset_at(topic, number, wanted.until_ms + 1))
        spans[f"{topic.name}/{number}"] = (low, max(low, high))
    return spans


def _exported(tuned: Tuned, parent: WeightSet, about: Report, tuning: FineTuneSettings) -> WeightSet:
    """The candidate as a set of weights, with where it comes from. Raises UnusableWeights."""
    manifest = parent.manifest
    low, high = about.learned_from[f"{DECISIONS.name}/{_partition(about)}"]
    how = f"--rate {tuning.learning_rate:g} --seed {tuning.seed}"
    how += " --emergency" if about.kind == Kind.EMERGENCY else ""
    command = f"headrace fine-tune --from @{low} --to @{max(low, high - 1)} {how}"
    origin = Origin(
        f"{manifest.command} --out parent && {command} --weights parent",
        tuning.seed,
        manifest.version,
        order=manifest.order,
        data=about.data,
        config=hashlib.sha256(repr(tuning).encode()).hexdigest(),
        statistics=manifest.statistics,
    )
    made = exported(tuned.network, origin)
    return WeightSet(replace(made.manifest, learned_from=about.learned_from), made.files)


def _partition(about: Report) -> str:
    return next(iter(about.learned_from)).rpartition("/")[2]


def _keep(report: Report, weights: WeightSet | None, out: Path) -> None:
    """Write the report, and the weights where there are any."""
    out.mkdir(parents=True, exist_ok=True)
    if weights is not None:
        write_weights(weights, out / weights.manifest.version)
    name = report.candidate or f"from-{report.parent}"
    (out / f"{name}.{report.verdict}.json").write_text(report.as_json(), encoding="utf-8")
