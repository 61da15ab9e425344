"""Records from JSON, for producers without Avro: every value is checked, and an error names the field."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import struct
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from schemas.conversion import optional
from schemas.errors import InvalidRecord
from schemas.records import METRICS, NodeMetrics

Record = TypeVar("Record")
INT64 = 2**63


def read(payload: bytes, record: type[Record]) -> Record:
    """The record in this JSON object: keys are the field names, fields with a default may be absent.

    `NodeMetrics.values` is a list of rows of numbers or nulls; other bytes cannot be given. Raises InvalidRecord.
    """
    try:
        value: Record = _value(_load(payload, record.__name__), record, record.__name__)
    except RecursionError as error:
        raise InvalidRecord(
            record.__name__, "is nested too deep", "send one JSON object a record", "invalid_json"
        ) from error
    return value


def _load(payload: bytes, where: str) -> Any:
    try:
        return json.loads(payload)
    except ValueError as error:
        raise InvalidRecord(where, f"is no JSON: {error}", "send one JSON object a record", "invalid_json") from error


def _value(plain: Any, hint: Any, where: str) -> Any:
    inner = optional(hint)
    if inner is not None:
        return None if plain is None else _value(plain, inner, where)
    if dataclasses.is_dataclass(hint):
        return _record(plain, hint, where)
    origin = get_origin(hint)
    if origin is tuple:
        items = _expect(plain, list, "a list", where)
        return tuple(_value(item, get_args(hint)[0], f"{where}[{i}]") for i, item in enumerate(items))
    if origin is not None:  # Mapping
        entries = _expect(plain, dict, "an object", where)
        return {
            _value(key, str, f"{where}.{key!a}"): _value(value, get_args(hint)[1], f"{where}.{key}")
            for key, value in entries.items()
        }
    if issubclass(hint, StrEnum):
        return _member(plain, hint, where)
    return _scalar(plain, hint, where)


def _record(plain: Any, record: Any, where: str) -> Any:
    entries: Mapping[str, Any] = _expect(plain, dict, "an object", where)
    hints = get_type_hints(record)
    fields = {f.name: f for f in dataclasses.fields(record)}
    for key in entries:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            remedy = f"did you mean '{near[0]}'?" if near else f"the fields are {', '.join(fields)}"
            raise InvalidRecord(where, f"has no field '{key}'", remedy, "invalid_json")
    values = {}
    for name, spec in fields.items():
        if name in entries:
            values[name] = (
                _rows(entries[name], f"{where}.{name}")
                if record is NodeMetrics and name == "values"
                else _value(entries[name], hints[name], f"{where}.{name}")
            )
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise InvalidRecord(where, f"the field '{name}' is missing", "add it", "invalid_json")
    return record(**values)


def _rows(plain: Any, where: str) -> bytes:
    """Rows of metrics as float32 bytes. null: not measured."""
    rows = _expect(plain, list, "a list of rows", where)
    packed = bytearray()
    for i, row in enumerate(rows):
        numbers = _expect(row, list, "a list of numbers", f"{where}[{i}]")
        if len(numbers) != len(METRICS):
            raise InvalidRecord(
                f"{where}[{i}]", f"{len(numbers)} numbers", f"give {len(METRICS)}: {', '.join(METRICS)}", "invalid_json"
            )
        for number in numbers:
            value = math.nan if number is None else _scalar(number, float, f"{where}[{i}]")
            try:
                packed += struct.pack("<f", value)
            except OverflowError as error:
                raise InvalidRecord(f"{where}[{i}]", f"{number} is too large", "", "invalid_json") from error
    return bytes(packed)


def _member(plain: Any, hint: type[StrEnum], where: str) -> StrEnum:
    try:
        return hint(plain)
    except ValueError as error:
        raise InvalidRecord(where, f"{plain!r} is none of {', '.join(hint)}", "", "invalid_json") from error


def _scalar(plain: Any, hint: type, where: str) -> Any:
    if hint is float:
        number = _expect(plain, (int, float), "a number", where)
        if (isinstance(number, int) and abs(number) >= 2**1023) or not math.isfinite(number):
            raise InvalidRecord(where, f"{plain!r} is not finite", "give a finite number", "invalid_json")
        return float(number)
    if hint is int:
        if isinstance(plain, float) and plain.is_integer():
            plain = int(plain)
        number = _expect(plain, int, "a whole number", where)
        if not -INT64 <= number < INT64:
            raise InvalidRecord(where, f"{number} does not fit 64 bits", "", "invalid_json")
        return number
    if hint is bool:
        return _expect(plain, bool, "true or false", where)
    if hint is not str:
        raise InvalidRecord(where, "bytes cannot be given in JSON", "produce Avro", "invalid_json")
    return _text(plain, where)


def _text(plain: Any, where: str) -> str:
    text: str = _expect(plain, str, "a string", where)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(
            where, f"{text!a} holds half a character", "send pairs of \\u escapes", "invalid_json"
        ) from error
    return text


def _expect(plain: Any, kind: type | tuple[type, ...], words: str, where: str) -> Any:
    if not isinstance(plain, kind) or (isinstance(plain, bool) and kind is not bool):
        raise InvalidRecord(where, f"{json.dumps(plain)[:60]} is not {words}", "", "invalid_json")
    return plain
