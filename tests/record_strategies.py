"""Random records of any class, from the types of their fields."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from schemas.conversion import optional

SCALARS: dict[type, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    int: st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from((0, 1, -1, 2**63 - 1, -(2**63)))),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
}


@cache
def any_record(record: type) -> st.SearchStrategy[Any]:
    """Records of this class: every field has any value of its type."""
    hints = get_type_hints(record)
    return st.builds(record, **{f.name: of_type(hints[f.name]) for f in dataclasses.fields(record)})


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of this type."""
    inner = optional(hint)
    if inner is not None:
        return st.none() | of_type(inner)
    if dataclasses.is_dataclass(hint):
        return any_record(hint)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        return st.lists(of_type(get_args(hint)[0]), max_size=2).map(tuple)
    if get_origin(hint) is not None:
        return st.dictionaries(of_type(str), of_type(get_args(hint)[1]), max_size=2)
    return st.sampled_from(hint) if issubclass(hint, StrEnum) else SCALARS[hint]
