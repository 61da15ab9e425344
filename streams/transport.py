"""A Faust transport that delivers chunks: one event carries all that one fetch brought of one partition.

Stock Faust makes four tasks for every record; that, not decoding, is what a record costs there. A chunk's event has the
offset of its last record. Handlers run in order, one at a time for each topic, so the offset after the newest
acknowledged chunk may be committed: everything before it was handled.

The consumer is librdkafka's. Its threads keep up the membership of the group and fetch ahead, however busy Python is.
Ours, the pump, hands on what they fetched, and takes the next records when those before are handled: the longer that
takes, the larger are the chunks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import confluent_kafka
import faust
from confluent_kafka import KafkaError, Message, TopicPartition
from faust.transport.consumer import Consumer
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage

from streams.kafka import checked

log = logging.getLogger("headrace.transport")

Answer = TypeVar("Answer")

LARGEST_FETCH = 2048
"""Records that are handed on together."""
POLL_S = 0.1
STALLED_S = 0.5
"""When records are not handled by then, no more are fetched, and the pump looks after the group meanwhile."""
REQUEST_S = 10.0
NO_TABLES = "the chunk transport is for apps without tables"
UNHANDLED_CHUNKS = 1
"""With no more than these left to handle, the next are fetched."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive records of one partition. Who has handled them sets `is_handled`."""

    topic: str
    partition: int
    records: Sequence[Message]
    is_handled: asyncio.Event = field(default_factory=asyncio.Event)


class UntouchedSchema(faust.Schema):
    """Hands the chunk on as it is."""

    def loads_key(self, app: Any, message: Any, **_: Any) -> Any:
        return message.key

    def loads_value(self, app: Any, message: Any, **_: Any) -> Any:
        return message.value


