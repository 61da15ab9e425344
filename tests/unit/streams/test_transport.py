"""The chunk consumer, on a client that does what the test says."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import faust
import pytest
from confluent_kafka import TopicPartition
from faust.types import TP
from yarl import URL

from schemas.errors import BrokerError
from streams import transport
from streams.transport import Chunk, ChunkConsumer, ChunkTransport

TOPIC = "task-ready"
SOON_S = 5.0
PARTITIONS = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]


@dataclass(frozen=True)
class Record:
    """A message as confluent-kafka hands it out."""

    at: int
    number: int = 0

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000 + self.at

    def error(self) -> None:
        return None


Step = list[Record] | Callable[[], None]


@dataclass
class FakeKafka:
    """Each poll takes one step: records, or a callback of the group."""

    steps: queue.SimpleQueue[Step] = field(default_factory=queue.SimpleQueue)
    calls: list[str] = field(default_factory=list)
    assigned: list[TopicPartition] = field(default_factory=list)
    paused: set[int] = field(default_factory=set)
    """Partitions that bring no records, whoever they are assigned to."""
    committed_at: dict[TP, int] = field(default_factory=dict)
    _rest: list[Record] = field(default_factory=list)
    _callbacks: dict[str, Callable[[object, list[TopicPartition]], None]] = field(default_factory=dict)

    def subscribe(self, topics: list[str], **callbacks: Callable[[object, list[TopicPartition]], None]) -> None:
        self._callbacks = callbacks

    def poll(self, timeout_s: float) -> Record | None:
        try:
            step = self.steps.get(timeout=timeout_s) if timeout_s else self.steps.get_nowait()
        except queue.Empty:
            return None
        if callable(step):
            step()
            return None
        self._rest = step[1:]
        return step[0]

    def consume(self, most: int, timeout_s: float) -> list[Record]:
        rest, self._rest = self._rest, []
        return rest

    def rebalance(self, name: str) -> None:
        """Have the next poll tell of an assignment (`on_assign`) or a revocation (`on_revoke`) of everything."""
        self.steps.put(partial(self._rebalance, name))

    def _rebalance(self, name: str) -> None:
        self._callbacks[name](self, PARTITIONS)
        if name == "on_revoke":
            self.assigned = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.calls.append("assign")
        self.assigned = partitions

    def assignment(self) -> list[TopicPartition]:
        return self.assigned

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.calls.append("pause")
        self.paused |= {p.partition for p in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.calls.append("resume")
        self.paused -= {p.partition for p in partitions}

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self.committed_at.update({TP(p.topic, p.partition): p.offset for p in offsets})

    def close(self) -> None:
        self.calls.append("close")


class Group:
    """A chunk consumer on a fake client, and the chunks that it delivered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = FakeKafka()
        monkeypatch.setattr(transport.confluent_kafka, "Consumer", lambda settings: self.kafka)
        monkeypatch.setattr(transport, "STALLED_S", 0.05)
        app = faust.App("test", broker="kafka://127.0.0.1:1", store="memory://", web_enabled=False)
        self.failures: list[BaseException] = []
        url = URL("kafka://127.0.0.1:1")
        app.transport = ChunkTransport([url], app=app, settings={}, fail=self.failures.append)
        self.delivered: list[Chunk] = []
        self.consumer = cast(
            ChunkConsumer,
            app.transport.create_consumer(
                self._deliver, on_partitions_revoked=self._ignore, on_partitions_assigned=self._ignore
            ),
        )

    async def join(self) -> None:
        """Subscribe, and be assigned everything."""
        self.consumer.resume_flow()
        await self.consumer.subscribe([TOPIC])
        self.kafka.rebalance("on_assign")
        await until(lambda: self.consumer.assignment())

    async def rejoin(self) -> None:
        """Lose everything, and get it back."""
        self.kafka.rebalance("on_revoke")
        await until(lambda: not self.consumer.assignment())
        self.kafka.rebalance("on_assign")
        await until(lambda: self.consumer.assignment())

    async def leave(self) -> None:
        """Stop, as Faust does."""
        await self.consumer.on_stop()

    @property
    def offsets(self) -> list[list[int]]:
        """Those of each chunk's records."""
        return [[record.offset() or 0 for record in chunk.records] for chunk in self.delivered]

    async def _deliver(self, message: Any) -> None:
        self.delivered.append(message.value)

    async def _ignore(self, *_: object, **__: object) -> None:
        pass


