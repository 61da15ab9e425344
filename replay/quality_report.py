"""What was wrong with a log: counts, and examples that a person can find."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from replay.logged import Place, where


class Kind(StrEnum):
    """What can be wrong with a record, and whether it is left out."""

    NOT_PROD = "not_prod"  # of test or dev work, or nobody says what of
    MIXED_ENV = "mixed_env"  # says prod and test of one workflow: what is learnt from it would be the test's
    DUPLICATE = "duplicate"  # came before
    BAD_TIME = "bad_time"  # a time that is negative, not finite, or no Unix time
    BAD_SAMPLES = "bad_samples"  # values that do not fit the nodes they are of
    ZERO_RUNTIME = "zero_runtime"  # ended at once, though it was expected to run
    TOO_LONG = "too_long"  # ran longer than between its start and its end
    FAR_FROM_PREDICTION = "far_from_prediction"  # ran so many times its prediction
    ENDED_BEFORE_START = "ended_before_start"
    UNKNOWN_NODE = "unknown_node"  # on a node that nobody has described or sampled
    OTHER_NODE = "other_node"  # not on the node on which it was placed
    NEVER_PLACED = "never_placed"
    CUT_OFF = "cut_off"  # placed before the log begins: nothing wrong, but not whole
    CLOCK_AHEAD = "clock_ahead"  # by its own time it came from the future
    # Noted only, from here on:
    LATE = "late"  # came long after its own time
    NODE_CLOCK = "node_clock"  # all of a node's times are off
    STARTED_BEFORE_PLACED = "started_before_placed"  # by the clocks of node and scheduler
    CHILD_BEFORE_PARENT = "child_before_parent"  # started before its parent ended
    NO_START = "no_start"  # ended, and nobody told that it started
    GAP = "gap"  # a node was not sampled for long
    OUT_OF_ORDER = "out_of_order"  # a sample older than one before
    OUT_OF_RANGE = "out_of_range"  # a share below 0 or above 1
    TEST_ON_SHARED_NODE = "test_on_shared_node"  # prod and other work ran together: samples and run times show both


NOTED = frozenset(list(Kind)[list(Kind).index(Kind.LATE) :])
"""Kinds of which the records stay."""
BROKEN = frozenset(
    {
        Kind.ZERO_RUNTIME,
        Kind.TOO_LONG,
        Kind.FAR_FROM_PREDICTION,
        Kind.ENDED_BEFORE_START,
        Kind.UNKNOWN_NODE,
        Kind.OTHER_NODE,
        Kind.NEVER_PLACED,
        Kind.BAD_TIME,
        Kind.CLOCK_AHEAD,
        Kind.BAD_SAMPLES,
    }
)
"""Kinds that are nobody's intention."""


@dataclass(frozen=True, slots=True)
class Example:
    """One record that is wrong."""

    place: Place
    what: str


@dataclass(slots=True)
class Report:
    """What a log holds, and what is wrong with it."""

    examples_of_a_kind: int = 5
    records: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    workflows: int = 0
    prod_workflows: int = 0
    attempts: int = 0
    """Of prod workflows, that started or ended."""
    usable_attempts: int = 0
    """Of those, with a start and an end that make sense."""
    nodes: int = 0
    sampled_s: float = 0.0
    """Time between the samples of each node, all together."""
    missing_s: float = 0.0
    """Of it, in gaps."""
    counts: Counter[Kind] = field(default_factory=Counter)
    examples: dict[Kind, list[Example]] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    """Why it must not be learnt from; none: it may."""

    def add(self, kind: Kind, place: Place, what: str, count: int = 1) -> None:
        """Something is wrong at this place."""
        self.counts[kind] += count
        examples = self.examples.setdefault(kind, [])
        if len(examples) < self.examples_of_a_kind:
            examples.append(Example(place, what))


def in_words(report: Report) -> Iterator[str]:
    """The report, line by line."""
    yield (
        f"{report.records} records, {_time(report.first_ms)} to {_time(report.last_ms)}; "
        f"{report.prod_workflows} of {report.workflows} workflows are prod; "
        f"{report.usable_attempts} of their {report.attempts} attempts are usable; {report.nodes} nodes"
    )
    for kind in Kind:
        if report.counts[kind]:
            yield f"{report.counts[kind]:8d}  {kind}{' (stays)' if kind in NOTED else ''}"
            yield from (f"            {where(e.place)}: {e.what}" for e in report.examples[kind])
    if report.refusals:
        yield from (f"refused: {reason}" for reason in report.refusals)
    else:
        yield "may be learnt from"


def as_json(report: Report) -> str:
    """The same as a JSON object."""
    names = ("records", "first_ms", "last_ms", "workflows", "prod_workflows", "attempts", "usable_attempts", "nodes")
    kinds = {
        str(kind): {
            "count": report.counts[kind],
            "is_left_out": kind not in NOTED,
            "examples": [{"where": where(e.place), "what": e.what} for e in report.examples[kind]],
        }
        for kind in Kind
        if report.counts[kind]
    }
    plain = {name: getattr(report, name) for name in (*names, "sampled_s", "missing_s")}
    return json.dumps({**plain, "kinds": kinds, "refusals": list(report.refusals)}, indent=1) + "\n"


def _time(at_ms: int | None) -> str:
    return "-" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
