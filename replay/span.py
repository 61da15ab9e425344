"""Which part of a history is meant: times and offsets as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

from replay.player import Range
from replay.source import Source
from schemas.errors import InvalidInput
from schemas.quantities import parse_duration_s
from schemas.topics import DECISIONS

WAYS = "give a time such as 2026-05-01T08:00Z, how long ago such as 2h, or @ and an offset of the decisions topic"


def span_of(since: str | None, until: str | None, source: Source, number: int, now_ms: int) -> Range:
    """The range that these two say. Raises InvalidInput."""
    found = Range(
        _time_ms(since, "--from", source, number, now_ms) if since else None,
        _time_ms(until, "--to", source, number, now_ms) if until else None,
    )
    if found.since_ms is not None and found.until_ms is not None and found.since_ms > found.until_ms:
        raise InvalidInput("--to", f"{until} is before {since}", "swap --from and --to")
    return found


def _time_ms(text: str, option: str, source: Source, number: int, now_ms: int) -> int:
    """Unix milliseconds, by the broker's clock."""
    if text.startswith("@"):
        return _arrival_ms(text, option, source, number)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now_ms - round(1000 * parse_duration_s(text, option))
        except InvalidInput as error:
            raise InvalidInput(option, f"'{text}' is no time", WAYS) from error
    return round(1000 * (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def _arrival_ms(text: str, option: str, source: Source, number: int) -> int:
    low, high = source.bounds(DECISIONS, number)
    if not text[1:].isdigit() or not low <= int(text[1:]) < high:
        raise InvalidInput(
            option, f"'{text}' is no offset of {DECISIONS.name} [{number}]", f"give @{low} to @{max(low, high - 1)}"
        )
    stored = next(source.read(DECISIONS, number, int(text[1:]), high), None)
    if stored is None:
        raise InvalidInput(option, f"nothing is left at '{text}' or behind it", WAYS)
    return stored.timestamp()[1]
