"""Records to the plain values that Avro and JSON know, and back.

A converter is built once for each record class from its type hints.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Convert = Callable[[Any], Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def remembered(function: Function) -> Function:
    """`functools.cache` that keeps the signature, and takes classes, which mypy does not hold to be hashable."""
    return cast(Function, cache(function))


def to_plain(record: Any) -> dict[str, Any]:
    """The record's fields as a dict of plain values."""
    return _writer(type(record))(record)


def from_plain(plain: Mapping[str, Any], record: type[Record]) -> Record:
    """The record with these fields. Raises TypeError for an unknown field, KeyError for an unknown enum symbol."""
    value: Record = _reader(record)(plain)
    return value


@remembered
def _writer(record: type) -> Callable[[Any], dict[str, Any]]:
    names = [f.name for f in dataclasses.fields(record)]
    hints = get_type_hints(record)
    fields = attrgetter(*names)
    nested = [(name, convert) for name in names if (convert := _to(hints[name])) is not None]

    def write(value: Any) -> dict[str, Any]:
        plain = dict(zip(names, fields(value), strict=True))
        for name, convert in nested:
            plain[name] = convert(plain[name])
        return plain

    return write


@remembered
def _reader(record: type) -> Callable[[Mapping[str, Any]], Any]:
    assert not hasattr(record, "__post_init__"), "read_all would skip it"
    hints = get_type_hints(record)
    converts = {f.name: _from(hints[f.name]) for f in dataclasses.fields(record)}
    slots = [(name, vars(record)[name].__set__, convert) for name, convert in converts.items()]
    nested = [(name, convert) for name, convert in converts.items() if convert is not None]

    def read_all(plain: Mapping[str, Any]) -> Any:
        """With every field there, as Avro has them: past `__init__`, which takes most of the time of a frozen class."""
        value: Any = object.__new__(record)
        for name, put, convert in slots:
            put(value, plain[name] if convert is None else convert(plain[name]))
        return value

    def read(plain: Mapping[str, Any]) -> Any:
        if plain.keys() == converts.keys():
            return read_all(plain)
        values = dict(plain)
        for name, convert in nested:
            if name in values:
                values[name] = convert(values[name])
        return record(**values)

    return read


def optional(hint: Any) -> Any | None:
    """The T of `T | None`, or None for any other type."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(part for part in get_args(hint) if part is not type(None))
    return None


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _to(hint: Any) -> Convert | None:
    """What turns a value of this type into a plain one; None where it is plain already."""
    inner = optional(hint)
    if inner is not None:
        return _unless_none(_to(inner))
    if dataclasses.is_dataclass(hint):
        return _writer(hint)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        convert = _to(get_args(hint)[0])
        return None if convert is None else lambda values: [convert(value) for value in values]
    return None


def _from(hint: Any) -> Convert | None:
    """What turns a plain value into one of this type; None where it is the same."""
    inner = optional(hint)
    if inner is not None:
        return _unless_none(_from(inner))
    if dataclasses.is_dataclass(hint):
        return _reader(hint)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        convert = _from(get_args(hint)[0])
        return tuple if convert is None else lambda values: tuple(map(convert, values)) if values else ()
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {member.value: member for member in hint}.__getitem__
    return None
