"""How a partition's inputs were folded, as `DecisionBatch.steps` holds it: what makes a decision exactly repeatable.

Offsets alone say which records a decision had seen, not in which order those of different topics came, nor when a round
of decisions was tried in between. A worker notes both: one step for each chunk that it took in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from schemas.errors import InvalidRecord
from schemas.topics import NODE_METRICS, PLACEMENTS, STATE_INPUTS, TASK_EVENTS, TASK_READY, WORKFLOW_SUBMITTED, Topic

FOLD_ORDER = (WORKFLOW_SUBMITTED, NODE_METRICS, TASK_READY, PLACEMENTS, TASK_EVENTS)
"""Of records that the broker received in one millisecond: causes before effects."""

RESTORED, ENCODED, FROM, TO = 10, 20, 30, 40
"""What a number says beside those of the topics; to FROM and TO a topic's place in FOLD_ORDER is added."""


@dataclass(frozen=True, slots=True)
class Took:
    """A chunk was folded: the records of a topic before this offset. A round of decisions followed."""

    topic: Topic
    end: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """The nodes of the pool of this number (in the order in which the pools came) were encoded beside the decisions."""

    pool: int


@dataclass(frozen=True, slots=True)
class Restored:
    """An owner began: with a snapshot, or nothing (-1), and the records of these ranges, topics as in FOLD_ORDER."""

    slot: int
    ranges: tuple[tuple[int, int], ...]


Step = Took | Encoded | Restored


def written(steps: Iterable[Step]) -> tuple[int, ...]:
    """The steps as pairs of numbers."""
    return tuple(number for step in steps for number in _numbers(step))


def _numbers(step: Step) -> Iterator[int]:
    if isinstance(step, Took):
        yield from (STATE_INPUTS.index(step.topic), step.end)
    elif isinstance(step, Encoded):
        yield from (ENCODED, step.pool)
    else:
        for rank, (start, end) in enumerate(step.ranges):
            yield from (FROM + rank, start, TO + rank, end)
        yield from (RESTORED, step.slot)


def read(numbers: Sequence[int]) -> Iterator[Step]:
    """The steps that `written` wrote. Raises InvalidRecord."""
    ranges = [[0, 0] for _ in FOLD_ORDER]
    if len(numbers) % 2:
        raise _unknown(len(numbers))
    for what, value in zip(numbers[::2], numbers[1::2], strict=True):
        if 0 <= what < len(STATE_INPUTS):
            yield Took(STATE_INPUTS[what], value)
        elif what == ENCODED:
            yield Encoded(value)
        elif what == RESTORED:
            yield Restored(value, tuple((start, end) for start, end in ranges))
        elif 0 <= what - FROM < len(FOLD_ORDER):
            ranges[what - FROM][0] = value
        elif 0 <= what - TO < len(FOLD_ORDER):
            ranges[what - TO][1] = value
        else:
            raise _unknown(what)


def _unknown(what: int) -> InvalidRecord:
    return InvalidRecord("decisions", f"has a step of a kind that is not known here ({what})", "upgrade headrace")
