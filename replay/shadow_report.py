"""What a shadow has found, in words and as JSON, and where a live one keeps it: in the control topic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from replay.estimates import Estimates, estimates
from replay.promotion import PairedDifference, Promotion, PromotionSettings, in_words
from replay.shadow import Pair, Report
from schemas.codec import Codec
from schemas.errors import InvalidInput, StateLost
from schemas.records import Control
from streams.kafka import KafkaSettings, decoded, read_range

COMMAND = "shadow.state"
"""Of the control record that holds how far a pool's live shadow has come."""


@dataclass(frozen=True, slots=True)
class Found:
    """A report in numbers."""

    candidate: str
    decisions: int
    agreement: float
    """Share of the decisions on which both chose the same node."""
    impossible: int
    deciders: Mapping[str, int]
    states: int
    """That were played on under both policies."""
    makespan: float
    """Mean difference, candidate less incumbent, as a share of the incumbent's."""
    makespan_error: float
    """Half of its 95 % interval."""
    cost: float
    cost_error: float
    logged: Estimates | None
    """None: too few workflows are over, or the decider told no probabilities."""


def found_in(report: Report, candidate: str) -> Found:
    """The report in numbers."""
    makespan, makespan_error = _mean([pair.makespan for pair in report.pairs])
    cost, cost_error = _mean([pair.cost for pair in report.pairs])
    return Found(
        candidate,
        report.decisions,
        report.agreed / max(1, report.decisions),
        report.impossible,
        dict(report.policies),
        len(report.pairs),
        makespan,
        makespan_error,
        cost,
        cost_error,
        estimates(list(report.weighed)),
    )


def _mean(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return (values[0] if values else 0.0), float("inf")
    return float(np.mean(values)), 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5


def words(found: Found) -> list[str]:
    """For people."""
    deciders = ", ".join(f"{name} {count}" for name, count in found.deciders.items()) or "nobody"
    lines = [
        f"candidate {found.candidate}: asked about {found.decisions} decisions (of {deciders}), "
        f"the same node in {found.agreement:.1%}, no node in {found.impossible}",
        f"{found.states} recorded states played on under both: makespan {found.makespan:+.2%} "
        f"± {found.makespan_error:.2%}, cost {found.cost:+.2%} ± {found.cost_error:.2%} "
        "(below 0: the candidate is better)",
    ]
    if found.logged is None:
        return [*lines, "no estimate from the log: too few workflows are over, or the decider told no probabilities"]
    logged = found.logged
    return [
        *lines,
        f"from the log, {logged.decisions} decisions of {logged.workflows} workflows (worth {logged.effective:.0f}): "
        f"reward {logged.importance} by importance, {logged.doubly_robust} doubly robust (above 0: better)",
    ]


def as_plain(found: Found) -> dict[str, Any]:
    """For JSON."""
    return asdict(found)


def difference(pair: Pair) -> PairedDifference:
    """A pair as the promotion rule takes it."""
    return PairedDifference(pair.at_ms, pair.makespan, pair.cost)


@dataclass(frozen=True, slots=True)
class Saved:
    """What a live shadow keeps over a restart."""

    candidate: str
    at_ms: int
    """Up to when (broker's clock) it has read."""
    promotion: Promotion
    found: str
    """The newest report, in words."""


def record_of(saved: Saved, pool: str, now_ms: int) -> Control:
    """For the control topic."""
    arguments = {
        "candidate": saved.candidate,
        "at_ms": str(saved.at_ms),
        "rule": json.dumps(asdict(saved.promotion.settings)),
        "promotion": json.dumps(saved.promotion.to_plain()),
        "found": saved.found,
    }
    return Control(pool, now_ms, COMMAND, arguments)


def key_of(pool: str) -> str:
    """Of that record: the topic is compacted."""
    return f"{pool} {COMMAND}"


def saved_of(record: Control) -> Saved:
    """Raises StateLost."""
    try:
        rule = PromotionSettings(**json.loads(record.arguments["rule"]))
        promotion = Promotion.from_plain(json.loads(record.arguments["promotion"]), rule)
        return Saved(
            record.arguments["candidate"], int(record.arguments["at_ms"]), promotion, record.arguments["found"]
        )
    except (KeyError, ValueError, TypeError, InvalidInput) as error:
        raise StateLost(f"shadow: its saved state cannot be used ({error}); begin anew") from error


def newest(kafka: KafkaSettings, topic: str, pool: str, codec: Codec) -> Saved | None:
    """What the pool's live shadow saved last. Raises BrokerError, StateLost."""
    found: Control | None = None
    for message in read_range(kafka, {(topic, 0): 0}):
        try:
            record = decoded(message, codec, Control)
        except InvalidInput:
            continue
        if record.pool == pool and record.command == COMMAND:
            found = record
    return None if found is None else saved_of(found)


def standing(saved: Saved) -> list[str]:
    """How the candidate stands, for people."""
    return [saved.found, *in_words(saved.promotion)]
