"""A W3C trace goes from a submission, or an announced task, to the placement."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Message

from schemas.topics import PLACEMENTS, TopicSettings, partition_of
from streams.kafka import KafkaSettings, read_range
from tests.eventually import eventually
from tests.integration.test_json_producer import POOL, JsonProducer, node_metrics, workflow
from tests.worker_process import WorkerProcess

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_traceparent_of_a_submission_is_on_its_placements(
    kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path
) -> None:
    producer = JsonProducer(kafka, topics)
    name, number = topics.full_name(PLACEMENTS), partition_of(POOL, topics.partitions)

    def two_traces() -> list[bytes] | None:
        messages: list[Message] = list(read_range(kafka, {(name, number): 0}))
        found = [value for message in messages for key, value in message.headers() or () if key == "traceparent"]
        return found if len(found) == 2 else None

    with WorkerProcess(kafka, topics, tmp_path) as worker:
        worker.wait_until_ready()
        producer.send("node-metrics", node_metrics("n0", 8.0))
        submitted = workflow("traced", {"task_id": "a", "runtime_s": 5}, {"task_id": "b", "runtime_s": 5})

        producer.send("workflow-submitted", submitted, headers=[("traceparent", TRACE)])

        assert eventually(two_traces, "two placements with a trace") == [TRACE, TRACE]
