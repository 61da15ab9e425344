from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from policy.rule_arrays import Scope, Words
from policy.rule_columns import by_columns
from policy.rule_grammar import Grammar
from policy.rule_sandbox import by_node
from policy.rule_values import MISSING, UNKNOWN, scalar
from policy.rules import Rules
from schemas.errors import InvalidConfiguration

NUMBERS = ("cpu", "gpu", "load")
NODE_FIELDS = (*NUMBERS, "is_ready", "name")
TASK_FIELDS = ("size", "rank", "critical", "zone", "zones")
ZONES = ("", "a", "ab", "b", "é")

numerals = st.sampled_from(("0", "1", "2", "3", "0.5", "7.25", "1e300", "-1"))
texts = st.sampled_from([f"'{zone}'" for zone in ZONES] + ["task.zone"])
columns_of_texts = st.sampled_from(("node.labels.zone", "node.labels['disk']", "node.name"))
number_fields = st.sampled_from([f"node.{name}" for name in NUMBERS] + ["task.size", "task.rank", "node.is_ready"])
ARITHMETIC = ("+", "-", "*", "/", "//", "%", "**")
ORDERS = ("<", "<=", ">", ">=", "==", "!=")


def form(pattern, *parts):
    """Expressions of this pattern with these parts."""
    return st.tuples(*parts).map(lambda chosen: pattern.format(*chosen))


def grown_numbers(numbers):
    return st.one_of(
        form("({} {} {})", numbers, st.sampled_from(ARITHMETIC), numbers),
        form("(-{})", numbers),
        form("({} | default({}))", numbers, numbers),
    )


numbers = st.recursive(numerals | number_fields, grown_numbers, max_leaves=4)
text_columns = (
    columns_of_texts | form("({} | default({}))", columns_of_texts, texts) | form("{}.upper()", columns_of_texts)
)
comparisons = st.one_of(
    form("{} {} {}", numbers, st.sampled_from(ORDERS), numbers),
    form("{} {} {} {} {}", numbers, st.sampled_from(ORDERS), numbers, st.sampled_from(ORDERS), numbers),
    form("{} {} [{}, {}]", numbers, st.sampled_from(("in", "not in")), numbers, numbers),
    form("{} {} {}", text_columns, st.sampled_from(ORDERS), texts),
    form("{} {} {}", texts, st.sampled_from(ORDERS), text_columns | texts),
    form("{} {} [{}, {}]", text_columns | texts, st.sampled_from(("in", "not in")), texts, texts),
    form("{} {} {}", texts, st.sampled_from(("in", "not in")), text_columns | texts | st.just("task.zones")),
    form("{} {} task.zones", text_columns, st.sampled_from(("in", "not in"))),
    form("{}.startswith({})", text_columns, texts),
    form("{} is {}", numbers | text_columns, st.sampled_from(("defined", "undefined", "none", "not defined"))),
    st.just("'zone' in node.labels"),
).map("({})".format)
fields = st.sampled_from(("task.critical", "node.is_ready", "node.load", "node.labels.zone"))


def grown_conditions(conditions):
    return st.one_of(
        form("({} {} {})", conditions, st.sampled_from(("and", "or")), conditions),
        form("(not {})", conditions),
        form("({} if {} else {})", comparisons, conditions, comparisons),
        form("(({} if {} else {}) < {})", numbers, conditions, numbers, numbers),
        form("({} {} {})", comparisons, st.sampled_from(("==", "!=")), comparisons),
    )


conditions = st.recursive(comparisons | fields, grown_conditions, max_leaves=5)

amounts = st.sampled_from((0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.0, 2.0**120, math.inf, math.nan)) | st.floats(width=32)
labels_of_nodes = st.dictionaries(st.sampled_from(("zone", "disk")), st.sampled_from(ZONES))
tasks = st.fixed_dictionaries(
    {
        "size": amounts | st.none(),
        "rank": st.integers(-3, 3),
        "critical": st.booleans() | st.none(),
        "zone": st.sampled_from(ZONES) | st.none(),
        "zones": st.lists(st.sampled_from(ZONES), max_size=3) | st.none(),
    }
)


@st.composite
def pools(draw):
    """The columns and labels of up to six nodes."""
    count = draw(st.integers(0, 6))

    def column(values, dtype):
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype)

    nodes = {
        "cpu": column(amounts, np.float64),
        "gpu": column(st.integers(-2, 4), np.int64),
        "load": column(amounts, np.float32),
        "is_ready": column(st.booleans(), bool),
        "name": column(st.sampled_from(("a", "ab", "n1")), str),
    }
    return nodes, draw(st.lists(labels_of_nodes, min_size=count, max_size=count))


def node_by_node(tree, inputs, task, nodes, labels):
    """The sandbox's verdict on each node; None where the rule fails."""
    evaluate = by_node(tree)
    verdicts = []
    for n, of_node in enumerate(labels):
        sources = {
            "task": lambda name: scalar(task[name]),
            "node": lambda name, n=n: scalar(nodes[name][n]),
            "label": lambda name, of_node=of_node: of_node.get(name, MISSING),
        }
        try:
            verdicts.append(evaluate({f"v{i}": sources[source](name) for i, (source, name) in enumerate(inputs)}))
        except (TypeError, ValueError, ArithmeticError):
            verdicts.append(None)
    return verdicts


