"""The trunk: what happens to each record of each topic.

Four agents read the inputs of the state. Each hands its chunks to the owner of their partition, where one path leads
from bytes to decisions: decode, check, fold, announce what became due, decide, publish. Everything of one partition
happens under its lock, in the order in which its topics' chunks arrive.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import faust
from confluent_kafka import Message

from policy.constraints import Constraints
from policy.decide import Batch, DecideSettings, Stamp, decide
from policy.encodings import NodeInputs, node_inputs
from policy.state import State
from schemas import topics as catalogue
from schemas.codec import Codec
from schemas.decisions import without_decisions
from schemas.errors import HeadraceError, InvalidCluster, InvalidInput, InvalidRecord, InvalidWorkflow
from schemas.records import DeadLetter, NodeMetrics, Outcome, TaskReady, WorkflowSubmitted
from schemas.steps import Encoded, Took
from schemas.topics import DEAD_LETTERS, DECISIONS, NODE_METRICS, PLACEMENTS, TASK_EVENTS, TASK_READY, Topic
from streams import metrics
from streams.breaker_watch import BreakerWatch
from streams.kafka import Publisher, decoded, header
from streams.models import Models
from streams.partition import Arrival, Partition
from streams.policies import Guard
from streams.transport import Chunk, UntouchedSchema

if TYPE_CHECKING:
    from policy.actor import Actor

log = logging.getLogger("headrace.agents")

MOST_TRACES = 10_000
"""With more, those of finished workflows are dropped."""
TRACE = "traceparent"
MOST_STEPS = 2000
"""Numbers; with more, what was done to the states is told without a decision."""
LARGEST_LETTER = 900_000
"""Bytes of a bad record that its dead letter keeps."""
LONGEST_PROBLEM = 2000
"""Characters of what is wrong with it, which may quote it."""

STALL_MS = 2000
"""Broker's time between the first and the last record of a chunk that is not fetched as soon as it is there."""

Find = Callable[[int], Partition | None]
"""The partition of this number, if it is ours."""


