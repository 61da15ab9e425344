"""The history of a pool whose scheduler left no evidence: its records in the order in which the broker received them.

The scheduler may be anyone whose placements are in the topic, a recorded kube-scheduler included.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from policy.arbiter import draw
from policy.fencing import Fence
from policy.state import StateSettings
from replay.player import Moment, Progress, Range
from replay.source import Source
from replay.turns import Made
from schemas.codec import Codec
from schemas.errors import InvalidInput
from schemas.records import DecisionBatch, Outcome, Placement
from schemas.steps import FOLD_ORDER
from schemas.topics import PLACEMENTS, Topic
from streams.kafka import Stored, decoded
from streams.partition import Partition


class Arrivals:
    """Plays one partition of a source, like `replay.player.Player`, without what only evidence can tell."""

    def __init__(self, source: Source, codec: Codec, number: int, settings: StateSettings) -> None:
        self.progress = Progress()
        self.on_record: Callable[[object], None] = lambda record: None
        self._source = source
        self._codec = codec
        self._number = number
        self._settings = settings

    def play(self, wanted: Range) -> Iterator[Moment]:
        """Yields before each placement is folded in. Moments before `wanted` are played, and not yielded."""
        partition = Partition(self._number, self._source.topics.partitions, self._settings)
        fence, rank = Fence(), {topic.name: at for at, topic in enumerate(FOLD_ORDER)}
        spans = {topic: self._source.bounds(topic, self._number) for topic in FOLD_ORDER}
        total, first_ms = sum(high - low for low, high in spans.values()), None

        def order(item: tuple[Topic, Stored]) -> tuple[int, int]:
            return item[1].timestamp()[1], rank[item[0].name]

        def read(topic: Topic) -> Iterator[tuple[Topic, Stored]]:
            return ((topic, stored) for stored in self._source.read(topic, self._number, *spans[topic]))

        for topic, stored in heapq.merge(*map(read, FOLD_ORDER), key=order):
            at_ms, offset = stored.timestamp()[1], stored.offset() or 0
            if wanted.until_ms is not None and at_ms > wanted.until_ms:
                return
            first_ms = at_ms if first_ms is None else first_ms
            self.progress.at_ms = at_ms
            self.progress.records += 1
            self.progress.done = self.progress.records / max(1, total)
            try:
                record: object = decoded(stored, self._codec, topic.record)
                if topic is PLACEMENTS:
                    assert isinstance(record, Placement)
                    if not fence.admits(record, offset) or record.outcome == Outcome.OWNER:
                        continue
                    partition.settle()
                    partition.check(record)
                    if record.outcome == Outcome.PLACED and record.pool in partition.pools:
                        self.progress.decisions += 1
                        moment = Moment(partition, (Made(_evidence(record), offset, at_ms),), ((record,),), False)
                        if wanted.since_ms is None or at_ms >= wanted.since_ms:
                            yield moment
                        if moment.is_folded:
                            self.on_record(record)
                            continue
                partition.take(record, stored.value() or b"")
                self.on_record(record)
            except InvalidInput:
                continue  # whoever decided could make nothing of it either
        partition.settle()


def _evidence(placement: Placement) -> DecisionBatch:
    """What a placement tells by itself."""
    key = (placement.workflow_id, placement.task_id, placement.attempt)
    ids: tuple[tuple[str], tuple[str], tuple[int]] = ((key[0],), (key[1],), (key[2],))
    return DecisionBatch(
        placement.pool,
        placement.event_time_ms,
        placement.policy,
        placement.model_version,
        placement.epoch,
        placement.as_of,
        0.0,
        *ids,
        (draw(*key),),
        (placement.node_id or "",),
        (0,),
        1,
        (placement.node_id or "",),
        (0.0,),
        (1.0,),
    )
