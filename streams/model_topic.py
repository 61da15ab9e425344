"""Weights in the topic `models`, and which of them each pool uses, in `control`.

A set of weights is one record under its version, which stays. What a pool's workers use is one record of `control`
under the pool and the command: it says who chose it, when and why, and what was chosen before it, so that the
compacted topic still has the way back.
"""

from __future__ import annotations

import difflib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from confluent_kafka import Message, TopicPartition

from policy.weight_set import WeightSet, from_record, to_record
from schemas.codec import Codec
from schemas.errors import BrokerError, InvalidInput, UnusableWeights
from schemas.records import Control, Model
from schemas.topics import CONTROL, MODELS, Topic, TopicSettings
from streams.kafka import (
    REQUEST_TIMEOUT_S,
    KafkaSettings,
    Publisher,
    checked,
    decoded,
    fetch,
    read_range,
    reader,
    watermarks,
)

log = logging.getLogger("headrace.models")

USE = "models.use"
"""A command: from now on the pool's workers use the version of its arguments; empty: that of their own settings."""
REFUSED = "models.refused"
"""Not a command: a worker says that a version must not decide, and why."""
CHANNELS = ("stable", "canary", "shadow")
"""What a set of weights is published for."""
HISTORY = 50
"""Earlier choices that a choice keeps."""
VERSION_DIGITS = 12
"""Of its digest, that are the version of a set of weights."""


@dataclass(frozen=True, slots=True)
class Published:
    """A set of weights in the topic, without its files."""

    version: str
    channel: str
    parent: str | None
    at_ms: int
    digest: str
    size: int
    """Bytes of its files."""
    offset: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Which weights a pool uses from this time on, who said so, and why. An empty version: the workers' own."""

    version: str
    at_ms: int
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A worker's answer to weights that must not decide."""

    version: str
    at_ms: int
    who: str
    reason: str


@dataclass
class PoolModels:
    """What is said of one pool's models."""

    chosen: tuple[Choice, ...] = ()
    """The newest last; none: the weights of the workers' settings."""
    refused: dict[str, Refusal] = field(default_factory=dict)
    commands: dict[str, Control] = field(default_factory=dict)
    """All other commands of the pool, by name."""

    @property
    def version(self) -> str:
        """What the workers use; empty: their own."""
        return self.chosen[-1].version if self.chosen else ""