class Trunk:
    """From chunks to placements."""

    def __init__(
        self,
        find: Find,
        publisher: Publisher,
        codec: Codec,
        models: Models,
        guard: Guard,
        constraints: Constraints,
        settings: DecideSettings,
    ) -> None:
        self._find = find
        self._publisher = publisher
        self._codec = codec
        self._models = models
        self._guard = guard
        self._constraints = constraints
        self._settings = settings
        self._encoder = ThreadPoolExecutor(1, "encoder")
        self._encoding: dict[str, asyncio.Task[None]] = {}
        self._steps: dict[str, int] = {}
        self._breakers = BreakerWatch(publisher)

    async def handle(self, topic: Topic, chunk: Chunk) -> None:
        """Take in one chunk."""
        partition = self._find(chunk.partition)
        if partition is None:
            return  # revoked meanwhile: its new owner reads it
        await partition.restored.wait()
        async with partition.lock:
            if partition.is_revoked:
                return
            started = time.perf_counter()
            due = self._fold(partition, topic, chunk)
            if topic is NODE_METRICS and not _spans_a_stall(chunk):
                due += self._look_after(partition)
            metrics.FOLD_SECONDS.observe(time.perf_counter() - started)
            self.announce(partition, due)
            self._encode_changed(partition)
            await self.decide(partition)
            if partition.steps > MOST_STEPS:
                self.tell_steps(partition)

    def tell_steps(self, partition: Partition) -> None:
        """Publish what was done to the states since the last batch, where that has not been told yet."""
        if partition.steps:
            pool = next(iter(partition.pools), "")
            at_ms = max((state.now_ms for state in partition.pools.values()), default=0)
            told = without_decisions(pool, at_ms, partition.epoch, partition.as_of, partition.take_steps())
            self._publisher.send(DECISIONS, pool or str(partition.number), told, partition.number)

    def tell_all(self, partition: Partition) -> None:
        """The same, and which weights are in use: whoever begins here needs to know no more."""
        self._models.tell_again(partition)
        self.tell_steps(partition)

    def announce(self, partition: Partition, due: list[TaskReady]) -> None:
        """Publish attempts that became due. They come back through the topic, and are decided then."""
        for ready in due:
            headers = _trace_header(partition.traces.get(ready.workflow_id))
            self._publisher.send(TASK_READY, ready.pool, ready, partition.number, headers=headers)

    def _encode_changed(self, partition: Partition) -> None:
        """Have the nodes of a large pool encoded beside the decisions, once for each change of its windows."""
        for pool, state in partition.pools.items():
            actors = self._models.roles(pool).actors
            if pool not in self._encoding and any(actor.waits_for_encoding(state) for actor in actors):
                encode = self._encode(partition, state, node_inputs(state), actors)
                self._encoding[pool] = asyncio.get_running_loop().create_task(encode)
                self._encoding[pool].add_done_callback(partial(self._encoded, pool))

    async def _encode(self, partition: Partition, state: State, inputs: NodeInputs, actors: tuple[Actor, ...]) -> None:
        loop = asyncio.get_running_loop()
        encodings = [await loop.run_in_executor(self._encoder, actor.encode, inputs) for actor in actors]
        async with partition.lock:
            for actor, encoding in zip(actors, encodings, strict=True):
                actor.use(state, encoding)
            partition.note(Encoded(list(partition.pools).index(state.pool)))
            del self._encoding[state.pool]

    def _encoded(self, pool: str, task: asyncio.Task[None]) -> None:
        if self._encoding.get(pool) is task:  # it failed
            del self._encoding[pool]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("actor.encoding_failed", extra={"pool": pool, "error": str(error)})

    async def decide(self, partition: Partition) -> None:
        """Decide what can be decided now; others get a turn between two batches. The caller holds the lock."""
        for state in partition.pools.values():
            if not state.has_open_questions:
                continue
            stamp, roles = Stamp(partition.epoch, partition.as_of), self._models.take_up(partition, state)
            started = time.perf_counter()
            for batch in decide(
                state, roles.policy, self._constraints, self._settings, stamp, self._guard, roles.canary
            ):
                decided = time.perf_counter()
                metrics.DECIDE_SECONDS.observe(decided - started)
                self._publish(partition, batch)
                metrics.PUBLISH_SECONDS.observe(time.perf_counter() - decided)
                await asyncio.sleep(0)
                started = time.perf_counter()

    def _fold(self, partition: Partition, topic: Topic, chunk: Chunk) -> list[TaskReady]:
        started, sampled = time.time(), 0
        before = partition.offsets.get(topic.name, 0)
        due: list[TaskReady] = []
        for message in chunk.records:
            offset = message.offset() or 0
            if partition.has_seen(topic, offset):
                continue
            try:
                record: object = decoded(message, self._codec, topic.record)
                due += partition.take(record, message.value() or b"")
                if isinstance(record, NodeMetrics):
                    sampled += len(record.nodes)
                    partition.sampled_at[record.pool] = started
                if isinstance(record, TaskReady):
                    key = (record.workflow_id, record.task_id, record.attempt)
                    partition.arrivals[key] = Arrival(message.timestamp()[1], header(message, TRACE))
                elif isinstance(record, WorkflowSubmitted) and (trace := header(message, TRACE)):
                    partition.traces[record.workflow_id] = trace
            except InvalidInput as error:
                self._bury(topic, chunk.partition, message, error)
            partition.offsets[topic.name] = offset + 1
        partition.settle()
        if (end := partition.offsets.get(topic.name, 0)) > before:
            partition.note(Took(topic, end))
        if len(partition.traces) > MOST_TRACES:
            partition.forget_traces()
        metrics.SAMPLES.inc(sampled)
        metrics.RECORDS.labels(topic.name).inc(len(chunk.records))
        return due

    def _look_after(self, partition: Partition) -> list[TaskReady]:
        """Once in each step of the windows: migrations, and attempts that nobody has started."""
        due: list[TaskReady] = []
        for pool, state in partition.pools.items():
            if self._steps.get(pool) != state.windows.step:
                self._steps[pool] = state.windows.step
                due += state.overdue()
                self._breakers.look(partition, state, self._models.roles(pool).policy.version)
                for event in state.unstarted():
                    self._publisher.send(TASK_EVENTS, pool, event, partition.number)
        metrics.ROLLBACKS.inc(len(due))
        return due

    def _publish(self, partition: Partition, batch: Batch) -> None:
        """The placements of a batch, then its evidence."""
        delivered, arrivals = partition.placement_delivered, partition.arrivals
        now_ms = 1000 * time.time()
        for placement in batch.placements:
            arrival = arrivals.pop((placement.workflow_id, placement.task_id, placement.attempt), None)
            headers = _trace_header(arrival.trace if arrival else None)
            self._publisher.send(PLACEMENTS, placement.pool, placement, partition.number, headers, delivered)
            if arrival is not None and placement.outcome == Outcome.PLACED:
                metrics.READY_SECONDS.observe(max(0.0, (now_ms - arrival.at_ms) / 1000))
        evidence = replace(batch.evidence, steps=partition.take_steps())
        self._publisher.send(DECISIONS, evidence.pool, evidence, partition.number)
        for outcome, count in Counter([placement.outcome for placement in batch.placements]).items():
            metrics.PLACEMENTS.labels(str(outcome), evidence.policy).inc(count)
        for rejections in evidence.rejections:
            for reason, nodes in rejections.items():
                metrics.REJECTIONS.labels(reason).inc(nodes)

    def _bury(self, topic: Topic, partition: int, message: Message, error: InvalidInput) -> None:
        """What cannot be used goes to the dead letters, with its origin; the records around it go on."""
        reason = _reason(error)
        payload, offset, problem = message.value() or b"", message.offset() or 0, str(error)[:LONGEST_PROBLEM]
        letter = DeadLetter(
            topic.name, partition, offset, int(time.time() * 1000), reason, problem, payload[:LARGEST_LETTER]
        )
        origin = {
            "origin-topic": topic.name.encode(),
            "origin-partition": str(partition).encode(),
            "origin-offset": str(offset).encode(),
            "reason": reason.encode(),
        }
        self._publisher.send(DEAD_LETTERS, topic.name, letter, headers=origin)
        metrics.DEAD_LETTERS.labels(topic.name, reason).inc()
        log.warning("record.refused", extra={"topic": topic.name, "offset": offset, "problem": problem})


