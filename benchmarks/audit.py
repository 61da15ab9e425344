"""Judges what happened to a pool, from nothing but the records in Kafka."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from policy.fencing import Fence
from policy.ledger import AttemptKey
from policy.trace import Attempt, Trace
from schemas.codec import Codec
from schemas.errors import InvalidInput
from schemas.records import EventKind, NodeSpec, Outcome, Placement, Task, TaskEvent
from schemas.topics import (
    PLACEMENTS,
    STATE_INPUTS,
    TASK_EVENTS,
    TASK_READY,
    WORKFLOW_SUBMITTED,
    Topic,
    TopicSettings,
    partition_of,
)
from streams.kafka import KafkaSettings, read_range

ENDS = (EventKind.FINISHED, EventKind.FAILED, EventKind.KILLED, EventKind.REJECTED)
EVENTS_SEEN = STATE_INPUTS.index(TASK_EVENTS)
"""Where `Placement.as_of` says how many task events its decision had seen."""
SLACK = 1e-6
Amounts = tuple[float, float, float]
"""Cores, bytes of memory, devices."""
NAMES = ("cpu", "memory", "gpu")


@dataclass
class Log:
    """A pool's records, each topic in order, with their offsets."""

    placements: list[tuple[int, Placement]] = field(default_factory=list)
    events: list[tuple[int, TaskEvent]] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)

    @property
    def effective(self) -> list[Placement]:
        """The placements that put an attempt on a node and are in effect."""
        fence = Fence()
        return [p for offset, p in self.placements if fence.admits(p, offset) and p.outcome == Outcome.PLACED]

    @property
    def owners(self) -> list[int]:
        """The epochs, in order."""
        return [offset for offset, p in self.placements if p.outcome == Outcome.OWNER]

    @property
    def rejections(self) -> list[TaskEvent]:
        """Attempts that could not be run where they were placed."""
        return [event for _, event in self.events if event.kind == EventKind.REJECTED]


def read_log(kafka: KafkaSettings, topics: TopicSettings, pool: str) -> Log:
    """Everything that Kafka has of the pool. Raises BrokerError."""
    log, fence = Log(), Fence()
    for topic in (WORKFLOW_SUBMITTED, TASK_READY, PLACEMENTS, TASK_EVENTS):
        for offset, record in _records(kafka, topics, topic, partition_of(pool, topics.partitions)):
            if isinstance(record, Placement):
                log.placements.append((offset, record))
                if not fence.admits(record, offset):
                    continue
            if record.pool == pool:
                log.trace.apply(record)
                if isinstance(record, TaskEvent):
                    log.events.append((offset, record))
    return log


def _records(kafka: KafkaSettings, topics: TopicSettings, topic: Topic, partition: int) -> Iterator[tuple[int, Any]]:
    codec = Codec()
    for message in read_range(kafka, {(topics.full_name(topic), partition): 0}):
        try:
            yield message.offset() or 0, codec.decode(message.value() or b"", topic.record)
        except InvalidInput:
            continue  # the worker sends it to the dead letters


def problems(log: Log, specs: Sequence[NodeSpec]) -> list[str]:
    """What must never be, in words; empty where all is well. Every task must be over by now."""
    effective = log.effective
    return [
        *_not_once(log),
        *_placed_twice(effective),
        *_not_as_placed(log, effective),
        *given_twice(effective, log, specs),
        *overfull(log.trace.attempts(), specs),
    ]


def _not_once(log: Log) -> Iterator[str]:
    """Tasks that finished more than once, or never."""
    finished = Counter((e.workflow_id, e.task_id) for _, e in log.events if e.kind == EventKind.FINISHED)
    for key in log.trace.tasks:
        if finished[key] != 1 and key not in log.trace.refused:
            yield f"{key[0]}/{key[1]} finished {finished[key]} times"


def _placed_twice(effective: Iterable[Placement]) -> Iterator[str]:
    for key, times in Counter(map(_key, effective)).items():
        if times > 1:
            yield f"{_shown(key)} has {times} effective placements"


