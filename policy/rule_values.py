"""What a rule's operators do with the values of one node.

Numbers are IEEE doubles, so no arithmetic costs more than another. Two values stand for what is not there: UNKNOWN,
which nobody measured, and MISSING, a label that a node does not have. Truth is True, False or UNKNOWN.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

import numpy as np


class Absent(Enum):
    """A value that is not there. Whoever takes it for another gets a TypeError."""

    UNKNOWN = "what nobody measured"
    MISSING = "a missing label"

    def __bool__(self) -> bool:
        raise TypeError(f"{self.value} is neither true nor false")


UNKNOWN = Absent.UNKNOWN
MISSING = Absent.MISSING

Verdict = bool | Absent

_ORDERS: dict[str, Callable[[Any, Any], object]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}
_SUMS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": math.pow,
}
OPERATORS = tuple(_SUMS)
DIVISIONS = ("/", "//", "%")


def scalar(value: object) -> object:
    """A field's value as rules see it: None and NaN are UNKNOWN, numbers are doubles, collections are tuples."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (float, int, np.number)):
        number = float(value)
        return UNKNOWN if math.isnan(number) else number
    if isinstance(value, str):
        return str(value)
    if value is None:
        return UNKNOWN
    if isinstance(value, (np.ndarray, list, tuple, set, frozenset, Mapping)):
        return tuple(scalar(item) for item in value)
    return value


def truth(value: object) -> Verdict:
    """Whether a value counts as true: 0, '' and a missing label do not."""
    return UNKNOWN if value is UNKNOWN else value is not MISSING and bool(value)


def negation(value: object) -> Verdict:
    """`not`: unknown stays unknown."""
    verdict = truth(value)
    return UNKNOWN if verdict is UNKNOWN else not verdict


def both(left: object, right: Callable[[], object]) -> Verdict:
    """`and`: the right is looked at unless the left is false; false wins over unknown."""
    first = truth(left)
    return False if first is False else _and(first, truth(right()))


def either(left: object, right: Callable[[], object]) -> Verdict:
    """`or`: the right is looked at unless the left is true; true wins over unknown."""
    first = truth(left)
    return True if first is True else _or(first, truth(right()))


def _and(first: Verdict, second: Verdict) -> Verdict:
    if first is False or second is False:
        return False
    return UNKNOWN if first is UNKNOWN or second is UNKNOWN else True


def _or(first: Verdict, second: Verdict) -> Verdict:
    if first is True or second is True:
        return True
    return UNKNOWN if first is UNKNOWN or second is UNKNOWN else False


def choose(test: object, then: Callable[[], object], otherwise: Callable[[], object]) -> object:
    """`then if test else otherwise`: an unknown test gives an unknown value."""
    verdict = truth(test)
    if verdict is UNKNOWN:
        return UNKNOWN
    return then() if verdict else otherwise()


def compare(comparison: str, left: object, right: object) -> Verdict:
    """One comparison, by Jinja's name for it.

    Raises TypeError where the two have no order, as a text and a number.
    """
    if comparison == "in":
        return contains(left, right)
    if comparison == "notin":
        return negation(contains(left, right))
    if left is MISSING or right is MISSING:
        return comparison == "ne"
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    return bool(_ORDERS[comparison](left, right))


def contains(item: object, whole: object) -> Verdict:
    """`in`: of a list, whether one of its items is equal; of a text, whether it is a part of it."""
    if isinstance(whole, (list, tuple)):
        found: Verdict = False
        for member in whole:
            found = _or(found, compare("eq", item, member))
        return found
    if item is MISSING or whole is MISSING:
        return False
    if item is UNKNOWN or whole is UNKNOWN:
        return UNKNOWN
    return text(item) in text(whole)


def chain(left: object, *steps: tuple[str, Callable[[], object]]) -> Verdict:
    """`a < b <= c`: true where every comparison of neighbours is; the rest is not looked at after a false one."""
    verdict: Verdict = True
    for comparison, operand in steps:
        right = operand()
        verdict = _and(verdict, compare(comparison, left, right))
        if verdict is False:
            return False
        left = right
    return verdict


