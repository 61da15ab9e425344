"""A partition's history, played again: the same records folded in the same steps, the same rounds of decisions.

What is folded here is what the worker folds (`streams.partition`, `policy.state`), in the order that its owners noted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from policy.encodings import NodeInputs, node_inputs
from policy.fencing import Fence
from policy.state import StateSettings
from replay.cast import Cast
from replay.source import Source
from replay.turns import Made, Placed, turns
from schemas.codec import Codec
from schemas.errors import HistoryLost, InvalidInput
from schemas.records import Placement
from schemas.steps import FOLD_ORDER, Encoded, Restored, Took, Uses
from schemas.topics import DECISIONS, PLACEMENTS, SNAPSHOTS, STATE_INPUTS, Topic
from streams import snapshots
from streams.kafka import Stored, decoded
from streams.partition import Partition
from streams.restore import fold_missed
from streams.snapshots import Snapshot

if TYPE_CHECKING:
    from policy.actor import Actor

SLOT_EARLY_MS = 60_000
"""A snapshot's records arrive at most so much before the time that names it, or after: clocks differ."""
LOOK_BACK_MS = 10 * 60_000
"""How far before the wanted time a snapshot is looked for first; four times as far after each miss."""


@dataclass(frozen=True)
class Range:
    """Part of a history: what was decided from `since_ms` up to `until_ms` (broker's clock, Unix milliseconds)."""

    since_ms: int | None = None
    until_ms: int | None = None


@dataclass
class Progress:
    """How far a replay has come."""

    records: int = 0
    decisions: int = 0
    at_ms: int = 0
    """When what is played now arrived."""
    done: float = 0.0
    """Share of the decisions topic that is played, 0 to 1."""
    owners: int = 0
    """That began within what was played."""


@dataclass
class Moment:
    """The states after a step. `made`: what was decided then, in order; `placements`: of each, what was placed."""

    partition: Partition
    made: Sequence[Made]
    placements: Sequence[Sequence[Placement]]
    is_first: bool
    """Whether an owner began here."""
    uses: Mapping[str, Uses] = field(default_factory=dict)
    """Pool -> the weights in use, where they were not those of the worker's settings."""
    is_folded: bool = False
    """Set by who has folded the placements in."""


