"""Who watches a pool's canary: lets it grow, and takes it back by itself.

A process of its own beside the workers, as the recorder of rewards is. It alone writes how far the canary is, in
`control`; the workers obey that record. The record also has what the guards have seen, and up to where: a controller
that starts again goes on from there. The topics could not tell all of it again, since a canary outlives them.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

from confluent_kafka import Message

from policy.canary_stages import (
    CANARY,
    REQUEST,
    CanarySettings,
    Phase,
    Progress,
    advanced,
    begun,
    ended,
    held_again,
)
from policy.canary_watch import CanaryWatch
from policy.credit import Credits
from policy.sequential import GUARDS, Guardrails
from schemas.codec import Codec
from schemas.errors import InvalidInput, StateLost
from schemas.records import Control, Reward, Stage
from schemas.topics import Topic
from streams import metrics
from streams.config import Settings
from streams.kafka import KafkaSettings, Publisher
from streams.model_topic import Choice, ModelTopic, choose, refusal_in_force, send_control
from streams.rewards import Rewards

log = logging.getLogger("headrace.canary")

WARM_UP_MS = 15 * 60 * 1000
"""Records before a canary that are read too: nodes, workflows that are under way."""
LOOK_BACK_MS = 24 * 3600 * 1000
"""A controller that starts again reads no further back; workflows that are older say nothing."""
REQUEST_MS = 60_000
"""A request that nobody has obeyed for so long is void."""


def now_ms() -> int:
    """The wall's clock."""
    return int(1000 * time.time())


