"""Whether what is told of one attempt can have happened."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from replay.logged import Place
from replay.quality_report import Kind
from schemas.records import EventKind, Task, TaskEvent

LEAST_PREDICTION_S = 1.0
"""A shorter prediction counts as this: start-up takes longer than the work."""


@dataclass(frozen=True, slots=True)
class Told:
    """An event of an attempt, and where it was read."""

    place: Place
    event: TaskEvent


@dataclass(slots=True)
class AttemptLog:
    """All that is told of an attempt."""

    name: str
    placed_ms: int | None = None
    node_id: str | None = None
    """Where it was placed."""
    epoch: int = -2
    """Of that placement; of several the first of the highest epoch is in effect."""
    starts: list[Told] = field(default_factory=list)
    ends: list[Told] = field(default_factory=list)

    @property
    def events(self) -> list[Told]:
        return [*self.starts, *self.ends]


Fault = tuple[Kind, Place, str]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of an attempt's events: those that are wrong, and whether the rest tells how long it ran."""

    faults: tuple[Fault, ...]
    left_out: frozenset[Place]
    is_usable: bool


def judge(
    attempt: AttemptLog, task: Task | None, known_nodes: frozenset[str], tolerance_s: float, factor: float
) -> Judgement:
    """The first start and the first end that agree are believed; whatever contradicts them is left out.

    An attempt of which no two agree is left out as a whole.
    known_nodes  empty: nothing is known of nodes
    """
    if not attempt.ends:
        faults = [f for told in attempt.starts for f in _place_faults(told, attempt, known_nodes)]
        return Judgement(tuple(faults), frozenset(place for _, place, _ in faults), False)
    faults = []
    starts: list[Told | None] = [*attempt.starts] or [None]
    for end in attempt.ends:
        for start in starts:
            wrong = list(_end_faults(start, end, attempt, task, known_nodes, tolerance_s, factor))
            if not wrong:
                believed = {end.place} | ({start.place} if start else set())
                others = frozenset(t.place for t in attempt.events) - believed
                repeats = [
                    (Kind.DUPLICATE, place, f"{attempt.name} was told otherwise before")
                    for place in others - {place for _, place, _ in faults}
                ]
                return Judgement((*faults, *repeats), others, start is not None)
            faults += [fault for fault in wrong if fault not in faults]
    return Judgement(tuple(faults), frozenset(t.place for t in attempt.events), False)


def _place_faults(told: Told, attempt: AttemptLog, known_nodes: frozenset[str]) -> Iterator[Fault]:
    event = told.event
    if known_nodes and event.node_id not in known_nodes:
        yield Kind.UNKNOWN_NODE, told.place, f"{attempt.name} on {event.node_id!r}, which nobody described or sampled"
    elif attempt.node_id is not None and event.node_id != attempt.node_id:
        yield Kind.OTHER_NODE, told.place, f"{attempt.name} on {event.node_id}, placed on {attempt.node_id}"


def _end_faults(
    start: Told | None,
    end: Told,
    attempt: AttemptLog,
    task: Task | None,
    known_nodes: frozenset[str],
    tolerance_s: float,
    factor: float,
) -> Iterator[Fault]:
    event = end.event
    passed_s = (event.event_time_ms - start.event.event_time_ms) / 1000 if start else math.inf
    run_s = event.runtime_s if event.runtime_s is not None else passed_s
    predicted_s = max(task.runtime_s, LEAST_PREDICTION_S) if task else math.inf
    is_finished = event.kind == EventKind.FINISHED
    if start is not None:
        yield from _place_faults(start, attempt, known_nodes)
    yield from _place_faults(end, attempt, known_nodes)
    if passed_s < 0:
        yield Kind.ENDED_BEFORE_START, end.place, f"{attempt.name} ended {-passed_s:.3f} s before it started"
    elif run_s > passed_s + tolerance_s:
        yield Kind.TOO_LONG, end.place, f"{attempt.name} ran {run_s:.3f} s in the {passed_s:.3f} s until it ended"
    elif is_finished and run_s == 0 and (task is None or task.runtime_s > 0):
        yield Kind.ZERO_RUNTIME, end.place, f"{attempt.name} finished in no time"
    elif math.isfinite(run_s) and run_s > factor * predicted_s:
        yield (
            Kind.FAR_FROM_PREDICTION,
            end.place,
            f"{attempt.name} ran {run_s:.1f} s, {run_s / predicted_s:.0f} times the {predicted_s:.1f} s predicted",
        )
