"""The commands about what was: `headrace archive`, `headrace replay`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from policy.actor import Actor
    from replay.player import Player
    from replay.source import Source
    from streams.config import Settings

EXIT_DIFFERENT = 1

Since = Annotated[str | None, typer.Option("--from", help="A time, how long ago (2h), or @OFFSET of decisions.")]
Until = Annotated[str | None, typer.Option("--to", help="The same; none: up to now.")]
Folder = Annotated[Path | None, typer.Option("--archive", help="Read this archive; none: the topics.")]
Every = Annotated[bool, typer.Option("--all-pools", help="All partitions; else that of the configured pool.")]
Config = Annotated[Path | None, typer.Option("--config", help="A YAML file of settings.")]


def add_to(app: typer.Typer) -> None:
    """Put the commands under the command line."""
    app.command(epilog="Example: headrace archive --from 24h monday")(archive)
    app.command(epilog="Example: headrace replay --archive monday")(replay)


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
    from replay.cast import Cast
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
    policy = actor.policy() if actor else policies.build(settings.policy)
    cast = Cast(policies.Roles(policy, actor), partial(published_actor, settings))
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
        )
        for difference in found.differences:
            print(f"  {difference}")
        is_exact &= found.is_exact
    if not is_exact:
        print("was it decided with other settings, weights, or another version? Give those with --config")
        raise typer.Exit(EXIT_DIFFERENT)


def published_actor(settings: Settings, version: str) -> Actor:
    """The actor of a version in the topic `models`. Raises HeadraceError."""
    from policy.actor import Actor, ActorSettings
    from streams.installation import require_broker
    from streams.model_topic import ModelTopic
    from streams.registry import codec_for

    require_broker(settings)
    with ModelTopic(settings.kafka, settings.topics, codec_for(settings.kafka)) as models:
        weights = models.weights(models.found(version).version)
    chosen = settings.policy
    return Actor(weights, ActorSettings(device=chosen.device, temperature=chosen.temperature, synchronous=False))


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
def shown(player: Player, name: str) -> Iterator[None]:
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
