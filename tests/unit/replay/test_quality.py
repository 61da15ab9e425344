"""The quality checker finds what is wrong with a log, and leaves what is right as it was."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policy.simulator import SimulatorSettings
from replay.logged import FILE, Logged, from_files, where
from replay.quality import QualitySettings, checked, examine
from replay.quality_report import Kind, as_json, in_words
from schemas.conversion import to_plain
from schemas.errors import InvalidConfiguration, InvalidInput, TooDirty
from schemas.records import (
    METRICS,
    Env,
    EventKind,
    NodeMetrics,
    Placement,
    TaskEvent,
    TaskReady,
    WorkflowSubmitted,
)
from tests.builders import a_node, a_placement, a_ready, a_task, a_workflow, an_event, ms, some_metrics
from tests.command_line import CommandLine
from tests.recorded_episode import recorded_episode
from tests.traces import trace_path
from trainer.traces import read_trace

TOPIC_OF = {
    WorkflowSubmitted: "workflow-submitted",
    TaskReady: "task-ready",
    Placement: "placements",
    TaskEvent: "task-events",
    NodeMetrics: "node-metrics",
}
EASY = QualitySettings(least_attempts=0)
DAY_S = 86_400


def logged(*records: object, at_ms: Sequence[int | None] | None = None) -> list[Logged]:
    """The records as they would lie in one partition; broker times are as given, else unknown."""
    times = at_ms or [None] * len(records)
    return [Logged(TOPIC_OF[type(r)], 0, i, t, r) for i, (r, t) in enumerate(zip(records, times, strict=True))]


def an_attempt(task_id: str = "t0", start_s: float = 1.0, end_s: float = 11.0, **fields) -> list[object]:
    """A prod attempt that was placed, started and finished."""
    changes = {name: fields.pop(name) for name in ("env", "runtime_s") if name in fields}
    events = [
        replace(an_event(kind, task_id=task_id, at_s=at_s, **fields), env=Env.PROD)
        for kind, at_s in ((EventKind.STARTED, start_s), (EventKind.FINISHED, end_s))
    ]
    placed = {name: value for name, value in fields.items() if name in ("attempt", "workflow_id", "node_id")}
    end = replace(events[1], **changes)
    return [a_placement(placed.pop("node_id", "n0"), task_id=task_id, at_s=0.5, **placed), events[0], end]


def a_log(*attempt: object, **fields) -> list[Logged]:
    """A workflow of prod, its node, and what is told of an attempt."""
    workflow = a_workflow(a_task("t0"), a_task("t1", after=["t0"]), env=fields.pop("env", Env.PROD))
    return logged(workflow, some_metrics(a_node("n0")), *(attempt or an_attempt(**fields)))


def kinds(records: Iterable[Logged], settings: QualitySettings = EASY) -> dict[str, int]:
    """What was wrong."""
    return {str(kind): count for kind, count in examine(list(records), settings).report.counts.items() if count}


@pytest.fixture(scope="module")
def recorded() -> list[Logged]:
    """A simulated run of prod work, with failures and lost nodes."""
    cluster = SimulatorSettings(failure_rate=0.03, node_losses_per_hour=0.5, repair_s=400, crowding=0.4, seed=5)
    records = recorded_episode(cluster, workflows=20, nodes=6)[0]
    return logged(*(replace(r, env=Env.PROD) if hasattr(r, "env") else r for r in records))


def test_a_run_without_faults_is_left_as_it_is(recorded):
    found = examine(recorded)

    assert list(found.clean(recorded)) == recorded
    assert not found.report.refusals
    assert found.report.prod_workflows == found.report.workflows == 20
    assert found.report.usable_attempts > 100
    assert not [kind for kind in found.report.counts if kind not in (Kind.GAP,)]


def test_foreign_and_broken_records_change_nothing_of_what_is_learnt(recorded):
    rng = np.random.default_rng(1)
    rows = [(i + 0.5, r.record) for i, r in enumerate(recorded)]
    events = [(at, r) for at, r in rows if isinstance(r, TaskEvent) and r.workflow_id]
    ends = [(at, r) for at, r in events if r.kind == EventKind.FINISHED]
    poison: list[tuple[float, object]] = []
    for at, r in rows[::7]:
        if hasattr(r, "workflow_id") and getattr(r, "workflow_id", ""):
            changes = {"workflow_id": f"test-{r.workflow_id}"} | ({"env": Env.TEST} if hasattr(r, "env") else {})
            poison.append((at, replace(r, **changes)))
    for at, r in events[::40]:
        poison.append((at, r))
    for at, r in ends[::25]:
        broken = [
            replace(r, runtime_s=-1.0),
            replace(r, runtime_s=math.nan),
            replace(r, event_time_ms=r.event_time_ms - 3_600_000),
            replace(r, runtime_s=1e6),
            replace(r, node_id="nowhere"),
            replace(r, env=Env.TEST, runtime_s=0.5),
            replace(r, task_id="never-submitted"),
            replace(r, event_time_ms=12),
        ]
        poison.append((at - 1 if rng.random() < 0.5 else at, broken[len(poison) % len(broken)]))
    mixed = logged(*(r for _, r in sorted([*((at - 0.5, r) for at, r in rows), *poison], key=lambda row: row[0])))

    found = examine(mixed)

    assert len(mixed) > len(recorded) + 100
    assert [r.record for r in found.clean(mixed)] == [r.record for r in recorded]
    assert {Kind.NOT_PROD, Kind.DUPLICATE, Kind.BAD_TIME} <= set(found.report.counts)


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        (a_log(runtime_s=-1.0), Kind.BAD_TIME),
        (a_log(runtime_s=math.inf), Kind.BAD_TIME),
        (a_log(runtime_s=30.0), Kind.TOO_LONG),
        (a_log(runtime_s=0.0), Kind.ZERO_RUNTIME),
        (a_log(start_s=9.0, end_s=3.0), Kind.ENDED_BEFORE_START),
        (a_log(end_s=1 + 10 * 51.0), Kind.FAR_FROM_PREDICTION),
        (a_log(*an_attempt(node_id="n9")), Kind.UNKNOWN_NODE),
        (a_log(*an_attempt(), *an_attempt("t1")[1:]), Kind.NEVER_PLACED),
        (a_log(*an_attempt()[:2], an_attempt(env=Env.TEST)[2]), Kind.MIXED_ENV),
        (a_log(env=Env.TEST), Kind.MIXED_ENV),
        (a_log(env=Env.UNKNOWN), Kind.NOT_PROD),
        (a_log(*an_attempt(env=Env.UNKNOWN)), Kind.NOT_PROD),
        (a_log(*an_attempt(), an_attempt()[2]), Kind.DUPLICATE),
        (a_log(*an_attempt(), an_attempt(end_s=12.0)[2]), Kind.DUPLICATE),
        (a_log(*an_attempt()[:2], replace(an_attempt()[2], event_time_ms=1_700_000_000)), Kind.BAD_TIME),
    ],
)
def test_what_is_wrong_with_an_attempt_is_found_and_left_out(records, kind):
    found = examine(records, EASY)

    (example, *_) = found.report.examples[kind]
    kept = list(found.clean(records))
    assert found.report.counts[kind] >= 1
    assert example.place not in [r.place for r in kept]
    assert example.what


def test_events_on_another_node_than_that_of_the_placement_are_left_out():
    records = [*a_log(), *logged(some_metrics(a_node("n1"), at_s=1.0))]
    moved = [
        replace(r, record=replace(r.record, node_id="n1")) if isinstance(r.record, TaskEvent) else r for r in records
    ]

    assert kinds(moved) == {"other_node": 2}


@pytest.mark.parametrize(
    ("attempt", "kind"),
    [
        ([*an_attempt(start_s=-30.0, end_s=5.0)], Kind.STARTED_BEFORE_PLACED),
        ([an_attempt()[0], an_attempt()[2]], Kind.NO_START),
        ([*an_attempt(), *an_attempt("t1", start_s=4.0, end_s=14.0)], Kind.CHILD_BEFORE_PARENT),
    ],
)
def test_what_is_only_odd_is_noted_and_stays(attempt, kind):
    records = a_log(*attempt)

    found = examine(records, EASY)

    assert set(found.report.counts) == {kind}
    assert list(found.clean(records)) == records


def test_a_workflow_that_was_submitted_as_prod_and_as_test_is_left_out_as_a_whole():
    records = [*a_log(), Logged("workflow-submitted", 0, 99, None, replace(a_log()[0].record, env=Env.TEST))]

    found = examine(records, EASY)

    assert found.report.counts[Kind.MIXED_ENV] == 1
    assert [r.record for r in found.clean(records)] == [records[1].record]


def test_prod_work_beside_test_work_on_one_node_is_noted():
    test_run = [replace(r, env=Env.TEST) for r in an_attempt(workflow_id="w1", start_s=0.8, end_s=30.0)[1:]]
    records = logged(
        a_workflow(a_task("t0"), env=Env.PROD),
        a_workflow(a_task("t0"), workflow_id="w1", env=Env.TEST),
        some_metrics(a_node("n0")),
        a_placement("n0", workflow_id="w1"),
        test_run[0],
        *an_attempt(),
        test_run[1],
    )

    found = examine(records, EASY)

    assert found.report.counts[Kind.TEST_ON_SHARED_NODE] == 1
    assert len(list(found.clean(records))) == 5


def test_the_users_own_engine_tells_the_env_with_the_task():
    ready = a_ready(a_task("t0"), workflow_id="w0", env=Env.PROD)
    records = logged(some_metrics(a_node("n0")), ready, *an_attempt())

    assert kinds(records) == {}
    assert kinds([replace(r, record=replace(ready, env=Env.DEV)) if r.record is ready else r for r in records]) == {
        "mixed_env": 1
    }


def test_an_attempt_that_was_placed_before_the_log_began_is_not_called_broken():
    records = logged(
        some_metrics(a_node("n0")),
        *an_attempt(workflow_id="old")[1:],
        a_workflow(a_task("t0"), env=Env.PROD),
        a_placement("n0"),
    )

    assert kinds(records) == {"cut_off": 2}


def test_gaps_repeats_disorder_and_impossible_shares_of_samples_are_found():
    shares = np.zeros((1, len(METRICS)))
    shares[0, METRICS.index("cpu_utilisation")], shares[0, METRICS.index("disk_utilisation")] = 1.4, -1
    records = logged(
        *(some_metrics("n0", at_s=15.0 * i) for i in range(4)),
        some_metrics("n0", at_s=45.0),
        some_metrics("n0", at_s=345.0),
        some_metrics("n0", at_s=330.0),
        some_metrics("n0", at_s=360.0, values_nm=shares),
        replace(some_metrics("n0", at_s=375.0), values=b"1234"),
    )

    found = examine(records, EASY)

    assert {str(k): n for k, n in found.report.counts.items()} == {
        "duplicate": 1,
        "gap": 1,
        "out_of_order": 1,
        "out_of_range": 2,
        "bad_samples": 1,
    }
    assert found.report.missing_s == 300
    assert any("in gaps" in reason for reason in found.report.refusals)


def test_clocks_that_are_off_are_found_whatever_the_delay():
    base = ms(0)
    rng = np.random.default_rng(2)
    records, times = [], []
    for i in range(400):
        node = f"n{i % 4}"
        off_ms = -90_000 if node == "n3" else 0
        delay_ms = 5_000 + int(rng.integers(400))
        records.append(replace(some_metrics(node, at_s=i + off_ms / 1000, source=node)))
        times.append(base + 1000 * i + delay_ms)
    records[250] = some_metrics("n0", at_s=250 + 7200.0, source="n0")
    times[300] += 3_600_000

    found = examine(logged(*records, at_ms=times), EASY).report

    assert found.counts[Kind.CLOCK_AHEAD] == 1
    assert found.counts[Kind.LATE] == 1
    (example,) = found.examples[Kind.NODE_CLOCK]
    assert example.what.startswith("the clock of n3 is -9")


def test_memory_is_bounded_and_work_that_is_under_way_is_not_forgotten(recorded):
    settings = replace(EASY, workflows_kept=20, attempts_kept=1000)

    found = examine(recorded, settings)

    assert list(found.clean(recorded)) == recorded


def test_a_log_that_is_too_dirty_is_refused_with_the_reason():
    workflow, nodes, *attempt = [r.record for r in a_log()]
    broken = [replace(r, workflow_id="w1") for r in (workflow, *an_attempt(runtime_s=99.0))]
    records = logged(workflow, nodes, *attempt, *broken)

    with pytest.raises(TooDirty, match=r"1 of 9 records are broken, most: too_long \(5% may\)") as refused:
        checked(lambda: records, EASY)

    assert len(refused.value.reasons) == 1


def test_too_little_work_of_prod_is_refused():
    with pytest.raises(TooDirty, match="1 usable attempts of prod work, 20 are needed"):
        checked(lambda: a_log())


def test_the_report_says_where_what_and_how_often():
    report = examine(a_log(runtime_s=30.0), EASY).report

    words, plain = list(in_words(report)), json.loads(as_json(report))

    assert "       1  too_long" in words
    assert any("task-events[0]@4: w0/t0#0 ran 30.000 s in the 10.000 s" in line for line in words)
    assert plain["kinds"]["too_long"]["is_left_out"]
    assert plain["kinds"]["too_long"]["examples"][0]["where"] == "task-events[0]@4"
    assert plain["refusals"]


def test_the_command_reads_json_lines_and_names_lines(tmp_path: Path, command: CommandLine):
    records = [r.record for r in a_log(*an_attempt(), an_attempt()[2])]
    plain = [to_plain(r) for r in records if not isinstance(r, NodeMetrics)]
    file, out = tmp_path / "log.jsonl", tmp_path / "report.json"
    file.write_text("".join(json.dumps(p) + "\n" for p in plain))

    ended = command("quality", file, "--out", out)

    assert ended.code == 1
    assert f"{file}: line 5: w0/t0#0 finished came before" in ended.output
    assert "refused: 1 usable attempts" in ended.output
    assert json.loads(out.read_text())["kinds"]["duplicate"]["count"] == 1


def test_rows_of_a_trace_are_refused_as_they_do_not_tell_their_env(tmp_path: Path):
    recorded_trace = recorded_episode(SimulatorSettings(), workflows=1, nodes=2)[1]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in recorded_trace.rows()))

    with pytest.raises(InvalidInput, match="line 1: is a row of a trace, which does not say its env"):
        list(from_files([file]))


def test_places_read_as_people_look_them_up():
    assert where(("task-events", 2, 17)) == "task-events[2]@17"
    assert where(("log.jsonl", FILE, 17)) == "log.jsonl: line 17"


@pytest.mark.parametrize("wrong", [{"most_broken": 1.5}, {"workflows_kept": 0}, {"gap_s": -1.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidConfiguration, match=r"quality\."):
        QualitySettings(**wrong)


# What the README of the real traces lists as irregular.


def read_rows(*parts: str) -> list[list[str]]:
    path = trace_path(*parts)
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return list(csv.reader(file))


def samples(node: str, at_s: float, **values: float) -> NodeMetrics:
    row = np.full((1, len(METRICS)), np.nan)
    for name, value in values.items():
        row[0, METRICS.index(name)] = value
    return some_metrics(node, at_s=at_s, values_nm=row)


@pytest.mark.traces
def test_the_gaps_and_abnormal_disks_of_the_machines_of_2018_are_found():
    rows = read_rows("node-metrics", "alibaba-2018", "machine_usage.csv.gz")
    records = [samples(r[0], float(r[1]), disk_utilisation=float(r[8]) / 100) for r in rows]

    report = examine(logged(*records), QualitySettings(gap_s=600, least_attempts=0)).report

    assert report.nodes == 16
    assert report.counts[Kind.GAP] == 276
    assert report.counts[Kind.OUT_OF_RANGE] == 16
    assert Kind.OUT_OF_ORDER not in report.counts


@pytest.mark.traces
@pytest.mark.parametrize("name", ["ec2_disk_write_bytes_1ef3de", "ec2_network_in_5abac7"])
def test_the_repeated_times_and_the_gap_of_the_series_of_cloudwatch_are_found(name):
    (path,) = list(trace_path("node-metrics", "nab-ec2").glob(f"{name}.csv*"))
    rows = read_rows("node-metrics", "nab-ec2", path.name)[1:]
    at_s = [np.datetime64(row[0].replace(" ", "T"), "s").astype(int) for row in rows]
    records = [
        samples(name, float(t - at_s[0]), network_bytes_per_s=float(row[1]) / 300)
        for t, row in zip(at_s, rows, strict=True)
    ]

    report = examine(logged(*records), QualitySettings(gap_s=3600, least_attempts=0)).report

    assert report.counts[Kind.DUPLICATE] == 11
    assert report.counts[Kind.GAP] == 1


@pytest.mark.traces
def test_the_batch_jobs_of_2018_that_ended_before_they_started_or_at_once_are_found():
    """As our records: a task's rows become its placement, start and end; parents come from its names."""
    rows = read_rows("alibaba-dags-2018", "batch_task_6600jobs.csv.gz")
    head, rows = rows[0], rows[1:]
    at = {name: i for i, name in enumerate(head)}
    nodes = some_metrics(a_node("n0"))
    records: list[object] = [nodes]
    jobs: dict[str, list[list[str]]] = {}
    for row in rows:
        jobs.setdefault(row[at["job_name"]], []).append(row)
    for job, found in jobs.items():
        records.append(a_workflow(*(a_task(r[at["task_name"]], 10.0) for r in found), workflow_id=job, env=Env.PROD))
        for row in found:
            start_s, end_s = float(row[at["start_time"]]), float(row[at["end_time"]])
            placed, started, finished = an_attempt(row[at["task_name"]], start_s, end_s, workflow_id=job)
            records += [replace(placed, event_time_ms=started.event_time_ms), started, finished]

    settings = QualitySettings(prediction_factor=math.inf, tolerance_s=0.0)
    report = examine(logged(*records), settings).report

    assert report.workflows == 6600
    assert report.attempts == 25_196
    assert report.counts[Kind.ENDED_BEFORE_START] == 23
    assert report.counts[Kind.ZERO_RUNTIME] == 1610


