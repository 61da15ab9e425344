"""What a worker tells of its pools' load-skew breakers: metrics, log lines, and the call for emergency retraining."""

from __future__ import annotations

import json
import logging

from policy.breaker import Breaker
from policy.state import State
from schemas.records import Control
from schemas.topics import CONTROL, STATE_INPUTS
from streams import metrics
from streams.kafka import Publisher
from streams.partition import Partition

log = logging.getLogger("headrace.breaker")

RETRAIN = "retrain.emergency"
"""A command in the topic `control`. Who is told twice is told the same event time."""


class BreakerWatch:
    """Of all pools of a worker."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._seen: dict[str, tuple[int, bool]] = {}
        self._asked: dict[str, int] = {}

    def look(self, partition: Partition, state: State, version: str) -> None:
        """Tell what is new of the pool's breaker; `version`: of the weights in use.

        A new owner tells its predecessor's last call again: that one may have died before it could.
        """
        breaker, pool = state.breaker, state.pool
        metrics.BREAKER_OPEN.labels(pool).set(breaker.is_open)
        metrics.CPU_SPREAD.labels(pool).set(breaker.spread)
        before, now = self._seen.get(pool), (breaker.openings, breaker.is_open)
        self._seen[pool] = now
        if before is not None and before != now:
            metrics.BREAKER_OPENINGS.inc(max(0, now[0] - before[0]))
            event = "breaker.opened" if breaker.is_open else "breaker.closed"
            log.warning(event, extra={"pool": pool, "spread": breaker.spread, "openings": breaker.openings})
        if breaker.asked_ms is not None and self._asked.get(pool) != breaker.asked_ms:
            self._asked[pool] = breaker.asked_ms
            record = retraining(pool, breaker, partition.as_of, partition.placements_offset, version)
            self._publisher.send(CONTROL, f"{pool} {record.command}", record)


def retraining(pool: str, breaker: Breaker, as_of: tuple[int, ...], placements: int, version: str) -> Control:
    """The call of a breaker that asked for training.

    Its arguments: `from_ms`, `to_ms` (event time) of the skewed decisions; `until`, a JSON object: topic -> the offset
    after the newest of its records that the pool's owner knew; `spread`, `openings`, and the `version` in use.
    """
    assert breaker.asked_ms is not None
    until = {topic.name: offset for topic, offset in zip(STATE_INPUTS, as_of, strict=True)}
    arguments = {
        "from_ms": str(breaker.asked_ms - round(1000 * breaker.settings.retrain_s)),
        "to_ms": str(breaker.asked_ms),
        "until": json.dumps({**until, "placements": placements}),
        "spread": f"{breaker.spread:.4f}",
        "openings": str(breaker.openings),
        "version": version,
    }
    return Control(pool, breaker.asked_ms, RETRAIN, arguments)