def as_columns(inputs, task, nodes, labels):
    sources = {
        "task": lambda name: scalar(task[name]),
        "node": lambda name: nodes[name].astype(float) if name != "name" else Words.of(nodes[name].tolist()),
        "label": lambda name: Words.of(of_node.get(name, MISSING) for of_node in labels),
    }
    return [sources[source](name) for source, name in inputs]


@settings(max_examples=200, deadline=None)
@given(conditions, tasks, pools())
def test_columns_and_the_sandbox_agree_on_truths_and_failures(condition, task, pool):
    nodes, labels = pool
    grammar = Grammar(NODE_FIELDS, TASK_FIELDS)
    tree = grammar.read("rule", condition)
    inputs = grammar.inputs.all
    evaluate = by_columns(tree)
    assert evaluate is not None

    scope = Scope(as_columns(inputs, task, nodes, labels))
    held_n = np.broadcast_to(evaluate(scope), len(labels))
    failed_n = np.zeros(len(labels), bool)
    for where, _ in scope.failures:
        failed_n |= where

    verdicts = node_by_node(tree, inputs, task, nodes, labels)
    assert failed_n.tolist() == [verdict is None for verdict in verdicts]
    assert (held_n & ~failed_n).tolist() == [verdict is True for verdict in verdicts]


mixed = st.one_of(
    numbers, texts, text_columns, st.sampled_from(("task.zones", "node.labels.zone | int", "node.cpu | abs"))
)
wild = st.one_of(
    form("{} {} {}", mixed, st.sampled_from((*ORDERS, "in", "not in")), mixed),
    form("({} {} {}) {} {}", mixed, st.sampled_from(ARITHMETIC), mixed, st.sampled_from(ORDERS), mixed),
    form("({} | default({})) == {}", mixed, mixed, mixed),
    form("({} if {} else {}) == {}", mixed, comparisons, mixed, mixed),
    form("{} or {} == {}", comparisons, mixed, mixed),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(wild | conditions, min_size=1, max_size=3), tasks, pools())
@example(["node.cpu / node.gpu > 1", "node.name < node.gpu"], dict.fromkeys(TASK_FIELDS), ({}, []))
def test_the_mask_is_what_the_sandbox_says_whatever_types_meet(conditions, task, pool):
    nodes, labels = pool
    nodes = nodes or {name: np.zeros(0) for name in NODE_FIELDS}
    rules = Rules(conditions, NODE_FIELDS, TASK_FIELDS)

    ok_n, rule_n = rules.mask(task, nodes, labels)

    refused_n = np.full(len(labels), -1)
    failures = [0] * len(conditions)
    for index, condition in enumerate(conditions):
        grammar = Grammar(NODE_FIELDS, TASK_FIELDS)
        tree = grammar.read("rule", condition)
        for n, verdict in enumerate(node_by_node(tree, grammar.inputs.all, task, nodes, labels)):
            if refused_n[n] < 0 and verdict is not True:
                refused_n[n] = index
                failures[index] += verdict is None
    assert rule_n.tolist() == refused_n.tolist()
    assert ok_n.tolist() == (refused_n < 0).tolist()
    assert [rules.failures[index] for index in range(len(conditions))] == failures


@settings(max_examples=100, deadline=None)
@given(conditions, tasks, pools())
def test_measuring_what_was_unknown_never_turns_a_rule_around(condition, task, pool):
    nodes, labels = pool
    unmeasured = nodes | {"load": np.full(len(labels), np.nan)}
    assume(not any(asking in condition for asking in ("defined", "none", "default")))
    rules, opposite = (Rules([text], NODE_FIELDS, TASK_FIELDS) for text in (condition, f"not {condition}"))

    held_n, _ = rules.mask(task, unmeasured, labels)
    failed_n, _ = opposite.mask(task, unmeasured, labels)
    held_later_n, _ = rules.mask(task, nodes, labels)
    failed_later_n, _ = opposite.mask(task, nodes, labels)

    assert not (held_n & failed_n).any()
    assert not (held_n & failed_later_n).any()
    assert not (failed_n & held_later_n).any()


TOKENS = """node task . labels zone cpu ( ) [ ] , | ~ + - * / // % ** == != < in is not and or if else none true 1 'a'
    { } : defined abs range __class__ format .upper() default ' # }} %}"""
words = st.sampled_from(TOKENS.split())


@settings(max_examples=150, deadline=None)
@given(st.lists(words, max_size=12).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_rule_or_is_refused_as_configuration(text):
    nodes = {"cpu": np.array([1.0, np.nan])}
    try:
        rules = Rules([text], nodes, ())
    except InvalidConfiguration:
        return

    ok_n, _ = rules.mask({}, nodes, [{"zone": "a"}, {}])

    assert ok_n.shape == (2,)


@given(st.sampled_from((True, False, UNKNOWN)), st.sampled_from((True, False, UNKNOWN)))
def test_and_is_or_of_the_opposites(left, right):
    as_number = {True: 1.0, False: 0.0, UNKNOWN: math.nan}
    nodes = {"left": np.array([as_number[left]]), "right": np.array([as_number[right]])}
    pairs = [("node.left and node.right", "not (not node.left or not node.right)")]
    pairs += [(f"not ({one})", f"not ({other})") for one, other in pairs]

    for one, other in pairs:
        masks = [Rules([text], nodes, ()).mask({}, nodes, [{}])[0].item() for text in (one, other)]

        assert masks[0] == masks[1]
