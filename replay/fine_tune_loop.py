"""The model keeps up with its cluster: fine-tuned from the last hour, every hour, each night, and when called for.

The call is the load-skew breaker's, in the topic `control`. What decides is not changed here: accepted weights are
published, for a canary to try.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import TopicPartition

from policy.weight_set import WeightSet
from replay.fine_tune import Kind, Report
from replay.player import Range
from schemas.codec import Codec
from schemas.errors import HeadraceError, InvalidConfiguration, InvalidInput
from schemas.records import Control
from schemas.topics import CONTROL, TopicSettings
from streams.breaker_watch import RETRAIN
from streams.kafka import KafkaSettings, checked, decoded, fetch, reader

log = logging.getLogger("headrace.fine_tune")

HOUR_S = 3600
DAY_S = 24 * HOUR_S
POLL_S = 1.0
REACH_S = {Kind.USUAL: HOUR_S, Kind.EMERGENCY: HOUR_S, Kind.NIGHTLY: DAY_S}
"""How far back each kind reads."""


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """When weights are fine-tuned without being called for."""

    every_s: float = HOUR_S
    """Between the beginnings of two usual ones."""
    night_s: float | None = 2 * HOUR_S
    """After midnight (UTC), when the last day is learnt from; None: never."""

    def __post_init__(self) -> None:
        if not self.every_s >= 1:
            raise InvalidConfiguration("--every", f"{self.every_s} is too short", "give seconds, 1 or more")
        if self.night_s is not None and not 0 <= self.night_s < DAY_S:
            raise InvalidConfiguration("--night", f"{self.night_s} s is not within a day", "give hours, 0 to 23")


@dataclass
class Schedule:
    """What is due. Times are Unix seconds."""

    settings: ScheduleSettings
    began_s: float
    last_s: dict[Kind, float] = field(default_factory=dict)

    def due(self, now_s: float, is_called: bool) -> Kind | None:
        """What is to be done now: what was called for first, then the night's."""
        if is_called:
            return Kind.EMERGENCY
        if self.settings.night_s is not None:
            tonight_s = (now_s - self.settings.night_s) // DAY_S * DAY_S + self.settings.night_s
            if tonight_s > self.last_s.get(Kind.NIGHTLY, self.began_s):
                return Kind.NIGHTLY
        if now_s - self.last_s.get(Kind.USUAL, self.began_s) >= self.settings.every_s:
            return Kind.USUAL
        return None

    def begins(self, kind: Kind, now_s: float) -> None:
        """This is done now; the night's does for the hour's too."""
        self.last_s[kind] = now_s
        if kind == Kind.NIGHTLY:
            self.last_s[Kind.USUAL] = now_s


class Calls:
    """Calls for emergency retraining of a pool, from the topic `control`. Close it."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings, codec: Codec, pool: str) -> None:
        self._pool = pool
        self._codec = codec
        self._answered_ms = 0
        self._consumer = reader(kafka)
        self._consumer.assign([TopicPartition(topics.full_name(CONTROL), 0, 0)])

    def waiting(self, timeout_s: float, now_ms: int) -> bool:
        """Whether there is a new call that arrived within the last hour; the same call told again is none.

        Raises BrokerError.
        """
        is_called = False
        for message in checked(fetch(self._consumer, 1000, timeout_s)):
            try:
                record: Control = decoded(message, self._codec, Control)
            except InvalidInput as error:
                log.warning("record.refused", extra={"topic": CONTROL.name, "problem": str(error)})
                continue
            is_recent = message.timestamp()[1] >= now_ms - 1000 * HOUR_S
            is_news = record.event_time_ms > self._answered_ms
            if record.command == RETRAIN and record.pool == self._pool and is_recent and is_news:
                self._answered_ms, is_called = record.event_time_ms, True
        return is_called

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()


FineTune = Callable[[Kind, Range], tuple[Report, WeightSet | None]]
Publish = Callable[[WeightSet], object]


class Loop:
    """Fine-tunes when that is due, until `stop` is set."""

    def __init__(
        self,
        schedule: Schedule,
        calls: Calls,
        fine_tune: FineTune,
        publish: Publish,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._schedule = schedule
        self._calls = calls
        self._fine_tune = fine_tune
        self._publish = publish
        self._stop = stop
        self._clock = clock

    def run(self) -> None:
        """Raises BrokerError where the control topic cannot be read; a run that fails is logged."""
        while not self._stop.is_set():
            is_called = self._calls.waiting(POLL_S, round(1000 * self._clock()))
            kind = self._schedule.due(self._clock(), is_called)
            if kind is not None:
                self._run_once(kind)

    def _run_once(self, kind: Kind) -> None:
        now_s = self._clock()
        self._schedule.begins(kind, now_s)
        wanted = Range(round(1000 * (now_s - REACH_S[kind])), round(1000 * now_s))
        try:
            report, weights = self._fine_tune(kind, wanted)
            if weights is not None:
                self._publish(weights)
        except HeadraceError as error:
            log.error("fine_tune.failed", extra={"kind": str(kind), "error": str(error)})
            return
        log.info(
            "fine_tune.done",
            extra={
                "kind": str(kind),
                "verdict": str(report.verdict),
                "why": report.why,
                "version": report.candidate or "",
                "parent": report.parent,
                "decisions": report.decisions,
                "seconds": report.seconds,
            },
        )
