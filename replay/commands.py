"""The commands about what was: `headrace archive`, `replay`, `quality`, `whatif`, `shadow`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from replay.arrivals import Arrivals
    from replay.continuation import ContinuationSettings
    from replay.player import Player
    from replay.promotion import PromotionSettings
    from replay.shadow import Shadow
    from replay.source import Source
    from streams.config import Settings
    from streams.policies import PolicySettings

EXIT_DIFFERENT = 1
EXIT_DIRTY = 1

Since = Annotated[str | None, typer.Option("--from", help="A time, how long ago (2h), or @OFFSET of decisions.")]
Until = Annotated[str | None, typer.Option("--to", help="The same; none: up to now.")]
Folder = Annotated[Path | None, typer.Option("--archive", help="Read this archive; none: the topics.")]
Every = Annotated[bool, typer.Option("--all-pools", help="All partitions; else that of the configured pool.")]
Config = Annotated[Path | None, typer.Option("--config", help="A YAML file of settings.")]


def add_to(app: typer.Typer) -> None:
    """Put the commands under the command line."""
    app.command(epilog="Example: headrace archive --from 24h monday")(archive)
    app.command(epilog="Example: headrace replay --archive monday")(replay)
    app.command(epilog="Example: headrace quality --from-topics --from 1h")(quality)
    app.command(epilog="Example: headrace whatif etl-1/cleaning --node gpu-node-01 --archive monday")(whatif)
    shadows = typer.Typer(invoke_without_command=True)
    shadows.callback(epilog="Example: headrace shadow --candidate heft --from 24h")(shadow)
    shadows.command("status")(shadow_status)
    app.add_typer(shadows, name="shadow")


def archive(
    out: Annotated[Path, typer.Argument(help="Folder for the archive.")],
    since: Since = None,
    until: Until = None,
    all_pools: Every = True,
    config: Config = None,
) -> None:
    """Save what the topics hold as files that can be replayed where there is no broker."""
    from replay import archive as files
    from replay.player import Range
    from replay.span import span_of
    from streams.config import load
    from streams.registry import codec_for

    settings = load(config)
    source = source_of(settings, None)
    numbers = numbers_of(settings, source, all_pools)
    wanted = Range()
    if since or until:
        wanted = span_of(since, until, source, numbers[0], int(1000 * time.time()))

    def told(part: files.Part) -> None:
        if part.records:
            print(f"{part.file}: {part.records} records", file=sys.stderr, flush=True)

    contents = files.archive(source, codec_for(settings.kafka), out, numbers, wanted, settings.state, told)
    print(f"{out}: {sum(part.records for part in contents.parts)} records")


def replay(
    archived: Folder = None,
    since: Since = None,
    until: Until = None,
    all_pools: Every = False,
    config: Config = None,
) -> None:
    """Make recorded decisions again, from the same records in the same order, and compare every bit.

    With the settings and weights that decided; those that were swapped in are read from the topic `models`. The exit
    code is 0 where nothing differs, else 1.
    """
    from policy.constraints import Constraints
    from replay.cast import Cast, published
    from replay.fidelity import Verifier
    from replay.player import Player
    from replay.span import span_of
    from streams import policies
    from streams.config import load
    from streams.registry import codec_for

    settings = load(config)
    source = source_of(settings, archived)
    actor = None
    if settings.policy.name == "actor":
        actor = policies.build_actor(settings.policy, synchronous=False)
    policy = policies.looking_ahead(actor.policy(), settings.policy) if actor else policies.build(settings.policy)
    cast = Cast(policies.Roles(policy, actor), published(settings), settings.policy)
    is_exact = True
    for number in numbers_of(settings, source, all_pools):
        wanted = span_of(since, until, source, number, int(1000 * time.time()))
        player = Player(source, codec_for(settings.kafka), number, settings.state, cast=cast)
        verifier = Verifier(policy, Constraints(settings.policy.node_filter_rules), settings.decide, cast)
        started = time.perf_counter()
        with shown(player, f"partition {number}"):
            found = verifier.verify(player, wanted)
        seconds = time.perf_counter() - started
        print(
            f"partition {number}: {player.progress.records} records, {player.progress.owners} owners, "
            f"{found.batches} batches of {found.decisions} decisions made again, "
            f"{len(found.differences)} differ, {found.skipped} not compared, {seconds:.1f} s"
            + (f"; {found.unpublished} placements were lost with their owners" if found.unpublished else "")
        )
        for difference in found.differences:
            print(f"  {difference}")
        is_exact &= found.is_exact
    if not is_exact:
        print("was it decided with other settings, weights, or another version? Give those with --config")
        raise typer.Exit(EXIT_DIFFERENT)


def quality(
    files: Annotated[list[Path] | None, typer.Argument(help="Records of topics as JSON lines.")] = None,
    from_topics: Annotated[bool, typer.Option("--from-topics", help="Read the pool's topics.")] = False,
    archived: Folder = None,
    since: Since = None,
    until: Until = None,
    nodes: Annotated[Path | None, typer.Option(help="Nodes that the records do not describe.")] = None,
    time_scale: Annotated[
        float, typer.Option(help="Seconds of event time in one of the broker's (a simulated cluster).")
    ] = 1.0,
    out: Annotated[Path | None, typer.Option(help="A file for the report as JSON.")] = None,
    config: Config = None,
) -> None:
    """Say which records of a log may be learnt from, and what is wrong with the others.

    The exit code is 0 where the log may be learnt from, else 1.
    """
    from replay.logged import from_files, from_source
    from replay.quality import QualitySettings, examine
    from replay.quality_report import as_json, in_words
    from replay.span import span_of
    from schemas.errors import InvalidInput
    from schemas.node_file import read_nodes
    from streams.config import load
    from streams.registry import codec_for

    if bool(files) + from_topics + (archived is not None) != 1:
        raise InvalidInput("quality", "needs files, --from-topics or --archive", "give one of them")
    settings, records = load(config), from_files(files or [])
    if not files:
        source = source_of(settings, archived)
        (number,) = numbers_of(settings, source, False)
        wanted = span_of(since, until, source, number, int(1000 * time.time()))
        records = from_source(source, codec_for(settings.kafka), number, wanted.since_ms, wanted.until_ms)
    report = examine(records, QualitySettings(time_scale=time_scale), read_nodes(nodes) if nodes else ()).report
    for line in in_words(report):
        print(line)
    if out is not None:
        out.write_text(as_json(report), encoding="utf-8")
    if report.refusals:
        raise typer.Exit(EXIT_DIRTY)


def shadow(
    context: typer.Context,
    candidate: Annotated[str, typer.Option(help="`actor`, or a heuristic.")] = "actor",
    weights: Annotated[Path | None, typer.Option(help="Of the actor; none: those that come along.")] = None,
    archived: Folder = None,
    since: Since = None,
    until: Until = None,
    live: Annotated[bool, typer.Option("--live", help="Beside the running cluster, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(help="Seconds of event time between two states that are played on.")] = 300.0,
    lucks: Annotated[int, typer.Option(help="Times that each is played on under both policies.")] = 2,
    days: Annotated[int, typer.Option(help="With --live: better on so many in a row, it is promoted.")] = 7,
    share: Annotated[float, typer.Option(help="Of a day's samples on which it must be better.")] = 0.95,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="With --live: serve /metrics here.")] = None,
    config: Config = None,
) -> None:
    """Ask another policy at every recorded decision; compare makespan and cost of both. Nothing obeys it."""
    if context.invoked_subcommand is not None:
        return
    import json
    from dataclasses import replace

    from replay.arrivals import Arrivals
    from replay.player import Player
    from replay.promotion import PromotionSettings
    from replay.shadow_report import as_plain, found_in, words
    from replay.span import span_of
    from schemas.topics import DECISIONS
    from streams.config import load
    from streams.registry import codec_for

    settings = load(config)
    asked = replace(settings.policy, name=candidate, weights=weights)
    name, shadow_of = _shadow_of(settings, asked, every, lucks)
    if live:
        _run_live(settings, name, shadow_of, PromotionSettings(days=days, share=share), metrics_port)
        return
    source = source_of(settings, archived)
    (number,) = numbers_of(settings, source, all_pools=False)
    wanted = span_of(since, until, source, number, int(1000 * time.time()))
    low, high = source.bounds(DECISIONS, number)
    plays = Player if low < high else Arrivals
    player = plays(source, codec_for(settings.kafka), number, settings.state)
    shadowed = shadow_of()
    with shown(player, candidate):
        for _ in shadowed.watch(player, wanted):
            pass
    found = found_in(shadowed.report, name)
    print("\n".join(words(found)))
    if out is not None:
        out.write_text(json.dumps(as_plain(found), indent=1) + "\n", encoding="utf-8")


def whatif(
    decision: Annotated[str, typer.Argument(help="WORKFLOW/TASK, or WORKFLOW/TASK/ATTEMPT.")],
    node: Annotated[str | None, typer.Option(help="It is placed there.")] = None,
    policy: Annotated[str | None, typer.Option(help="This policy decides, then and after.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="NODE.METRIC=VALUE, as if measured then.")] = None,
    archived: Folder = None,
    since: Since = None,
    until: Until = None,
    config: Config = None,
) -> None:
    """Make one recorded decision otherwise, and show what would have come of it, beside what really did."""
    from dataclasses import replace

    from policy.constraints import Constraints
    from policy.heuristics import HEURISTICS
    from replay.player import Player
    from replay.span import span_of
    from replay.whatif import Change, changes_of, in_lines, what_if
    from streams import policies
    from streams.config import load
    from streams.registry import codec_for

    settings = load(config)
    source = source_of(settings, archived)
    (number,) = numbers_of(settings, source, all_pools=False)
    wanted = span_of(since, until, source, number, int(1000 * time.time()))
    actor = policies.build_actor(settings.policy).policy()
    other = policies.build(replace(settings.policy, name=policy)) if policy else None
    player = Player(source, codec_for(settings.kafka), number, settings.state)
    continuation = _continuation(settings)
    with shown(player, decision):
        found = what_if(
            player,
            wanted,
            decision,
            Change(node, other, changes_of(change or [])),
            {**HEURISTICS, "actor": actor},
            Constraints(settings.policy.node_filter_rules),
            continuation,
        )
    print("\n".join(in_lines(found)))


def _continuation(settings: Settings) -> ContinuationSettings:
    """How recorded states are played on under these settings."""
    from replay.continuation import ContinuationSettings

    return ContinuationSettings(
        simulator=settings.cluster.simulator,
        state=settings.state,
        decide=settings.decide,
        rules=tuple(settings.policy.node_filter_rules),
    )


def _shadow_of(
    settings: Settings, asked: PolicySettings, every_s: float, lucks: int
) -> tuple[str, Callable[[], Shadow]]:
    """The candidate's name, and what makes a shadow of it."""
    from functools import cache

    from policy.constraints import Constraints
    from policy.credit import Credits
    from policy.heuristics import HEURISTICS
    from policy.observation import Policy
    from replay.shadow import Shadow, ShadowSettings
    from streams import policies

    policy = policies.build(asked)
    comparison = ShadowSettings(every_s=every_s, lucks=lucks)
    continuation = _continuation(settings)

    @cache
    def incumbent_of(name: str) -> Policy:
        if name == "actor":
            return policies.build_actor(settings.policy).policy()
        return HEURISTICS.get(name, HEURISTICS["kube_default"])  # of a scheduler that cannot be asked, the closest

    def make() -> Shadow:
        credits = Credits(settings.pool, settings.reward, settings.cost, settings.state)
        constraints = Constraints(settings.policy.node_filter_rules)
        return Shadow(policy, incumbent_of, constraints, comparison, continuation, credits)

    return f"{policy.name}{f' {policy.version}' if policy.version else ''}", make


