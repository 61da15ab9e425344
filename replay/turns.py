"""What a partition's owners did, step by step, as the decisions topic tells it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from policy.fencing import Fence
from policy.ledger import AttemptKey
from schemas import steps as told
from schemas.codec import Codec
from schemas.errors import InvalidInput
from schemas.records import DecisionBatch, Outcome, Placement
from schemas.steps import Step
from streams.kafka import Stored, decoded


@dataclass(frozen=True, slots=True)
class Made:
    """A batch of decisions, where it lies in its topic, and when it arrived (broker's clock, ms)."""

    batch: DecisionBatch
    offset: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Inputs that were folded one after the other, and what was decided after the last of them."""

    epoch: int
    steps: Sequence[Step]
    made: Sequence[Made]
    offset: int
    """Of the first record that tells of it, in the decisions topic."""
    at_ms: int
    """When that arrived (broker's clock)."""


def turns(decisions: Iterable[Stored], codec: Codec) -> Iterator[Turn]:
    """The turns that these records of the decisions topic tell of. What an older headrace wrote tells no steps.

    Raises InvalidRecord for steps that are not known here; other bad records are left out.
    """
    steps: list[Step] = []
    made: list[Made] = []
    epoch, offset, at_ms = -1, 0, 0
    for stored in decisions:
        try:
            batch = decoded(stored, codec, DecisionBatch)
        except InvalidInput:
            continue
        here, arrived_ms = stored.offset() or 0, stored.timestamp()[1]
        if batch.steps:
            if steps:
                yield Turn(epoch, steps, made, offset, at_ms)
            steps, made, epoch = list(told.read(batch.steps)), [], batch.epoch
            offset, at_ms = here, arrived_ms
        if batch.workflow_ids and steps and batch.epoch == epoch:
            made.append(Made(batch, here, arrived_ms))
    if steps:
        yield Turn(epoch, steps, made, offset, at_ms)


class Placed:
    """The placements that are in effect, handed out batch by batch."""

    def __init__(self, placements: Iterable[Stored], codec: Codec, epoch: int = -1) -> None:
        """epoch  of the owner before the first of these records"""
        self._left = self._admitted(placements, codec, Fence(epoch))
        self._ahead: deque[Placement] = deque()
        self.without_evidence = 0
        """Placements in effect that no batch tells of: their owner died in between."""

    def of(self, batch: DecisionBatch) -> list[Placement]:
        """The batch's placements, as far as they are in the topic."""
        wanted = set(_keys(batch))
        found: list[Placement] = []
        while wanted and (placement := self._next()) is not None:
            key = (placement.workflow_id, placement.task_id, placement.attempt)
            if placement.epoch > batch.epoch:
                self._ahead.appendleft(placement)
                break
            if placement.epoch == batch.epoch and key in wanted:
                wanted.discard(key)
                found.append(placement)
            else:
                self.without_evidence += 1
        return found

    def _next(self) -> Placement | None:
        return self._ahead.popleft() if self._ahead else next(self._left, None)

    @staticmethod
    def _admitted(placements: Iterable[Stored], codec: Codec, fence: Fence) -> Iterator[Placement]:
        for stored in placements:
            try:
                placement = decoded(stored, codec, Placement)
            except InvalidInput:
                continue
            if fence.admits(placement, stored.offset() or 0) and placement.outcome != Outcome.OWNER:
                yield placement


def _keys(batch: DecisionBatch) -> Iterator[AttemptKey]:
    """The attempts of which the batch tells a placement: all where none had candidates, else those with a node."""
    for workflow_id, task_id, attempt, node_id in zip(
        batch.workflow_ids, batch.task_ids, batch.attempts, batch.node_ids, strict=True
    ):
        if node_id or not batch.width:
            yield workflow_id, task_id, attempt
