"""Every record and its `.avsc` say the same."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from importlib.resources import files
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from schemas import records
from schemas.codec import schema_text
from schemas.conversion import optional
from schemas.topics import CATALOGUE

RECORDS = list(dict.fromkeys(topic.record for topic in CATALOGUE))
EVERY = pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.__name__)
SCALARS = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes"}


@EVERY
def test_the_schema_has_the_fields_of_the_record_in_their_order_with_their_types_and_defaults(record):
    schema = json.loads(schema_text(record))

    assert without_words(schema) == avro_record(record) | {"namespace": "io.headrace"}


def test_every_schema_that_is_shipped_belongs_to_a_topic():
    shipped = {entry.name for entry in files("schemas").iterdir() if entry.name.endswith(".avsc")}

    names = {"".join(f"_{c.lower()}" if c.isupper() else c for c in r.__name__).lstrip("_") for r in RECORDS}
    assert shipped == {f"{name}.avsc" for name in names}


@pytest.mark.parametrize("enum", [e for e in vars(records).values() if isinstance(e, type) and issubclass(e, StrEnum)])
def test_every_enum_has_a_symbol_for_what_a_newer_writer_means(enum):
    assert enum is StrEnum or next(iter(enum)) == "unknown"


@pytest.mark.parametrize("name", [n for n, c in vars(records).items() if dataclasses.is_dataclass(c)])
def test_a_record_cannot_be_changed(name):
    record = getattr(records, name)

    assert record.__dataclass_params__.frozen
    assert hasattr(record, "__slots__")


def test_the_samples_have_the_columns_of_the_design():
    assert records.METRICS == (
        "cpu_utilisation",
        "memory_utilisation",
        "disk_utilisation",
        "network_bytes_per_s",
        "gpu_memory_utilisation",
        "failure_rate",
        "pcie_utilisation",
        "network_latency_p99_s",
    )


def avro_record(record: Any) -> dict[str, Any]:
    """The schema that the record's class asks for, without words."""
    hints = get_type_hints(record)
    fields = []
    for field in dataclasses.fields(record):
        described = {"name": field.name, "type": avro_type(hints[field.name])}
        if field.default is not dataclasses.MISSING:
            described["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
        elif field.default_factory is not dataclasses.MISSING:
            described["default"] = field.default_factory()
        fields.append(described)
    return {"type": "record", "name": record.__name__, "fields": fields}


def avro_type(hint: Any) -> Any:
    inner = optional(hint)
    if inner is not None:
        return ["null", avro_type(inner)]
    if dataclasses.is_dataclass(hint):
        return avro_record(hint)
    if get_origin(hint) is tuple:
        return {"type": "array", "items": avro_type(get_args(hint)[0])}
    if get_origin(hint) is not None:
        return {"type": "map", "values": avro_type(get_args(hint)[1])}
    if issubclass(hint, StrEnum):
        symbols = [str(symbol) for symbol in hint]
        return {"type": "enum", "name": hint.__name__, "symbols": symbols, "default": symbols[0]}
    return SCALARS[hint]


def without_words(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_words(value) for key, value in schema.items() if key != "doc"}
    return [without_words(item) for item in schema] if isinstance(schema, list) else schema