def _run_live(
    settings: Settings, candidate: str, shadow_of: Callable[[], Shadow], rule: PromotionSettings, port: int | None
) -> None:
    import signal
    from contextlib import closing

    from replay.live_shadow import LiveShadow
    from replay.shadow_report import newest
    from schemas.logs import set_up
    from schemas.topics import CONTROL
    from streams import metrics
    from streams.installation import require_broker
    from streams.kafka import Publisher
    from streams.registry import codec_for
    from streams.topic_admin import check_topics

    set_up(settings.log_level)
    require_broker(settings)
    check_topics(settings.kafka, settings.topics)
    codec = codec_for(settings.kafka)
    saved = newest(settings.kafka, settings.topics.full_name(CONTROL), settings.pool, codec)
    if saved is not None and (saved.candidate != candidate or saved.promotion.settings != rule):
        saved = None  # another candidate begins at its first day
    if port is not None:
        metrics.serve(port, settings.worker.host)
    with closing(Publisher(settings.kafka, settings.topics, codec)) as publisher:
        running = LiveShadow(settings, shadow_of, candidate, codec, publisher, saved, rule)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: running.stop.set())
        running.run()


def shadow_status(config: Config = None) -> None:
    """How the pool's live shadow stands: its figures, and the days in a row on which it was better."""
    from replay.shadow_report import newest, standing
    from schemas.topics import CONTROL
    from streams.config import load
    from streams.installation import require_broker
    from streams.registry import codec_for

    settings = load(config)
    require_broker(settings)
    topic, codec = settings.topics.full_name(CONTROL), codec_for(settings.kafka)
    saved = newest(settings.kafka, topic, settings.pool, codec)
    if saved is None:
        print(f"no shadow of pool {settings.pool} has told anything yet: headrace shadow --live")
        return
    print("\n".join(standing(saved)))


def source_of(settings: Settings, folder: Path | None) -> Source:
    """The archive, or the topics of the configured broker."""
    from replay.archive import ArchiveSource
    from replay.source import KafkaSource
    from streams.installation import require_broker
    from streams.topic_admin import check_topics

    if folder is not None:
        return ArchiveSource(folder, settings.topics.prefix)
    require_broker(settings)
    check_topics(settings.kafka, settings.topics)
    return KafkaSource(settings.kafka, settings.topics)


def numbers_of(settings: Settings, source: Source, all_pools: bool) -> Sequence[int]:
    """The partitions that are meant."""
    from schemas.topics import partition_of

    count = source.topics.partitions
    return range(count) if all_pools else [partition_of(settings.pool, count)]


@contextmanager
def shown(player: Player | Arrivals, name: str) -> Iterator[None]:
    """Show how far the player has come, where somebody looks."""
    import threading

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(), TextColumn("{task.fields[records]} records"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=1.0, records=0)
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(0.2):
                bar.update(task, completed=player.progress.done, records=player.progress.records)

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()
