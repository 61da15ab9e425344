"""A rule for all nodes at once: its tree compiled to the operators of `policy.rule_arrays`.

What columns do not cover, in the tree or in the columns' kinds, is left to `policy.rule_sandbox`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jinja2 import nodes

from policy import rule_arrays as arrays
from policy import rule_values as values
from policy.rule_arrays import Column, Mask, Scope, Truth
from policy.rule_grammar import input_number
from policy.rule_values import UNKNOWN


class _NotByColumns(Exception):
    """A part that only the sandbox can work out."""


_Value = Callable[[Scope], Column]
_Judge = Callable[[Scope], Truth]

_RISKY: tuple[type[nodes.Expr], ...] = (nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow)


def by_columns(tree: nodes.Expr) -> Callable[[Scope], Mask] | None:
    """The rule as a function that tells for which nodes it is true; None if it has a part that columns do not cover.

    The function raises TypeError or ValueError where the columns are of kinds that it does not cover.
    """
    try:
        return _holds(tree)
    except _NotByColumns:
        return None


def _holds(tree: nodes.Expr) -> Callable[[Scope], Mask]:
    """Where the part is true. Spares the masks of where it is false, if no part needs to know them."""
    if isinstance(tree, (nodes.And, nodes.Or)) and not _is_risky(tree.right):
        left, right = _holds(tree.left), _holds(tree.right)
        settles, join = (False, arrays.and_masks) if isinstance(tree, nodes.And) else (True, arrays.or_masks)
        return lambda scope: first if (first := left(scope)) is settles else join(first, right(scope))
    if isinstance(tree, nodes.Compare) and len(tree.ops) == 1 and tree.ops[0].op in arrays.COMPARISONS:
        comparison = tree.ops[0].op
        first, second = _value(tree.expr), _value(tree.ops[0].expr)
        return lambda scope: arrays.where_true(comparison, first(scope), second(scope))
    judge = _judge(tree)
    return lambda scope: judge(scope)[0]


def _judge(tree: nodes.Expr) -> _Judge:
    match tree:
        case nodes.And():
            return _junction(tree, arrays.both)
        case nodes.Or():
            return _junction(tree, arrays.either)
        case nodes.Not():
            inner = _judge(tree.node)
            return lambda scope: inner(scope)[::-1]
        case nodes.Compare():
            return _comparison(tree)
        case nodes.Test():
            value, test = _value(tree.node), values.TESTS[tree.name]
            return lambda scope: arrays.passes(test, value(scope))
        case nodes.Filter() if values.FILTERS[tree.name].gives == "truth":
            value = _filter(tree)
            return lambda scope: arrays.truth(value(scope))
    value = _value(tree)
    return lambda scope: arrays.truth(value(scope))


def _value(tree: nodes.Expr) -> _Value:
    match tree:
        case nodes.Const():
            constant = tree.value
            return lambda scope: constant
        case nodes.Name():
            number = input_number(tree)
            return lambda scope: scope.columns[number]
        case nodes.List():
            items = [_value(item) for item in tree.items]
            return lambda scope: tuple(item(scope) for item in items)
        case nodes.Neg():
            inner = _value(tree.node)
            return lambda scope: arrays.negative(inner(scope))
        case nodes.BinExpr() if not isinstance(tree, (nodes.And, nodes.Or)):
            symbol, left, right = tree.operator, _value(tree.left), _value(tree.right)
            return lambda scope: arrays.arithmetic(symbol, left(scope), right(scope), scope)
        case nodes.Filter() if values.FILTERS[tree.name].gives != "truth":
            return _filter(tree)
        case nodes.CondExpr():
            return _choice(tree)
    judge = _judge(tree)
    return lambda scope: arrays.as_value(judge(scope))


def _filter(tree: nodes.Filter) -> _Value:
    assert tree.node is not None  # only a filter block has none
    name, operands = tree.name, [_value(part) for part in (tree.node, *tree.args)]
    if name == "default":
        return lambda scope: arrays.default(*(operand(scope) for operand in operands))
    if values.FILTERS[name].takes == "text":
        return lambda scope: arrays.filter_texts(name, *(operand(scope) for operand in operands))
    raise _NotByColumns


def _is_risky(tree: nodes.Expr) -> bool:
    """Whether the part may fail for some nodes, so that it matters for which it is looked at."""
    return isinstance(tree, _RISKY) or any(tree.find(risky) for risky in _RISKY)


def _junction(tree: nodes.And | nodes.Or, join: Callable[[Truth, Truth], Truth]) -> _Judge:
    left, right, is_risky = _judge(tree.left), _judge(tree.right), _is_risky(tree.right)
    settling = 1 if isinstance(tree, nodes.And) else 0  # a false left settles `and`, a true one `or`

    def junction(scope: Scope) -> Truth:
        first = left(scope)
        settled = first[settling]
        if settled is True:
            return first
        return join(first, right(scope.within(arrays.negation(settled)) if is_risky else scope))

    return junction


def _comparison(tree: nodes.Compare) -> _Judge:
    first = _value(tree.expr)
    steps = [(step.op, _value(step.expr), _is_risky(step.expr)) for step in tree.ops]
    if len(steps) == 1:
        comparison, second, _ = steps[0]
        return lambda scope: arrays.compare(comparison, first(scope), second(scope))

    def chain(scope: Scope) -> Truth:
        left = first(scope)
        truth: Truth = (True, False)
        for comparison, operand, is_risky in steps:
            if truth[1] is True:
                break
            right = operand(scope.within(arrays.negation(truth[1])) if is_risky else scope)
            truth = arrays.both(truth, arrays.compare(comparison, left, right))
            left = right
        return truth

    return chain


def _choice(tree: nodes.CondExpr) -> _Value:
    assert tree.expr2 is not None  # the grammar asks for an else
    test, then, otherwise = _judge(tree.test), _value(tree.expr1), _value(tree.expr2)

    def choice(scope: Scope) -> Column:
        holds, fails = test(scope)
        if holds is True:
            return then(scope)
        if fails is True:
            return otherwise(scope)
        if holds is False and fails is False:
            return UNKNOWN
        chosen, other = then(scope.within(holds)), otherwise(scope.within(fails))
        return np.where(holds, arrays.numbers(chosen), np.where(fails, arrays.numbers(other), np.nan))

    return choice
