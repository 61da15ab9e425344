"""Records from JSON: what is accepted, and how an error names its place."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.conversion import to_plain
from schemas.errors import InvalidRecord
from schemas.json_records import read
from schemas.records import METRICS, Control, DeadLetter, Model, NodeMetrics, TaskEvent, TaskReady, WorkflowSubmitted
from schemas.topics import CATALOGUE
from tests.record_strategies import any_record

TEXTUAL = [topic.record for topic in CATALOGUE if topic.record not in (NodeMetrics, Model, DeadLetter)]
TEXTUAL = [record for record in TEXTUAL if record.__name__ != "SnapshotPart"]
"""The records without bytes."""

numbers = st.integers() | st.floats() | st.booleans()
anything = st.recursive(
    st.none() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("record", TEXTUAL, ids=lambda r: r.__name__)
@given(st.data())
@settings(max_examples=40)
def test_every_record_can_be_given_as_json(record, data):
    value = data.draw(any_record(record))
    assume(is_finite(to_plain(value)))

    assert read(json.dumps(to_plain(value)).encode(), record) == value


def test_fields_with_a_default_may_be_absent():
    payload = {"pool": "p", "workflow_id": "w", "task_id": "t", "attempt": 0, "event_time_ms": 5}

    assert read_plain(payload, TaskReady) == TaskReady("p", "w", "t", 0, 5)


def test_samples_are_rows_of_numbers_and_nulls():
    rows = [[0.5] * len(METRICS), [None, 1] + [0] * (len(METRICS) - 2)]
    payload = {"pool": "p", "event_time_ms": 5, "source": "s", "nodes": ["a", "b"], "values": rows}

    values_nm = np.frombuffer(read_plain(payload, NodeMetrics).values, "<f4").reshape(2, -1)

    assert values_nm[0].tolist() == [0.5] * len(METRICS)
    assert np.isnan(values_nm[1, 0])
    assert values_nm[1, 1:].tolist() == [1] + [0] * (len(METRICS) - 2)


def test_a_whole_number_may_be_written_with_a_point():
    assert read_plain(event(attempt=2.0), TaskEvent).attempt == 2


TASK = {"task_id": "t", "runtime_s": 1}


def workflow(**fields: Any) -> dict[str, Any]:
    known = {"pool": "p", "workflow_id": "w", "event_time_ms": 1, "name": "n", "workflow_class": "mixed", "env": "prod"}
    return known | {"tasks": [TASK]} | fields


def event(**fields: Any) -> dict[str, Any]:
    known = {"pool": "p", "workflow_id": "w", "task_id": "t", "attempt": 0, "node_id": "n", "event_time_ms": 1}
    return known | {"kind": "started"} | fields


def metrics(values: Any) -> dict[str, Any]:
    return {"pool": "p", "event_time_ms": 1, "source": "s", "nodes": ["a"], "values": values}


@pytest.mark.parametrize(
    ("plain", "record", "message"),
    [
        (workflow(tasks=[TASK | {"cpus": 2}]), WorkflowSubmitted, "tasks[0]: has no field 'cpus'; did you mean 'cpu'?"),
        (workflow(tasks=[TASK, {"task_id": "u"}]), WorkflowSubmitted, "tasks[1]: the field 'runtime_s' is missing"),
        (workflow(tasks=[TASK | {"gpu": "2"}]), WorkflowSubmitted, 'tasks[0].gpu: "2" is not a whole number'),
        (workflow(tasks=[TASK | {"gpu": 1.5}]), WorkflowSubmitted, "tasks[0].gpu: 1.5 is not a whole number"),
        (workflow(tasks=[TASK | {"gpu": True}]), WorkflowSubmitted, "tasks[0].gpu: true is not a whole number"),
        (workflow(tasks=[TASK | {"gpu": 2**63}]), WorkflowSubmitted, "tasks[0].gpu: 9223372036854775808 does not fit"),
        (workflow(tasks=[TASK | {"cpu": float("inf")}]), WorkflowSubmitted, "tasks[0].cpu: inf is not finite"),
        (workflow(tasks=[TASK | {"cpu": 10**400}]), WorkflowSubmitted, "tasks[0].cpu: 1000"),
        (workflow(tasks=[TASK | {"critical": 1}]), WorkflowSubmitted, "tasks[0].critical: 1 is not true or false"),
        (workflow(tasks=[TASK | {"parents": ["a"]}]), WorkflowSubmitted, 'tasks[0].parents[0]: "a" is not an object'),
        (
            workflow(tasks=[TASK | {"node_selector": {"k": 1}}]),
            WorkflowSubmitted,
            "tasks[0].node_selector.k: 1 is not a",
        ),
        (workflow(tasks=TASK), WorkflowSubmitted, "tasks: {"),
        (workflow(env="production"), WorkflowSubmitted, "env: 'production' is none of unknown, prod, test, dev"),
        (workflow(name="\ud800"), WorkflowSubmitted, "name: "),
        (workflow(tasks=[TASK | {"node_selector": {"\udfff": ""}}]), WorkflowSubmitted, "tasks[0].node_selector"),
        (event(pool=None), TaskEvent, "pool: null is not a string"),
        (event(kind=["started"]), TaskEvent, "kind: "),
        (metrics([[0.0] * 7]), NodeMetrics, "values[0]: 7 numbers; give 8: cpu_utilisation"),
        (metrics([[1e300] + [0.0] * 7]), NodeMetrics, "values[0]: 1e+300 is too large"),
        (metrics([["0.5"] + [0.0] * 7]), NodeMetrics, 'values[0]: "0.5" is not a number'),
        (metrics("AAAA"), NodeMetrics, 'values: "AAAA" is not a list of rows'),
        ([], Control, "Control: [] is not an object"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_an_error_names_the_field(plain, record, message):
    with pytest.raises(InvalidRecord) as caught:
        read_plain(plain, record)

    assert message in str(caught.value)
    assert str(caught.value).startswith(record.__name__)
    assert caught.value.reason == "invalid_json"


@pytest.mark.parametrize("field", ["files", "payload"])
def test_records_of_bytes_are_no_json(field):
    model = {"version": "v", "channel": "c", "parent": None, "event_time_ms": 1, "digest": "d", "manifest": "{}"}
    letter = {"topic": "t", "partition": 0, "offset": 0, "event_time_ms": 1, "reason": "r", "problem": "p"}
    record, plain = (Model, model | {"files": {"a": "00"}}) if field == "files" else (DeadLetter, letter | {field: []})

    with pytest.raises(InvalidRecord, match=rf"{field}.*bytes"):
        read_plain(plain, record)


@pytest.mark.parametrize("payload", [b"", b"{", b"{'pool': 1}", b"\xff{}", b'{"pool": "a"} x'])
def test_what_is_no_json_is_invalid(payload):
    with pytest.raises(InvalidRecord, match="Control: is no JSON"):
        read(payload, Control)


@pytest.mark.parametrize("depth", [10, 100, *range(800, 1000, 7), 100_000])
def test_what_is_nested_too_deep_is_invalid(depth):
    payload = b'{"pool": ' + b"[" * depth + b"]" * depth + b', "event_time_ms": 1, "command": "c"}'

    with pytest.raises(InvalidRecord):
        read(payload, Control)


@pytest.mark.parametrize("record", [topic.record for topic in CATALOGUE], ids=lambda r: r.__name__)
@given(st.data())
@settings(max_examples=40)
def test_any_json_is_a_record_or_an_invalid_one(record, data):
    fields = dict.fromkeys(record.__dataclass_fields__, anything)
    plain = data.draw(anything | st.fixed_dictionaries(fields))

    try:
        value = read_plain(plain, record)
    except InvalidRecord as error:
        assert str(error).startswith(record.__name__)  # noqa: PT017
    else:
        assert isinstance(value, record)


def read_plain(plain: Any, record: type) -> Any:
    return read(json.dumps(plain).encode(), record)


def is_finite(plain: Any) -> bool:
    if isinstance(plain, dict):
        return all(map(is_finite, plain.values()))
    if isinstance(plain, list | tuple):
        return all(map(is_finite, plain))
    return not isinstance(plain, float) or math.isfinite(plain)
