"""The commands about who decides: `headrace models`, `headrace canary`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streams.config import Settings
    from streams.kafka import Publisher
    from streams.model_topic import Choice, ModelTopic

ANSWER_S = 15.0
"""How long the controller may take to answer."""

Config = Annotated[Path | None, typer.Option("--config", help="A YAML file of settings.")]
Why = Annotated[str, typer.Option(help="For those who ask later.")]


def add_to(app: typer.Typer) -> None:
    """Put the commands under the command line."""
    models_app = typer.Typer(no_args_is_help=True, help="The actor's weights: published, in use, and the way back.")
    models_app.command(epilog="Example: headrace models publish weights --channel shadow")(publish)
    models_app.command("list")(list_models)
    models_app.command(epilog="Example: headrace models promote 96f3b6b8 --why 'better in shadow'")(promote)
    models_app.command()(rollback)
    app.add_typer(models_app, name="models")
    canary_app = typer.Typer(no_args_is_help=True, help="New weights for a share of the work, watched.")
    canary_app.command(epilog="Example: headrace canary start 96f3b6b8 --why 'better in shadow'")(start)
    for command in (status, stop, run):
        canary_app.command()(command)
    app.add_typer(canary_app, name="canary")


def publish(
    folder: Annotated[Path, typer.Argument(help="Weights, as `headrace train` writes them.")],
    channel: Annotated[str, typer.Option(help="What for: shadow, canary or stable; stable also promotes.")] = "shadow",
    why: Why = "",
    config: Config = None,
) -> None:
    """Put weights into the topic, once they have passed the checks that a worker makes."""
    from policy.actor import Actor, ActorSettings
    from policy.weight_set import read_weights
    from streams import model_topic
    from streams.config import load

    settings = load(config)
    weights = read_weights(folder)
    Actor(weights, ActorSettings(device="cpu"))
    with _at_models(settings) as (models, publisher):
        record = model_topic.publish(publisher, weights, channel)
        print(f"{record.version} published for {channel}")
        if channel == "stable":
            _choose(settings, models, publisher, record.version, why)


def list_models(config: Config = None) -> None:
    """Show every version in the topic, and which of them the pool uses and used."""
    from rich.console import Console

    from streams import model_report
    from streams.config import load

    settings = load(config)
    console = Console(width=None if sys.stdout.isatty() else 160)
    with _at_models(settings) as (models, _):
        console.print(model_report.table(models, settings.pool))
        console.print(model_report.history(models, settings.pool))


def promote(
    version: Annotated[str, typer.Argument(help="Of `headrace models list`; its beginning will do.")],
    why: Why = "",
    config: Config = None,
) -> None:
    """Have the pool's workers use a version from now on."""
    from schemas.errors import InvalidInput
    from streams.config import load
    from streams.model_topic import refusal_in_force

    settings = load(config)
    with _at_models(settings) as (models, publisher):
        found = models.found(version).version
        if refusal := refusal_in_force(models, settings.pool, found):
            raise InvalidInput(
                found, f"was refused by {refusal.who}: {refusal.reason}", "publish it again once that is repaired"
            )
        _choose(settings, models, publisher, found, why)


def rollback(why: Why = "", config: Config = None) -> None:
    """Have the pool's workers use what they used before; once more goes further back."""
    from streams.config import load
    from streams.model_topic import way_back

    settings = load(config)
    with _at_models(settings) as (models, publisher):
        left = models.of(settings.pool).version
        version, before = way_back(models.of(settings.pool).chosen)
        _choose(settings, models, publisher, version, why or f"back from {left}", before)


def start(
    version: Annotated[str, typer.Argument(help="Of `headrace models list`; its beginning will do.")],
    why: Why = "",
    config: Config = None,
) -> None:
    """Let a version decide for a small share of the work, and for more and more where it does no harm."""
    _ask(config, "start", version, why)


def stop(why: Why = "", config: Config = None) -> None:
    """Take the canary back: the stable weights decide everything again."""
    _ask(config, "stop", "", why)


def status(config: Config = None) -> None:
    """Show how far the canary is, what its guards have seen, and why the last one ended."""
    from policy.canary_stages import CANARY
    from streams.canary_report import report
    from streams.config import load

    settings = load(config)
    with _at_models(settings) as (models, _):
        print(report(settings.pool, models.of(settings.pool).commands.get(CANARY), settings.canary))


def run(
    metrics_port: Annotated[int | None, typer.Option(help="Serve /metrics here.")] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
    config: Config = None,
) -> None:
    """Watch the pool's canaries until Ctrl-C: one such process for each pool (`headrace up` starts one)."""
    import signal

    from schemas.logs import set_up
    from streams import metrics
    from streams.canary import Controller
    from streams.config import load
    from streams.installation import require_broker
    from streams.kafka import Publisher
    from streams.registry import codec_for
    from streams.supervisor import end_with_parent
    from streams.topic_admin import check_topics

    settings = load(config)
    set_up(settings.log_level)
    require_broker(settings)
    check_topics(settings.kafka, settings.topics)
    if parent is not None:
        end_with_parent(parent)
    if metrics_port is not None:
        metrics.serve(metrics_port, settings.worker.host)
    codec = codec_for(settings.kafka)
    with (
        closing(Publisher(settings.kafka, settings.topics, codec)) as publisher,
        closing(Controller(settings, settings.kafka, codec, publisher)) as controller,
    ):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: controller.stop())
        controller.run()


def _ask(config: Path | None, action: str, version: str, why: str) -> None:
    from streams.canary import answer_to, ask
    from streams.canary_report import report
    from streams.config import load

    settings = load(config)
    with _at_models(settings) as (models, publisher):
        if version:
            version = models.found(version).version
        request = ask(publisher, settings.pool, action, version, _who(), why)
        print(report(settings.pool, answer_to(models, settings.pool, request, ANSWER_S), settings.canary))


@contextmanager
def _at_models(settings: Settings) -> Iterator[tuple[ModelTopic, Publisher]]:
    """What the topics say of models, and who may write there."""
    from streams.installation import require_broker
    from streams.kafka import Publisher
    from streams.model_topic import ModelTopic
    from streams.registry import codec_for
    from streams.topic_admin import check_topics

    require_broker(settings)
    check_topics(settings.kafka, settings.topics)
    codec = codec_for(settings.kafka)
    with (
        closing(Publisher(settings.kafka, settings.topics, codec)) as publisher,
        ModelTopic(settings.kafka, settings.topics, codec) as models,
    ):
        yield models, publisher


def _choose(
    settings: Settings,
    models: ModelTopic,
    publisher: Publisher,
    version: str,
    why: str,
    before: tuple[Choice, ...] | None = None,
) -> None:
    from streams.model_topic import Choice, choose

    earlier = models.of(settings.pool).chosen if before is None else before
    choose(publisher, settings.pool, earlier, Choice(version, int(time.time() * 1000), _who(), why))
    print(f"pool {settings.pool} uses {version or 'what its workers came with'} from now on")


def _who() -> str:
    import getpass
    import socket

    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container may know no name of its user
        return socket.gethostname()
