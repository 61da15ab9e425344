"""What a rule's operators do with the values of all nodes, to the same verdicts as `policy.rule_values` for each.

A truth is two masks [N]: where it is true, and where it is false; it is unknown in neither. A value is one for all
nodes, numbers [N] in float64 with NaN for unknown, or Words. For what else turns up the operators raise TypeError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from policy import rule_values as values
from policy.rule_values import UNKNOWN, Absent, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """A column of few distinct values: node n has `distinct[code_n[n]]`."""

    code_n: np.ndarray
    distinct: tuple[object, ...]

    @classmethod
    def of(cls, column: Iterable[object]) -> Words:
        """The column that lists these values."""
        codes: dict[object, int] = {}
        code_n = np.array([codes.setdefault(value, len(codes)) for value in column], np.intp)
        return cls(code_n, tuple(codes))


Mask = bool | np.ndarray
"""bool [N], or one for all nodes."""

Truth = tuple[Mask, Mask]
"""Where it is true, and where it is false."""

Column = object
"""A value that all nodes share, a float64 array [N], Words, or a tuple of these."""


@dataclass(slots=True)
class Scope:
    """What an evaluation reads, and where it failed."""

    columns: Sequence[Column]  # by the number of the input
    reach: Mask = True  # nodes for which the part at hand is looked at
    failures: list[tuple[Mask, str]] = field(default_factory=list)

    def within(self, reach: Mask) -> Scope:
        """The scope of a part that is looked at only for these nodes."""
        return Scope(self.columns, and_masks(self.reach, reach), self.failures)

    def fail(self, where: Mask, problem: str) -> None:
        """The part at hand has no value for these nodes: the whole rule has none."""
        self.failures.append((and_masks(self.reach, where), problem))


_SUMS: dict[str, Callable[..., np.ndarray]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "//": np.floor_divide,
    "%": np.remainder,
}


def _differ(left: np.ndarray | float, right: np.ndarray | float) -> np.ndarray:
    # Unlike `!=`, false where one side is NaN.
    return np.logical_or(np.less(left, right), np.greater(left, right))


COMPARISONS: dict[str, tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]] = {
    "eq": (np.equal, _differ),
    "ne": (_differ, np.equal),
    "lt": (np.less, np.greater_equal),
    "lteq": (np.less_equal, np.greater),
    "gt": (np.greater, np.less_equal),
    "gteq": (np.greater_equal, np.less),
}
"""Comparison -> where it is true, and where it is false."""


def negation(mask: Mask) -> Mask:
    """Where the mask is not."""
    return not mask if isinstance(mask, bool) else ~mask


def and_masks(left: Mask, right: Mask) -> Mask:
    """Where both masks are."""
    if isinstance(left, bool):
        return right if left else False
    if isinstance(right, bool):
        return left if right else False
    return left & right


def or_masks(left: Mask, right: Mask) -> Mask:
    """Where one of the masks is."""
    if isinstance(left, bool):
        return True if left else right
    if isinstance(right, bool):
        return True if right else left
    return left | right


def both(left: Truth, right: Truth) -> Truth:
    """`and`: false wins over unknown."""
    return and_masks(left[0], right[0]), or_masks(left[1], right[1])


def either(left: Truth, right: Truth) -> Truth:
    """`or`: true wins over unknown."""
    return or_masks(left[0], right[0]), and_masks(left[1], right[1])


def is_column(value: Column) -> bool:
    """Whether the value differs from node to node."""
    return isinstance(value, (np.ndarray, Words))


def numbers(value: Column) -> np.ndarray | float:
    """A number for each node or for all; NaN for an unknown one."""
    if isinstance(value, np.ndarray):
        return value
    return math.nan if value is UNKNOWN else values.number(value)


def _of_words(words: Words, judge: Callable[[object], Verdict]) -> Truth:
    """The judgement of each distinct value, spread over the nodes."""
    verdicts = [judge(value) for value in words.distinct]
    holds = np.array([verdict is True for verdict in verdicts], bool)
    fails = np.array([verdict is False for verdict in verdicts], bool)
    return holds[words.code_n], fails[words.code_n]


def _of_one(verdict: Verdict) -> Truth:
    return verdict is True, verdict is False


def truth(value: Column) -> Truth:
    """Where a value counts as true."""
    if isinstance(value, np.ndarray):
        return _differ(value, 0.0), value == 0
    return _of_words(value, values.truth) if isinstance(value, Words) else _of_one(values.truth(value))


def as_value(truth: Truth) -> Column:
    """A truth to compare with: 1 and 0 where it differs from node to node."""
    holds, fails = truth
    if isinstance(holds, bool) and isinstance(fails, bool):
        return True if holds else False if fails else UNKNOWN
    return np.where(holds, 1.0, np.where(fails, 0.0, np.nan))


def passes(test: Callable[[object], bool], value: Column) -> Truth:
    """Where a value passes one of the tests, which ask only whether it is there."""
    if isinstance(value, np.ndarray):
        known_n = ~np.isnan(value)
        holds_n = known_n if test(0.0) else ~known_n
        return holds_n, ~holds_n
    return _of_words(value, test) if isinstance(value, Words) else _of_one(test(value))


def default(value: Column, other: Column) -> Column:
    """The value, and the other where it is not there."""
    if isinstance(value, np.ndarray):
        return np.where(np.isnan(value), numbers(other), value)
    if isinstance(value, Words):
        if is_column(other):
            raise TypeError("a column in place of missing words")
        return Words(value.code_n, tuple(other if isinstance(v, Absent) else v for v in value.distinct))
    return other if isinstance(value, Absent) else value


def filter_texts(name: str, value: Column, *arguments: Column) -> Column:
    """The result of a filter that takes texts."""
    if isinstance(value, np.ndarray) or any(map(is_column, arguments)):
        raise TypeError("numbers, or a column as the argument of a filter")
    if isinstance(value, Words):
        return _filter_words(name, value, *arguments)
    return values.apply_filter(name, value, *arguments)


@lru_cache(maxsize=256)
def _filter_words(name: str, words: Words, *arguments: object) -> Words:
    return Words(words.code_n, tuple(values.apply_filter(name, word, *arguments) for word in words.distinct))


def negative(value: Column) -> Column:
    """`-value`."""
    return -value if isinstance(value, np.ndarray) else values.negative(value)


def arithmetic(symbol: str, left: Column, right: Column, scope: Scope) -> Column:
    """`left symbol right`; where it has no result, the scope is told."""
    if not isinstance(left, np.ndarray) and not isinstance(right, np.ndarray):
        try:
            return values.arithmetic(symbol, left, right)
        except (ArithmeticError, ValueError) as error:
            scope.fail(True, str(error))
            return UNKNOWN
    first, second = numbers(left), numbers(right)
    if symbol == "**":
        return _power(first, second, scope)
    if symbol in values.DIVISIONS:
        zero_n = (second == 0) & (first == first)
        if np.any(zero_n):
            scope.fail(zero_n, "division by zero")
    with np.errstate(all="ignore"):
        return _SUMS[symbol](first, second)


def _power(base: np.ndarray | float, exponent: np.ndarray | float, scope: Scope) -> np.ndarray:
    # One by one, since numpy's power differs from Python's in the last bit.
    base_n, exponent_n = np.broadcast_arrays(base, exponent)
    power_n = np.full(base_n.shape, np.nan)
    failed_n = np.zeros(base_n.shape, bool)
    for n, (b, e) in enumerate(zip(base_n.tolist(), exponent_n.tolist(), strict=True)):
        if math.isnan(b) or math.isnan(e):
            continue
        try:
            power_n[n] = math.pow(b, e)
        except (ArithmeticError, ValueError):
            failed_n[n] = True
    if failed_n.any():
        scope.fail(failed_n, "no real power")
    return power_n


def compare(comparison: str, left: Column, right: Column) -> Truth:
    """One comparison, by Jinja's name for it."""
    if comparison == "in":
        return _contains(left, right)
    if comparison == "notin":
        return _contains(left, right)[::-1]
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        holds, fails = COMPARISONS[comparison]
        first, second = numbers(left), numbers(right)
        return holds(first, second), fails(first, second)
    if isinstance(left, Words) and isinstance(right, Words):
        raise TypeError("two columns of words")
    if isinstance(left, Words):
        return _compare_words(left, comparison, right, True)
    if isinstance(right, Words):
        return _compare_words(right, comparison, left, False)
    return _of_one(values.compare(comparison, left, right))


def where_true(comparison: str, left: Column, right: Column) -> Mask:
    """Where a comparison of COMPARISONS is true: less work than `compare`."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return COMPARISONS[comparison][0](numbers(left), numbers(right))
    return compare(comparison, left, right)[0]


def _contains(item: Column, whole: Column) -> Truth:
    if isinstance(whole, tuple) and (isinstance(item, np.ndarray) or any(map(is_column, whole))):
        truth: Truth = (False, True)
        for member in whole:
            truth = either(truth, compare("eq", item, member))
        return truth
    if isinstance(item, Words) and not is_column(whole):
        return _compare_words(item, "in", whole, True)
    if isinstance(whole, Words) and not is_column(item):
        return _compare_words(whole, "in", item, False)
    if is_column(item) or is_column(whole):
        raise TypeError("a column of texts is looked for in a column")
    return _of_one(values.contains(item, whole))


@lru_cache(maxsize=256)
def _compare_words(words: Words, comparison: str, other: object, is_left: bool) -> Truth:
    """A comparison of words, on its left or right, with one value; raises TypeError where that is no plain value."""
    if is_left:
        return _of_words(words, lambda word: values.compare(comparison, word, other))
    return _of_words(words, lambda word: values.compare(comparison, other, word))