class Controller:
    """Of one pool. `clock` says how long a stage has lasted."""

    def __init__(
        self,
        settings: Settings,
        kafka: KafkaSettings,
        codec: Codec,
        publisher: Publisher,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.pool = settings.pool
        self.progress: Progress | None = None
        self._settings = settings
        self._canary: CanarySettings = settings.canary
        self._kafka = kafka
        self._codec = codec
        self._publisher = publisher
        self._clock = clock
        self._models = ModelTopic(kafka, settings.topics, codec)
        self._watch: CanaryWatch | None = None
        self._rewards: Rewards | None = None
        self._since: dict[str, int] = {}
        self._counted: dict[str, int] = {}
        self._is_new = False
        self._obeyed = ""
        self._answer = ""
        self._stable = ""
        self._looked = time.monotonic()
        self._saved = 0.0
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """Have `run` return soon."""
        self._is_stopping.set()

    def close(self) -> None:
        """Stop reading."""
        self._models.close()

    def run(self) -> None:
        """Watch until it is stopped. Raises BrokerError."""
        self.begin()
        while not self._is_stopping.wait(self._canary.look_s):
            self.look()

    def begin(self) -> None:
        """Go on where the last controller stopped. Raises BrokerError."""
        self._models.catch_up()
        record = self._models.of(self.pool).commands.get(CANARY)
        self._stable = self._models.of(self.pool).version
        if record is None:
            return
        try:
            self.progress = Progress.of(record)
            self._obeyed = record.arguments.get("obeyed", "")
            if self.progress.is_running:
                self._resume(record)
        except (InvalidInput, StateLost) as error:
            log.error("canary.lost", extra={"problem": str(error)})
            if self.progress is not None and self.progress.is_running:
                self._end(Phase.BACK, f"what its guards had seen cannot be read: {error}")

    def look(self) -> None:
        """What is new, and what follows from it. Raises BrokerError."""
        self._models.catch_up()
        self._note_absence()
        self._obey()
        if self.progress is not None and self.progress.is_running:
            self._observe()
            self._judge()
        self._show()

    # Requests of operators.

    def _obey(self) -> None:
        request = self._models.of(self.pool).commands.get(REQUEST)
        if request is None or request.arguments.get("id", "") == self._obeyed:
            return
        if now_ms() - request.event_time_ms > REQUEST_MS:
            return
        arguments = request.arguments
        self._obeyed, self._answer = arguments.get("id", ""), ""
        try:
            if arguments.get("action") == "start":
                self._start(arguments.get("version", ""), arguments.get("who", ""), arguments.get("why", ""))
            elif self.progress is None or not self.progress.is_running:
                raise InvalidInput("canary", "none is running", "'headrace canary status' tells of the last one")
            else:
                self._end(Phase.STOPPED, f"stopped by {arguments.get('who', '')}: {arguments.get('why', '')}")
        except InvalidInput as error:
            self._answer = str(error)
            log.warning("canary.request_refused", extra={"problem": self._answer})
            self._save()

    def _start(self, asked: str, who: str, why: str) -> None:
        version = self._models.found(asked).version
        if self.progress is not None and self.progress.is_running:
            raise InvalidInput(
                "canary", f"{self.progress.version} is one already", "stop it first, or wait for its end"
            )
        if version == self._models.of(self.pool).version:
            raise InvalidInput("canary", f"{version} is the stable model already", "choose another version")
        if refusal := refusal_in_force(self._models, self.pool, version):
            raise InvalidInput("canary", f"{version} was refused: {refusal.reason}", "publish it again once repaired")
        self.progress = begun(self._canary, version, self._clock(), who, why)
        self._stable = self._models.of(self.pool).version
        self._watch = CanaryWatch(version, self.progress.classes, Guardrails(self._canary.guardrails))
        self._since = self._counted = {}
        self._rewards = self._reader(now_ms() - WARM_UP_MS)
        for _ in self._rewards.news():  # builds what was there before it began
            pass
        self._since = self._counted = self._rewards.offsets
        log.info("canary.started", extra={"version": version, "share": self.progress.share, "who": who})
        self._save()

    # What it does.

    def _resume(self, record: Control) -> None:
        """Raises StateLost."""
        assert self.progress is not None
        arguments = record.arguments
        try:
            since, counted = json.loads(arguments["since"]), json.loads(arguments["counted"])
            plain = json.loads(arguments["watch"])
            self._watch = CanaryWatch.from_plain(plain, self.progress.version, self.progress.classes)
        except (LookupError, TypeError, ValueError) as error:
            raise StateLost(f"control: {CANARY} is incomplete ({error!r}); begin the canary anew") from error
        self._since, self._counted = since, counted
        self._stable = arguments.get("stable", "")
        self._rewards = self._reader(max(now_ms() - LOOK_BACK_MS, self.progress.began_ms - WARM_UP_MS))
        away_s = (now_ms() - record.event_time_ms) / 1000
        if away_s > self._canary.away_s:
            self._hold_again(f"nobody watched for {away_s:.0f} s")

    def _reader(self, since_ms: int) -> Rewards:
        credits = Credits(self.pool, self._settings.reward, self._settings.cost, self._settings.state)
        return Rewards(self._kafka, self._settings.topics, self._codec, self.pool, credits, max(0, since_ms), self._see)

    def _see(self, topic: Topic, record: object, message: Message) -> None:
        assert self._watch is not None
        offset = message.offset() or 0
        self._is_new = bool(self._counted) and offset >= self._counted.get(topic.name, 0)
        is_since = bool(self._since) and offset >= self._since.get(topic.name, 0)
        self._watch.see(record, message.timestamp()[1], self._is_new, is_since)

    def _observe(self) -> None:
        """Give the guards what is new."""
        assert self._watch is not None
        assert self._rewards is not None
        assert self.progress is not None
        settled = ((r, self._is_new) for r in self._rewards.news() if r.stage == Stage.SETTLED)
        for _, its in groupby(settled, lambda pair: pair[0].workflow_id):
            rewards: list[tuple[Reward, bool]] = list(its)
            self._watch.settled([reward for reward, _ in rewards], rewards[0][1])
        self._watch.end_batch()
        self._counted = {
            name: max(offset, self._counted.get(name, 0)) for name, offset in self._rewards.offsets.items()
        }
        self.progress = replace(self.progress, decisions=self.progress.decisions + self._watch.take_decisions())
        if odd := self._watch.take_odd():
            self._hold_again(odd)

    def _judge(self) -> None:
        """Take it back, let it grow, or let it be."""
        assert self._watch is not None
        assert self.progress is not None
        version, verdict = self.progress.version, self._watch.guards.verdict()
        refusal = refusal_in_force(self._models, self.pool, version)
        if verdict.cause is not None:
            self._end(Phase.BACK, verdict.cause)
        elif refusal is not None:
            self._end(Phase.BACK, f"refused by {refusal.who}: {refusal.reason}")
        else:
            if (stable := self._models.of(self.pool).version) != self._stable:
                self._stable = stable
                self._hold_again(f"{stable or 'what the workers came with'} is the stable model now")
            before, self.progress = self.progress, advanced(self.progress, self._canary, self._clock())
            if self.progress.phase == Phase.PROMOTED:
                self._promote()
            elif self.progress.stage != before.stage:
                log.info("canary.grew", extra={"version": version, "share": self.progress.share})
                self._save()
            elif time.monotonic() - self._saved >= self._canary.save_s:
                self._save()

    def _promote(self) -> None:
        assert self.progress is not None
        choice = Choice(self.progress.version, now_ms(), self.progress.who, f"canary passed: {self.progress.why}")
        choose(self._publisher, self.pool, self._models.of(self.pool).chosen, choice)
        self._ended()

    def _end(self, phase: Phase, cause: str) -> None:
        assert self.progress is not None
        self.progress = ended(self.progress, phase, self._clock(), cause)
        self._ended()

    def _ended(self) -> None:
        assert self.progress is not None
        phase, cause = self.progress.phase, self.progress.cause
        level = logging.ERROR if phase == Phase.BACK else logging.INFO
        log.log(level, "canary.ended", extra={"version": self.progress.version, "phase": phase, "cause": cause})
        metrics.CANARIES_ENDED.labels(phase).inc()
        self._save()

    def _hold_again(self, what: str) -> None:
        assert self.progress is not None
        is_news = self.progress.since_ms != self._clock()
        self.progress = held_again(self.progress, self._clock(), what)
        if is_news:
            log.warning("canary.holds_again", extra={"version": self.progress.version, "what": what})

    def _note_absence(self) -> None:
        away_s, self._looked = time.monotonic() - self._looked, time.monotonic()
        if away_s > self._canary.away_s and self.progress is not None and self.progress.is_running:
            self._hold_again(f"nobody watched for {away_s:.0f} s")

    def _save(self) -> None:
        """Write how far it is, and all that is needed to go on: in one record, so that they belong together."""
        kept = {"obeyed": self._obeyed, "answer": self._answer, "stable": self._stable}
        if self.progress is not None:
            if self._watch is not None:
                evidence = dict(self._watch.guards.verdict().evidence)
                numbers = {name: getattr(self._watch.guards, name).numbers() for name in GUARDS}
                kept |= {"evidence": json.dumps(evidence), "numbers": json.dumps(numbers)}
                if self.progress.is_running:
                    kept |= {"since": json.dumps(self._since), "counted": json.dumps(self._counted)}
                    kept |= {"watch": json.dumps(self._watch.to_plain())}
            send_control(self._publisher, self.progress.record(self.pool, now_ms(), kept))
        else:
            send_control(self._publisher, Control(self.pool, now_ms(), CANARY, kept))
        self._saved = time.monotonic()

    def _show(self) -> None:
        is_running = self.progress is not None and self.progress.is_running
        metrics.CANARY_STAGE.labels(self.pool).set(self.progress.stage + 1 if is_running and self.progress else 0)
        if self._watch is not None:
            for name, ratio in self._watch.guards.verdict().evidence.items():
                metrics.CANARY_EVIDENCE.labels(name).set(ratio)


def ask(publisher: Publisher, pool: str, action: str, version: str, who: str, why: str) -> str:
    """Ask the controller for something; returns the request's id. Raises BrokerError."""
    request_id = f"{time.time_ns()}"
    arguments = {"action": action, "version": version, "who": who, "why": why, "id": request_id}
    send_control(publisher, Control(pool, now_ms(), REQUEST, arguments))
    return request_id


def answer_to(models: ModelTopic, pool: str, request_id: str, within_s: float) -> Control:
    """The controller's record after it has obeyed, or refused, which raises InvalidInput."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        models.poll(0.2)
        record = models.of(pool).commands.get(CANARY)
        if record is not None and record.arguments.get("obeyed") == request_id:
            if problem := record.arguments.get("answer", ""):
                raise InvalidInput("canary", problem)
            return record
    raise InvalidInput(
        "canary", f"no controller of pool {pool} answers", "start one with 'headrace canary run', and ask again"
    )