class ChunkConsumer(Consumer):
    """A member of the group, and what it fetches, as chunks."""

    transport: ChunkTransport

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kafka = confluent_kafka.Consumer({**self.transport.settings, "on_commit": _on_commit})
        self._assigned: set[TP] = set()
        self._assignments = 0
        self._unhandled: deque[Chunk] = deque()
        self._is_closing = threading.Event()
        self._pump = threading.Thread(target=self._run, name="pump", daemon=True)
        self._questions: queue.SimpleQueue[tuple[Callable[[], Any], concurrent.futures.Future[Any]]]
        self._questions = queue.SimpleQueue()

    # The pump's thread.

    def _run(self) -> None:
        try:
            fetched: list[Message] = []
            while not self._is_closing.is_set():
                self._answer()
                fetched = self._pass_on(fetched or self._fetch(POLL_S))
        except Exception as error:
            self.transport.fail(error)
        finally:
            self._kafka.close()

    def _fetch(self, timeout_s: float) -> list[Message]:
        """What is there; waits for the first record only. The group's callbacks run in here."""
        first = self._kafka.poll(timeout_s)  # `kafka.fetch` in two steps: a callback may run in each
        if first is None:
            return []
        assignment = self._assignments
        others = self._kafka.consume(LARGEST_FETCH - 1, 0)
        return list(checked([first, *others] if assignment == self._assignments else others))

    def _pass_on(self, messages: list[Message]) -> list[Message]:
        """Hand records on, and wait until they are as good as handled; returns those that came meanwhile."""
        if not messages:
            return []
        handling = self._in_loop(self._deliver(list(_cut(messages)), self._assignments))
        came_meanwhile: list[Message] = []
        is_paused = False
        while not self._is_done(handling):
            self._answer()
            if not is_paused:
                self._kafka.pause(self._kafka.assignment())
                is_paused = True
            before = self._assignments
            fetched = self._fetch(0)
            if before != self._assignments:
                came_meanwhile, is_paused = [], False
            came_meanwhile += fetched
        if is_paused:
            self._kafka.resume(self._kafka.assignment())
        return came_meanwhile

    def _is_done(self, handling: concurrent.futures.Future[None]) -> bool:
        try:
            handling.result(STALLED_S)
        except concurrent.futures.TimeoutError:
            return self._is_closing.is_set()
        return True

    def _answer(self) -> None:
        """Do what Faust's thread asks of the client: no other thread gets at it while this one polls."""
        while True:
            try:
                ask, answer = self._questions.get_nowait()
            except queue.Empty:
                return
            if not answer.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            try:
                answer.set_result(ask())
            except Exception as error:
                answer.set_exception(error)

    def _on_assign(self, _: object, assigned: list[TopicPartition]) -> None:
        if not self._is_closing.is_set():
            self._kafka.assign(assigned)
            self._kafka.resume(assigned)  # a pause outlasts the assignment that it was made in
            self._in_loop(self._take_over(_tps(assigned))).result()

    def _on_revoke(self, _: object, revoked: list[TopicPartition]) -> None:
        if not self._is_closing.is_set():
            self._in_loop(self._give_up(_tps(revoked))).result()

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._home)

    # Faust's thread.

    async def _take_over(self, assigned: set[TP]) -> None:
        if not self.app.rebalancing:  # the first time, nothing was revoked before
            self.app.on_rebalance_start()
        self._start_anew(assigned)
        self.app.consumer_generation_id = self._assignments
        await self.on_partitions_assigned(assigned, self._assignments)

    async def _give_up(self, revoked: set[TP]) -> None:
        self.app.on_rebalance_start()
        await self.on_partitions_revoked(revoked)
        self._start_anew(set())

    def _start_anew(self, assigned: set[TP]) -> None:
        """What is under way of another assignment will not be handled: Faust has emptied its buffers."""
        self._assigned = assigned
        self._assignments += 1
        for chunk in self._unhandled:
            chunk.is_handled.set()

    async def _deliver(self, chunks: list[Chunk], assignment: int) -> None:
        for chunk in chunks:
            if not self.flow_active:
                await self.can_resume_flow.wait()
            if assignment != self._assignments:
                return
            tp = TP(chunk.topic, chunk.partition)
            message = self._chunk_message(tp, chunk)
            self._unhandled.append(chunk)
            await self.callback(message)
            self._read_offset[tp] = message.offset
        while len(self._unhandled) > UNHANDLED_CHUNKS:
            await self._unhandled[0].is_handled.wait()  # which a new assignment sets, too
            self._unhandled.popleft()

    def _chunk_message(self, tp: TP, chunk: Chunk) -> ConsumerMessage:
        last = chunk.records[-1]
        kind, at_ms = last.timestamp()
        generation = self.app.consumer_generation_id
        return ConsumerMessage(
            *tp, last.offset(), at_ms / 1000, kind, [], None, chunk, None, 0, 0, tp, generation_id=generation
        )

    def _new_offset(self, tp: TP) -> int | None:
        """The offset to commit: chunks are acknowledged in order, so the newest one counts."""
        acknowledged = self._acked[tp]
        if not acknowledged:
            return None
        offset: int = max(acknowledged) + 1
        acknowledged.clear()
        self._acked_index[tp].clear()
        return offset

    async def _drain_messages(self, fetcher: Any) -> None:
        """The pump drains; what Faust starts for that only waits for its end."""
        with suppress(asyncio.CancelledError):  # which a fetcher takes for a crash while the group rebalances
            await fetcher.wait_until_stopped()

    async def on_stop(self) -> None:
        await super().on_stop()
        self._is_closing.set()
        if self._pump.is_alive():
            await asyncio.to_thread(self._pump.join)

    async def _request(self, ask: Callable[[], Answer]) -> Answer:
        answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        self._questions.put((ask, answer))
        return await asyncio.wrap_future(answer)

    # What Faust asks of a consumer.

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group."""
        self._home = asyncio.get_running_loop()
        revoke = self._on_revoke
        self._kafka.subscribe(list(topics), on_assign=self._on_assign, on_revoke=revoke, on_lost=revoke)
        if not self._pump.is_alive():
            self._pump.start()

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        wanted = [TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        # Nobody waits for the answer: without a broker that takes a minute, and the pump looks after nothing meanwhile.
        await self._request(partial(self._kafka.commit, offsets=wanted, asynchronous=True))
        return True

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Where each partition begins: librdkafka begins there by itself."""
        wanted = [TopicPartition(*tp) for tp in self._assigned]
        found = await self._request(partial(self._kafka.committed, wanted, timeout=REQUEST_S))
        return {TP(p.topic, p.partition): max(0, p.offset) for p in found}

    def assignment(self) -> set[TP]:
        """The partitions that are ours."""
        return set(self._assigned)

    async def create_topic(self, topic: str, *_: Any, **__: Any) -> None:
        """Topics are made by `headrace topics create`, and their absence was noticed at the start."""

    def key_partition(self, topic: str, key: bytes | None, partition: int | None = None) -> int | None:
        """The publisher finds the partition of a key."""
        return partition

    def _new_topicpartition(self, topic: str, partition: int) -> TP:
        return TP(topic, partition)

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        return self._chunk_message(tp, Chunk(*tp, [record]))

    # What Faust asks where an app has tables, or draws records itself.

    async def _seek(self, partition: TP, offset: int) -> None:
        raise NotImplementedError(NO_TABLES)

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        raise NotImplementedError(NO_TABLES)

    async def position(self, tp: TP) -> int | None:
        raise NotImplementedError(NO_TABLES)

    def highwater(self, tp: TP) -> int:
        raise NotImplementedError(NO_TABLES)

    async def highwaters(self, *partitions: TP) -> Mapping[TP, int]:
        raise NotImplementedError(NO_TABLES)

    async def earliest_offsets(self, *partitions: TP) -> Mapping[TP, int]:
        raise NotImplementedError(NO_TABLES)

    def topic_partitions(self, topic: str) -> int | None:
        raise NotImplementedError(NO_TABLES)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Mapping[TP, list[Any]]:
        raise NotImplementedError(NO_TABLES)


class ChunkTransport(driver.Transport):
    """Faust's transport with chunk delivery.

    `settings` are those of librdkafka's consumer; `fail` is called, in its thread, when it can read no more.
    """

    Consumer = ChunkConsumer

    def __init__(
        self, *args: Any, settings: Mapping[str, object], fail: Callable[[BaseException], None], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.settings = settings
        self.fail = fail


def _on_commit(error: KafkaError | None, _: list[TopicPartition]) -> None:
    if error is not None:  # a later commit, or the next owner's, makes up for it
        log.info("commit.failed", extra={"error": error.str()})


def _tps(partitions: Iterable[TopicPartition]) -> set[TP]:
    return {TP(p.topic, p.partition) for p in partitions}


def _cut(messages: Iterable[Message]) -> Iterator[Chunk]:
    """The records of each partition, in order."""
    found: dict[TP, list[Message]] = {}
    for message in messages:
        found.setdefault(TP(message.topic() or "", message.partition() or 0), []).append(message)
    for tp, records in found.items():
        yield Chunk(*tp, records)