def _not_as_placed(log: Log, effective: Iterable[Placement]) -> Iterator[str]:
    """Attempts that ran without a placement, or on another node."""
    node_of = {_key(p): p.node_id for p in effective}
    for key, start in log.trace.started.items():
        if node_of.get(key) != start.node_id:
            yield f"{_shown(key)} ran on {start.node_id}, placed on {node_of.get(key)}"


def given_twice(effective: Iterable[Placement], log: Log, specs: Sequence[NodeSpec]) -> Iterator[str]:
    """Placements on nodes that were full, by what their decision had seen: earlier placements, less what had ended."""
    capacity = {spec.node_id: _has(spec) for spec in specs}
    held: dict[str, dict[AttemptKey, Amounts]] = defaultdict(dict)
    started: set[AttemptKey] = set()
    seen = 0
    for placement in effective:
        while seen < len(log.events) and log.events[seen][0] < placement.as_of[EVENTS_SEEN]:
            _release(held, started, log.events[seen][1])
            seen += 1
        node = held[placement.node_id or ""]
        node[_key(placement)] = _takes(log.trace.tasks[placement.workflow_id, placement.task_id])
        for taken, has, name in zip(_sum(node.values()), capacity[placement.node_id or ""], NAMES, strict=True):
            if taken > has + SLACK:
                yield f"{placement.node_id} was given {taken:g} of {has:g} {name} at {_shown(_key(placement))}"


def _release(held: dict[str, dict[AttemptKey, Amounts]], started: set[AttemptKey], event: TaskEvent) -> None:
    """What the event gives back. An attempt that has started cannot be rejected."""
    key = (event.workflow_id, event.task_id, event.attempt)
    if event.kind == EventKind.NODE_LOST:
        held[event.node_id].clear()
    elif event.kind == EventKind.STARTED:
        started.add(key)
    elif event.kind in ENDS and not (event.kind == EventKind.REJECTED and key in started):
        for node in held.values():
            node.pop(key, None)


def overfull(attempts: Iterable[Attempt], specs: Sequence[NodeSpec]) -> Iterator[str]:
    """Moments at which the attempts on a node took more than it has. What ends at a moment makes room at it."""
    capacity = {spec.node_id: _has(spec) for spec in specs}
    changes: dict[str, list[tuple[float, int, Amounts, str]]] = defaultdict(list)
    for attempt in attempts:
        if attempt.finish_s is not None and attempt.finish_s > attempt.reserved_s:
            name, takes = _shown((attempt.workflow_id, attempt.task_id, attempt.attempt)), _takes(attempt.task)
            changes[attempt.node_id].append((attempt.reserved_s, 1, takes, name))
            changes[attempt.node_id].append((attempt.finish_s, -1, takes, name))
    for node_id, moments in changes.items():
        used = (0.0, 0.0, 0.0)
        for at_s, sign, takes, name in sorted(moments):
            used = _sum((used, tuple(sign * amount for amount in takes)))
            for taken, has, resource in zip(used, capacity[node_id], NAMES, strict=True):
                if sign > 0 and taken > has + SLACK:
                    yield f"{node_id} at {at_s:.3f}: {taken:g} of {has:g} {resource} with {name}"


def _key(placement: Placement) -> AttemptKey:
    return placement.workflow_id, placement.task_id, placement.attempt


def _shown(key: AttemptKey) -> str:
    return f"{key[0]}/{key[1]}#{key[2]}"


def _takes(task: Task) -> Amounts:
    return task.cpu, float(task.memory_bytes), float(task.gpu)


def _has(spec: NodeSpec) -> Amounts:
    return spec.cpu, float(spec.memory_bytes), float(spec.gpu)


def _sum(amounts: Iterable[Sequence[float]]) -> Amounts:
    cpu, memory, gpu = (sum(column) for column in zip((0.0, 0.0, 0.0), *amounts, strict=True))
    return cpu, memory, gpu
