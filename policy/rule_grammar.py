"""What a rule may say: its text, checked, as a tree over numbered inputs.

The tree is made of Jinja2's own nodes, but holds no attribute, item, call or name other than its inputs: what a rule
can reach is settled here, once, and not while tasks are waiting.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from difflib import get_close_matches
from typing import NamedTuple, NoReturn

from jinja2 import TemplateSyntaxError, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from policy.rule_values import FILTERS, METHODS, TESTS
from schemas.errors import InvalidConfiguration

MAX_CHARACTERS = 1000
MAX_PARTS = 200
MAX_DEPTH = 30

_JINJA = ImmutableSandboxedEnvironment()
_ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow)
_SHAPES = "name a field as node.cpu, task.gpu or node.labels.zone"


class Input(NamedTuple):
    """A value that a rule reads: a field of the task or of the node, or a label of the node."""

    source: str  # node, task or label
    name: str


class Inputs:
    """The inputs of all rules, each once; `Name("v3")` in a tree is the input number 3."""

    def __init__(self) -> None:
        self.all: list[Input] = []

    def name(self, wanted: Input) -> nodes.Name:
        """The tree's name of this input."""
        if wanted not in self.all:
            self.all.append(wanted)
        return nodes.Name(f"v{self.all.index(wanted)}", "load")


def input_number(name: nodes.Name) -> int:
    """The number of the input that a name in a tree stands for."""
    return int(name.name[1:])


def input_numbers(tree: nodes.Expr) -> list[int]:
    """The numbers of the inputs that the tree reads, each once, in order."""
    names = [tree] if isinstance(tree, nodes.Name) else tree.find_all(nodes.Name)
    return sorted({input_number(name) for name in names})


class Grammar:
    """Reads the rules of one setting; `inputs` collects what they read."""

    def __init__(self, node_fields: Collection[str], task_fields: Collection[str]) -> None:
        self._fields = {"node": sorted({*node_fields, "labels"}), "task": sorted(task_fields)}
        self.inputs = Inputs()

    def read(self, where: str, text: str) -> nodes.Expr:
        """The tree of one rule; `where` names it in errors.

        Raises InvalidConfiguration where it is no expression, too large, names what is not there, calls what it may
        not, or cannot be true or false.
        """
        tree = _parsed(where, text)
        _check_size(where, tree)
        return _Reading(where, self._fields, self.inputs).condition(tree)


def _parsed(where: str, text: str) -> nodes.Expr:
    if len(text) > MAX_CHARACTERS:
        raise InvalidConfiguration(where, f"{len(text)} characters, at most {MAX_CHARACTERS}", "write several rules")
    if text.strip().startswith(("{{", "{%")):
        raise InvalidConfiguration(where, "a rule is an expression, no template", "leave out the braces")
    try:
        parser = Parser(_JINJA, text, state="variable")
        tree = parser.parse_expression()
        if not parser.stream.eos:
            token = parser.stream.current
            raise InvalidConfiguration(where, f"does not end before {token.value!r}", "write one expression")
    except TemplateSyntaxError as error:
        raise InvalidConfiguration(where, f"is no Jinja2 expression: {error.message}", "correct it") from error
    except RecursionError as error:
        raise InvalidConfiguration(where, "is nested too deeply", "write several rules") from error
    return tree


def _check_size(where: str, tree: nodes.Expr) -> None:
    level: list[nodes.Node] = [tree]
    parts = depth = 0
    while level:
        parts += len(level)
        depth += 1
        if parts > MAX_PARTS or depth > MAX_DEPTH:
            problem = f"has more than {MAX_PARTS} parts, or is nested deeper than {MAX_DEPTH}"
            raise InvalidConfiguration(where, problem, "write several rules")
        level = [child for node in level for child in node.iter_child_nodes()]


