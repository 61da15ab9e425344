"""The user's rules: which nodes may take a task, said in Jinja2 expressions over `node` and `task`.

    node.gpu_memory_free_bytes >= task.gpu * task.gpu_memory_bytes
    node.cpu_utilisation < 0.9 or task.critical
    node.labels.zone == 'a' and 'ssd' in node.labels
    node.labels['disk'] in ['ssd', 'nvme']
    task.workflow_class != 'ai_training' or node.gpu > 0

A node may take a task when every rule is true for it. A rule that is not true refuses the node:

* What nobody measured (a NaN of a node, a None of a task) is unknown. A comparison with it is unknown, negated or not,
  and so is what is reckoned from it; `and`, `or` and `not` treat unknown as SQL does. So `node.cpu_utilisation < 0.9`
  refuses a node without samples; `node.cpu_utilisation is undefined or node.cpu_utilisation < 0.9` lets it pass, and so
  does `node.cpu_utilisation | default(0) < 0.9`. `is none` says the same as `is undefined`.
* A label that a node does not have equals nothing: `!=` and `not in` are true of it, every other comparison is false,
  and it counts as false. `'ssd' in node.labels` asks whether there is one.
* A rule that fails for a node (a division by zero, a text less than a number) refuses it, and is counted in `failures`.

Beyond Jinja2's operators there are the filters abs, default, endswith, float, int, length, lower, max, min, round,
startswith, trim and upper; `node.labels.zone.startswith('eu-')` is another way to write such a filter on a text.
Numbers are doubles, and true and false columns count as 1 and 0. `and`, `or` and `not` give true or false, never an
operand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jinja2 import nodes as jinja

from policy.rule_arrays import Column, Mask, Scope, Words, is_column
from policy.rule_columns import by_columns
from policy.rule_grammar import Grammar, Input, input_numbers
from policy.rule_sandbox import by_node
from policy.rule_values import MISSING, Verdict, scalar


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule, compiled twice: for all nodes at once where that can be, and for one node."""

    inputs: tuple[int, ...]  # the numbers of what it reads
    by_columns: Callable[[Scope], Mask] | None
    by_node: Callable[[Mapping[str, object]], Verdict]

    @classmethod
    def of(cls, tree: jinja.Expr) -> _Rule:
        return cls(tuple(input_numbers(tree)), by_columns(tree), by_node(tree))


