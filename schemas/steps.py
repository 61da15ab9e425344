"""How a partition's inputs were folded, as `DecisionBatch.steps` holds it: what makes a decision exactly repeatable.

Offsets alone say which records a decision had seen, not in which order those of different topics came, nor when a round
of decisions was tried in between. A worker notes both: one step for each chunk that it took in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from schemas.errors import InvalidRecord
from schemas.records import WorkflowClass
from schemas.topics import NODE_METRICS, PLACEMENTS, STATE_INPUTS, TASK_EVENTS, TASK_READY, WORKFLOW_SUBMITTED, Topic

FOLD_ORDER = (WORKFLOW_SUBMITTED, NODE_METRICS, TASK_READY, PLACEMENTS, TASK_EVENTS)
"""Of records that the broker received in one millisecond: causes before effects."""

RESTORED, ENCODED, FROM, TO = 10, 20, 30, 40
"""What a number says beside those of the topics; to FROM and TO a topic's place in FOLD_ORDER is added."""
USES, STABLE, CANARY, SHARE, CLASSES, SWAPPED = 50, 51, 52, 53, 54, 55
"""What a number says of the models; all others come before USES or SWAPPED."""
SHARES = 10_000
"""A share is told in this many parts."""


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


@dataclass(frozen=True, slots=True)
class Uses:
    """The pool of this number is decided by these weights from here on. Versions are those of `models`, empty: none.

    is_swap  others decided before, and those that are new among these have encoded the nodes as they are here
    """

    pool: int
    stable: str
    canary: str = ""
    share: float = 0.0
    classes: frozenset[WorkflowClass] = frozenset()
    is_swap: bool = False


Step = Took | Encoded | Restored | Uses


def written(steps: Iterable[Step]) -> tuple[int, ...]:
    """The steps as pairs of numbers."""
    return tuple(number for step in steps for number in _numbers(step))


def _numbers(step: Step) -> Iterator[int]:
    if isinstance(step, Took):
        yield from (STATE_INPUTS.index(step.topic), step.end)
    elif isinstance(step, Encoded):
        yield from (ENCODED, step.pool)
    elif isinstance(step, Uses):
        mask = sum(1 << at for at, one in enumerate(WorkflowClass) if one in step.classes)
        yield from (STABLE, _number(step.stable), CANARY, _number(step.canary))
        yield from (SHARE, round(SHARES * step.share), CLASSES, mask)
        yield from (SWAPPED if step.is_swap else USES, step.pool)
    else:
        for rank, (start, end) in enumerate(step.ranges):
            yield from (FROM + rank, start, TO + rank, end)
        yield from (RESTORED, step.slot)


def read(numbers: Sequence[int]) -> Iterator[Step]:
    """The steps that `written` wrote. Raises InvalidRecord."""
    ranges = [[0, 0] for _ in FOLD_ORDER]
    models = dict.fromkeys((STABLE, CANARY, SHARE, CLASSES), 0)
    if len(numbers) % 2:
        raise _unknown(len(numbers))
    for what, value in zip(numbers[::2], numbers[1::2], strict=True):
        if 0 <= what < len(STATE_INPUTS):
            yield Took(STATE_INPUTS[what], value)
        elif what == ENCODED:
            yield Encoded(value)
        elif what in models:
            models[what] = value
        elif what in (USES, SWAPPED):
            classes = frozenset(one for at, one in enumerate(WorkflowClass) if models[CLASSES] >> at & 1)
            share = models[SHARE] / SHARES
            stable, canary = _version(models[STABLE]), _version(models[CANARY])
            yield Uses(value, stable, canary, share, classes, what == SWAPPED)
        elif what == RESTORED:
            yield Restored(value, tuple((start, end) for start, end in ranges))
        elif 0 <= what - FROM < len(FOLD_ORDER):
            ranges[what - FROM][0] = value
        elif 0 <= what - TO < len(FOLD_ORDER):
            ranges[what - TO][1] = value
        else:
            raise _unknown(what)


def _number(version: str) -> int:
    """A version as a number: it is hexadecimal, with a 1 before it so that zeros stay."""
    try:
        return int(f"1{version}", 16) if 0 < len(version) <= 15 else 0
    except ValueError:  # weights of somebody's own making: the batches name them
        return 0


def _version(number: int) -> str:
    return f"{number:x}"[1:] if number else ""


def _unknown(what: int) -> InvalidRecord:
    return InvalidRecord("decisions", f"has a step of a kind that is not known here ({what})", "upgrade headrace")
