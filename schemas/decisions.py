"""The rows of a batch's evidence: one decision each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from schemas.records import DecisionBatch


@dataclass(frozen=True, slots=True)
class Decision:
    """Why one attempt was placed where it was, or not at all."""

    workflow_id: str
    task_id: str
    attempt: int
    draw: float
    """The number in [0, 1) that chose among the probabilities."""
    node_id: str | None
    feasible: int
    """Nodes that could take the task, before the batch."""
    candidates: tuple[str, ...]
    """The nodes that were looked at first, best first."""
    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    rejections: Mapping[str, int]
    """Reason -> nodes."""


def decisions_of(batch: DecisionBatch) -> Iterator[Decision]:
    """The batch's decisions, in the order in which they were made."""
    for row, workflow_id in enumerate(batch.workflow_ids):
        first = row * batch.width
        known = sum(1 for name in batch.candidates[first : first + batch.width] if name)
        part = slice(first, first + known)
        yield Decision(
            workflow_id,
            batch.task_ids[row],
            batch.attempts[row],
            batch.draws[row],
            batch.node_ids[row] or None,
            batch.feasible[row],
            batch.candidates[part],
            batch.scores[part],
            batch.probabilities[part],
            batch.rejections[row] if batch.rejections else {},
        )


def without_decisions(
    pool: str, event_time_ms: int, epoch: int, as_of: tuple[int, ...], steps: tuple[int, ...]
) -> DecisionBatch:
    """A batch of no decisions, that tells what was done to the states meanwhile."""
    none: tuple[()] = ()
    return DecisionBatch(
        pool,
        event_time_ms,
        "",
        "",
        epoch,
        as_of,
        0.0,
        none,
        none,
        none,
        none,
        none,
        none,
        0,
        none,
        none,
        none,
        none,
        steps,
    )
