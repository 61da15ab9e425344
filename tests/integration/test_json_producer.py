"""Any Kafka client can take part: JSON in, placements out; nothing of headrace is imported to produce."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from schemas.records import Outcome, Placement
from schemas.topics import PLACEMENTS, TASK_READY, TopicSettings
from streams.kafka import KafkaSettings
from tests.eventually import eventually
from tests.topic_records import records_of
from tests.worker_process import WorkerProcess

POOL = "default"
GIB = 2**30


@pytest.fixture
def worker(kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(kafka, topics, tmp_path) as worker:
        worker.wait_until_ready()
        yield worker


class JsonProducer:
    """What somebody writes who knows the README and librdkafka."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings) -> None:
        self._prefix = topics.prefix
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 0}
        )

    def send(self, topic: str, record: dict[str, Any], **produced: Any) -> None:
        """One record, as it comes out of `json.dumps`, or as `produced` has it."""
        known = {"value": json.dumps(record), "key": POOL} | produced
        self._producer.produce(self._prefix + topic, **known)
        assert self._producer.flush(20.0) == 0


@pytest.fixture
def producer(kafka: KafkaSettings, topics: TopicSettings) -> JsonProducer:
    return JsonProducer(kafka, topics)


def node_metrics(node_id: str, cpu: float) -> dict[str, Any]:
    return {
        "pool": POOL,
        "event_time_ms": int(time.time() * 1000),
        "source": "by-hand",
        "nodes": [node_id],
        "values": [[0.1, 0.2, 0.0, 1e6, None, 0.0, None, 0.001]],
        "specs": [{"node_id": node_id, "cpu": cpu, "memory_bytes": 32 * GIB}],
    }


def workflow(workflow_id: str, *tasks: dict[str, Any]) -> dict[str, Any]:
    return {
        "pool": POOL,
        "workflow_id": workflow_id,
        "event_time_ms": int(time.time() * 1000),
        "name": workflow_id,
        "workflow_class": "etl_batch",
        "env": "test",
        "tasks": list(tasks),
    }


def placed(kafka: KafkaSettings, topics: TopicSettings, count: int) -> list[Placement]:
    """So many placements on nodes."""

    def look() -> list[Placement]:
        found = [p for p in records_of(kafka, topics, PLACEMENTS) if p.outcome == Outcome.PLACED]
        return found if len(found) >= count else []

    return eventually(look, f"{count} placements")


def test_a_json_workflow_is_placed_on_a_node_known_from_json(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess, producer: JsonProducer
) -> None:
    producer.send("node-metrics", node_metrics("alpha", cpu=8))

    producer.send(
        "workflow-submitted",
        workflow(
            "by-hand",
            {"task_id": "first", "runtime_s": 5, "cpu": 2},
            {"task_id": "then", "runtime_s": 5, "parents": [{"task_id": "first", "bytes": 1000}]},
        ),
    )
    (first,) = placed(kafka, topics, 1)
    for kind in ("started", "finished"):
        producer.send("task-events", event(first, kind))
    _, then = placed(kafka, topics, 2)

    assert [(p.workflow_id, p.task_id, p.node_id) for p in (first, then)] == [
        ("by-hand", "first", "alpha"),
        ("by-hand", "then", "alpha"),
    ]
    assert worker.metric("headrace_dead_letters_total") == 0


def event(placement: Placement, kind: str) -> dict[str, Any]:
    return {
        "pool": POOL,
        "workflow_id": placement.workflow_id,
        "task_id": placement.task_id,
        "attempt": placement.attempt,
        "node_id": placement.node_id,
        "event_time_ms": int(time.time() * 1000),
        "kind": kind,
    }


def test_json_that_only_its_header_tells_is_known_to_the_next_worker_too(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess, producer: JsonProducer
) -> None:
    told = {"headers": {"content-type": b"application/json"}}
    indented = "\n" + json.dumps(node_metrics("alpha", cpu=1), indent=2)
    producer.send("node-metrics", {}, value=indented, **told)
    waiting = workflow("waits", {"task_id": "a", "runtime_s": 5}, {"task_id": "b", "runtime_s": 5})
    producer.send("workflow-submitted", {}, value="\n" + json.dumps(waiting), **told)
    (first,) = placed(kafka, topics, 1)
    eventually(lambda: worker.metric("headrace_pending_tasks") == 1, "a task that waits for room")

    worker.kill()
    worker.start_and_wait()
    ended = event(first, "finished")
    producer.send("task-events", {}, value="\n" + json.dumps(ended), **told)

    _, second = placed(kafka, topics, 2)
    assert {first.task_id, second.task_id} == {"a", "b"}


def test_a_task_of_an_engine_of_ones_own_comes_as_json(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess, producer: JsonProducer
) -> None:
    producer.send("node-metrics", node_metrics("alpha", cpu=8))

    producer.send(
        TASK_READY.name,
        {
            "pool": POOL,
            "workflow_id": "w1",
            "task_id": "load",
            "attempt": 0,
            "event_time_ms": int(time.time() * 1000),
            "task": {"task_id": "load", "runtime_s": 60, "cpu": 2},
        },
    )

    (placement,) = placed(kafka, topics, 1)
    assert (placement.workflow_id, placement.task_id, placement.node_id) == ("w1", "load", "alpha")
