"""The arrows between the packages, and what the pure ones must not touch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT = {
    "schemas": set(),
    "policy": {"schemas"},
    "trainer": {"schemas", "policy"},
    "streams": {"schemas", "policy"},
    "replay": {"schemas", "policy", "trainer", "streams"},
}
PACKAGES = set(MAY_IMPORT)
LEARNING = {"torch", "torch_geometric", "onnx", "onnxscript", "numba", "pymoo"}
KAFKA = {"confluent_kafka", "faust", "aiokafka"}
OUTSIDE_WORLD = {"time", "os", "socket", "random", "asyncio", "threading", "subprocess"}
LEARNS = {"policy/network.py"}
"""Beside the trainer: the network, which the trainer trains and exports."""
LOOKS_OUTSIDE = {
    ("policy/weight_set.py", "os"): "puts a set of weights in place at once",
    ("schemas/node_file.py", "random"): "draws the sample of a large node file from a seed",
}


def modules(*packages: str) -> list[Path]:
    """The modules of these packages."""
    found = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    assert found, packages
    return found


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that this one imports, wherever in it, as full names."""
    return frozenset(_imports(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import in line {node.lineno}"
            assert node.names[0].name != "*", f"a star import in line {node.lineno}"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top(names: frozenset[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_from_its_left(package):
    allowed = MAY_IMPORT[package] | {package}

    wrong = {name_of(path): top(imports(path)) & PACKAGES - allowed for path in modules(package)}

    assert not {path: names for path, names in wrong.items() if names}


def test_nothing_imports_the_command_line_or_the_tests():
    wrong = [name_of(path) for path in modules(*PACKAGES) if top(imports(path)) & {"headrace", "tests"}]

    assert not wrong


def test_learning_stays_in_the_trainer_and_the_network():
    users = {name_of(path) for path in modules("schemas", "policy", "streams") if top(imports(path)) & LEARNING}

    assert users == LEARNS


def test_only_the_serving_side_and_the_log_speak_kafka():
    users = [name_of(path) for path in modules("schemas", "policy", "trainer") if top(imports(path)) & KAFKA]

    assert not users


def test_the_pure_packages_read_no_clock_socket_or_chance():
    seen = {(name_of(p), name) for p in modules("schemas", "policy") for name in top(imports(p)) & OUTSIDE_WORLD}

    assert seen == set(LOOKS_OUTSIDE)


def test_no_module_of_the_serving_side_leads_to_torch():
    known = {name_of(p).removesuffix(".py").replace("/", "."): p for p in modules("schemas", "policy", "streams")}
    reached, left = set(), [name for name in known if name.startswith("streams.")]

    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += [n for n in imports(known[name]) if n in known]

    assert "policy.decide" in reached
    assert not [name for name in reached if top(imports(known[name])) & LEARNING]


def test_to_decide_by_a_heuristic_loads_no_learning_and_no_kafka():
    code = "import sys, policy.decide, policy.heuristics; print(*sorted(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "policy" in loaded
    assert not loaded & (LEARNING | KAFKA | {"onnxruntime"})


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_the_init_file_of_a_package_holds_a_docstring_only(package):
    (statement,) = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")).body

    assert isinstance(statement, ast.Expr)
