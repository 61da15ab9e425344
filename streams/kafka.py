"""Clients of Kafka: a publisher, a reader without a group, the settings of a member of one."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata

from schemas.codec import Codec
from schemas.errors import BrokerError, InvalidConfiguration
from schemas.topics import CATALOGUE, Topic, TopicSettings, partition_of

log = logging.getLogger("headrace.kafka")

REQUEST_TIMEOUT_S = 30.0
CONNECT_S = 10.0
"""A Kafka that has not answered by then is said to be away."""
STATISTICS_MS = 2000
"""How often a member of the group looks which brokers it is connected to."""
SEND_TIMEOUT_MS = 30_000
MAX_POLL_MS = 300_000
"""A member that asks for no records for so long is taken for dead."""
FULL_WAIT_S = 30.0
READ_S = 0.02
"""How long a read waits for more records before it hands on those that came."""
ASK_AGAIN_S = 0.1
PASSING = frozenset(
    (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # of a topic that was made a moment ago
    )
)
"""Errors that end by themselves."""

ENDING = frozenset(
    (
        KafkaError._FATAL,  # a member that shares its instance's name with a newer one, for instance
        KafkaError._FENCED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    )
)
"""Errors of a consumer after which it reads nothing any more."""

Answer = TypeVar("Answer")
Record = TypeVar("Record")


class Stored(Protocol):
    """A record as the broker keeps it: a message of confluent_kafka, or one from an archive."""

    def topic(self) -> str | None:
        """The topic's full name."""

    def partition(self) -> int | None:
        """Its partition."""

    def offset(self) -> int | None:
        """Its place in the partition."""

    def timestamp(self) -> tuple[int, int]:
        """What kind of time it is, and the time, Unix milliseconds."""

    def key(self) -> bytes | None:
        """Its key."""

    def value(self) -> bytes | None:
        """The payload; None is a tombstone."""

    def headers(self) -> Any:
        """Its headers: pairs of a name and bytes, or nothing."""


@dataclass(frozen=True, kw_only=True)
class KafkaSettings:
    """Where Kafka is."""

    bootstrap_servers: str = ""
    """host:port, several divided by commas. Empty: a broker of headrace's own is started where one is needed."""
    schema_registry_url: str = ""
    """With one, records are written in the Confluent wire format; without, in Avro's single-object encoding."""
    linger_ms: float = 1.0
    """How long a record may wait for others to be sent with."""

    def __post_init__(self) -> None:
        for server in filter(None, self.bootstrap_servers.split(",")):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise InvalidConfiguration(
                    "kafka.bootstrap_servers", f"'{server}' is not host:port", "write for instance 'localhost:9092'"
                )
        if not 0 <= self.linger_ms <= 1000:
            raise InvalidConfiguration("kafka.linger_ms", f"{self.linger_ms} is out of range", "give 0 to 1000")


def _quiet(_: KafkaError) -> None:
    """librdkafka reports every lost connection; what matters comes back as a failed request."""


def admin(kafka: KafkaSettings) -> AdminClient:
    """A client for topics."""
    return AdminClient(client_settings(kafka))


def client_settings(kafka: KafkaSettings) -> dict[str, object]:
    """What every client of Kafka is told."""
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "client.id": "headrace",
        "reconnect.backoff.max.ms": 2000,
        "log.connection.close": False,
        "error_cb": _quiet,
        "logger": logging.getLogger("headrace.librdkafka"),
    }


def brokers_found(statistics: str) -> bool:
    """Whether a client is connected to a broker: librdkafka's statistics, as `stats_cb` gets them."""
    return any(broker["state"] == "UP" for broker in json.loads(statistics)["brokers"].values())


def metadata(client: AdminClient, kafka: KafkaSettings, timeout_s: float = CONNECT_S) -> ClusterMetadata:
    """What topics there are. Raises BrokerError."""
    try:
        return client.list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise BrokerError(
            f"Kafka at {kafka.bootstrap_servers} does not answer: {error.args[0].str()}; "
            "check kafka.bootstrap_servers (HEADRACE_KAFKA__BOOTSTRAP_SERVERS)"
        ) from error


OnFailure = Callable[[BrokerError], None]


