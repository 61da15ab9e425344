"""The fields of one mapping in a document, each read with its type and its place for messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from schemas.errors import InvalidInput
from schemas.quantities import parse_bytes, parse_memory, shown

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=StrEnum)
AS_TEXT = "write it in quotes if it is meant as a text"


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping whose keys are texts. `where` is its place in the document; every method raises InvalidInput."""

    where: str
    values: Mapping[str, object]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def place(self, key: str) -> str:
        return f"{self.where}: {key}"

    def required(self, key: str) -> object:
        if key not in self.values:
            raise InvalidInput(self.where, f"has no '{key}'", f"add '{key}:'")
        return self.values[key]

    def amount(self, key: str, parse: Callable[[object, str], Value], default: Value | None = None) -> Value:
        """The value as `parse`, a function of `schemas.quantities`, reads it; required where there is no default."""
        if default is not None and key not in self.values:
            return default
        return parse(self.required(key), self.place(key))

    def memory_bytes(self, *keys: str) -> int:
        """Memory under one of these keys, else 0. A bare number is bytes where the key ends in `_bytes`, else GiB."""
        given = [key for key in keys if key in self]
        if len(given) > 1:
            raise InvalidInput(self.where, f"has both '{given[0]}' and '{given[1]}'", "keep one of them")
        return sum(self.amount(key, parse_bytes if key.endswith("_bytes") else parse_memory) for key in given)

    def text(self, key: str, default: str | None = None) -> str:
        return self.amount(key, as_text, default)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise InvalidInput(self.place(key), f"must be true or false, not {shown(value)}")
        return value

    def choice(self, key: str, choices: Collection[Choice], default: Choice) -> Choice:
        text = self.text(key, default)
        for choice in choices:
            if choice == text:
                return choice
        raise InvalidInput(self.place(key), f"does not know {shown(text)}", suggestion(text, choices))

    def items(self, key: str) -> list[tuple[str, object]]:
        """The entries of a list, each with its place; none where the key is absent."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise InvalidInput(self.place(key), f"must be a list, not {shown(value)}", "write it as [a, b]")
        return [(f"{self.place(key)}[{i}]", item) for i, item in enumerate(value)]

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(as_text(item, place) for place, item in self.items(key))

    def sections(self, key: str, known: Collection[str] | None) -> list[Fields]:
        """The mappings in a list."""
        return [fields_of(item, place, known) for place, item in self.items(key)]

    def section(self, key: str, known: Collection[str] | None = None) -> Fields:
        """A mapping below this one; empty where the key is absent."""
        return fields_of(self.values.get(key, {}), self.place(key), known)

    def labels(self, key: str) -> Mapping[str, str]:
        """A mapping from texts to texts."""
        section = self.section(key)
        return {name: section.text(name) for name in section.values}


def fields_of(value: object, where: str, known: Collection[str] | None = None) -> Fields:
    """The fields of a mapping. An unknown key is an error, unless `known` is None: then every text is a key."""
    if not isinstance(value, Mapping):
        raise InvalidInput(where, f"must be a mapping, not {shown(value)}", "write it as 'key: value'")
    for key in value:
        if not isinstance(key, str):
            raise InvalidInput(where, f"has the key {shown(key)}, which is no text", AS_TEXT)
        if known is not None and key not in known:
            raise InvalidInput(where, f"does not know the key {shown(key)}", suggestion(key, known))
    return Fields(where, value)


def as_text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(place, f"must be a text, not {shown(value)}", AS_TEXT)
    return value


def suggestion(text: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(text[:60], known, 1) or [name for name in known if text and name.startswith(text)]
    near = near or [name for name in known if name and text.startswith(name)]
    return f"did you mean '{near[0]}'?" if near else f"it may be {', '.join(known)}"
