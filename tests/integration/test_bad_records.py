"""Bad records among good ones: each ends in the dead letters with its origin, and the good ones are decided."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Message, Producer

from schemas.codec import Codec
from schemas.records import METRICS, DeadLetter, Edge, EventKind, NodeMetrics, Outcome, TaskEvent, TaskReady
from schemas.topics import (
    DEAD_LETTERS,
    NODE_METRICS,
    PLACEMENTS,
    STATE_INPUTS,
    TASK_EVENTS,
    TASK_READY,
    WORKFLOW_SUBMITTED,
    Topic,
    TopicSettings,
    partition_of,
)
from streams.kafka import KafkaSettings
from tests.builders import GIB, a_node, a_task, a_workflow
from tests.eventually import eventually
from tests.processes import comes_true
from tests.topic_records import messages_of, records_of
from tests.worker_process import WorkerProcess

POOL = "pool"
NOW_MS = int(time.time() * 1000)
BLOB_BYTES = 5_000_000
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
FLUSH_S = 30.0
WAIT_S = 20.0

READY = TaskReady(POOL, "w", "t", 0, NOW_MS, a_task("t"))
WORKFLOW = a_workflow(a_task("a"), workflow_id="w")
EVENT = TaskEvent(POOL, "w", "t", 0, "n0", NOW_MS, EventKind.FINISHED)
LARGE_NODE = a_node("n0", cpu=64.0, memory_bytes=1024 * GIB)
SAMPLE = NodeMetrics(POOL, NOW_MS, "collector", ("n0",), np.zeros((1, len(METRICS)), "<f4").tobytes(), (LARGE_NODE,))
GOOD = {WORKFLOW_SUBMITTED: WORKFLOW, NODE_METRICS: SAMPLE, TASK_READY: READY, TASK_EVENTS: EVENT}
CODEC = Codec()


@dataclass(frozen=True)
class Bad:
    """Something that is no usable record of this topic."""

    name: str
    topic: Topic
    payload: bytes | None
    reason: str


def encoded(record: object) -> bytes:
    return CODEC.encode(record, "any")


def of_any_topic(topic: Topic) -> list[Bad]:
    good = encoded(GOOD[topic])
    elsewhere = next(p for p in map("pool-{}".format, range(99)) if partition_of(p, 4) != partition_of(POOL, 4))
    return [
        Bad("garbage", topic, b"\x07garbage", "unknown_format"),
        Bad("nothing", topic, b"", "unknown_format"),
        Bad("a tombstone", topic, None, "unknown_format"),
        Bad("Avro cut short", topic, good[:-3], "undecodable"),
        Bad("Avro with more behind it", topic, good + b"\0", "undecodable"),
        Bad("Avro of an unknown schema", topic, good[:2] + b"12345678" + good[10:], "unknown_schema"),
        Bad("Confluent's frame without a registry", topic, b"\0\0\0\0\7" + good[10:], "no_registry"),
        Bad("broken JSON", topic, b'{"pool": "pool", ', "invalid_json"),
        Bad("JSON of something else", topic, b'{"hello": "world"}', "invalid_json"),
        Bad("5 MB of zeros", topic, bytes(BLOB_BYTES), "no_registry"),
        Bad("the pool of another partition", topic, encoded(replace(GOOD[topic], pool=elsewhere)), "key"),
        Bad("no pool", topic, encoded(replace(GOOD[topic], pool="")), "key"),
        Bad("a time in seconds", topic, encoded(replace(GOOD[topic], event_time_ms=NOW_MS // 1000)), "time"),
    ]


A_CYCLE = (a_task("a", after=["b"]), a_task("b", after=["a"]))
OF_ONE_TOPIC = [
    Bad("5 MB of noise", WORKFLOW_SUBMITTED, b"\1" + os.urandom(BLOB_BYTES), "unknown_format"),
    Bad("a cycle", WORKFLOW_SUBMITTED, encoded(replace(WORKFLOW, tasks=A_CYCLE)), "workflow"),
    Bad("no tasks", WORKFLOW_SUBMITTED, encoded(replace(WORKFLOW, tasks=())), "workflow"),
    Bad("an unknown parent", WORKFLOW_SUBMITTED, encoded(replace(WORKFLOW, tasks=(a_task(after=["x"]),))), "workflow"),
    Bad("samples too narrow", NODE_METRICS, encoded(replace(SAMPLE, values=SAMPLE.values[:-4])), "shape"),
    Bad("a node twice", NODE_METRICS, encoded(replace(SAMPLE, nodes=("n", "n"), values=2 * SAMPLE.values)), "shape"),
    Bad("negative cpu", NODE_METRICS, encoded(replace(SAMPLE, specs=(a_node("n0", cpu=-1.0),))), "node"),
    Bad("a node without end", NODE_METRICS, encoded(replace(SAMPLE, specs=(a_node(cpu=float("inf")),))), "node"),
    Bad("a negative attempt", TASK_READY, encoded(replace(READY, attempt=-1)), "shape"),
    Bad("another task's task", TASK_READY, encoded(replace(READY, task_id="u")), "shape"),
    Bad("less than nothing", TASK_READY, encoded(replace(READY, task=a_task("t", cpu=-2.0))), "workflow"),
    Bad("no workflow", TASK_READY, encoded(replace(READY, workflow_id="")), "shape"),
    Bad("a pool of a very long name", TASK_READY, encoded(replace(READY, pool="p" * 1_500_000)), "key"),
    Bad("an event of an unknown kind", TASK_EVENTS, encoded(replace(EVENT, kind=EventKind.UNKNOWN)), "shape"),
]
BAD = [bad for topic in STATE_INPUTS for bad in of_any_topic(topic)] + OF_ONE_TOPIC


class Sender:
    """Puts bytes into the partition of the pool, and notes where they came to lie."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings, compression: str = "lz4") -> None:
        self._topics = topics
        self._partition = partition_of(POOL, topics.partitions)
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "compression.type": compression,
                "message.max.bytes": 8_000_000,
                "linger.ms": 20,
            }
        )

    def send(self, topic: Topic, payload: bytes | None) -> list[Message]:
        """Returns the delivered message, once the sender is flushed."""
        delivered: list[Message] = []

        def report(error: object, message: Message) -> None:
            assert error is None, f"{topic.name}: {error}"
            delivered.append(message)

        name = self._topics.full_name(topic)
        self._producer.produce(name, payload, POOL, self._partition, on_delivery=report)
        return delivered

    def flush(self) -> None:
        assert self._producer.flush(FLUSH_S) == 0