class Publisher:
    """Sends records, in order for each partition, and says when one could not be delivered.

    Idempotent: a retry makes no duplicate. `on_failure` is called from another thread, once, with what went wrong; what
    was sent after that may be lost, so its owner ends and lets a successor carry on from the topics.
    """

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings, codec: Codec) -> None:
        self._topics = topics
        self._codec = codec
        self.on_failure: OnFailure | None = None
        self._failure: BrokerError | None = None
        self._sent = 0
        self._lock = threading.Lock()
        self._in_flight: dict[int, None] = {}
        self._names = {topic: topics.full_name(topic) for topic in CATALOGUE}
        self._producer = Producer(
            {
                **client_settings(kafka),
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": kafka.linger_ms,
                "max.in.flight": 1,  # what is sent meanwhile goes together: a third of the requests under load
                "message.timeout.ms": SEND_TIMEOUT_MS,
                "message.max.bytes": 8_000_000,
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
            }
        )
        self._stopping = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="publisher", daemon=True)
        self._poller.start()

    @property
    def sent(self) -> int:
        """Records handed over so far."""
        return self._sent

    def wait_for(self, sent: int, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Wait until the first `sent` records are delivered. Raises BrokerError when they are not."""
        deadline = time.monotonic() + timeout_s
        while self._failure is None and self._oldest_in_flight() <= sent:
            if self._stopping.is_set():
                raise BrokerError("the publisher was closed before all records were delivered")
            if time.monotonic() > deadline:
                raise BrokerError(f"records were not delivered within {timeout_s:g} s")
            time.sleep(0.002)
        if self._failure is not None:
            raise self._failure

    def _oldest_in_flight(self) -> float:
        """Number of the oldest record that is not confirmed; infinity where all are."""
        while True:
            try:
                return next(iter(self._in_flight), float("inf"))
            except RuntimeError:  # the other thread took one out meanwhile
                continue

    def send(
        self,
        topic: Topic,
        key: str,
        record: object,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        on_delivery: Callable[[Message], None] | None = None,
    ) -> None:
        """Hand a record over; waits where too many are on their way. Raises BrokerError after a failure."""
        self.send_bytes(topic, key, self._codec.encode(record, self._names[topic]), partition, headers, on_delivery)

    def send_bytes(
        self,
        topic: Topic,
        key: str,
        payload: bytes | None,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        on_delivery: Callable[[Message], None] | None = None,
    ) -> None:
        """The same for bytes that are encoded already; None is a tombstone."""
        if self._failure is not None:
            raise self._failure
        if partition is None:
            count = self._topics.partition_count(topic)
            partition = partition_of(key, count) if count > 1 else 0
        deadline = time.monotonic() + FULL_WAIT_S
        with self._lock:
            number = self._sent = self._sent + 1
            self._in_flight[number] = None
        while True:
            try:
                self._producer.produce(
                    self._names[topic],
                    payload,
                    key,
                    partition,
                    headers=dict(headers) if headers else None,
                    on_delivery=partial(self._report, number, on_delivery),
                )
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise BrokerError(f"{len(self._in_flight)} records wait, and Kafka takes none") from None
                time.sleep(0.005)
            except KafkaException as error:
                raise BrokerError(f"{self._names[topic]}: {error.args[0].str()}") from error

    def flush(self, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Wait until everything is delivered. Raises BrokerError when something is not."""
        left = self._producer.flush(timeout_s)
        if self._failure is not None:
            raise self._failure
        if left:
            raise BrokerError(f"{left} records were not delivered within {timeout_s:g} s")

    def close(self, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Flush, and end."""
        try:
            self.flush(timeout_s)
        finally:
            self._stopping.set()
            self._poller.join(2.0)

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(0.1)

    def _report(
        self, number: int, then: Callable[[Message], None] | None, error: KafkaError | None, message: Message
    ) -> None:
        del self._in_flight[number]
        if error is None:
            if then is not None:
                then(message)
        elif self._failure is None:
            self._failure = BrokerError(f"a record for {message.topic()} could not be delivered: {error.str()}")
            if self.on_failure is not None:
                self.on_failure(self._failure)


def fetch(consumer: Consumer, most: int, timeout_s: float) -> list[Message]:
    """What is there, up to `most`; waits for the first record only, where `Consumer.consume` waits for all."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]


def read_range(
    kafka: KafkaSettings, starts: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int] | None = None
) -> Iterator[Message]:
    """Every record from these (topic, partition) -> offset on; each partition in order.

    ends  where to end, at most where the partitions end now
    An offset below what Kafka still has begins at the oldest there is. Raises BrokerError.
    """
    consumer = reader(kafka)
    try:
        open_ends: dict[tuple[str, int], int] = {}
        assigned = []
        for (topic, partition), start in starts.items():
            low, high = watermarks(consumer, topic, partition)
            first, high = max(low, start), min(high, (ends or {}).get((topic, partition), high))
            if first < high:
                open_ends[topic, partition] = high
                assigned.append(TopicPartition(topic, partition, first))
        consumer.assign(assigned)
        idle_since = time.monotonic()
        while open_ends:
            messages = fetch(consumer, 2000, READ_S)
            for message in checked(messages):
                where = (message.topic() or "", message.partition() or 0)
                end = open_ends.get(where)
                offset = message.offset() or 0
                if end is None or offset >= end:
                    continue
                yield message
                if offset + 1 >= end:
                    del open_ends[where]
            if messages:
                idle_since = time.monotonic()
            else:  # a compacted or transactional tail has offsets without records
                for where in [w for w in open_ends if _is_past(consumer, w, open_ends[w])]:
                    del open_ends[where]
                if time.monotonic() - idle_since > REQUEST_TIMEOUT_S:
                    raise BrokerError(f"{sorted(open_ends)} cannot be read to the end")
    finally:
        consumer.close()


def _is_past(consumer: Consumer, where: tuple[str, int], end: int) -> bool:
    (position,) = consumer.position([TopicPartition(*where)])
    return position.offset >= end


def reader(kafka: KafkaSettings, **config: object) -> Consumer:
    """A consumer that is assigned its partitions, joins no group and commits nothing."""
    return Consumer(
        {
            **client_settings(kafka),
            "group.id": "headrace-reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            **config,
        }
    )


def member_settings(kafka: KafkaSettings, group: str, instance: str, session_timeout_s: float) -> dict[str, object]:
    """A consumer that shares a group's partitions; equal partitions of all topics go to one member.

    `instance`: a name under which a member that comes back gets its partitions at once; empty: none.
    """
    session_ms = round(session_timeout_s * 1000)
    return {
        **client_settings(kafka),
        "group.id": group,
        **({"group.instance.id": instance} if instance else {}),
        "partition.assignment.strategy": "range",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": session_ms // 4,
        "max.poll.interval.ms": max(MAX_POLL_MS, session_ms),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 20,
        "queued.max.messages.kbytes": 16 * 1024,
        "topic.metadata.refresh.interval.ms": 15_000,
        "statistics.interval.ms": STATISTICS_MS,
    }


def watermarks(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """The oldest offset of a partition, and the one after its newest. Raises BrokerError."""
    where = TopicPartition(topic, partition)
    low, high = _patiently(lambda: consumer.get_watermark_offsets(where, timeout=REQUEST_TIMEOUT_S), where)
    return low, high


def offset_at(consumer: Consumer, topic: str, partition: int, at_ms: int) -> int | None:
    """The offset of the first record that arrived at this time or later, if there is one. Raises BrokerError."""
    where = TopicPartition(topic, partition, at_ms)
    (found,) = _patiently(lambda: consumer.offsets_for_times([where], timeout=REQUEST_TIMEOUT_S), where)
    if found.error is not None:
        raise BrokerError(f"{topic} [{partition}]: {found.error.str()}")
    return None if found.offset < 0 else int(found.offset)


def _patiently(ask: Callable[[], Answer], where: TopicPartition) -> Answer:
    """The answer; asks again while a broker restarts, or does not know yet that it leads the partition."""
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                raise BrokerError(f"{where.topic} [{where.partition}]: {error.args[0].str()}") from error
        time.sleep(ASK_AGAIN_S)


def decoded(message: Stored, codec: Codec, record: type[Record]) -> Record:
    """The record in a message. Raises InvalidRecord."""
    return codec.decode(message.value() or b"", record, header(message, "content-type"))


def header(message: Stored, name: str) -> bytes | None:
    """The value of a header, where the record has it."""
    headers = message.headers()
    return next((value for key, value in headers if key == name), None) if headers else None


def checked(messages: Iterable[Message]) -> Iterator[Message]:
    """The messages, without the errors among them that pass by themselves. Raises BrokerError for the others."""
    for message in messages:
        error = message.error()
        if error is None:
            yield message
        elif error.fatal() or error.code() in ENDING:
            raise BrokerError(f"{message.topic()}: {error.str()}")
        elif error.code() != KafkaError._PARTITION_EOF:
            log.warning("kafka.error", extra={"topic": message.topic(), "error": error.str()})
