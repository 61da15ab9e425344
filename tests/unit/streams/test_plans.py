"""`headrace plan`: the plan as a table and as files, the comparison, and what it says when something is missing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import headrace
from benchmarks.plans import node_specs
from policy.lookahead import LookaheadSettings, lookahead
from policy.plan_problem import problem_of
from policy.plan_trace import trace_of
from policy.planners import PLANNERS
from policy.trace import cluster_object
from schemas.workflow_file import read_workflows
from streams.front import draw
from tests.builders import START_MS
from tests.command_line import CommandLine
from tests.traces import trace_path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
WORKFLOW = EXAMPLES / "etl_pipeline.yaml"
TRACES = (
    *("1000genome-chameleon-2ch-100k-001.json", "epigenomics-chameleon-hep-1seq-100k-001.json"),
    *("montage-chameleon-2mass-005d-001.json", "rnaseq-dirt02-001.json.gz", "blast-chameleon-large-001.json.gz"),
)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def figures(comparison: Mapping[str, Any]) -> dict[str, tuple[float, float | None]]:
    return {line["planner"]: (line["makespan_s"], line["cost"]) for line in comparison["planners"]}


def test_a_plan_is_a_table_and_files(command: CommandLine, tmp_path: Path) -> None:
    ended = command("plan", WORKFLOW, "--planner", "heft", "--out", tmp_path)

    folder = tmp_path / "etl_pipeline"
    plan = read(folder / "plan.json")
    assert (ended.code, ended.errors) == (0, "")
    assert "raw_ingest" in ended.output
    assert "makespan 3,292.7 s" in ended.output
    assert plan["tasks"][0]["task_id"] == "raw_ingest"
    assert max(task["finish_s"] for task in plan["tasks"]) == plan["makespan_s"]
    assert plan["planner"] == "heft"
    assert len((folder / "trace.jsonl").read_text().splitlines()) == 4
    assert ElementTree.parse(folder / "gantt.svg").getroot().tag.endswith("svg")
    assert not (folder / "front.svg").exists()


def test_a_comparison_has_every_planner_and_both_bounds(command: CommandLine, tmp_path: Path) -> None:
    ended = command("plan", WORKFLOW, "--compare", "--budget-ms", 50, "--search-s", 0.1, "--out", tmp_path)

    comparison = read(tmp_path / "etl_pipeline" / "comparison.json")
    makespans = {name: makespan_s for name, (makespan_s, _) in figures(comparison).items()}
    assert (ended.code, ended.errors) == (0, "")
    assert {*PLANNERS, "lookahead", "search bound", "lower bound", "NSGA-II, fastest"} <= set(makespans)
    assert makespans["lower bound"] <= makespans["search bound"] <= makespans["lookahead"] <= makespans["heft"]
    assert comparison["front"][0]["makespan_s"] == makespans["NSGA-II, fastest"]
    assert ElementTree.parse(tmp_path / "etl_pipeline" / "front.svg").getroot().tag.endswith("svg")


def test_without_the_training_packages_the_comparison_says_what_is_missing(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "trainer.pareto", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pymoo"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pymoo", None)

    ended = command("plan", WORKFLOW, "--compare", "--budget-ms", 0, "--search-s", 0)

    assert ended.code == 0
    assert "NSGA-II is left out" in ended.errors
    assert "install headrace[train]" in ended.errors
    assert "search bound" in ended.output
    assert "NSGA-II" not in ended.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--planner", "hefty"), "plan.planner: 'hefty' is unknown; known are lookahead, heft, peft"),
        (("--nodes", EXAMPLES / "etl_pipeline.yaml"), "etl_pipeline.yaml"),
    ],
)
def test_what_cannot_be_planned_is_one_line(command: CommandLine, arguments: tuple[object, ...], said: str) -> None:
    ended = command("plan", WORKFLOW, *arguments)

    assert ended.code == headrace.EXIT_REFUSED
    assert said in ended.errors
    assert len(ended.errors.splitlines()) == 1


def test_a_picture_of_one_point_is_a_picture() -> None:
    root = ElementTree.fromstring(draw([], [("a <planner>", (10.0, 0.0))], "one"))

    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "a <planner>" in texts


@pytest.mark.traces
@pytest.mark.parametrize("name", TRACES)
def test_an_independent_checker_accepts_every_plan_of_real_workflows(name: str, tmp_path: Path) -> None:
    checker = trace_path("..", "tools", "check_schedule.py")
    path, specs = trace_path("wfinstances", name), node_specs(8)
    (workflow,) = read_workflows(path, pool="p", event_time_ms=START_MS, workflow_id="w")
    problem = problem_of(workflow, specs)
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps(cluster_object(specs)))

    plans = {planner: make(problem) for planner, make in PLANNERS.items()}
    search = LookaheadSettings(budget_ms=math.inf, evaluations=200)
    plans["lookahead"] = lookahead(problem, list(plans.values()), search, lambda: 0.0).plan
    for planner, plan in plans.items():
        rows = tmp_path / f"{planner}.jsonl"
        trace = trace_of(workflow, specs, plan, planner)
        rows.write_text("".join(json.dumps(row) + "\n" for row in trace.rows()))
        checked = subprocess.run([sys.executable, checker, rows, cluster], capture_output=True, text=True)

        assert checked.returncode == 0, checked.stderr
        found = json.loads(checked.stdout)
        assert found["finished"] == problem.tasks
        assert found["turnaround"]["max"] == pytest.approx(plan.makespan_ms / 1000)
