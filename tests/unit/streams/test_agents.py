"""The agents, without Kafka and Faust around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import faust

from schemas.topics import STATE_INPUTS, TASK_READY, Topic
from streams.agents import Trunk, add_agents
from streams.transport import Chunk

Run = Callable[[AsyncIterator[Chunk]], Any]


class FakeApp:
    """Keeps the functions that become agents, by their topic's name."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}

    def topic(self, name: str, **_: object) -> str:
        return name

    def agent(self, channel: str, **_: object) -> Callable[[Run], Run]:
        return lambda run: self.runs.setdefault(channel, run)


class BrokenTrunk:
    """Cannot handle the second chunk."""

    def __init__(self) -> None:
        self.handled: list[tuple[Topic, Chunk]] = []

    async def handle(self, topic: Topic, chunk: Chunk) -> None:
        self.handled.append((topic, chunk))
        if len(self.handled) == 2:
            raise ValueError("a bug")


async def chunks(count: int) -> AsyncIterator[Chunk]:
    for number in range(count):
        yield Chunk("task-ready", number, ())


def agents_of(trunk: BrokenTrunk, fail: Callable[[BaseException], None]) -> dict[str, Run]:
    app = FakeApp()
    add_agents(cast(faust.App, app), cast(Trunk, trunk), lambda topic: topic.name, fail)
    return app.runs


async def test_each_input_of_the_state_has_an_agent_that_hands_its_chunks_on() -> None:
    trunk = BrokenTrunk()
    runs = agents_of(trunk, lambda error: None)

    await runs[TASK_READY.name](chunks(1))

    assert list(runs) == [topic.name for topic in STATE_INPUTS]
    ((topic, chunk),) = trunk.handled
    assert (topic, chunk.topic, chunk.is_handled.is_set()) == (TASK_READY, "task-ready", True)


async def test_a_worker_that_cannot_handle_a_chunk_ends_there() -> None:
    trunk, failures = BrokenTrunk(), list[BaseException]()
    runs = agents_of(trunk, failures.append)

    await runs[TASK_READY.name](chunks(3))

    assert [str(error) for error in failures] == ["a bug"]
    assert len(trunk.handled) == 2
