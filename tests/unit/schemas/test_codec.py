"""Records to bytes, and back, whoever wrote them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from fastavro.utils import generate_many
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import SINGLE_OBJECT, Codec, file_name, fingerprint_of, schema_text
from schemas.conversion import from_plain, to_plain
from schemas.errors import InvalidRecord
from schemas.records import (
    METRICS,
    Control,
    DeadLetter,
    DecisionBatch,
    Edge,
    Effect,
    Env,
    EventKind,
    Model,
    NodeMetrics,
    NodeSpec,
    Outcome,
    Placement,
    Preference,
    Reward,
    SnapshotPart,
    Spread,
    Stage,
    Taint,
    Task,
    TaskEvent,
    TaskReady,
    Toleration,
    WorkflowClass,
    WorkflowSubmitted,
)
from schemas.topics import CATALOGUE
from tests.record_strategies import any_record

RECORDS = list(dict.fromkeys(topic.record for topic in CATALOGUE))
EVERY = pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.__name__)
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "records.json"
"""Name -> the bytes, as hex, that version 1 wrote for EXAMPLES. Changed only when a schema is: old bytes then stay."""
REASONS = {"undecodable", "unknown_schema", "unknown_format", "no_registry", "invalid_json"}
AT_MS = 1_767_225_600_000
TASK = Task(
    "train/1",
    3600.5,
    2.5,
    2**34,
    1,
    2**33,
    10,
    True,
    (Edge("load", 2**40), Edge("täsk 😀")),
    {"zone": "a"},
    (Toleration("gpu", None, Effect.NO_SCHEDULE), Toleration()),
    (Preference(100, "disk", ("ssd", "nvme")),),
    (Spread("zone", 2),),
    "app/train:1",
)
EXAMPLES = (
    WorkflowSubmitted("pool", "wf-1", AT_MS, "nightly", WorkflowClass.AI_TRAINING, Env.PROD, (TASK,), 7200.0),
    NodeMetrics(
        "pool",
        AT_MS,
        "collector",
        ("n0",),
        bytes(range(4 * len(METRICS))),
        (
            NodeSpec(
                "n0",
                8.0,
                2**35,
                2,
                2**34,
                1.5,
                0.35,
                1e9,
                {"zone": "a"},
                (Taint("gpu", "", Effect.NO_SCHEDULE),),
                {"a": 1},
            ),
        ),
    ),
    TaskReady("pool", "wf-1", "train/1", 2, AT_MS, TASK, WorkflowClass.MIXED, Env.DEV, ("n0", "n1")),
    Placement(
        "pool", "wf-1", "train/1", 0, AT_MS, Outcome.PLACED, "n0", None, 12.5, -0.25, "heft", "v1", 7, (1, 2, 3, 4)
    ),
    TaskEvent("pool", "wf-1", "train/1", 0, "n0", AT_MS, EventKind.FINISHED, Env.TEST, 12.0, 0.5, None),
    DecisionBatch(
        "pool",
        AT_MS,
        "actor",
        "v2",
        9,
        (5,),
        0.3,
        ("wf-1", "wf-2"),
        ("t", "u"),
        (1, 0),
        (0.75, 0.5),
        ("n0", ""),
        (2, 0),
        1,
        ("n0", ""),
        (1.5, 0.0),
        (0.9, 0.0),
        ({}, {"gpu": 3}),
        (0, 17, 20, 1),
    ),
    Model("v2", "canary", None, AT_MS, "00ff", "{}", {"actor.onnx": b"\x00\xff"}),
    Control("pool", AT_MS, "pause", {"why": "maintenance"}),
    DeadLetter("headrace.task-ready", 3, 2**40, AT_MS, "undecodable", "no record", b"\xc3\x01"),
    SnapshotPart(0, -1, 4, AT_MS, "ab", {"headrace.task-ready": 17}, b"\x00"),
    Reward(
        "pool",
        "wf-1",
        "train/1",
        0,
        AT_MS,
        Stage.SETTLED,
        AT_MS - 1000,
        "n0",
        WorkflowClass.MIXED,
        -0.25,
        (0.5, 0.25, 0.0, 0.0, 1.0, 0.5, -1.0, 0.0),
        (-0.5, -0.5, -0.5, -0.5, 0.25, -0.25, 0.125, 0.0),
        (-0.25, -0.125, 0.0, 0.0, 0.25, -0.125, -0.125, 0.0),
        (0.5, 0.0, 0.25),
        120.0,
        60.0,
        240.0,
        (1.0, 0.0, 1.0),
        21,
        1.5,
        0.25,
        EventKind.FINISHED,
        "actor",
        "v2",
    ),
)


class FakeRegistry:
    """Schemas by number, as a registry keeps them."""

    def __init__(self, *schemas: str) -> None:
        self.schemas = list(schemas)

    def id_of(self, topic: str, schema: str) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema)

    def schema_of(self, schema_id: int) -> str:
        if schema_id >= len(self.schemas):
            raise LookupError(f"schema {schema_id} not found")
        return self.schemas[schema_id]


@EVERY
@given(st.data())
@settings(max_examples=40)
def test_what_was_written_is_read(record, data):
    value = data.draw(any_record(record))

    assert Codec().decode(Codec().encode(value, "topic"), record) == value


@EVERY
@given(st.data())
@settings(max_examples=40)
def test_what_was_written_with_a_registry_is_read_with_it(record, data):
    value = data.draw(any_record(record))
    registry = FakeRegistry("{}")

    payload = Codec(registry).encode(value, "topic")

    assert payload[:5] == b"\x00\x00\x00\x00\x01"
    assert Codec(registry).decode(payload, record) == value


def test_a_nan_is_read_as_a_nan():
    value = Placement("p", "w", "t", 0, 0, Outcome.PLACED, expected_s=float("nan"))

    read = Codec().decode(Codec().encode(value, "topic"), Placement)

    assert read.expected_s != read.expected_s


def test_a_codec_with_a_registry_reads_what_was_written_without_one():
    value = EXAMPLES[4]

    assert Codec(FakeRegistry()).decode(Codec().encode(value, "topic"), type(value)) == value


# Golden bytes, and schemas of other versions


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda v: type(v).__name__)
def test_the_bytes_are_those_that_version_1_wrote(value):
    payload = bytes.fromhex(json.loads(GOLDEN.read_text(encoding="utf-8"))[type(value).__name__])

    assert Codec().decode(payload, type(value)) == value
    assert Codec().encode(value, "topic") == payload


def test_every_record_has_golden_bytes():
    assert [type(value) for value in EXAMPLES] == RECORDS
    assert set(json.loads(GOLDEN.read_text(encoding="utf-8"))) == {r.__name__ for r in RECORDS}


def released() -> Iterator[Any]:
    for record in RECORDS:
        stem = file_name(record).removesuffix(".avsc")
        entries = [e for e in files("schemas").joinpath("released").iterdir() if e.name.startswith(f"{stem}.")]
        assert entries, f"no released schema of {record.__name__}"
        yield from (pytest.param(record, json.loads(e.read_text(encoding="utf-8")), id=e.name) for e in entries)


@pytest.mark.parametrize(("record", "writer"), released())
def test_every_released_schema_is_read_by_todays(record, writer):
    for plain in generate_many(fastavro.parse_schema(writer), 20):
        plain = without_nan(plain)

        value = Codec().decode(single_object(writer, plain), record)

        assert value == from_plain(plain, record)


@EVERY
def test_what_an_older_writer_did_not_know_has_its_default(record):
    older = json.loads(schema_text(record))
    older["fields"] = [field for field in older["fields"] if "default" not in field]
    (plain,) = generate_many(fastavro.parse_schema(older), 1)
    plain = without_nan(plain)

    value = Codec(FakeRegistry(json.dumps(older))).decode(b"\x00\x00\x00\x00\x00" + body(older, plain), record)

    assert value == from_plain(plain, record)


def test_what_a_newer_writer_added_is_left_aside_and_its_new_symbols_are_unknown():
    newer = json.loads(schema_text(TaskEvent))
    newer["fields"].append({"name": "exit_code", "type": "long", "default": 0})
    kind = next(field["type"] for field in newer["fields"] if field["name"] == "kind")
    kind["symbols"].append("suspended")
    plain = to_plain(EXAMPLES[4]) | {"exit_code": 9, "kind": "suspended"}

    value = Codec(FakeRegistry(json.dumps(newer))).decode(b"\x00\x00\x00\x00\x00" + body(newer, plain), TaskEvent)

    assert value == from_plain(to_plain(EXAMPLES[4]) | {"kind": "unknown"}, TaskEvent)


def test_the_fingerprint_is_that_of_the_avro_specification():
    assert fingerprint_of(Control).hex() == fingerprint(
        to_parsing_canonical_form(json.loads(schema_text(Control))), "CRC-64-AVRO"
    )
    assert Codec().encode(EXAMPLES[7], "topic")[:10] == SINGLE_OBJECT + fingerprint_of(Control)


# Bytes that are no record


@EVERY
@given(payload=st.binary(max_size=80))
@settings(max_examples=50)
def test_random_bytes_are_no_record(record, payload):
    with pytest.raises(InvalidRecord) as caught:
        Codec().decode(payload, record)

    assert caught.value.reason in REASONS
    assert caught.value.where.startswith(record.__name__)


@EVERY
@given(body=st.binary(max_size=60))
@settings(max_examples=50)
def test_a_random_body_is_a_record_or_an_invalid_one(record, body):
    try:
        value = Codec().decode(SINGLE_OBJECT + fingerprint_of(record) + body, record)
    except InvalidRecord as error:
        assert error.reason == "undecodable"  # noqa: PT017
    else:
        assert isinstance(value, record)


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda v: type(v).__name__)
def test_a_record_that_is_cut_off_anywhere_or_goes_on_is_invalid(value):
    payload = Codec().encode(value, "topic")

    for end in range(len(payload)):
        with pytest.raises(InvalidRecord):
            Codec().decode(payload[:end], type(value))
    with pytest.raises(InvalidRecord, match="bytes are left"):
        Codec().decode(payload + b"\x00", type(value))


def test_an_unknown_fingerprint_says_what_to_do():
    with pytest.raises(InvalidRecord, match=r"Control: written with an unknown schema 0{16}; upgrade") as caught:
        Codec().decode(SINGLE_OBJECT + bytes(8) + b"\x00", Control)

    assert caught.value.reason == "unknown_schema"


def test_a_record_of_another_topic_is_an_unknown_schema():
    with pytest.raises(InvalidRecord, match="unknown schema"):
        Codec().decode(Codec().encode(EXAMPLES[0], "topic"), TaskReady)


def test_the_confluent_format_needs_a_registry():
    with pytest.raises(InvalidRecord, match=r"schema id 3.*kafka.schema_registry_url") as caught:
        Codec().decode(b"\x00\x00\x00\x00\x03\x02a", Control)

    assert caught.value.reason == "no_registry"


@pytest.mark.parametrize("schema", [None, "no json", '{"type": "nonsense"}', '"string"', '{"type": "record"}'])
def test_a_schema_that_the_registry_does_not_have_or_that_is_none_of_ours_is_invalid(schema):
    registry = FakeRegistry(*([] if schema is None else [schema]))

    with pytest.raises(InvalidRecord):
        Codec(registry).decode(b"\x00\x00\x00\x00\x00\x02a", Control)


def test_the_registry_is_asked_once_for_each_schema():
    asked = []

    class Counting(FakeRegistry):
        def schema_of(self, schema_id: int) -> str:
            asked.append(schema_id)
            return super().schema_of(schema_id)

    codec = Codec(Counting(schema_text(Control)))
    payload = b"\x00\x00\x00\x00\x00" + body(json.loads(schema_text(Control)), to_plain(EXAMPLES[7]))

    assert [codec.decode(payload, Control) for _ in range(3)] == [EXAMPLES[7]] * 3
    assert asked == [0]


@pytest.mark.parametrize("content_type", [None, b"application/json"])
def test_json_is_read_where_it_shows_itself_or_is_declared(content_type):
    payload = b'{"pool": "p", "event_time_ms": 1, "command": "pause"}'
    spaced = payload if content_type is None else b"  " + payload

    assert Codec().decode(spaced, Control, content_type) == Control("p", 1, "pause")


def test_a_value_that_does_not_fit_its_schema_is_not_written():
    with pytest.raises((TypeError, ValueError, OverflowError)):
        Codec().encode(Control("p", 2**63, "pause"), "topic")


def single_object(schema: Any, plain: Any) -> bytes:
    """The value in single-object encoding of any schema."""
    mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
    return SINGLE_OBJECT + mark + body(schema, plain)


def body(schema: Any, plain: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), plain)
    return buffer.getvalue()


def without_nan(plain: Any) -> Any:
    """The value with 0 for every NaN, which equals nothing."""
    if isinstance(plain, dict):
        return {key: without_nan(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [without_nan(item) for item in plain]
    return 0.0 if isinstance(plain, float) and plain != plain else plain
