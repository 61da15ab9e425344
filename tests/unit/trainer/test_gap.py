"""The gap analyser finds the settings that made a log, says what a log does not tell, and writes what it found."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from policy.episode import EpisodeSettings
from policy.heuristics import heuristic
from policy.physics import CROWDED
from policy.simulator import SimulatorSettings
from policy.trace import Trace, cluster_object
from schemas.conversion import to_plain
from schemas.errors import InvalidConfiguration, InvalidInput
from schemas.records import EventKind, NodeMetrics, WorkflowSubmitted
from schemas.workflow_file import read_workflows
from streams.config import load, write_simulator
from tests.builders import a_lost_node, a_node, a_placement, a_ready, a_task, a_workflow, an_event, some_metrics
from tests.command_line import CommandLine
from tests.recorded_episode import recorded_episode
from tests.traces import trace_path
from trainer.gap import (
    BY_HAND,
    CHANGE,
    KEEP,
    LEAST_RUNS,
    PREDICTED_RUN,
    PREDICTED_TRANSFER,
    SHOWN,
    TURNAROUND,
    UNKNOWN,
    WAIT,
    Finding,
    Gap,
    as_json,
    find_gap,
    gap_of,
    show,
)
from trainer.log_files import read_logs
from trainer.play_again import to_play
from trainer.run_log import RunLog, Runs, measure
from trainer.run_time_fit import RunTimes, Spells, log_likelihood

TRUTH = SimulatorSettings(
    runtime_noise=0.35,
    transfer_noise=0.3,
    failure_rate=0.03,
    node_losses_per_hour=0.5,
    repair_s=400,
    slow_spells_per_hour=0.6,
    slow_spell_s=400,
    slow_factor=3.0,
    crowding=0.5,
    seed=9,
)


def folded(records: Iterable[object]) -> RunLog:
    log = RunLog()
    for record in records:
        log.apply(record)
    return log


def named(gap: Gap, name: str) -> Finding:
    return next(f for f in gap.findings if f.name == name)


@pytest.fixture(scope="module")
def recorded():
    """A run under TRUTH: its records, its trace, its nodes."""
    return recorded_episode(TRUTH, workflows=60)


@pytest.fixture(scope="module")
def found(recorded) -> Gap:
    """That run, compared with the default settings."""
    return find_gap(measure(folded(recorded[0])), SimulatorSettings())


@pytest.fixture
def folder(recorded, tmp_path: Path) -> Path:
    """What `headrace demo --out` leaves of that run."""
    _, trace, specs = recorded
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trace.rows()))
    (tmp_path / "cluster.json").write_text(json.dumps(cluster_object(specs)))
    return tmp_path


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_not_fitted_is_said_and_kept(found, name):
    assert named(found, name).verdict == UNKNOWN
    assert "not fitted" in named(found, name).advice
    assert getattr(found.suggested(), name) == getattr(found.now, name)


@pytest.mark.parametrize("name", [f.name for f in fields(SimulatorSettings) if f.name not in ("seed", *BY_HAND)])
def test_every_setting_is_found_within_its_interval(found, name):
    finding = named(found, name)

    assert finding.logged is not None
    assert finding.logged.low <= getattr(TRUTH, name) <= finding.logged.high
    assert finding.logged.high < 20 * max(finding.logged.low, getattr(TRUTH, name) / 8)


def test_with_the_suggested_settings_the_distributions_are_close(found):
    for name in ("runtime_noise", "transfer_noise"):
        finding = named(found, name)

        assert finding.verdict == CHANGE
        assert finding.distance_after < 0.07
        assert finding.distance_after < finding.distance_now / 2
    assert named(found, "repair_s").distance_after < named(found, "repair_s").distance_now
    assert [named(found, name).verdict for name in (PREDICTED_RUN, PREDICTED_TRANSFER)] == [KEEP, KEEP]


def test_the_settings_that_made_a_log_fit_it(recorded):
    gap = find_gap(measure(folded(recorded[0])), TRUTH)

    assert gap.changes() == {}
    assert gap.suggested() == TRUTH
    assert named(gap, "runtime_noise").distance_now < 0.07


def test_a_log_of_other_settings_is_told_apart():
    calm = replace(SimulatorSettings(runtime_noise=0.1, transfer_noise=0.1), seed=3)
    records, _, _ = recorded_episode(calm, workflows=40)

    gap = find_gap(measure(folded(records)), TRUTH)

    changes = gap.changes()
    assert changes["runtime_noise"] == pytest.approx(0.1, rel=0.2)
    assert changes["transfer_noise"] == pytest.approx(0.1, rel=0.2)
    assert (changes["failure_rate"], changes["slow_spells_per_hour"]) == (0.0, 0.0)
    assert changes["crowding"] < 0.1
    assert named(gap, "slow_factor").verdict == UNKNOWN


def test_predictions_that_are_too_short_are_said_to_be_and_change_no_setting(recorded):
    truth = [_with_predictions(r, 1 / 1.5) if isinstance(r, WorkflowSubmitted) else r for r in recorded[0]]

    gap = find_gap(measure(folded(truth)), TRUTH)

    finding = named(gap, PREDICTED_RUN)
    assert finding.logged.low < 1.5 < finding.logged.high
    assert "multiply the tasks' runtime" in finding.advice
    assert finding.distance_after < 0.07 < finding.distance_now
    assert gap.changes() == {}


def _with_predictions(workflow: WorkflowSubmitted, factor: float) -> WorkflowSubmitted:
    return replace(workflow, tasks=tuple(replace(t, runtime_s=t.runtime_s * factor) for t in workflow.tasks))


def test_a_short_log_tells_nothing_and_says_what_it_takes():
    records, _, _ = recorded_episode(TRUTH, workflows=1)

    gap = find_gap(measure(folded(records)), SimulatorSettings())

    finding = named(gap, "runtime_noise")
    assert finding.verdict == UNKNOWN
    assert f"{LEAST_RUNS} finished attempts are needed, {LEAST_RUNS - finding.samples} more" in finding.advice
    assert gap.changes() == {}


def test_without_noise_the_logged_ratios_are_the_simulators_own():
    cluster = SimulatorSettings(runtime_noise=0, transfer_noise=0, crowding=0.4)

    measured = measure(folded(recorded_episode(cluster, workflows=8)[0]))

    runs = measured.runs
    assert (runs.crowd_a > 0).sum() > 20
    np.testing.assert_allclose(runs.log_ratio_a, np.log1p(0.4 * runs.crowd_a), atol=0.002)
    assert len(measured.transfer_log_ratio_a) > 10
    np.testing.assert_allclose(measured.transfer_log_ratio_a, 0, atol=0.06)


def test_the_likelihood_is_the_sum_over_all_ways_through_normal_and_slow():
    gap_s_a = np.array([math.inf, 100.0, 0.0, math.inf, 40.0])
    runs = Runs(
        np.array([0.1, 1.2, 0.9, -0.3, 0.8]), np.array([False] * 4 + [True]), np.array([0, 0.5, 1, 0, 0]), gap_s_a
    )
    times = RunTimes(1.1, 0.4, 0.3, Spells(2.0, 300.0, 2.5))

    total = sum(_likelihood_of(states, runs, times) for states in itertools.product((0, 1), repeat=5))

    assert log_likelihood(runs, times) == pytest.approx(math.log(total))


def _likelihood_of(states: tuple[int, ...], runs: Runs, times: RunTimes) -> float:
    begin, end = times.spells.per_hour / 3600, 1 / times.spells.lasts_s
    slow_share = begin / (begin + end)
    likelihood = 1.0
    for i, state in enumerate(states):
        kept = math.exp(-(begin + end) * runs.gap_s_a[i])
        share = slow_share if state else 1 - slow_share
        likelihood *= (1 - kept) * share + kept * (i > 0 and states[i - 1] == state)
        mean = math.log(1.1) - 0.08 + math.log1p(0.3 * runs.crowd_a[i]) + state * math.log(2.5)
        z = (runs.log_ratio_a[i] - mean) / 0.4
        density = math.exp(-z * z / 2) / (0.4 * math.sqrt(2 * math.pi))
        likelihood *= math.erfc(z / math.sqrt(2)) / 2 if runs.is_censored_a[i] else density
    return likelihood


def a_log(*events: object, task: object = None, nodes: int = 1) -> RunLog:
    """One task of one core on n0, whatever happens to it."""
    specs = [a_node(f"n{i}", cpu=1.0 / CROWDED) for i in range(nodes)]
    return folded([some_metrics(*specs), a_workflow(task or a_task()), a_ready(), a_placement(), *events])


def test_losses_count_while_something_runs():
    started, ended = an_event(EventKind.STARTED, at_s=10), an_event(EventKind.FINISHED, at_s=3610)

    idle = measure(a_log(started, ended, a_lost_node(at_s=4000)))
    busy = measure(a_log(started, a_lost_node(at_s=1810)))

    assert (idle.lost, idle.busy_h) == (0, 1.0)
    assert (busy.lost, busy.busy_h) == (1, 0.5)
    assert busy.runs.is_censored_a.tolist() == [True]


def test_a_lost_node_is_back_between_the_sample_without_and_the_one_with_it():
    samples = [some_metrics("n1", at_s=115), some_metrics("n1", at_s=130), some_metrics("n0", "n1", at_s=145)]

    measured = measure(a_log(an_event(EventKind.STARTED, at_s=10), a_lost_node(at_s=100), *samples, nodes=2))

    assert measured.repair_s_l.tolist() == [37.5]


def test_a_cluster_that_starts_anew_is_no_loss_of_nodes():
    started, ended = an_event(EventKind.STARTED, at_s=10), an_event(EventKind.FINISHED, at_s=90)

    measured = measure(a_log(started, ended, a_lost_node("n0", 50), a_lost_node("n1", 50), nodes=2))

    assert measured.lost == 0
    assert any("started anew" in remark for remark in measured.remarks)


@pytest.mark.parametrize(
    ("events", "remark"),
    [
        ([an_event(EventKind.STARTED, at_s=9), an_event(EventKind.FINISHED, at_s=5)], "ended before they started"),
        ([an_event(EventKind.STARTED, at_s=9)], "without an end"),
        ([an_event(EventKind.FINISHED, at_s=5)], "without a start"),
        ([an_event(EventKind.STARTED, task_id="other", at_s=9)], "unknown tasks"),
        (
            [an_event(EventKind.STARTED), replace(an_event(EventKind.FINISHED, at_s=5), runtime_s=-1.0)],
            "negative or unusable time",
        ),
        (
            [an_event(EventKind.STARTED, node_id="far"), an_event(EventKind.FINISHED, node_id="far", at_s=5)],
            "unknown speed",
        ),
    ],
)
def test_attempts_that_make_no_sense_are_counted_and_left_out(events, remark):
    measured = measure(a_log(*events))

    assert [count for text, count in measured.remarks.items() if remark in text] == [1]
    assert measured.runs.finished == 0


def test_a_trace_tells_the_same_as_the_records_it_was_folded_from(folder, found):
    gap = find_gap(measure(read_logs([folder])), SimulatorSettings())

    for name in (PREDICTED_RUN, "runtime_noise", "crowding", "failure_rate", "transfer_noise", "slow_factor"):
        assert named(gap, name).logged.value == pytest.approx(named(found, name).logged.value, rel=0.01)
    assert named(gap, "node_losses_per_hour").samples == named(found, "node_losses_per_hour").samples
    assert named(gap, "repair_s").verdict == UNKNOWN


def test_records_as_json_lines_tell_the_same_as_the_records(recorded, found, tmp_path):
    file = tmp_path / "records.jsonl"
    plain = [to_plain(r) for r in recorded[0] if not isinstance(r, NodeMetrics)]
    file.write_text("".join(json.dumps(p) + "\n" for p in plain))

    gap = find_gap(measure(read_logs([file], recorded[2])), SimulatorSettings())

    assert named(gap, "runtime_noise") == named(found, "runtime_noise")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("{}\nnonsense\n", "line 1: is no record that can be compared"),
        ("nonsense\n", "line 1: is no JSON"),
        ('{"a": 1}\n', "line 1: is no record that can be compared"),
        ("[1]\n", "line 1: is no record that can be compared"),
        ('\n{"kind": "started"}\n', "line 2: TaskEvent: the field 'pool' is missing"),
        ('{"start_time": "soon"}\n', "line 1: TraceRow: the field 'workflow_id' is missing"),
    ],
)
def test_a_file_that_is_no_log_is_refused_by_its_line(tmp_path, text, problem):
    file = tmp_path / "log.jsonl"
    file.write_text(text)

    with pytest.raises(InvalidInput, match=re.escape(problem)):
        read_logs([file])


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"finish_time": 1.0}, "rows whose times contradict each other"),
        ({"predicted_s": None}, "rows without a prediction"),
        ({"predicted_s": -1.0}, "rows whose times contradict each other"),
    ],
)
def test_rows_that_make_no_sense_are_counted_and_left_out(folder, change, remark):
    rows = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    (folder / "trace.jsonl").write_text("".join(json.dumps(row | change) + "\n" for row in rows[:3]))

    log = read_logs([folder])

    assert [count for text, count in log.remarks.items() if remark in text] == [3]
    with pytest.raises(InvalidInput, match="no attempt started and ended"):
        find_gap(measure(log), SimulatorSettings())


def test_workflows_played_again_show_waits_and_turnaround():
    log = folded(recorded_episode(TRUTH, workflows=12)[0])

    gap = gap_of(log, EpisodeSettings(cluster=TRUTH), heuristic(log.policy()))

    assert log.policy() == "srcp"
    for name in (WAIT, TURNAROUND):
        assert gap.quantiles[name].distance_now < 0.1  # the same chance and policy; nodes are lost at other times
    assert len(gap.quantiles[WAIT].logged) == len(SHOWN)


def test_workflows_that_began_before_the_log_are_not_played_again(recorded):
    log = folded(recorded[0])
    first = min(log.workflows, key=lambda name: log.trace.submitted_s[name])
    log.trace.started = {key: event for key, event in log.trace.started.items() if key[0] != first}

    played = to_play(log)

    assert first not in {workflow.workflow_id for workflow in played}
    assert len(played) > 10


def test_the_report_and_its_json_name_every_finding(found):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115

    show(found, console)
    text, whole = console.export_text(), json.loads(as_json(found))

    assert all(f.name in text for f in found.findings)
    assert whole["changes"] == found.changes()
    assert {f["name"] for f in whole["findings"]} == {f.name for f in found.findings}


def test_the_command_writes_settings_that_it_then_finds_to_fit(command: CommandLine, folder: Path):
    fitted, figures = folder / "fitted.yaml", folder / "gap.json"

    ended = command("gap", folder / "trace.jsonl", "--write", fitted, "--out", figures)

    assert ended.code == 0, ended.errors
    changes = json.loads(figures.read_text())["changes"]
    written = load(fitted, {}).cluster.simulator
    assert {name: getattr(written, name) for name in changes} == changes
    assert {"runtime_noise", "crowding", "failure_rate"} <= changes.keys()
    assert find_gap(measure(read_logs([folder])), written).changes() == {}


def test_the_command_wants_logs_or_kafka(command: CommandLine):
    ended = command("gap")

    assert ended.code == 2
    assert ended.errors == "error: gap: needs logs, or --from-kafka; give one of the two\n"


def test_the_other_settings_of_a_file_stay(tmp_path):
    file = tmp_path / "headrace.yaml"
    file.write_text("pool: 'on'\npolicy:\n  name: heft\ncluster:\n  time_scale: 10\n  simulator: {seed: 4}\n")
    before = load(file, {})

    write_simulator(file, TRUTH)

    assert load(file, {}) == before.model_copy(update={"cluster": replace(before.cluster, simulator=TRUTH)})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pool: a  # ours\n", "has comments"),
        ("pooll: a\n", "there is no setting 'pooll'"),
        ("[1, 2]\n", "is no mapping"),
        ("cluster: {time_scale: 0}\n", "out of range"),
    ],
)
def test_a_settings_file_that_cannot_be_kept_whole_is_left_alone(tmp_path, text, problem):
    file = tmp_path / "headrace.yaml"
    file.write_text(text)

    with pytest.raises(InvalidConfiguration, match=re.escape(problem)):
        write_simulator(file, TRUTH)

    assert file.read_text() == text


@pytest.mark.traces
@pytest.mark.parametrize(
    ("file", "kind"),
    [("bwa-chameleon-medium-001.json.gz", "bwa"), ("montage-chameleon-2mass-05d-001.json.gz", "mDiffFit")],
)
def test_real_run_times_of_one_kind_of_task_are_fitted_closer_than_the_default(file, kind):
    (workflow,) = read_workflows(trace_path("wfinstances", file), pool="p", event_time_ms=0)
    measured_s = np.array([t.runtime_s for t in workflow.tasks if kind in t.task_id and t.runtime_s > 0.02])
    runs = Runs(
        np.log(measured_s / measured_s.mean()),
        np.zeros(len(measured_s), bool),
        np.zeros(len(measured_s)),
        np.full(len(measured_s), math.inf),
    )
    nothing = measure(RunLog())

    gap = find_gap(replace(nothing, runs=runs), SimulatorSettings())

    finding = named(gap, "runtime_noise")
    assert len(measured_s) > 300
    assert finding.verdict == CHANGE
    assert finding.distance_after < finding.distance_now


def test_a_trace_row_names_the_nodes_that_were_lost():
    trace = Trace()
    for record in (a_workflow(), a_ready(), an_event(EventKind.STARTED, at_s=1), a_lost_node(at_s=5)):
        trace.apply(record)

    (row,) = trace.rows()

    assert (row["event"], row["node_lost"], row["predicted_s"]) == ("failed", True, 10.0)