@pytest.mark.traces
def test_the_pods_of_2023_without_a_lifetime_or_a_schedule_are_found():
    rows = read_rows("alibaba-gpu-2023", "openb_pod_list_default.csv")
    at = {name: i for i, name in enumerate(rows[0])}
    records: list[object] = [some_metrics(a_node("n0"))]
    for row in rows[1:]:
        created_s, deleted_s = float(row[at["creation_time"]]), float(row[at["deletion_time"]])
        scheduled = row[at["scheduled_time"]]
        placed, started, finished = an_attempt("pod", float(scheduled or 0), deleted_s, workflow_id=row[at["name"]])
        records.append(a_workflow(a_task("pod", 1e9), workflow_id=row[at["name"]], at_s=created_s, env=Env.PROD))
        records += (
            [replace(placed, event_time_ms=started.event_time_ms), started, finished] if scheduled else [finished]
        )

    report = examine(logged(*records)).report

    assert report.counts[Kind.NEVER_PLACED] == 897
    assert report.usable_attempts + report.counts[Kind.ZERO_RUNTIME] == 8152 - 897


@pytest.mark.traces
def test_all_workflows_of_the_traces_pass_as_what_they_are():
    trace = read_trace(trace_path("wfinstances").parent, "executions")
    records = [replace(w, pool="p", env=Env.PROD, event_time_ms=ms(0)) for w in trace.workflows]

    report = examine(logged(*records), EASY).report

    assert report.prod_workflows == len(trace.workflows)
    assert not report.counts
