"""The command line: every verb explains itself, and what goes wrong is one line with exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import headrace
from schemas.topics import CATALOGUE
from streams.config import PREFIX
from tests.command_line import CommandLine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORKFLOW = EXAMPLES / "etl_pipeline.yaml"
BROKERLESS = "no broker is named; set HEADRACE_KAFKA__BOOTSTRAP_SERVERS"


def verbs(app: typer.Typer, *before: str) -> Iterator[tuple[str, ...]]:
    """Every command of the application, as the words that call it."""
    for registered in app.registered_commands:
        assert registered.callback is not None
        yield (*before, registered.name or registered.callback.__name__.replace("_", "-"))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        assert group.name is not None
        yield (*before, group.name)
        yield from verbs(group.typer_instance, *before, group.name)


@pytest.mark.parametrize("verb", [(), *verbs(headrace.app)], ids=" ".join)
def test_every_command_explains_itself(command: CommandLine, verb: tuple[str, ...]) -> None:
    ended = command(*verb, "--help")

    assert ended.code == 0
    assert " ".join((*verb, "[OPTIONS]")) in ended.output.splitlines()[0]
    assert len(ended.output.splitlines()) > 4


def test_an_unknown_command_is_refused(command: CommandLine) -> None:
    ended = command("plan")

    assert ended.code == headrace.EXIT_REFUSED
    assert "plan" in ended.errors


def test_valid_workflows_are_said_to_be_valid(command: CommandLine) -> None:
    ended = command("validate", WORKFLOW, "--nodes", EXAMPLES / "nodes.yaml")

    assert (ended.code, ended.errors) == (0, "")
    assert ended.output == f"{WORKFLOW}: etl_pipeline: 4 tasks, valid\n"


BAD_FILES = {
    "no YAML": (b"tasks: [", "is no valid YAML"),
    "no UTF-8": (b"\xff\xfe\x00tasks", "UTF-8"),
    "empty": (b"", "holds no workflow"),
    "a list": (b"- 1\n- 2\n", "must be a mapping"),
    "an unknown key": (b"name: w\nclas: etl_batch\ntasks: []\n", "did you mean 'class'"),
    "a cycle": (
        b"name: w\ntasks:\n- {id: a, runtime: 1, needs: [b]}\n- {id: b, runtime: 1, needs: [a]}\n",
        "wait for each other",
    ),
    "a negative run time": (b"name: w\ntasks:\n- {id: a, runtime: -1}\n", "runtime"),
}


@pytest.mark.parametrize(("content", "problem"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_workflow_file_is_one_line_with_its_name(
    command: CommandLine, tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)

    ended = command("validate", path)

    assert (ended.code, ended.output) == (headrace.EXIT_REFUSED, "")
    (line,) = ended.errors.splitlines()
    assert line.startswith(f"error: {path}")
    assert problem in line


def test_every_bad_file_is_named_and_the_good_ones_too(command: CommandLine, tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.yaml", tmp_path / "empty.yaml"
    empty.touch()

    ended = command("validate", missing, WORKFLOW, empty)

    assert ended.code == headrace.EXIT_REFUSED
    assert [str(path) in line for path, line in zip((missing, empty), ended.errors.splitlines(), strict=True)]
    assert "etl_pipeline: 4 tasks, valid" in ended.output


def test_a_workflow_that_no_node_can_run_is_refused(command: CommandLine, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes:\n- {name: tiny, cpu: 0.1, mem: 1}\n")

    ended = command("validate", WORKFLOW, "--nodes", nodes)

    assert ended.code == headrace.EXIT_REFUSED
    assert str(WORKFLOW) in ended.errors


@pytest.mark.parametrize(
    "verb",
    [
        ("worker",),
        ("cluster",),
        ("submit", WORKFLOW),
        ("placements",),
        ("reward",),
        ("reward", "--record"),
        ("reward", "--weight", "sla=0.3"),
        ("topics", "create"),
        ("topics", "check"),
    ],
    ids=lambda verb: " ".join(map(str, verb[:2])).split("/")[0],
)
def test_without_a_broker_the_error_says_which_setting_names_one(
    command: CommandLine, verb: tuple[object, ...]
) -> None:
    ended = command(*verb)

    assert (ended.code, ended.output) == (headrace.EXIT_REFUSED, "")
    (line,) = ended.errors.splitlines()
    assert line.startswith(f"error: {BROKERLESS}")


def test_the_list_of_topics_is_the_catalogue_with_the_settings_applied(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TOPICS__PREFIX", "staging.")
    monkeypatch.setenv("HEADRACE_TOPICS__PARTITIONS", "12")

    ended = command("topics", "list")

    assert ended.code == 0
    assert [line.split()[0] for line in ended.output.splitlines()] == [f"staging.{topic.name}" for topic in CATALOGUE]
    placements = next(line for line in ended.output.splitlines() if ".placements " in line)
    assert "12 partitions" in placements
    assert "retention.ms=604800000" in placements


def test_a_setting_that_cannot_work_is_one_line_too(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_WORKER__PROT", "1")

    ended = command("topics", "list")

    assert ended.code == headrace.EXIT_REFUSED
    assert ended.errors == "error: HEADRACE_WORKER__PROT: there is no setting 'worker.prot'; did you mean 'port'?\n"


def test_the_installed_command_shows_no_traceback(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}

    ended = subprocess.run(
        [sys.executable, "-m", "headrace", "validate", str(tmp_path / "missing.yaml")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == headrace.EXIT_REFUSED
    assert ended.stderr == f"error: {tmp_path / 'missing.yaml'}: there is no such file\n"
