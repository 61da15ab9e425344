"""The way in for users: produce workflow and task-ready events, report what happened, iterate over placements."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from confluent_kafka import Message, TopicPartition

from policy.fencing import Fence
from schemas.checks import check_samples, check_spec, check_time
from schemas.dag import check_fits, check_task, check_workflow
from schemas.errors import BrokerError, InvalidInput
from schemas.records import (
    DeadLetter,
    NodeMetrics,
    NodeSpec,
    Outcome,
    Placement,
    TaskEvent,
    TaskReady,
    WorkflowSubmitted,
)
from schemas.topics import (
    DEAD_LETTERS,
    NODE_METRICS,
    PLACEMENTS,
    TASK_EVENTS,
    TASK_READY,
    WORKFLOW_SUBMITTED,
    Topic,
    TopicSettings,
    partition_of,
)
from schemas.workflow_file import read_workflows
from streams.claims import end_of_placements
from streams.kafka import (
    READ_S,
    KafkaSettings,
    Publisher,
    admin,
    checked,
    decoded,
    fetch,
    metadata,
    offset_at,
    read_range,
    reader,
)
from streams.registry import codec_for
from streams.watch import Watch

SPECS_BACK_MS = 10 * 60 * 1000
REMEMBERED = 100_000
"""Placements of which a repeat is recognised."""


class Client:
    """One pool of one installation. Use it in a `with` block, or close it."""

    def __init__(self, kafka: KafkaSettings, pool: str = "default", topics: TopicSettings | None = None) -> None:
        self.pool = pool
        self._kafka = kafka
        self._codec = codec_for(kafka)
        self._topics = _as_found(kafka, topics or TopicSettings())
        self._partition = partition_of(pool, self._topics.partitions)
        self._publisher = Publisher(kafka, self._topics, self._codec)
        self._next, self._fence = end_of_placements(kafka, self._topics, self._codec, self._partition)
        self._yielded: dict[tuple[str, str, int, Outcome], None] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait until everything is sent. Raises BrokerError when something could not be."""
        self._publisher.close()

    def submit(self, workflow: WorkflowSubmitted) -> None:
        """Submit a DAG. Raises InvalidWorkflow."""
        check_workflow(workflow, f"workflow {workflow.workflow_id}")
        self._publisher.send(WORKFLOW_SUBMITTED, self.pool, workflow)

    def submit_files(self, paths: Sequence[Path], suffix: str = "") -> list[WorkflowSubmitted]:
        """Submit the workflows of these files: all of them, or none where one cannot be run. Raises InvalidWorkflow.

        suffix  put behind every id, which else is the file's name; a workflow of an id that was seen before is a repeat
        """
        workflows = read_files(paths, self.pool, suffix)
        nodes = self.nodes()
        for workflow in workflows:
            if nodes:
                check_fits(workflow, nodes, f"workflow {workflow.workflow_id}")
        for workflow in workflows:
            self.submit(workflow)
        self.flush()
        return workflows

    def ready(self, ready: TaskReady) -> None:
        """Announce a task whose parents are done, where an engine of your own keeps the DAG: send `task` along."""
        check_time(ready.event_time_ms, f"task-ready of {ready.workflow_id}")
        if ready.task is not None:
            check_task(ready.task, f"task-ready of {ready.workflow_id}")
        self._publisher.send(TASK_READY, self.pool, ready)

    def report(self, event: TaskEvent) -> None:
        """Say what happened to an attempt: started, finished, failed."""
        check_time(event.event_time_ms, f"task event of {event.workflow_id}")
        self._publisher.send(TASK_EVENTS, self.pool, event)

    def watch(self) -> Watch:
        """Follows the pool's topics from where they end now; close it."""
        return Watch(self._kafka, self._topics, self._codec, self.pool)

    def sample(self, sample: NodeMetrics) -> None:
        """Tell what was measured on the pool's nodes, and, now and then, what they are. Raises InvalidInput."""
        check_samples(sample)
        for spec in sample.specs:
            check_spec(spec, f"node-metrics of {sample.source}")
        self._publisher.send(NODE_METRICS, self.pool, sample)

    def flush(self) -> None:
        """Wait until Kafka has everything that was handed over. Raises BrokerError."""
        self._publisher.flush()

    def placements(
        self, *, from_start: bool = False, timeout_s: float | None = None, every_outcome: bool = False
    ) -> Iterator[Placement]:
        """The placements in effect, as they come, from the moment on at which this client was made; each attempt once.

        from_start     begin with the oldest that Kafka has
        timeout_s      end when none has come for this long; None: never
        every_outcome  also those that say why an attempt waits (`pending`) or never will run (`refused`)
        """
        if from_start:
            self._next, self._fence, self._yielded = 0, Fence(), {}
        for placement in self._follow(timeout_s):
            if (every_outcome or placement.outcome == Outcome.PLACED) and self._is_news(placement):
                yield placement

    def nodes(self) -> tuple[NodeSpec, ...]:
        """The pool's nodes, from its recent samples; none where nothing has been sampled lately."""
        name = self._topics.full_name(NODE_METRICS)
        consumer = reader(self._kafka)
        try:
            start = offset_at(consumer, name, self._partition, int(time.time() * 1000) - SPECS_BACK_MS)
        finally:
            consumer.close()
        if start is None:
            return ()
        specs: dict[str, NodeSpec] = {}
        for message in read_range(self._kafka, {(name, self._partition): start}):
            record = self._decoded(NODE_METRICS, message)
            if isinstance(record, NodeMetrics) and record.pool == self.pool:
                specs.update((spec.node_id, spec) for spec in record.specs)
        return tuple(specs.values())

    def _follow(self, timeout_s: float | None) -> Iterator[Placement]:
        """The pool's placements in effect, from the first that was not read yet."""
        consumer = reader(self._kafka)
        try:
            consumer.assign([TopicPartition(self._topics.full_name(PLACEMENTS), self._partition, self._next)])
            heard = time.monotonic()
            while timeout_s is None or time.monotonic() - heard < timeout_s:
                for message in checked(fetch(consumer, 500, READ_S)):
                    heard = time.monotonic()
                    offset = message.offset() or 0
                    self._next = offset + 1
                    placement = self._decoded(PLACEMENTS, message)
                    if not isinstance(placement, Placement) or not self._fence.admits(placement, offset):
                        continue
                    if placement.pool == self.pool:
                        yield placement
        finally:
            consumer.close()

    def _is_news(self, placement: Placement) -> bool:
        key = (placement.workflow_id, placement.task_id, placement.attempt, placement.outcome)
        if key in self._yielded:
            return False
        self._yielded[key] = None
        if len(self._yielded) > REMEMBERED:
            del self._yielded[next(iter(self._yielded))]
        return True

    def _decoded(self, topic: Topic, message: Message) -> object | None:
        try:
            record: object = decoded(message, self._codec, topic.record)
        except InvalidInput:
            return None  # its reader in the worker sends it to the dead letters
        return record


