"""What a comparison says: as a table, as JSON, as a picture, beside the source design."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from schemas.errors import InvalidConfiguration, InvalidInput
from tests.unit.trainer.trace_folder import jobs_path, write_traces
from trainer.evaluate import USUAL, EvaluationSettings, Report, as_json, evaluate, show
from trainer.figures import Figures
from trainer.headline import CLAIMS, show_beside
from trainer.intervals_picture import BLUE, GREY, ORANGE, PANELS, draw
from trainer.suite import TRACE_NAMES

SVG = "{http://www.w3.org/2000/svg}"
BASE = Figures(-0.3, 100.0, 200.0, 2.0, 90.0, 10.0, 6.0, 4.0, 0.9, 0.2, 0.5, 0.4)


def figures(*scales: float) -> list[Figures]:
    """Runs whose times and costs are so many times those of BASE."""
    return [
        replace(BASE, reward=-0.3 * k, turnaround_s=100 * k, cost=10 * k, gpu_cost=6 * k, makespan_s=90 * k)
        for k in scales
    ]


@pytest.fixture
def report() -> Report:
    policies = {USUAL: figures(1, 1, 1), "srcp": figures(0.8, 0.9, 0.7), "actor": figures(0.7, 0.8, 0.6)}
    settings = EvaluationSettings(suite="standard", seeds=3)
    return Report(settings, {"a <row>": policies, "b": policies}, {"b": {"jobs [left] out": 1234}}, TRACE_NAMES)


def shown(what, *arguments) -> str:
    console = Console(width=180, file=StringIO())
    what(arguments[0], console, *arguments[1:])
    return console.file.getvalue()


def test_the_table_has_the_differences_from_both_rivals(report):
    text = shown(show, report, "actor")

    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("actor "))
    assert lines[at + 1].split()[1:3] == ["kube_default", "+0.0900±0.0339"]
    assert "-30.0±11.3%" in lines[at + 1]
    assert lines[at + 2].split()[1] == "srcp"
    assert "…" not in text


def test_what_was_left_out_of_traces_and_of_the_suite_is_said(report):
    text = shown(show, report, "actor")

    assert "1,234 jobs [left] out" in text
    assert all(f"{name}: left out, as no traces were given (--traces DIR)" in text for name in TRACE_NAMES)


def test_the_json_has_the_differences_from_both_rivals(report):
    plain = json.loads(as_json(report))

    actor = plain["setups"]["b"]["actor"]["against"]
    assert plain["best_heuristics"] == {"a <row>": "srcp", "b": "srcp"}
    assert actor[USUAL]["turnaround_s"][0] == pytest.approx(-0.3)
    assert actor["srcp"]["reward"][0] == pytest.approx(0.03)
    assert actor[USUAL]["relative_reward"] == pytest.approx(0.3)
    assert plain["left_out"] == list(TRACE_NAMES)
    assert plain["notes"] == {"b": {"jobs [left] out": 1234}}


def test_the_picture_has_every_interval_of_every_row(report):
    picture = ElementTree.fromstring(draw(report, "actor"))

    words = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"a <row>", "b", *(panel.title for panel in PANELS)} <= set(words)
    for colour in (BLUE, ORANGE, GREY):
        bars = [bar for bar in picture.iter(f"{SVG}line") if bar.get("stroke") == colour]
        assert len(bars) == len(PANELS) * len(report.figures)
    width = float(picture.get("width"))
    assert all(0 <= float(dot.get("cx")) <= width for dot in picture.iter(f"{SVG}circle"))


def test_a_picture_without_a_subject_or_a_difference_can_be_drawn(report):
    of_one = {"b": {USUAL: figures(1, 1, 1)}}

    assert BLUE not in draw(report)
    assert "best heuristic: kube_default" in draw(replace(report, figures=of_one))


def test_a_ratio_to_nothing_is_no_number_anywhere(report):
    free = [replace(run, gpu_cost=0.0, turnaround_s=math.inf) for run in figures(1, 1, 1)]
    odd = replace(report, figures={"b": {USUAL: free, "srcp": figures(0.8, 0.9, 0.7), "actor": free}})

    plain = json.loads(as_json(odd))["setups"]["b"]
    assert plain["srcp"]["against"][USUAL]["gpu_cost"] == [None, None]
    assert plain["actor"]["against"][USUAL]["gpu_cost"] == [0, 0]
    assert plain["actor"]["mean"]["turnaround_s"] is None
    assert "nan" not in shown(show, odd, "actor").replace("actor", "") + draw(odd, "actor") + shown(
        show_beside, odd, "actor"
    )


def test_our_figures_stand_beside_the_claims_of_the_source_design(report):
    text = shown(show_beside, report, "actor")

    assert all(claim.heading in text for claim in CLAIMS.values())
    assert "-27.9%" in text
    assert "-34.4%" in text
    assert "not measured here" in text
    assert text.count("headrace, actor") == 2


def test_a_comparison_on_traces_says_what_it_left_out(tmp_path):
    folder = write_traces(tmp_path / "traces")
    settings = EvaluationSettings(suite="traces", seeds=2, processes=1, traces=folder, heuristics=("srcp",))

    report = evaluate(settings, {}, lambda line: None)

    assert list(report.figures) == list(TRACE_NAMES)
    assert {tuple(policies) for policies in report.figures.values()} in ({("srcp", USUAL)}, {(USUAL, "srcp")})
    assert any("had not ended well" in what for what in report.notes[TRACE_NAMES[2]])
    assert not report.left_out


def test_a_broken_trace_ends_the_comparison_before_anything_is_played(tmp_path):
    folder = write_traces(tmp_path / "traces")
    jobs_path(folder).write_bytes(b"no gzip")
    said: list[str] = []

    with pytest.raises(InvalidInput, match="cannot be read"):
        evaluate(EvaluationSettings(suite="standard", seeds=2, processes=1, traces=folder), {}, said.append)
    assert not said


def test_an_unknown_heuristic_is_refused():
    with pytest.raises(InvalidConfiguration, match="'best' is unknown"):
        EvaluationSettings(heuristics=("best",))


def test_the_command_writes_figures_and_a_picture(command, tmp_path):
    folder = write_traces(tmp_path / "traces")
    figures_path, picture_path = tmp_path / "figures.json", tmp_path / "picture.svg"
    given = ("--suite", "traces", "--traces", folder, "--seeds", 2, "--heuristics", "srcp,heft")

    ended = command("evaluate", *given, "--out", figures_path, "--picture", picture_path)

    assert ended.code == 0
    assert all(name in ended.output for name in (*TRACE_NAMES, "heft", USUAL, "actor against the best heuristic"))
    assert set(json.loads(figures_path.read_text())["setups"]) == set(TRACE_NAMES)
    assert ElementTree.fromstring(picture_path.read_text()).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--suite", "traces"), "has no rows without traces; give --traces DIR"),
        (("--traces", "no/such"), "no/such: is no folder"),
        (("--heuristics", "srcp,best"), "'best' is unknown"),
        (("--picture", "no/such/picture.svg"), "its folder does not exist"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(command, arguments, words):
    ended = command("evaluate", *arguments)

    assert ended.code == 2
    assert words in ended.errors
    assert ended.errors.count("\n") == 1