class Rules:
    """The rules of one setting, compiled."""

    def __init__(
        self,
        expressions: Sequence[str],
        node_fields: Collection[str],
        task_fields: Collection[str],
        changing_fields: Collection[str] = (),
    ) -> None:
        """Compile the rules, which may name these fields, and any label of a node.

        `changing_fields` are those of a node whose value changes without a placement. Raises InvalidConfiguration,
        naming the rule by its place and text, for a rule that is no expression, too large, reads or calls what is not
        there, or cannot be true or false.
        """
        grammar = Grammar(node_fields, task_fields)
        trees = [grammar.read(_place(i, text), text) for i, text in enumerate(expressions)]
        self._rules = [_Rule.of(tree) for tree in trees]
        self._reader = _Reader(grammar.inputs.all)
        self.is_vectorised = tuple(rule.by_columns is not None for rule in self._rules)
        """Of each rule, whether it is worked out for all nodes at once; the others go through the sandbox."""
        self.uses_metrics = any(i.source == "node" and i.name in changing_fields for i in grammar.inputs.all)
        """Whether the verdicts may change without a placement."""
        self.failures: Counter[int] = Counter()
        """Rule -> how many nodes it refused because it failed, since the start."""
        self.problems: dict[int, str] = {}
        """Rule -> how it failed last."""

    def mask(
        self, task: Mapping[str, object], nodes: Mapping[str, np.ndarray], labels: Sequence[Mapping[str, str]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which nodes may take the task, and which rule refused the others.

        task    the task's fields: numbers, booleans, texts, lists of these, None
        nodes   the nodes' fields, each [N] of numbers, booleans or texts; NaN (None in an object array): unknown
        labels  [N] the nodes' labels; a mapping handed in once must not change afterwards
        Returns ok_n bool [N], and rule_n int [N], the index of the first rule that refused the node; -1 where none.
        """
        columns = self._reader.columns(task, nodes, labels)
        ok_n = np.ones(len(labels), bool)
        rule_n = np.full(len(labels), -1)
        for index, rule in enumerate(self._rules):
            held = self._held(index, rule, columns, ok_n)
            if held is not True:
                np.putmask(rule_n, np.greater(ok_n, held), index)
                ok_n &= held
        return ok_n, rule_n

    def _held(self, index: int, rule: _Rule, columns: Sequence[Column], open_n: np.ndarray) -> Mask:
        """Where the rule is true; failures count for the nodes that are still open."""
        if rule.by_columns is None:
            return self._held_by_node(index, rule, columns, open_n)
        scope = Scope(columns)
        try:
            held = rule.by_columns(scope)
        except (TypeError, ValueError):
            return self._held_by_node(index, rule, columns, open_n)
        for where, problem in scope.failures:
            failed_n = open_n & where
            self._count(index, int(failed_n.sum()), problem)
            open_n = open_n & ~failed_n
            held = open_n & held
        return held

    def _held_by_node(self, index: int, rule: _Rule, columns: Sequence[Column], open_n: np.ndarray) -> np.ndarray:
        """The same through the sandbox: once for each distinct set of the nodes' values."""
        inputs = {number: columns[number] for number in rule.inputs}
        shared = {f"v{number}": column for number, column in inputs.items() if not is_column(column)}
        names = [f"v{number}" for number, column in inputs.items() if is_column(column)]
        lists = [_values(column) for column in inputs.values() if is_column(column)]
        rows: list[tuple[object, ...]] = list(zip(*lists, strict=True)) if lists else [()] * len(open_n)
        verdicts: dict[tuple[object, ...], Verdict | Exception] = {}
        held_n = np.zeros(len(open_n), bool)
        for n in np.flatnonzero(open_n).tolist():
            row = rows[n]
            if row not in verdicts:
                verdicts[row] = _verdict(rule, shared | dict(zip(names, row, strict=True)))
            verdict = verdicts[row]
            held_n[n] = verdict is True
            if isinstance(verdict, Exception):
                self._count(index, 1, str(verdict))
        return held_n

    def _count(self, index: int, nodes: int, problem: str) -> None:
        if nodes:
            self.failures[index] += nodes
            self.problems[index] = problem


def _place(index: int, text: str) -> str:
    return f"node_filter_rules[{index}] {text if len(text) <= 100 else text[:99] + '…'!r}"


def _verdict(rule: _Rule, inputs: Mapping[str, object]) -> Verdict | Exception:
    try:
        return rule.by_node(inputs)
    except (TypeError, ValueError, ArithmeticError) as error:
        return error


def _values(column: Column) -> list[object]:
    """A column's values, node by node."""
    if isinstance(column, Words):
        return [column.distinct[code] for code in column.code_n]
    assert isinstance(column, np.ndarray)
    return [scalar(value) for value in column.tolist()]


class _Reader:
    """Brings tasks, nodes and labels into the columns that rules read; keeps those of texts, which rarely change."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._labels: list[Mapping[str, str]] = []
        self._of_label: dict[str, Words] = {}
        self._of_field: dict[str, tuple[np.ndarray, Words]] = {}

    def columns(
        self, task: Mapping[str, object], nodes: Mapping[str, np.ndarray], labels: Sequence[Mapping[str, str]]
    ) -> list[Column]:
        """The inputs' columns, in their order."""
        # Lists compare fast where their items are the same objects.
        if self._labels != labels:
            self._labels, self._of_label = list(labels), {}
        columns: list[Column] = []
        for source, name in self._inputs:
            if source == "task":
                columns.append(scalar(task[name]))
            elif source == "label":
                columns.append(self._label(name))
            else:
                columns.append(self._field(name, nodes[name]))
        return columns

    def _field(self, name: str, column_n: np.ndarray) -> Column:
        assert len(column_n) == len(self._labels), f"{name} has {len(column_n)} of {len(self._labels)} nodes"
        if column_n.dtype.kind in "fiub":
            return column_n.astype(np.float64, copy=False)
        return self._texts(name, column_n)

    def _label(self, name: str) -> Words:
        if name not in self._of_label:
            self._of_label[name] = Words.of(labels.get(name, MISSING) for labels in self._labels)
        return self._of_label[name]

    def _texts(self, name: str, column_n: np.ndarray) -> Words:
        kept_n, words = self._of_field.get(name, (None, None))
        if words is None or kept_n is None or not np.array_equal(kept_n, column_n):
            words = Words.of(scalar(value) for value in column_n.tolist())
            self._of_field[name] = column_n.copy(), words
        return words