def add_agents(
    app: faust.App, trunk: Trunk, name_of: Callable[[Topic], str], fail: Callable[[BaseException], None]
) -> None:
    """One agent for each input of the state, each handling its chunks in order; `fail` ends the worker."""
    for topic in catalogue.STATE_INPUTS:
        channel = app.topic(name_of(topic), schema=UntouchedSchema(), internal=False)

        async def run(chunks: AsyncIterator[Chunk], topic: Topic = topic) -> None:
            async for chunk in chunks:
                try:
                    await trunk.handle(topic, chunk)
                    chunk.is_handled.set()
                except Exception as error:  # Faust would go on with the next chunk, and lose what is left of this one
                    fail(error)
                    return

        run.__name__ = topic.name.replace("-", "_")
        app.agent(channel, name=run.__name__, concurrency=1)(run)


def _spans_a_stall(chunk: Chunk) -> bool:
    """Whether the chunk was long in coming: its samples are then ahead of the task events that came meanwhile."""
    return bool(chunk.records[-1].timestamp()[1] - chunk.records[0].timestamp()[1] > STALL_MS)


def _trace_header(trace: bytes | None) -> dict[str, bytes] | None:
    """The trace goes from a submission to its attempts, and from an attempt to its placement."""
    return None if trace is None else {TRACE: trace}


def _reason(error: HeadraceError) -> str:
    if isinstance(error, InvalidRecord):
        return error.reason
    return {InvalidWorkflow: "workflow", InvalidCluster: "node"}.get(type(error), "internal")
