"""The loop on a real Kafka: work in, placements out, events back, until everything is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.audit import problems, read_log
from policy.trace import Trace, cluster_object
from schemas.codec import Codec
from schemas.records import NodeSpec, WorkflowSubmitted
from schemas.topics import TopicSettings
from streams.client import Client
from streams.kafka import KafkaSettings
from streams.watch import Watch
from tests.cluster_thread import running_cluster
from tests.eventually import eventually
from tests.traces import trace_path
from tests.worker_process import WorkerProcess
from tests.workload import POOL, SPECS, some_work

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_S = 60.0


@pytest.fixture
def worker(kafka: KafkaSettings, topics: TopicSettings, tmp_path: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(kafka, topics, tmp_path) as worker:
        worker.wait_until_ready()
        yield worker


@pytest.fixture
def watch(kafka: KafkaSettings, topics: TopicSettings) -> Iterator[Watch]:
    watch = Watch(kafka, topics, Codec(), POOL)
    yield watch
    watch.close()


def run_to_the_end(
    kafka: KafkaSettings, topics: TopicSettings, watch: Watch, workflows: Sequence[WorkflowSubmitted]
) -> Trace:
    with running_cluster(kafka, topics, SPECS, POOL), Client(kafka, POOL, topics) as client:
        for workflow in workflows:
            client.submit(workflow)
        tasks = sum(len(workflow.tasks) for workflow in workflows)
        eventually(lambda: watch.poll() >= 0 and len(watch.trace.finished) == tasks, f"{tasks} tasks finished")
    return watch.trace


def write_trace(trace: Trace, specs: Sequence[NodeSpec], folder: Path) -> tuple[Path, Path]:
    rows, cluster = folder / "trace.jsonl", folder / "cluster.json"
    rows.write_text("".join(json.dumps(row) + "\n" for row in trace.rows()))
    cluster.write_text(json.dumps(cluster_object(tuple(specs))))
    return rows, cluster


def test_every_task_of_every_workflow_runs_once_where_it_was_placed(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess, watch: Watch
) -> None:
    trace = run_to_the_end(kafka, topics, watch, some_work(6))

    assert trace.refused == {}
    assert problems(read_log(kafka, topics, POOL), SPECS) == []
    assert worker.metric("headrace_dead_letters_total") == 0


@pytest.mark.traces
def test_an_independent_checker_accepts_the_schedule(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess, watch: Watch, tmp_path: Path
) -> None:
    checker = trace_path("..", "tools", "check_schedule.py")
    trace = run_to_the_end(kafka, topics, watch, some_work(6))

    files = write_trace(trace, SPECS, tmp_path)
    checked = subprocess.run([sys.executable, checker, *files], capture_output=True, text=True)

    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["finished"] == len(trace.tasks)


def test_a_workflow_that_is_submitted_twice_under_one_id_runs_once(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess, watch: Watch
) -> None:
    (workflow,) = some_work(1)

    run_to_the_end(kafka, topics, watch, [workflow])
    with running_cluster(kafka, topics, SPECS, POOL), Client(kafka, POOL, topics) as client:
        client.submit(workflow)
        (other,) = some_work(1, prefix="other")
        client.submit(other)
        expected = len(workflow.tasks) + len(other.tasks)
        eventually(lambda: watch.poll() >= 0 and len(watch.trace.finished) == expected, "the other workflow finished")

    log = read_log(kafka, topics, POOL)
    assert problems(log, SPECS) == []
    # Of the other workflow an attempt may have been placed before the second cluster said that it started anew.
    again = [placement for placement in log.effective if placement.workflow_id == workflow.workflow_id]
    assert len(again) == len(workflow.tasks)


def run_example(name: str, kafka: KafkaSettings, topics: TopicSettings) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "HEADRACE_TOPICS__PREFIX": topics.prefix,
    }
    command = [sys.executable, str(ROOT / "examples" / name)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=EXAMPLE_S)


def test_the_example_that_submits_a_workflow_runs_as_shipped(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess
) -> None:
    with running_cluster(kafka, topics, SPECS, "default"):
        example = run_example("submit_workflow.py", kafka, topics)

    assert example.returncode == 0, example.stderr
    assert [line.split(" -> ")[0] for line in example.stdout.splitlines()][::3] == ["extract", "report"]


def test_the_example_of_an_engine_runs_as_shipped(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess
) -> None:
    example = run_example("own_engine.py", kafka, topics)

    assert example.returncode == 0, example.stderr
    steps = [line.split(" -> ") for line in example.stdout.splitlines()]
    assert [step for step, _ in steps] == ["fetch", "train", "publish"]
    assert steps[1][1] == "large"


def test_placements_that_come_between_the_submission_and_the_question_are_not_missed(
    kafka: KafkaSettings, topics: TopicSettings, worker: WorkerProcess, watch: Watch
) -> None:
    (workflow,) = some_work(1)
    with running_cluster(kafka, topics, SPECS, POOL), Client(kafka, POOL, topics) as client:
        client.submit(workflow)
        eventually(lambda: watch.poll() >= 0 and watch.trace.placements, "a first placement")
        started = time.monotonic()

        first = next(client.placements(timeout_s=20))

    assert (first.workflow_id, first.task_id) in {key[:2] for key in watch.trace.placements}
    assert time.monotonic() - started < 20
