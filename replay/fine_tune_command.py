"""The command `headrace fine-tune`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replay.commands import Config, Folder, Since, Until, numbers_of, source_of

if TYPE_CHECKING:
    from policy.weight_set import WeightSet
    from replay.fine_tune import Kind, Report
    from replay.player import Range
    from streams.config import Settings

CHANNEL = "canary"
EXIT_DROPPED = 1
LAST_HOUR = "1h"


def add_to(app: typer.Typer) -> None:
    """Put the command under the command line."""
    app.command("fine-tune", epilog="Example: headrace fine-tune --every 3600")(fine_tune)


def fine_tune(
    archived: Folder = None,
    since: Since = None,
    until: Until = None,
    out: Annotated[Path, typer.Option(help="Folder for weights and reports.")] = Path("fine-tuned"),
    weights: Annotated[Path | None, typer.Option(help="Begin with these; none: those that decide.")] = None,
    every: Annotated[float | None, typer.Option(help="Seconds between two runs, until SIGTERM; none: once.")] = None,
    night: Annotated[float, typer.Option(help="With --every: hour (UTC) at which the last day is learnt from.")] = 2.0,
    emergency: Annotated[
        bool, typer.Option("--emergency", help="From skewed decisions only: 10 x learning rate, 50 steps.")
    ] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Send accepted weights to the topic models.")] = False,
    budget: Annotated[float, typer.Option(help="Seconds for one run.")] = 600.0,
    rate: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    scenarios: Annotated[int, typer.Option(help="Of each load, for the comparison with the parent.")] = 16,
    time_scale: Annotated[
        float, typer.Option(help="Seconds of event time in one of the broker's (a simulated cluster).")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Draws what each step learns from.")] = 0,
    config: Config = None,
) -> None:
    """Train the actor on from its own log: the last hour's prod decisions, and what came of them.

    What is worse than its parent, on fixed scenarios or on workflows held out, is dropped. With --every also each
    night, and when the load-skew breaker calls; accepted weights are then published. The exit code of a single run is
    0 where weights were accepted, else 1.
    """
    from policy.weight_set import read_weights
    from replay.fine_tune import Deployment, Kind, RunSettings, Verdict, run
    from replay.quality import QualitySettings
    from replay.span import span_of
    from schemas.errors import InvalidInput
    from streams.config import load
    from streams.registry import codec_for
    from trainer.fine_tune import FineTuneSettings

    if archived is not None and (publish or every is not None):
        raise InvalidInput("--archive", "is no running cluster", "leave out --every and --publish")
    settings = load(config)
    source, codec = source_of(settings, archived), codec_for(settings.kafka)
    (number,) = numbers_of(settings, source, all_pools=False)
    tuning = FineTuneSettings(seed=seed) if rate is None else FineTuneSettings(seed=seed, learning_rate=rate)
    how = RunSettings(
        out=out,
        kind=Kind.EMERGENCY if emergency else Kind.USUAL,
        tuning=tuning,
        budget_s=budget,
        scenarios=scenarios,
        temperature=settings.policy.temperature,
        quality=QualitySettings(time_scale=time_scale),
    )
    where = Deployment(
        pool=settings.pool,
        number=number,
        state=settings.state,
        rules=tuple(settings.policy.node_filter_rules),
        reward=settings.reward,
        costs=settings.cost,
    )

    def run_once(kind: Kind, wanted: Range) -> tuple[Report, WeightSet | None]:
        parent = read_weights(weights) if weights else _deciding(settings, is_live=archived is None)
        return run(source, codec, wanted, parent, where, replace(how, kind=kind))

    if every is not None:
        _loop(settings, every, night, run_once)
        return
    now_ms = int(1000 * time.time())
    wanted = span_of(since or (None if archived else LAST_HOUR), until, source, number, now_ms)
    if archived is None and wanted.until_ms is None:
        wanted = replace(wanted, until_ms=now_ms)
    report, made = run_once(how.kind, wanted)
    print(report.in_words())
    if made is not None and publish:
        _publisher(settings, lambda send: send(made))
        print(f"published {report.candidate} on channel {CHANNEL}: headrace models list")
    if report.verdict != Verdict.ACCEPTED:
        raise typer.Exit(EXIT_DROPPED)


def _deciding(settings: Settings, is_live: bool) -> WeightSet:
    """The weights that decide for the pool: those promoted there, else those of the settings."""
    from policy.weight_set import read_weights, shipped_weights
    from streams.model_topic import ModelTopic
    from streams.registry import codec_for

    if is_live:
        with ModelTopic(settings.kafka, settings.topics, codec_for(settings.kafka)) as models:
            version = models.of(settings.pool).version
            if version:
                return models.weights(models.found(version).version)
    folder = settings.policy.weights
    return shipped_weights() if folder is None else read_weights(folder)


def _publisher(settings: Settings, use: Callable[[Callable[[WeightSet], object]], None]) -> None:
    """Call `use` with what sends weights to the topic `models`."""
    from streams.kafka import Publisher
    from streams.model_topic import publish
    from streams.registry import codec_for

    with closing(Publisher(settings.kafka, settings.topics, codec_for(settings.kafka))) as publisher:
        use(lambda weights: publish(publisher, weights, CHANNEL))


def _loop(
    settings: Settings, every_s: float, night: float, run_once: Callable[[Kind, Range], tuple[Report, WeightSet | None]]
) -> None:
    from replay.fine_tune_loop import HOUR_S, Calls, Loop, Schedule, ScheduleSettings
    from schemas.logs import set_up
    from streams.registry import codec_for

    schedule = Schedule(ScheduleSettings(every_s=every_s, night_s=night * HOUR_S), time.time())
    set_up(settings.log_level)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    calls = Calls(settings.kafka, settings.topics, codec_for(settings.kafka), settings.pool)
    with closing(calls):
        _publisher(settings, lambda send: Loop(schedule, calls, run_once, send, stop).run())