@pytest.fixture
async def group(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Group]:
    group = Group(monkeypatch)
    await group.join()
    yield group
    await group.leave()
    assert group.kafka.calls[-1] == "close"


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def a_while() -> None:
    """Long enough for the pump to do what it must not."""
    await asyncio.sleep(0.2)


async def test_what_one_fetch_brought_of_a_partition_is_one_chunk(group: Group) -> None:
    group.kafka.steps.put([Record(3), Record(9, number=1), Record(4)])

    await until(lambda: len(group.delivered) == 2)

    assert group.offsets == [[3, 4], [9]]
    assert [chunk.partition for chunk in group.delivered] == [0, 1]


async def test_no_more_is_delivered_before_what_came_is_as_good_as_handled(group: Group) -> None:
    group.kafka.steps.put([Record(0), Record(0, number=1)])
    await until(lambda: len(group.delivered) == 2)
    group.kafka.steps.put([Record(1)])

    await a_while()
    before = len(group.delivered)
    group.delivered[0].is_handled.set()

    await until(lambda: len(group.delivered) == 3)
    assert before == 2


async def test_while_handling_takes_long_the_partitions_pause_and_nothing_that_came_is_lost(group: Group) -> None:
    group.kafka.steps.put([Record(0), Record(0, number=1)])
    group.kafka.steps.put([Record(1)])
    group.kafka.steps.put([Record(2)])
    await until(lambda: group.kafka.steps.empty())
    assert group.kafka.paused == {0, 1}

    for chunk in group.delivered:
        chunk.is_handled.set()

    await until(lambda: len(group.delivered) == 3)
    assert group.offsets[2] == [1, 2]
    await until(lambda: not group.kafka.paused)


async def test_partitions_that_were_revoked_in_a_pause_are_not_paused_when_they_come_back(group: Group) -> None:
    group.kafka.steps.put([Record(0), Record(0, number=1)])
    await until(lambda: group.kafka.paused)

    await group.rejoin()

    await until(lambda: not group.kafka.paused)


async def test_a_rebalance_need_not_wait_for_chunks_that_nobody_will_handle(group: Group) -> None:
    group.kafka.steps.put([Record(0), Record(0, number=1)])
    await until(lambda: len(group.delivered) == 2)

    await group.rejoin()
    group.kafka.steps.put([Record(0)])

    await until(lambda: len(group.delivered) == 3)


async def test_records_of_an_assignment_that_is_over_are_not_delivered(group: Group) -> None:
    group.kafka.steps.put([Record(0), Record(0, number=1)])
    group.kafka.steps.put([Record(77)])  # comes while the first are handled
    await until(lambda: group.kafka.steps.empty())

    await group.rejoin()
    group.kafka.steps.put([Record(0)])

    await until(lambda: len(group.delivered) == 3)
    assert group.offsets[2] == [0]


async def test_without_flow_nothing_is_delivered(group: Group) -> None:
    group.consumer.stop_flow()
    group.kafka.steps.put([Record(0)])

    await a_while()
    before = list(group.delivered)
    group.consumer.resume_flow()

    await until(lambda: len(group.delivered) == 1)
    assert before == []


async def test_an_error_of_the_client_is_told_to_the_worker(group: Group) -> None:
    def fenced() -> None:
        raise BrokerError("fenced")

    group.kafka.steps.put(fenced)

    await until(lambda: group.failures)
    assert [str(error) for error in group.failures] == ["fenced"]


async def test_commits_are_made_between_two_polls(group: Group) -> None:
    tp = TP(TOPIC, 0)

    assert await group.consumer._commit({tp: 7})

    assert group.kafka.committed_at == {tp: 7}


async def test_a_question_that_nobody_waits_for_any_more_does_no_harm(group: Group) -> None:
    question = asyncio.ensure_future(group.consumer._request(lambda: 1))
    await asyncio.sleep(0)
    question.cancel()

    await a_while()

    assert await group.consumer._request(lambda: 2) == 2