class _Reading:
    """One rule's tree, turned part by part into one over inputs."""

    def __init__(self, where: str, fields: dict[str, list[str]], inputs: Inputs) -> None:
        self._where = where
        self._fields = fields
        self._inputs = inputs

    def condition(self, tree: nodes.Expr) -> nodes.Expr:
        """A part that has to be true or false."""
        read = self.part(tree)
        kind = _kind(read)
        if kind not in ("truth", "any"):
            self._refuse(f"has a {kind} where true or false is needed", "compare it with something")
        return read

    def operand(self, tree: nodes.Expr) -> nodes.Expr:
        """A part that is reckoned with, or put in order."""
        read = self.value(tree)
        if _kind(read) == "truth":
            self._refuse("reckons with something that is true or false", "put `and` or `or` between comparisons")
        return read

    def value(self, tree: nodes.Expr) -> nodes.Expr:
        """A part that is one value."""
        read = self.part(tree)
        if _kind(read) == "list":
            self._refuse("has a list where one value is needed", "write lists right of `in`")
        return read

    def part(self, tree: nodes.Expr) -> nodes.Expr:
        """Any part."""
        match tree:
            case nodes.Const():
                return self._constant(tree.value)
            case nodes.Name() | nodes.Getattr() | nodes.Getitem():
                return self._field(self._path(tree))
            case nodes.Not():
                return nodes.Not(self.condition(tree.node))
            case nodes.And() | nodes.Or():
                return type(tree)(self.condition(tree.left), self.condition(tree.right))
            case nodes.Compare():
                return self._comparison(tree)
            case nodes.CondExpr():
                return self._choice(tree)
            case nodes.Neg():
                return nodes.Neg(self.operand(tree.node))
            case nodes.Pos():
                return self.operand(tree.node)
            case nodes.List() | nodes.Tuple():
                return nodes.List([self.value(item) for item in tree.items])
            case nodes.Filter() | nodes.Test() | nodes.Call():
                return self._application(tree)
        if isinstance(tree, _ARITHMETIC):
            return type(tree)(self.operand(tree.left), self.operand(tree.right))
        self._refuse(
            f"uses {type(tree).__name__.lower()}, which rules have not",
            "use comparisons, and, or, not, in, if-else, + - * / // % **, filters and tests",
        )

    def _constant(self, value: object) -> nodes.Const:
        if value is None:
            self._refuse("has `none` as a value, which nothing equals", "write `is none` or `is defined`")
        if isinstance(value, (bool, str)):
            return nodes.Const(value)
        assert isinstance(value, (int, float))
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            self._refuse("has a number beyond 1.8e308", "write a smaller one")
        return nodes.Const(number)

    def _comparison(self, tree: nodes.Compare) -> nodes.Expr:
        comparisons = [step.op for step in tree.ops]
        if comparisons in (["in"], ["notin"]):
            return self._membership(tree.expr, tree.ops[0])
        if "in" in comparisons or "notin" in comparisons:
            self._refuse("chains `in` with another comparison", "join the two by `and`")
        side = self.value if set(comparisons) <= {"eq", "ne"} else self.operand
        return nodes.Compare(side(tree.expr), [nodes.Operand(step.op, side(step.expr)) for step in tree.ops])

    def _membership(self, item: nodes.Expr, step: nodes.Operand) -> nodes.Expr:
        if isinstance(step.expr, (nodes.Getattr, nodes.Getitem)) and self._path(step.expr) == ["node", "labels"]:
            if not (isinstance(item, nodes.Const) and isinstance(item.value, str)):
                self._refuse("looks for something else than a text in node.labels", "write 'zone' in node.labels")
            has = nodes.Test(self._field(["node", "labels", item.value]), "defined", [], [], None, None)
            return has if step.op == "in" else nodes.Not(has)
        return nodes.Compare(self.value(item), [nodes.Operand(step.op, self.part(step.expr))])

    def _choice(self, tree: nodes.CondExpr) -> nodes.CondExpr:
        if tree.expr2 is None:
            self._refuse("has an `if` without `else`", "say what holds otherwise")
        return nodes.CondExpr(self.condition(tree.test), self.value(tree.expr1), self.value(tree.expr2))

    def _application(self, tree: nodes.Filter | nodes.Test | nodes.Call) -> nodes.Expr:
        if tree.kwargs or tree.dyn_args or tree.dyn_kwargs:
            self._refuse("passes arguments by name or by *", "pass them by place")
        arguments = [self.value(argument) for argument in tree.args]
        if isinstance(tree, nodes.Call):
            if not (isinstance(tree.node, nodes.Getattr) and tree.node.attr in METHODS):
                self._refuse("calls what no rule may call", "a text has the methods " + ", ".join(METHODS))
            return self._filter(METHODS[tree.node.attr], self.value(tree.node.node), arguments)
        assert tree.node is not None  # only a filter block has none
        if isinstance(tree, nodes.Filter):
            return self._filter(tree.name, self.part(tree.node), arguments)
        if tree.name not in TESTS or arguments:
            self._refuse(f"uses the test {tree.name!r}", "the tests are " + ", ".join(TESTS) + ", without arguments")
        return nodes.Test(self.value(tree.node), tree.name, [], [], None, None)

    def _filter(self, name: str, value: nodes.Expr, arguments: list[nodes.Expr]) -> nodes.Filter:
        if name not in FILTERS:
            self._refuse(f"uses the filter {name!r}", _hint(name, FILTERS, "the filters"))
        least, most = FILTERS[name].arguments
        if not least <= len(arguments) <= most:
            self._refuse(f"passes {len(arguments)} arguments to {name!r}", f"pass {least} to {most}")
        if _kind(value) == "list" and name not in ("length", "max", "min"):
            self._refuse(f"passes a list to {name!r}", "pass one value")
        return nodes.Filter(value, name, arguments, [], None, None)

    def _path(self, tree: nodes.Expr) -> list[str]:
        """`node.labels['zone']` as ["node", "labels", "zone"]."""
        match tree:
            case nodes.Name():
                return [tree.name]
            case nodes.Getattr():
                return [*self._path(tree.node), tree.attr]
            case nodes.Getitem() if isinstance(tree.arg, nodes.Const) and isinstance(tree.arg.value, str):
                return [*self._path(tree.node), tree.arg.value]
        self._refuse("takes a part of something that has no named parts", _SHAPES)

    def _field(self, path: list[str]) -> nodes.Name:
        source, *rest = path
        if source not in self._fields:
            self._refuse(f"names {source!r}, which is not there", _hint(source, self._fields, "there are"))
        if not rest or path == ["node", "labels"]:
            self._refuse(f"uses {'.'.join(path)} as a value", _SHAPES)
        if any(name.startswith("_") for name in rest):
            self._refuse(f"reaches for {'.'.join(path)}", "names that begin with _ are out of reach")
        if path[:2] == ["node", "labels"] and len(path) == 3:
            return self._inputs.name(Input("label", rest[1]))
        if rest[0] not in self._fields[source]:
            hint = _hint(rest[0], self._fields[source], f"the fields of {source}")
            self._refuse(f"{source} has no field {rest[0]!r}", hint)
        if len(rest) > 1:
            self._refuse(f"takes a part of {'.'.join(path[:-1])}, which has none", _SHAPES)
        return self._inputs.name(Input(source, rest[0]))

    def _refuse(self, problem: str, remedy: str) -> NoReturn:
        raise InvalidConfiguration(self._where, problem, remedy)


def _kind(tree: nodes.Expr) -> str:
    """What a part gives, where that can be told: truth, number, text, list; else any."""
    match tree:
        case nodes.Const():
            return "truth" if isinstance(tree.value, bool) else "text" if isinstance(tree.value, str) else "number"
        case nodes.Not() | nodes.And() | nodes.Or() | nodes.Compare() | nodes.Test():
            return "truth"
        case nodes.Filter():
            return FILTERS[tree.name].gives
        case nodes.CondExpr():
            assert tree.expr2 is not None
            kinds = {_kind(tree.expr1), _kind(tree.expr2)}
            return kinds.pop() if len(kinds) == 1 else "any"
        case nodes.Add():
            return "text" if "text" in (_kind(tree.left), _kind(tree.right)) else "number"
        case nodes.List():
            return "list"
        case nodes.Name():
            return "any"
    return "number"


def _hint(name: str, known: Collection[str], noun: str) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"{noun}: {', '.join(known)}"