def decided(kafka: KafkaSettings, topics: TopicSettings) -> set[str]:
    """The workflows of which something was placed."""
    return {p.workflow_id for p in records_of(kafka, topics, PLACEMENTS) if p.outcome == Outcome.PLACED}


@pytest.fixture
def worker(kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(kafka, topics, tmp_path) as worker:
        worker.wait_until_ready()
        yield worker


def test_each_bad_record_becomes_a_dead_letter_and_the_good_ones_around_it_are_decided(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess
) -> None:
    sender = Sender(kafka, topics)
    sent: list[tuple[Bad, list[Message]]] = []
    good: set[str] = set()
    sender.send(NODE_METRICS, encoded(SAMPLE))
    for at, bad in enumerate(BAD):
        sent.append((bad, sender.send(bad.topic, bad.payload)))
        good |= {f"ready-{at}", f"workflow-{at}"}
        sender.send(TASK_READY, encoded(replace(READY, workflow_id=f"ready-{at}", task=a_task("t", cpu=0.1))))
        sender.send(WORKFLOW_SUBMITTED, encoded(a_workflow(a_task(cpu=0.1), workflow_id=f"workflow-{at}")))
        sender.send(NODE_METRICS, encoded(replace(SAMPLE, event_time_ms=NOW_MS + at, specs=())))
    sender.flush()

    eventually(lambda: decided(kafka, topics) >= good, "all good records decided")
    comes_true(lambda: len(messages_of(kafka, topics, DEAD_LETTERS)) >= len(BAD), WAIT_S)

    assert worker.is_ready
    letters = [opened(message) for message in messages_of(kafka, topics, DEAD_LETTERS)]
    by_origin = {(letter.topic, letter.offset): (letter, message) for letter, message in letters}
    assert [bad.name for bad, (origin,) in sent if (bad.topic.name, origin.offset()) not in by_origin] == []
    assert len(letters) == len(BAD)
    for bad, (origin,) in sent:
        letter, message = by_origin[bad.topic.name, origin.offset()]
        assert (letter.partition, letter.reason) == (origin.partition(), bad.reason), f"{bad.name}: {letter.problem}"
        assert letter.payload == (bad.payload or b"")[: len(letter.payload)]
        assert len(letter.payload) >= min(len(bad.payload or b""), 100_000)
        assert dict(message.headers()) == {
            "origin-topic": bad.topic.name.encode(),
            "origin-partition": str(origin.partition()).encode(),
            "origin-offset": str(origin.offset()).encode(),
            "reason": bad.reason.encode(),
        }
    for reason in {bad.reason for bad in BAD}:
        expected = sum(bad.reason == reason for bad in BAD)
        assert worker.metric("headrace_dead_letters_total", reason=reason) == expected


def opened(message: Message) -> tuple[DeadLetter, Message]:
    return CODEC.decode(message.value() or b"", DeadLetter), message


def test_the_next_worker_passes_over_what_was_bad(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess
) -> None:
    sender = Sender(kafka, topics)
    for bad in BAD:
        sender.send(bad.topic, bad.payload)
    sender.flush()
    eventually(lambda: worker.metric("headrace_dead_letters_total") == len(BAD), "all bad records refused", WAIT_S)

    worker.kill()
    worker.start_and_wait()
    sender.send(NODE_METRICS, encoded(SAMPLE))
    sender.send(TASK_READY, encoded(READY))
    sender.flush()

    eventually(lambda: decided(kafka, topics) == {"w"}, "the good record decided")
    assert len(messages_of(kafka, topics, DEAD_LETTERS)) == len(BAD)


def test_records_are_read_whatever_compressed_them(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess
) -> None:
    for compression in COMPRESSIONS:
        sender = Sender(kafka, topics, compression)
        sender.send(NODE_METRICS, encoded(SAMPLE))
        for number in range(20):
            task = a_task("t", cpu=0.1, image=f"registry/{'x' * 200}")
            workflow_id = f"{compression}-{number}"
            sender.send(TASK_READY, encoded(replace(READY, workflow_id=workflow_id, task=task)))
        sender.flush()

    good = {f"{compression}-{number}" for compression in COMPRESSIONS for number in range(20)}
    eventually(lambda: decided(kafka, topics) == good, "all of them decided")


def test_an_edge_of_many_bytes_and_a_task_of_none_are_good(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess
) -> None:
    sender = Sender(kafka, topics)
    sender.send(NODE_METRICS, encoded(SAMPLE))
    tasks = (a_task("a", cpu=0.0, memory_bytes=0), a_task("b", after=[Edge("a", 2**59)]))
    sender.send(WORKFLOW_SUBMITTED, encoded(a_workflow(*tasks, workflow_id="odd")))
    sender.flush()

    eventually(lambda: decided(kafka, topics) == {"odd"}, "the workflow decided")