class Player:
    """Plays one partition of a source.

    actor  the one that decides, where node encodings that came beside the decisions are to be played too
    cast   instead of it, who decided where weights were swapped
    """

    def __init__(
        self,
        source: Source,
        codec: Codec,
        number: int,
        settings: StateSettings,
        actor: Actor | None = None,
        cast: Cast | None = None,
    ) -> None:
        self.progress = Progress()
        self.on_record: Callable[[object], None] = _nothing
        """Is told every record that is folded, in order; some again where an owner begins."""
        self._source = source
        self._codec = codec
        self._number = number
        self._settings = settings
        self._actor = actor
        self._cast = cast
        self._uses: dict[int, Uses] = {}
        self._uses_epoch = -1
        self._bounds = {topic: source.bounds(topic, number) for topic in (*FOLD_ORDER, DECISIONS, SNAPSHOTS)}
        self._inputs = {topic: Inputs(source, topic, number, self._bounds[topic][1]) for topic in STATE_INPUTS}
        self._waiting: dict[str, tuple[NodeInputs, tuple[Actor, ...]]] = {}

    def play(self, wanted: Range) -> Iterator[Moment]:
        """Yields after every step at which a round of decisions was tried, with what came of it.

        Until the next moment is asked for, the states are as the decider's were before it decided; then what was placed
        is folded in, where the caller has not done so. Moments before `wanted` are played, and not yielded.
        Raises HistoryLost where the topics no longer have what it takes.
        """
        decisions = self._bounds[DECISIONS]
        start = self.first_snapshot(wanted)
        partition = self._taken_up(start) if start else None
        if start is not None:
            decisions = (max(decisions[0], self._at(DECISIONS, start.slot - SLOT_EARLY_MS)), decisions[1])
        placed = self._placed(start)
        for turn in turns(self._source.read(DECISIONS, self._number, *decisions), self._codec):
            if wanted.until_ms is not None and turn.at_ms > wanted.until_ms:
                return
            self.progress.at_ms = turn.at_ms
            self.progress.done = (turn.offset - decisions[0]) / max(1, decisions[1] - decisions[0])
            is_wanted = wanted.since_ms is None or turn.at_ms >= wanted.since_ms
            for at, step in enumerate(turn.steps):
                made = turn.made if at + 1 == len(turn.steps) else ()
                if isinstance(step, Uses):
                    self._use(partition, turn.epoch, step)
                    continue
                if isinstance(step, Restored):
                    if start is not None and turn.epoch <= start.epoch:
                        continue
                    partition = self._restored(step, turn.epoch)
                elif partition is None or turn.epoch != partition.epoch:
                    if (
                        is_wanted
                        and wanted.since_ms is not None
                        and (partition is None or turn.epoch > partition.epoch)
                    ):
                        raise HistoryLost(f"{self._name}: nothing tells how its owner began; replay from another time")
                    continue  # its owner began before what is there
                elif isinstance(step, Encoded):
                    self._encode(partition, step)
                    continue
                elif not self._take(partition, step):
                    continue
                moment = self._moment(partition, made, placed, isinstance(step, Restored))
                if is_wanted:
                    yield moment
                if not moment.is_folded:
                    for placement in itertools.chain.from_iterable(moment.placements):
                        partition.pools[placement.pool].apply(placement)
                for placement in itertools.chain.from_iterable(moment.placements):
                    self.on_record(placement)

    def first_snapshot(self, wanted: Range) -> Snapshot | None:
        """With which a replay begins: the newest of then, or the oldest; None: with nothing, since all is there.

        Raises HistoryLost where one is needed, and gone.
        """
        low, high = self._bounds[SNAPSHOTS]
        since_ms = wanted.since_ms
        if since_ms is None:
            begins = {topic.name: self._bounds[topic][0] for topic in FOLD_ORDER}
            return self._snapshot(low, high, oldest_from=begins) if any(begins.values()) else None
        end, look_back_ms = self._at(SNAPSHOTS, since_ms + SLOT_EARLY_MS), LOOK_BACK_MS
        while low < end:
            start = max(low, self._at(SNAPSHOTS, since_ms - look_back_ms))
            found = self._snapshot(start, end, before_ms=since_ms)
            if found is not None:
                return found
            if start == low:
                break
            look_back_ms *= 4
        if self._bounds[DECISIONS][0] > 0:
            raise HistoryLost(
                f"{self._name}: no snapshot of that time or earlier is left; "
                "replay from a later time, or from an archive"
            )
        return None

    @property
    def _name(self) -> str:
        return f"partition {self._number} of {self._source.topics.prefix}*"

    def _at(self, topic: Topic, at_ms: int) -> int:
        return self._source.offset_at(topic, self._number, at_ms)

    def _placed(self, start: Snapshot | None) -> Placed:
        low, high = self._bounds[PLACEMENTS]
        first = max(low, start.offsets.get(PLACEMENTS.name, 0)) if start else low
        return Placed(
            self._source.read(PLACEMENTS, self._number, first, high), self._codec, start.epoch if start else -1
        )

    def _snapshot(
        self,
        start: int,
        end: int,
        *,
        slot: int | None = None,
        before_ms: int | None = None,
        oldest_from: Mapping[str, int] | None = None,
    ) -> Snapshot | None:
        """The newest whole snapshot among these records, of this slot, or of this time or earlier."""

        def admits(its_slot: int) -> bool:
            return (slot is None or its_slot == slot) and (before_ms is None or its_slot <= before_ms)

        stored = self._source.read(SNAPSHOTS, self._number, start, end)
        return snapshots.found(stored, self._codec, self._settings, start, admits, oldest_from=oldest_from)

    def _taken_up(self, saved: Snapshot) -> Partition:
        partition = Partition(self._number, self._source.topics.partitions, self._settings)
        partition.pools.update(saved.pools)
        partition.offsets.update(saved.offsets)
        partition.epoch = saved.epoch
        self._waiting.clear()
        return partition

    def _restored(self, step: Restored, epoch: int) -> Partition:
        """A partition as its new owner restored it."""
        saved = None
        if step.slot >= 0:
            start, end = (self._at(SNAPSHOTS, step.slot + d) for d in (-SLOT_EARLY_MS, SLOT_EARLY_MS))
            saved = self._snapshot(start, end, slot=step.slot)
            if saved is None:
                raise HistoryLost(f"{self._name}: the snapshot {step.slot}, with which an owner began, is gone")
        partition = Partition(self._number, self._source.topics.partitions, self._settings)
        if saved is not None:
            partition = self._taken_up(saved)
        partition.epoch = epoch
        missed = (self._read(topic, *span) for topic, span in zip(FOLD_ORDER, step.ranges, strict=True))
        fence = Fence(saved.epoch if saved else -1)
        self.progress.records += fold_missed(
            partition, self._overheard(itertools.chain.from_iterable(missed)), self._source.topics, self._codec, fence
        )
        self._waiting.clear()
        self.progress.owners += 1
        return partition

    def _overheard(self, missed: Iterable[Stored]) -> Iterator[Stored]:
        """The records, of which whoever wants to know is told."""
        if self.on_record is _nothing:
            yield from missed
            return
        topic_of = {self._source.topics.full_name(topic): topic for topic in FOLD_ORDER}
        for stored in missed:
            with suppress(InvalidInput):
                self.on_record(decoded(stored, self._codec, topic_of[stored.topic() or ""].record))
            yield stored

    def _take(self, partition: Partition, step: Took) -> bool:
        """Fold a chunk; whether there was anything of it that the states had not seen."""
        start = partition.offsets.get(step.topic.name, 0)
        if step.end <= start:
            return False
        for stored in self._inputs[step.topic].take(self._low(step.topic, start), step.end):
            partition.offsets[step.topic.name] = (stored.offset() or 0) + 1
            try:
                record: object = decoded(stored, self._codec, step.topic.record)
                partition.take(record, stored.value() or b"")
                self.on_record(record)
            except InvalidInput:
                pass  # its owner sent it to the dead letters
            self.progress.records += 1
        partition.settle()
        self._look_at_nodes(partition)
        return True

    def _look_at_nodes(self, partition: Partition) -> None:
        """As the worker, which has the nodes of a large pool encoded beside the decisions."""
        for pool, state in partition.pools.items():
            if pool not in self._waiting and any(a.waits_for_encoding(state) for a in self._actors(partition, pool)):
                self._waiting[pool] = node_inputs(state), self._actors(partition, pool)

    def _encode(self, partition: Partition, step: Encoded) -> None:
        pool = list(partition.pools)[step.pool]
        inputs, actors = self._waiting.pop(pool, (None, ()))
        for actor in actors:
            if inputs is not None:
                actor.use(partition.pools[pool], actor.encode(inputs))

    def _use(self, partition: Partition | None, epoch: int, step: Uses) -> None:
        """Other weights decide from here on."""
        if epoch != self._uses_epoch:
            self._uses, self._uses_epoch = {}, epoch
        before, self._uses[step.pool] = self._uses.get(step.pool), step
        if self._cast is None or not step.is_swap or partition is None or partition.epoch != epoch:
            return
        old = self._cast.of(before).actors
        for actor in self._cast.of(step).actors:
            if actor not in old:
                actor.prepare(list(partition.pools.values())[step.pool])

    def _in_use(self, partition: Partition, pool: str) -> Uses | None:
        return self._uses.get(list(partition.pools).index(pool)) if partition.epoch == self._uses_epoch else None

    def _actors(self, partition: Partition, pool: str) -> tuple[Actor, ...]:
        if self._cast is not None:
            return self._cast.of(self._in_use(partition, pool)).actors
        return () if self._actor is None else (self._actor,)

    def _moment(self, partition: Partition, made: Sequence[Made], placed: Placed, is_first: bool) -> Moment:
        self.progress.decisions += sum(len(one.batch.workflow_ids) for one in made)
        uses = {pool: found for pool in partition.pools if (found := self._in_use(partition, pool)) is not None}
        return Moment(partition, made, [placed.of(one.batch) for one in made], is_first, uses)

    def _read(self, topic: Topic, start: int, end: int) -> Iterator[Stored]:
        return self._source.read(topic, self._number, self._low(topic, start), end) if start < end else iter(())

    def _low(self, topic: Topic, start: int) -> int:
        low, _ = self._bounds[topic]
        if start < low:
            raise HistoryLost(
                f"{self._name}: {topic.name} begins at offset {low} by now, and {start} is needed; "
                "replay from a later time, or from an archive"
            )
        return start


def _nothing(record: object) -> None:
    pass


class Inputs:
    """Reads a partition of a topic on and on."""

    def __init__(self, source: Source, topic: Topic, number: int, end: int) -> None:
        self._source = source
        self._where = topic, number
        self._end = end
        self._at = -1
        self._left: Iterator[Stored] = iter(())
        self._ahead: Stored | None = None

    def take(self, start: int, end: int) -> Iterator[Stored]:
        """The records of these offsets; cheap where they follow those taken last."""
        if start != self._at:
            self._left, self._ahead = self._source.read(*self._where, start, self._end), None
        self._at = end
        while (stored := self._ahead or next(self._left, None)) is not None:
            self._ahead = None
            if (stored.offset() or 0) >= end:
                self._ahead = stored
                return
            yield stored
            if (stored.offset() or 0) == end - 1:  # what comes next may be long in coming
                return
