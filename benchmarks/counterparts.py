"""What headrace's worker is measured against: `echo` (librdkafka alone), `stock` (an agent of unchanged Faust)."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import faust
from confluent_kafka import TopicPartition

from policy.constraints import Constraints
from policy.decide import DecideSettings, Stamp, decide
from policy.state import State
from schemas.codec import Codec
from schemas.records import NodeMetrics, Outcome, Placement, TaskReady
from schemas.topics import NODE_METRICS, PLACEMENTS, TASK_READY
from streams import metrics, policies
from streams.config import Settings, load
from streams.health import HealthServer
from streams.kafka import Publisher, checked, fetch, reader


def echo(settings: Settings) -> None:
    """Answers each task-ready with a placement, without deciding anything."""
    codec = Codec()
    publisher = Publisher(settings.kafka, settings.topics, codec)
    consumer = reader(settings.kafka)
    consumer.assign([TopicPartition(settings.topics.full_name(TASK_READY), 0, 0)])
    is_stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_stopping.set())
    HealthServer("127.0.0.1", settings.worker.port, dict, dict)
    while not is_stopping.is_set():
        for message in checked(fetch(consumer, 1000, 0.1)):
            ready = codec.decode(message.value() or b"", TaskReady)
            placement = Placement(ready.pool, ready.workflow_id, ready.task_id, 0, 0, Outcome.PLACED, "n0")
            publisher.send(PLACEMENTS, ready.pool, placement, 0)
    publisher.close()


def stock(settings: Settings) -> None:
    """One event, one decision, one awaited send: how a Faust agent is written at first, with headrace's own core."""
    app = faust.App(
        settings.worker.group,
        broker=f"kafka://{settings.kafka.bootstrap_servers}",
        store="memory://",
        web_enabled=False,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
    )
    codec, state = Codec(), State("bench")
    policy, constraints = policies.build(settings.policy), Constraints()
    placements = app.topic(settings.topics.full_name(PLACEMENTS), value_serializer="raw")
    name = settings.topics.full_name

    @app.agent(app.topic(name(NODE_METRICS), value_serializer="raw"))
    async def node_metrics(stream):  # type: ignore[no-untyped-def]
        async for payload in stream:
            record = codec.decode(payload, NodeMetrics)
            state.apply(record)
            metrics.SAMPLES.inc(len(record.nodes))

    @app.agent(app.topic(name(TASK_READY), value_serializer="raw"))
    async def task_ready(stream):  # type: ignore[no-untyped-def]
        async for payload in stream:
            state.apply(codec.decode(payload, TaskReady))
            for batch in decide(state, policy, constraints, DecideSettings(), Stamp()):
                for placement in batch.placements:
                    await placements.send(value=codec.encode(placement, name(PLACEMENTS)))

    ready_at = time.monotonic() + 4.0
    HealthServer(
        "127.0.0.1",
        settings.worker.port,
        dict,
        lambda: {} if time.monotonic() > ready_at else {"stock": "is starting"},
    )
    faust.Worker(app, loglevel="INFO", logging_config=None).execute_from_commandline()


def end_with_parent() -> None:
    """A benchmark that is killed leaves nothing running."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    {"echo": echo, "stock": stock}[sys.argv[1]](load())
