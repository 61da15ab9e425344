"""A rule for one node: its tree compiled by Jinja2's sandbox, with the operators of `policy.rule_values`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from jinja2 import StrictUndefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment

from policy import rule_values as values


class _Operators(CodeGenerator):
    """Calls our operators where Python's know neither unknown values nor missing labels."""

    def _call(self, function: str, frame: Frame, first: nodes.Expr, *later: nodes.Expr) -> None:
        self.write(f"environment.{function}(")
        self.visit(first, frame)
        for part in later:
            self.write(", lambda: ")
            self.visit(part, frame)
        self.write(")")

    def visit_And(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        self._call("both", frame, node.left, node.right)

    def visit_Or(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        self._call("either", frame, node.left, node.right)

    def visit_Not(self, node: nodes.UnaryExpr, frame: Frame) -> None:  # noqa: N802
        self._call("negation", frame, node.node)

    def visit_CondExpr(self, node: nodes.CondExpr, frame: Frame) -> None:  # noqa: N802
        assert node.expr2 is not None  # the grammar asks for an else
        self._call("choose", frame, node.test, node.expr1, node.expr2)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        self.write("environment.chain(")
        self.visit(node.expr, frame)
        for step in node.ops:
            self.write(f", ({step.op!r}, lambda: ")
            self.visit(step.expr, frame)
            self.write(")")
        self.write(")")


class _Sandbox(ImmutableSandboxedEnvironment):
    """No global, no attribute that a rule could ask for, and every operator one of ours."""

    code_generator_class = _Operators
    intercepted_binops = frozenset(values.OPERATORS)
    intercepted_unops = frozenset("-")
    both = staticmethod(values.both)
    either = staticmethod(values.either)
    negation = staticmethod(values.negation)
    choose = staticmethod(values.choose)
    chain = staticmethod(values.chain)

    def __init__(self) -> None:
        # Folding constants would run a rule's arithmetic, errors included, before it is asked for.
        super().__init__(undefined=StrictUndefined, optimized=False)
        self.globals.clear()
        self.filters = {name: partial(values.apply_filter, name) for name in values.FILTERS}
        self.tests = dict(values.TESTS)
        self.binop_table = {symbol: partial(values.arithmetic, symbol) for symbol in values.OPERATORS}
        self.unop_table = {"-": values.negative}


_SANDBOX = _Sandbox()


def by_node(tree: nodes.Expr) -> Callable[[Mapping[str, object]], values.Verdict]:
    """The rule as a function of one node's inputs, by their names in the tree.

    The function raises what the rule's operators raise, TypeError, ValueError or ArithmeticError.
    """
    body = [nodes.Assign(nodes.Name("verdict", "store"), tree, lineno=1)]
    template = _SANDBOX.from_string(nodes.Template(body, lineno=1))
    seen: dict[str, object] = {}
    context = template.new_context(seen, shared=True)

    def evaluate(inputs: Mapping[str, object]) -> values.Verdict:
        seen.update(inputs)
        for _ in template.root_render_func(context):
            pass
        return values.truth(context.vars["verdict"])

    return evaluate