def read_files(paths: Sequence[Path], pool: str, suffix: str = "") -> list[WorkflowSubmitted]:
    """The workflows of these files, each with an id of its own. Raises InvalidWorkflow, which names the file."""
    now_ms = int(time.time() * 1000)
    stems = [path.name.removesuffix(".gz").rsplit(".", 1)[0] for path in paths]
    workflows = []
    for at, (path, stem) in enumerate(zip(paths, stems, strict=True)):
        repeat = stems[:at].count(stem)
        workflow_id = stem + (f"-{repeat + 1}" if repeat else "") + suffix
        workflows += read_workflows(path, pool=pool, event_time_ms=now_ms, workflow_id=workflow_id)
    return workflows


def dead_letters(kafka: KafkaSettings, topics: TopicSettings | None = None) -> Iterator[DeadLetter]:
    """What workers could not use, oldest first: which record, and why. Raises BrokerError."""
    found, codec = _as_found(kafka, topics or TopicSettings()), codec_for(kafka)
    for message in read_range(kafka, {(found.full_name(DEAD_LETTERS), 0): 0}):
        yield decoded(message, codec, DeadLetter)


def _as_found(kafka: KafkaSettings, topics: TopicSettings) -> TopicSettings:
    """The settings with the number of partitions that the topics really have."""
    name = topics.full_name(PLACEMENTS)
    found = metadata(admin(kafka), kafka).topics.get(name)
    if found is None or not found.partitions:
        raise BrokerError(f"topic {name} is missing; create the topics with 'headrace topics create'")
    return TopicSettings(
        prefix=topics.prefix, partitions=len(found.partitions), replication_factor=topics.replication_factor
    )
