"""A shadow beside a running cluster: reads what the workers read, and publishes what it would have decided."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from prometheus_client import Gauge

from replay.player import Player, Range
from replay.promotion import Promotion, PromotionSettings
from replay.shadow import Choice, Shadow
from replay.shadow_report import Saved, difference, found_in, key_of, record_of, words
from replay.source import FollowingSource
from schemas.codec import Codec
from schemas.errors import HistoryLost
from schemas.topics import CONTROL, SHADOW_PLACEMENTS, partition_of
from streams.config import Settings
from streams.kafka import Publisher

log = logging.getLogger("headrace.shadow")

SAVE_S = 30.0
AGAIN_S = 5.0

DECISIONS = Gauge("headrace_shadow_decisions", "Recorded decisions that the candidate was asked about.", ["candidate"])
AGREEMENT = Gauge("headrace_shadow_agreement", "Share of them on which it chose the same node.", ["candidate"])
DIFFERENCE = Gauge(
    "headrace_shadow_difference",
    "Mean difference of makespan or cost where recorded states were played on, candidate less incumbent, as a share.",
    ["candidate", "of"],
)
DAYS = Gauge("headrace_shadow_better_days", "Days in a row on which the candidate was better.", ["candidate"])
PROMOTED = Gauge("headrace_shadow_promoted", "1 where the promotion rule was met.", ["candidate"])


class LiveShadow:
    """Runs until `stop` is set; what it keeps is saved now and then, and it goes on from there."""

    def __init__(
        self,
        settings: Settings,
        shadow_of: Callable[[], Shadow],
        candidate: str,
        codec: Codec,
        publisher: Publisher,
        saved: Saved | None,
        rule: PromotionSettings,
    ) -> None:
        self.stop = threading.Event()
        self.promotion = saved.promotion if saved else Promotion(rule)
        self._settings = settings
        self._shadow_of = shadow_of
        self._candidate = candidate
        self._codec = codec
        self._publisher = publisher
        self._since_ms = saved.at_ms if saved else int(time.time() * 1000)
        self._saved_at = time.monotonic()

    def run(self) -> None:
        """Blocks. Raises BrokerError."""
        while not self.stop.is_set():
            try:
                self._watch()
            except HistoryLost as error:  # it was away for longer than the topics go back
                log.warning("shadow.begins_anew", extra={"error": str(error)})
                self._since_ms = int(time.time() * 1000)
                self.stop.wait(AGAIN_S)

    def _watch(self) -> None:
        settings = self._settings
        number = partition_of(settings.pool, settings.topics.partitions)
        source = FollowingSource(settings.kafka, settings.topics, self.stop)
        player = Player(source, self._codec, number, settings.state)
        shadow, judged = self._shadow_of(), 0
        for choices in shadow.watch(player, Range(since_ms=self._since_ms)):
            self._publish(choices, number)
            for pair in shadow.report.pairs[judged:]:
                self.promotion.observe(difference(pair))
            judged = len(shadow.report.pairs)
            if time.monotonic() - self._saved_at > SAVE_S:
                self._save(shadow, player)
        for pair in shadow.report.pairs[judged:]:
            self.promotion.observe(difference(pair))
        self._save(shadow, player)

    def _publish(self, choices: list[Choice], number: int) -> None:
        for choice in choices:
            self._publisher.send(SHADOW_PLACEMENTS, choice.placement.pool, choice.placement, number)

    def _save(self, shadow: Shadow, player: Player) -> None:
        self._saved_at = time.monotonic()
        self._since_ms = max(self._since_ms, player.progress.at_ms + 1)
        found = found_in(shadow.report, self._candidate)
        saved = Saved(self._candidate, self._since_ms, self.promotion, "\n".join(words(found)))
        pool = self._settings.pool
        self._publisher.send(CONTROL, key_of(pool), record_of(saved, pool, int(time.time() * 1000)))
        self._publisher.flush()
        DECISIONS.labels(self._candidate).set(found.decisions)
        AGREEMENT.labels(self._candidate).set(found.agreement)
        DIFFERENCE.labels(self._candidate, "makespan").set(found.makespan)
        DIFFERENCE.labels(self._candidate, "cost").set(found.cost)
        DAYS.labels(self._candidate).set(len(self.promotion.row))
        PROMOTED.labels(self._candidate).set(self.promotion.is_promoted)
