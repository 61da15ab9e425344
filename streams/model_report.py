"""The models of a pool, for people."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.table import Table

from streams.model_topic import ModelTopic, refusal_in_force


def table(models: ModelTopic, pool: str) -> Table:
    """Every version in the topic, the newest first: what it is for, and what became of it in this pool."""
    found = Table(title=f"models, pool {pool}")
    for heading in ("version", "published for", "at", "parent", "MiB", "state"):
        found.add_column(heading, overflow="fold")
    for one in sorted(models.published.values(), key=lambda published: -published.at_ms):
        size = f"{one.size / 2**20:.2f}"
        found.add_row(
            one.version, one.channel, when(one.at_ms), one.parent or "", size, _state(models, pool, one.version)
        )
    return found


def history(models: ModelTopic, pool: str) -> Table:
    """Which versions the pool used, the newest first: since when, who chose them, and why."""
    found = Table(title=f"what pool {pool} uses, and used before")
    for heading in ("since", "version", "who", "why"):
        found.add_column(heading, overflow="fold")
    for choice in reversed(models.of(pool).chosen):
        found.add_row(when(choice.at_ms), choice.version or "(the workers' own)", choice.who, choice.why)
    return found


def when(at_ms: int) -> str:
    """A time in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _state(models: ModelTopic, pool: str, version: str) -> str:
    refusal = refusal_in_force(models, pool, version)
    if refusal is not None:
        return f"refused by {refusal.who}: {refusal.reason}"
    chosen = [choice.version for choice in models.of(pool).chosen]
    if chosen and chosen[-1] == version:
        return "in use"
    return "used before" if version in chosen else ""