def arithmetic(symbol: str, left: object, right: object) -> object:
    """`left symbol right` of two numbers, or the sum of two texts.

    Raises TypeError for other types, ArithmeticError or ValueError where there is no result.
    """
    if isinstance(left, Absent) or isinstance(right, Absent):
        return UNKNOWN
    if symbol == "+" and isinstance(left, str) and isinstance(right, str):
        return left + right
    first, second = number(left), number(right)
    if symbol in DIVISIONS and second == 0:
        raise ZeroDivisionError("division by zero")
    return scalar(_SUMS[symbol](first, second))


def negative(value: object) -> object:
    """`-value`."""
    return UNKNOWN if isinstance(value, Absent) else -number(value)


def number(value: object) -> float:
    """The value, if it is a number; raises TypeError."""
    if not isinstance(value, (bool, float)):
        raise TypeError(f"a number is needed, not {_kind(value)}")
    return float(value)


def text(value: object) -> str:
    """The value, if it is a text; raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"a text is needed, not {_kind(value)}")
    return value


def _kind(value: object) -> str:
    kinds = {str: "a text", float: "a number", bool: "true or false", list: "a list", tuple: "a list"}
    return kinds.get(type(value), type(value).__name__)


class Filter(NamedTuple):
    """A function that rules may call: as `value | name(arguments)`, some as `value.name(arguments)`."""

    apply: Callable[..., object]
    arguments: tuple[int, int] = (0, 0)  # how many it takes, at least and at most
    gives: str = "number"  # number, text, truth or any
    takes: str = "any"  # text: nothing else


def _rounded(value: object, digits: object = 0.0) -> float:
    return round(number(value), int(number(digits)))


def _as_float(value: object) -> float:
    return float(value) if isinstance(value, str) else number(value)


def _length(value: object) -> float:
    return float(len(value)) if isinstance(value, (list, tuple)) else float(len(text(value)))


FILTERS = {
    "abs": Filter(lambda value: abs(number(value))),
    "float": Filter(_as_float),
    "int": Filter(lambda value: float(math.trunc(_as_float(value)))),
    "length": Filter(_length),
    "max": Filter(lambda values: max(number(value) for value in values)),
    "min": Filter(lambda values: min(number(value) for value in values)),
    "round": Filter(_rounded, (0, 1)),
    "lower": Filter(lambda value: text(value).lower(), (0, 0), "text", "text"),
    "trim": Filter(lambda value: text(value).strip(), (0, 0), "text", "text"),
    "upper": Filter(lambda value: text(value).upper(), (0, 0), "text", "text"),
    "endswith": Filter(lambda value, end: text(value).endswith(text(end)), (1, 1), "truth", "text"),
    "startswith": Filter(lambda value, start: text(value).startswith(text(start)), (1, 1), "truth", "text"),
    "default": Filter(lambda value, other: other if isinstance(value, Absent) else value, (1, 1), "any"),
}
METHODS = {"startswith": "startswith", "endswith": "endswith", "lower": "lower", "upper": "upper", "strip": "trim"}
"""What may be called on a text -> the filter that does it."""

TESTS: dict[str, Callable[[object], bool]] = {
    "defined": lambda value: not isinstance(value, Absent),
    "undefined": lambda value: isinstance(value, Absent),
    "none": lambda value: isinstance(value, Absent),
}


def apply_filter(name: str, value: object, *arguments: object) -> object:
    """The filter's result. Of what is not there, every filter but `default` gives what is not there, or false."""
    if name != "default":
        absent = [part for part in (value, *arguments, *_items(value)) if isinstance(part, Absent)]
        if absent and FILTERS[name].gives == "truth":
            return UNKNOWN if UNKNOWN in absent else False
        if absent:
            return value if isinstance(value, Absent) else UNKNOWN
    return scalar(FILTERS[name].apply(value, *arguments))


def _items(value: object) -> Iterable[object]:
    return value if isinstance(value, (list, tuple)) else ()
