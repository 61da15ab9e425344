"""A short run on a real Kafka, for what reads its topics afterwards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from schemas.codec import Codec
from schemas.records import WorkflowSubmitted
from schemas.topics import TopicSettings
from streams.client import Client
from streams.kafka import KafkaSettings
from streams.watch import Watch
from tests.cluster_thread import running_cluster
from tests.eventually import eventually
from tests.worker_process import WorkerProcess
from tests.workload import POOL, SPECS


def record_run(
    kafka: KafkaSettings, topics: TopicSettings, folder: Path, work: Sequence[WorkflowSubmitted], between_s: float = 0.1
) -> None:
    """Have a worker with the actor decide about these workflows, until all of their tasks have finished."""
    watch = Watch(kafka, topics, Codec(), POOL)
    tasks = sum(len(workflow.tasks) for workflow in work)
    with WorkerProcess(kafka, topics, folder, policy__name="actor", worker__snapshot_s=2) as worker:
        worker.wait_until_ready()
        with running_cluster(kafka, topics, SPECS, POOL), Client(kafka, POOL, topics) as client:
            for workflow in work:
                client.submit(workflow)
                time.sleep(between_s)
            eventually(lambda: watch.poll() >= 0 and len(watch.trace.finished) == tasks, f"{tasks} tasks finished")
        worker.terminate()
    watch.close()
