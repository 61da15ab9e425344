"""The command line: one subcommand a verb."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import HeadraceError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
topics_app = typer.Typer(no_args_is_help=True, help="The topics on the broker.")
app.add_typer(topics_app, name="topics")


def _settings():
    from streams.config import load
    return load()


@topics_app.command("create")
def topics_create() -> None:
    from streams.kafka import create_topics
    s = _settings()
    print(create_topics(s.kafka, s.topics))


@app.command()
def worker() -> None:
    from schemas.logs import set_up
    from streams.app import run_worker
    s = _settings()
    set_up(s.log_level)
    raise typer.Exit(run_worker(s))


@app.command()
def broker(port: int = 0, data_dir: Path | None = None) -> None:
    from streams.broker import BrokerSettings, EmbeddedBroker
    import signal
    with EmbeddedBroker(BrokerSettings(port=port, data_dir=data_dir)) as b:
        print(b.bootstrap_servers, flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass


def main() -> None:
    try:
        app()
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