class ModelTopic:
    """What the two topics say, as far as it was read. Belongs to one thread; use it in a `with` block, or close it."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings, codec: Codec) -> None:
        self.published: dict[str, Published] = {}
        self.pools: dict[str, PoolModels] = {}
        self._kafka = kafka
        self._codec = codec
        self._topic_of: dict[str, Topic] = {topics.full_name(topic): topic for topic in (MODELS, CONTROL)}
        self._models_name = topics.full_name(MODELS)
        self._next = dict.fromkeys(self._topic_of, 0)
        self._consumer = reader(kafka)
        self._consumer.assign([TopicPartition(name, 0, 0) for name in self._topic_of])

    def __enter__(self) -> ModelTopic:
        self.catch_up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def catch_up(self) -> None:
        """Read to where the topics end now. Raises BrokerError."""
        ends = {name: watermarks(self._consumer, name, 0)[1] for name in self._topic_of}
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while any(self._position(name) < end for name, end in ends.items()):
            if not self.poll(0.1) and time.monotonic() > deadline:
                raise BrokerError(f"{sorted(ends)} cannot be read to the end within {REQUEST_TIMEOUT_S:g} s")

    def poll(self, timeout_s: float) -> bool:
        """Read what is new; returns whether there was anything. Raises BrokerError."""
        messages = list(checked(fetch(self._consumer, 1000, timeout_s)))
        for message in messages:
            name, offset = message.topic() or "", message.offset() or 0
            self._next[name] = offset + 1
            try:
                record: object = decoded(message, self._codec, self._topic_of[name].record)
                if isinstance(record, Model):
                    self._published(record, offset)
                elif isinstance(record, Control):
                    self._control(record)
            except InvalidInput as error:
                log.warning("record.refused", extra={"topic": name, "offset": offset, "problem": str(error)})
        return bool(messages)

    def of(self, pool: str) -> PoolModels:
        """What is said of this pool's models."""
        return self.pools.setdefault(pool, PoolModels())

    def found(self, version: str) -> Published:
        """The set of weights of this version, or of the only one that begins so. Raises InvalidInput."""
        those = [name for name in self.published if version and name.startswith(version)]
        if len(those) == 1 or version in self.published:
            return self.published[version if version in self.published else those[0]]
        if those:
            raise InvalidInput("models", f"'{version}' is the beginning of {', '.join(those)}", "write more of it")
        near = difflib.get_close_matches(version, self.published, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise InvalidInput("models", f"there is no version '{version}'", f"{hint}'headrace models list' has them all")

    def weights(self, version: str) -> WeightSet:
        """The set of weights of this version, read and checked. Raises UnusableWeights, InvalidInput, BrokerError."""
        for message in read_range(self._kafka, {(self._models_name, 0): self.found(version).offset}):
            record = self._decoded(message)
            if record is not None and record.version == version:
                return from_record(record)
        raise UnusableWeights(f"models: {version} is not in the topic any more; publish it again")

    def _decoded(self, message: Message) -> Model | None:
        try:
            return decoded(message, self._codec, Model)
        except InvalidInput:
            return None

    def _published(self, record: Model, offset: int) -> None:
        size = sum(map(len, record.files.values()))
        self.published[record.version] = Published(
            record.version, record.channel, record.parent, record.event_time_ms, record.digest, size, offset
        )

    def _control(self, record: Control) -> None:
        pool = self.of(record.pool)
        if record.command == USE:
            pool.chosen = _choices(record)
        elif record.command == REFUSED:
            arguments = record.arguments
            refusal = Refusal(
                arguments.get("version", ""),
                record.event_time_ms,
                arguments.get("who", ""),
                arguments.get("reason", ""),
            )
            pool.refused[refusal.version] = refusal
        else:
            pool.commands[record.command] = record

    def _position(self, name: str) -> int:
        (position,) = self._consumer.position([TopicPartition(name, 0)])
        return max(self._next[name], position.offset)


def publish(publisher: Publisher, weights: WeightSet, channel: str) -> Model:
    """Put a set of weights into the topic; it does not decide yet. Raises InvalidInput, BrokerError."""
    if channel not in CHANNELS:
        raise InvalidInput("--channel", f"'{channel}' is unknown", f"give one of {', '.join(CHANNELS)}")
    if weights.manifest.version != weights.digest[:VERSION_DIGITS]:
        raise InvalidInput(
            "manifest.json",
            f"its version is '{weights.manifest.version}', but the digest of the files begins with "
            f"{weights.digest[:VERSION_DIGITS]}",
            "export the weights again: equal names are for equal weights",
        )
    record = to_record(weights, channel, int(time.time() * 1000))
    publisher.send(MODELS, record.version, record)
    publisher.flush()
    return record


def choose(publisher: Publisher, pool: str, before: tuple[Choice, ...], choice: Choice) -> None:
    """Have the pool's workers use these weights from now on. Raises BrokerError."""
    kept = [[c.version, c.at_ms, c.who, c.why] for c in before[-HISTORY:]]
    arguments = {"version": choice.version, "who": choice.who, "why": choice.why, "before": json.dumps(kept)}
    send_control(publisher, Control(pool, choice.at_ms, USE, arguments))


def refuse(publisher: Publisher, pool: str, version: str, who: str, reason: str) -> None:
    """Say that a version must not decide. Raises BrokerError."""
    arguments = {"version": version, "who": who, "reason": reason}
    record = Control(pool, int(time.time() * 1000), REFUSED, arguments)
    publisher.send(CONTROL, f"{pool} {REFUSED} {version}", record)


def send_control(publisher: Publisher, record: Control) -> None:
    """Publish a command in place of the pool's last one of this name. Raises BrokerError."""
    publisher.send(CONTROL, f"{record.pool} {record.command}", record)
    publisher.flush()


def way_back(chosen: tuple[Choice, ...]) -> tuple[str, tuple[Choice, ...]]:
    """The version before the newest choice, and the choices before that one. Raises InvalidInput."""
    if not chosen or (len(chosen) == 1 and not chosen[0].version):
        raise InvalidInput("models", "no version was promoted in this pool", "there is nothing to go back from")
    return (chosen[-2].version if len(chosen) > 1 else ""), chosen[:-2]


def refusal_in_force(models: ModelTopic, pool: str, version: str) -> Refusal | None:
    """Why this version must not decide; None: nothing is known, or it was published again since."""
    refusal, published = models.of(pool).refused.get(version), models.published.get(version)
    is_older = refusal is not None and published is not None and published.at_ms > refusal.at_ms
    return None if is_older else refusal


def _choices(record: Control) -> tuple[Choice, ...]:
    """Raises InvalidInput for what is no choice."""
    arguments: Mapping[str, str] = record.arguments
    try:
        rows = json.loads(arguments["before"])
        before = tuple(Choice(str(version), int(at_ms), str(who), str(why)) for version, at_ms, who, why in rows)
        newest = Choice(arguments["version"], record.event_time_ms, arguments["who"], arguments["why"])
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(f"control: {USE}", f"is no choice of a model ({error!r})") from error
    return (*before, newest)
