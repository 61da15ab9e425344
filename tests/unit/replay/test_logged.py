"""Records come with where they were read, in the order in which the broker received them."""

from __future__ import annotations

from collections.abc import Iterator

from replay.archive import Archived
from replay.logged import from_source
from schemas.codec import Codec
from schemas.errors import InvalidRecord
from schemas.records import Env, EventKind
from schemas.topics import NODE_METRICS, PLACEMENTS, TASK_EVENTS, WORKFLOW_SUBMITTED, Topic, TopicSettings
from streams.kafka import Stored
from tests.builders import a_node, a_placement, a_task, a_workflow, an_event, some_metrics

CODEC = Codec()


class Shelf:
    """A source in memory: topic -> payloads with the times of their arrival."""

    topics = TopicSettings()

    def __init__(self, kept: dict[Topic, list[tuple[int, bytes]]]) -> None:
        self.kept = kept

    def bounds(self, topic: Topic, number: int) -> tuple[int, int]:
        return 0, len(self.kept.get(topic, ()))

    def offset_at(self, topic: Topic, number: int, at_ms: int) -> int:
        rows = self.kept.get(topic, [])
        return next((i for i, (arrived_ms, _) in enumerate(rows) if arrived_ms >= at_ms), len(rows))

    def read(self, topic: Topic, number: int, start: int, end: int) -> Iterator[Stored]:
        for offset, (at_ms, payload) in list(enumerate(self.kept.get(topic, [])))[start:end]:
            yield Archived(self.topics.full_name(topic), number, offset, at_ms, b"pool", payload)


def a_shelf() -> tuple[Shelf, list[object]]:
    """A workflow and its placement in one millisecond, samples before them and an event behind."""
    records = [
        some_metrics(a_node("n0")),
        a_workflow(a_task(), env=Env.PROD),
        a_placement(),
        an_event(EventKind.STARTED, at_s=1.0),
    ]
    topics = (NODE_METRICS, WORKFLOW_SUBMITTED, PLACEMENTS, TASK_EVENTS)
    times = (10, 20, 20, 30)
    rows = {t: [(at, CODEC.encode(r, t.name))] for t, at, r in zip(topics, times, records, strict=True)}
    return Shelf(dict(reversed(rows.items()))), records


def test_records_come_as_they_arrived_and_causes_before_effects():
    shelf, records = a_shelf()

    found = list(from_source(shelf, CODEC, 3))

    assert [logged.record for logged in found] == records
    assert [logged.place for logged in found][1] == ("workflow-submitted", 3, 0)
    assert [logged.at_ms for logged in found] == [10, 20, 20, 30]


def test_a_range_of_time_has_both_of_its_ends():
    shelf, records = a_shelf()

    found = [logged.record for logged in from_source(shelf, CODEC, 0, since_ms=20, until_ms=20)]

    assert found == records[1:3]


def test_what_cannot_be_read_is_told_and_left_out():
    shelf, records = a_shelf()
    shelf.kept[TASK_EVENTS].append((40, b"nonsense"))
    told: list[tuple[Topic, InvalidRecord]] = []

    found = list(from_source(shelf, CODEC, 0, unreadable=lambda topic, error: told.append((topic, error))))

    assert len(found) == len(records)
    assert [topic for topic, _ in told] == [TASK_EVENTS]
