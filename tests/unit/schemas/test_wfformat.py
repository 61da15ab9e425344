from __future__ import annotations

import copy
import json
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings

from schemas.dag import topological_order
from schemas.documents import parse, read_text
from schemas.errors import InvalidInput, InvalidWorkflow
from schemas.records import Edge, Env, WorkflowClass
from schemas.wfformat import UNSEEN_MEMORY_BYTES, UNSEEN_RUNTIME_S, is_wfformat, read_tasks
from schemas.workflow_file import parse_workflows, read_workflows
from tests.traces import table_rows, trace_path
from tests.unit.schemas.mutations import damaged, outcome

MIB = 2**20

# A diamond: "left" and "right" stand between "first" and "last".
SPLIT = {
    "name": "diamond",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {
                    "id": "first",
                    "name": "make",
                    "parents": [],
                    "children": ["left", "right"],
                    "outputFiles": ["x", "y"],
                },
                {"id": "left", "name": "use", "parents": ["first"], "children": ["last"], "inputFiles": ["x", "y"]},
                {"id": "right", "name": "use", "parents": ["first"], "children": ["last"], "inputFiles": ["y"]},
                {"id": "last", "name": "sum", "parents": ["left", "right"], "children": []},
            ],
            "files": [{"id": "x", "sizeInBytes": 1000}, {"id": "y", "sizeInBytes": 200}],
        },
        "execution": {
            "makespanInSeconds": 60,
            "executedAt": "03-23-21T06:04:36Z",
            "tasks": [
                {"id": "first", "runtimeInSeconds": 10.5, "memoryInBytes": 64 * MIB, "coreCount": 2},
                {"id": "left", "runtimeInSeconds": 20, "memoryInBytes": 64 * MIB, "avgCPU": 250.0, "priority": 40},
                {"id": "right", "runtimeInSeconds": 30, "memoryInBytes": 64 * MIB, "avgCPU": 100.01},
                {"id": "last", "runtimeInSeconds": 40, "memoryInBytes": 64 * MIB},
            ],
            "machines": [{"nodeName": "m", "cpu": {"coreCount": 48}, "memoryInBytes": 128 * 2**30}],
        },
    },
}

JOINT = {
    "name": "pair",
    "schemaVersion": "1.4",
    "workflow": {
        "tasks": [
            {
                "id": "1",
                "name": "make",
                "parents": [],
                "children": [],
                "runtimeInSeconds": 5,
                "files": [{"link": "output", "name": "x", "path": "/a/", "sizeInBytes": 70}],
            },
            {
                "id": "2",
                "name": "use",
                "parents": [],
                "children": [],
                "runtimeInSeconds": 6,
                "files": [
                    {"link": "input", "name": "x", "path": "/a/", "sizeInBytes": 70},
                    {"link": "input", "name": "x", "path": "/b/", "sizeInBytes": 900},
                ],
            },
        ],
        "machines": [{"nodeName": "m", "cpu": {"count": 4}}],
    },
}


def tasks_of(document):
    return {task.task_id: task for task in read_tasks(document, "trace.json")}


def edges_of(document):
    return {
        (edge.task_id, task_id): edge.bytes for task_id, task in tasks_of(document).items() for edge in task.parents
    }


def changed(document, change):
    """A copy of the document, after `change` was applied to its workflow part."""
    copied = copy.deepcopy(document)
    change(copied["workflow"])
    return copied


def execution(index, **fields):
    """A change of one execution record; a field of None is removed."""

    def change(workflow):
        record = workflow["execution"]["tasks"][index]
        record.update(fields)
        for key in [key for key, value in fields.items() if value is None]:
            del record[key]

    return change


def test_a_recording_is_told_from_a_workflow_file_by_its_content():
    assert is_wfformat(SPLIT)
    assert is_wfformat(JOINT)
    assert is_wfformat({"workflow": {"jobs": []}})
    assert not is_wfformat({"name": "etl", "tasks": []})
    assert not is_wfformat([SPLIT])
    assert not is_wfformat(None)


def test_a_recording_becomes_a_workflow_of_mixed_class_that_is_not_learnt_from():
    (workflow,) = parse_workflows(json.dumps(SPLIT), "trace.json", pool="pool", event_time_ms=7, workflow_id="run")

    assert (workflow.pool, workflow.workflow_id, workflow.name, workflow.event_time_ms) == ("pool", "run", "diamond", 7)
    assert (workflow.workflow_class, workflow.env) == (WorkflowClass.MIXED, Env.DEV)
    assert [task.task_id for task in workflow.tasks] == ["first", "left", "right", "last"]


def test_an_edge_carries_the_files_that_its_ends_share():
    assert edges_of(SPLIT) == {
        ("first", "left"): 1200,
        ("first", "right"): 200,
        ("left", "last"): 0,
        ("right", "last"): 0,
    }


def test_runtime_and_memory_are_taken_as_measured():
    tasks = tasks_of(SPLIT)

    assert [task.runtime_s for task in tasks.values()] == [10.5, 20.0, 30.0, 40.0]
    assert {task.memory_bytes for task in tasks.values()} == {64 * MIB}


def test_cores_are_those_asked_for_else_those_used_else_one():
    assert [task.cpu for task in tasks_of(SPLIT).values()] == [2.0, 3.0, 1.0, 1.0]


def test_a_task_uses_no_more_cores_than_the_machine_has():
    document = changed(SPLIT, lambda w: w["execution"]["machines"][0]["cpu"].update(coreCount=1))

    assert tasks_of(document)["left"].cpu == 1.0


def test_the_priority_of_a_recording_is_left_out():
    assert {task.priority for task in tasks_of(SPLIT).values()} == {0}


def test_a_runtime_of_zero_is_half_a_second():
    assert tasks_of(changed(SPLIT, execution(0, runtimeInSeconds=0)))["first"].runtime_s == UNSEEN_RUNTIME_S == 0.5


@pytest.mark.parametrize("memory", [0, None])
def test_memory_that_nobody_saw_has_a_default(memory):
    document = changed(SPLIT, execution(0, memoryInBytes=memory))

    assert tasks_of(document)["first"].memory_bytes == UNSEEN_MEMORY_BYTES


def test_memory_is_in_kibibytes_where_the_machine_would_be_impossibly_small():
    def in_kib(workflow):
        workflow["execution"]["machines"][0].update(memoryInBytes=196_483_612, cpu={"coreCount": 64})
        for record in workflow["execution"]["tasks"]:
            record["memoryInBytes"] = 87_824

    assert {task.memory_bytes for task in tasks_of(changed(SPLIT, in_kib)).values()} == {87_824 * 1024}


def test_memory_is_in_kibibytes_where_all_processes_would_be_impossibly_small():
    def in_kib(workflow):
        del workflow["execution"]["machines"]
        for record in workflow["execution"]["tasks"]:
            record["memoryInBytes"] = 87_824

    assert {task.memory_bytes for task in tasks_of(changed(SPLIT, in_kib)).values()} == {87_824 * 1024}


def test_edges_follow_from_files_where_none_are_declared():
    assert edges_of(JOINT) == {("1", "2"): 70}


def test_a_task_that_rewrites_its_own_input_is_not_its_parent():
    document = changed(JOINT, lambda w: w["tasks"][0]["files"].append({"link": "input", "name": "x", "path": "/a"}))

    assert edges_of(document).keys() == {("1", "2")}


def test_files_add_no_edges_where_some_are_declared():
    def declare(workflow):
        workflow["tasks"].append({"id": "3", "name": "after", "parents": ["2"], "runtimeInSeconds": 1})

    assert edges_of(changed(JOINT, declare)) == {("2", "3"): 0}


def test_parents_may_be_named_instead_of_identified():
    assert edges_of(changed(JOINT, lambda w: w["tasks"][1].update(parents=["make"]))) == {("1", "2"): 70}


def test_an_edge_declared_at_one_end_alone_counts():
    assert edges_of(changed(JOINT, lambda w: w["tasks"][0].update(children=["2"]))) == {("1", "2"): 70}


def test_a_name_of_several_tasks_identifies_none():
    def ambiguous(workflow):
        workflow["tasks"].append({"id": "3", "name": "make", "parents": [], "runtimeInSeconds": 1})
        workflow["tasks"][1]["parents"] = ["make"]

    with pytest.raises(InvalidInput, match="task '2': its parent or child 'make' is the name of several tasks"):
        tasks_of(changed(JOINT, ambiguous))


def test_version_1_2_has_jobs_seconds_and_kilobytes():
    document = {
        "name": "old",
        "schemaVersion": "1.2",
        "workflow": {
            "jobs": [
                {"id": "ID1", "name": "a_1", "runtime": 4.9, "memory": 3220, "cores": 2.0, "files": []},
                {"id": "ID2", "name": "b_1", "parents": ["a_1"], "runtime": 5.1, "avgCPU": 59.6},
            ]
        },
    }

    first, second = tasks_of(document).values()

    assert (first.task_id, first.runtime_s, first.memory_bytes, first.cpu) == ("ID1", 4.9, 3_220_000, 2.0)
    assert (second.memory_bytes, second.cpu, second.parents) == (UNSEEN_MEMORY_BYTES, 1.0, (Edge("ID1"),))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda w: w.pop("specification"), "workflow: has no 'specification'"),
        (lambda w: w.pop("execution"), "workflow: has no 'execution'"),
        (lambda w: w["specification"].pop("tasks"), "the workflow has no tasks"),
        (lambda w: w["execution"]["tasks"].pop(), "task 'last' has no execution record; its runtime must be known"),
        (execution(0, runtimeInSeconds=None), "workflow: execution: tasks[0]: has no 'runtime'"),
        (execution(0, runtimeInSeconds=-1), "runtimeInSeconds: must be a number of 0 or more, not -1"),
        (execution(0, runtimeInSeconds=float("nan")), "runtimeInSeconds: must be a number of 0 or more, not nan"),
        (execution(0, runtimeInSeconds="long"), "runtimeInSeconds: must be a number, not 'long'"),
        (execution(0, memoryInBytes=-1), "memoryInBytes: must be a number of 0 or more, not -1"),
        (execution(0, coreCount=-1), "coreCount: must be a number of 0 or more, not -1"),
        (lambda w: w["specification"]["tasks"][0].update(id="left"), "has several tasks 'left'"),
        (lambda w: w["specification"]["tasks"][0].update(parents=["gone"]), "'gone' is no task of this workflow"),
        (lambda w: w["specification"]["tasks"][0].update(parents=["first"]), "task 'first': is its own parent"),
        (lambda w: w["specification"]["tasks"][0].update(parents=["last"]), "tasks wait for each other: "),
        (lambda w: w["specification"]["tasks"][0].update(parents="x"), "parents: must be a list, not 'x'"),
        (lambda w: w["specification"]["files"][0].update(sizeInBytes=-4), "sizeInBytes: must be a number of 0 or more"),
    ],
)
def test_a_broken_recording_is_refused_with_place_and_reason(change, problem):
    with pytest.raises(InvalidWorkflow) as caught:
        parse_workflows(json.dumps(changed(SPLIT, change)), "trace.json", pool="pool", event_time_ms=0)

    assert str(caught.value).startswith("trace.json: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize("version", ["1.1", "2.0", ""])
def test_a_version_that_we_cannot_read_is_refused(version):
    with pytest.raises(InvalidInput, match=f"is WfFormat '{version}'; convert it to one of 1.2, 1.3, 1.4, 1.5, 1.6"):
        read_tasks(SPLIT | {"schemaVersion": version}, "trace.json")


def test_nulls_are_read_as_absent():
    assert tasks_of(changed(SPLIT, lambda w: w["execution"]["tasks"][3].update(avgCPU=None)))["last"].cpu == 1.0


@settings(max_examples=200, deadline=None)
@given(damaged(SPLIT))
def test_a_damaged_split_recording_is_refused_or_sound(document):
    refused_or_sound(document)


@settings(max_examples=200, deadline=None)
@given(damaged(JOINT))
def test_a_damaged_joint_recording_is_refused_or_sound(document):
    refused_or_sound(document)


def refused_or_sound(document):
    found = outcome(lambda: parse_workflows(json.dumps(document), "trace.json", pool="pool", event_time_ms=0))

    if isinstance(found, Exception):
        assert type(found) is InvalidWorkflow
        assert "trace.json" in found.where
    else:
        (workflow,) = found
        assert len(topological_order(workflow.tasks)) == len(workflow.tasks)
        assert all(task.runtime_s > 0 and task.cpu > 0 and task.memory_bytes > 0 for task in workflow.tasks)


def trace(*parts):
    (workflow,) = read_workflows(trace_path(*parts), pool="pool", event_time_ms=0)
    return workflow


def unseen_runtimes(*parts):
    """Ids of the tasks that were recorded with a runtime of 0."""
    path = trace_path(*parts)
    (document,) = parse(read_text(path), str(path))
    records = document["workflow"].get("execution", document["workflow"])["tasks"]
    return {record["id"] for record in records if record["runtimeInSeconds"] == 0}


def shape(tasks, unseen):
    """Edges, levels, width, critical path and total work, with the unseen runtimes as the 0 of the recording."""
    level, end_s, widths = {}, {}, {}
    for i in topological_order(tasks):
        task = tasks[i]
        parents = [edge.task_id for edge in task.parents]
        level[task.task_id] = 1 + max((level[parent] for parent in parents), default=0)
        runtime_s = 0.0 if task.task_id in unseen else task.runtime_s
        end_s[task.task_id] = runtime_s + max((end_s[parent] for parent in parents), default=0.0)
        widths[level[task.task_id]] = widths.get(level[task.task_id], 0) + 1
    work_s = sum(0.0 if task.task_id in unseen else task.runtime_s for task in tasks)
    return {
        "tasks": len(tasks),
        "edges": sum(len(task.parents) for task in tasks),
        "levels": max(level.values()),
        "max_width": max(widths.values()),
        "critical_path_s": pytest.approx(max(end_s.values()), abs=0.0006),
        "total_work_s": pytest.approx(work_s, abs=0.0006),
    }


INDEX = table_rows("wfinstances", "index.tsv")


@pytest.mark.traces
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row["file"]) for row in INDEX]
    or [pytest.param(None, marks=pytest.mark.skip(reason="needs ../shared/data/wfinstances beside the checkout"))],
)
def test_a_recorded_execution_has_the_shape_that_its_table_states(row):
    tasks = trace("wfinstances", row["file"]).tasks
    unseen = unseen_runtimes("wfinstances", row["file"])

    found = shape(tasks, unseen)

    assert {key: float(row[key]) for key in found} == found
    assert {task.task_id for task in tasks if task.runtime_s == UNSEEN_RUNTIME_S} >= unseen
    assert all(1 <= task.cpu <= 2 and task.memory_bytes >= MIB for task in tasks)


@pytest.mark.traces
def test_the_recorded_executions_are_all_there():
    trace_path("wfinstances", "index.tsv")

    assert len(INDEX) == 27
    assert sum(len(trace("wfinstances", row["file"]).tasks) for row in INDEX) == 7186


@pytest.mark.traces
@pytest.mark.parametrize("name", ["helloworld-chain-5-chameleon.json", "helloworld-forkjoin-10-chameleon.json"])
def test_the_helloworld_recordings_count_memory_in_kibibytes(name):
    memory = [task.memory_bytes for task in trace("wfinstances", name).tasks]

    assert 72 * MIB < min(memory) <= max(memory) < 708 * MIB


@pytest.mark.traces
def test_every_edge_of_a_nextflow_recording_carries_its_shared_files():
    workflow = trace("wfinstances", "rnaseq-dirt02-001.json.gz")

    assert all(edge.bytes > 0 for task in workflow.tasks for edge in task.parents)


@pytest.mark.traces
def test_the_largest_recording_is_read_well_within_a_second():
    path = trace_path("wfinstances", "montage-chameleon-2mass-05d-001.json.gz")
    taken_s = []
    for _ in range(3):
        started = time.perf_counter()
        read_workflows(path, pool="pool", event_time_ms=0)
        taken_s.append(time.perf_counter() - started)

    assert min(taken_s) < 1.0


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "tasks", "edges", "levels", "width", "critical_path_s", "work_s"),
    [
        ("bacass-dirt02-001.v1.4.json", 11, 14, 5, 4, 2150, 3962),
        ("blast-chameleon-small-001.v1.4.json", 43, 120, 3, 40, 10.4, 382.9),
        ("mhcquant-nextflow-chameleon-001.v1.2.json", 52, 140, 19, 4, 756.3, 2743),
    ],
)
def test_a_recording_of_an_older_version_has_the_shape_that_is_known_of_it(
    name, tasks, edges, levels, width, critical_path_s, work_s
):
    unseen = unseen_runtimes("wfinstances-old-schema", name) if ".v1.4." in name else set()

    found = shape(trace("wfinstances-old-schema", name).tasks, unseen)

    assert [found[key] for key in ("tasks", "edges", "levels", "max_width")] == [tasks, edges, levels, width]
    assert found["critical_path_s"].expected == pytest.approx(critical_path_s, abs=0.6)
    assert found["total_work_s"].expected == pytest.approx(work_s, abs=0.6)


@pytest.mark.traces
def test_one_run_reads_alike_from_an_old_and_a_new_version():
    old = trace("wfinstances-old-schema", "blast-chameleon-small-001.v1.4.json").tasks
    new = trace("wfinstances", "blast-chameleon-small-001.json").tasks

    assert [(t.runtime_s, t.cpu, t.memory_bytes, [e.bytes for e in t.parents]) for t in old] == [
        (t.runtime_s, t.cpu, t.memory_bytes, [e.bytes for e in t.parents]) for t in new
    ]


@pytest.mark.traces
def test_edges_from_files_are_those_that_the_newer_version_declares():
    old = trace("wfinstances-old-schema", "bacass-dirt02-001.v1.4.json").tasks
    new = trace("wfinstances", "bacass-dirt02-001.json").tasks

    position_of = [{task.task_id: i for i, task in enumerate(tasks)} for tasks in (old, new)]
    edges = [
        {(positions[edge.task_id], i, edge.bytes) for i, task in enumerate(tasks) for edge in task.parents}
        for positions, tasks in zip(position_of, (old, new), strict=True)
    ]
    assert edges[0] == edges[1]


@pytest.mark.traces
def test_the_cyclic_recording_is_refused():
    path = trace_path("wfinstances-old-schema", "rnaseq-nextflow-chameleon-001.v1.2.json.gz")

    with pytest.raises(InvalidWorkflow, match=r"task '.*': is its own parent; remove that dependency"):
        read_workflows(path, pool="pool", event_time_ms=0)


@pytest.mark.traces
def test_the_cyclic_recording_is_refused_for_its_cycle_too():
    path = trace_path("wfinstances-old-schema", "rnaseq-nextflow-chameleon-001.v1.2.json.gz")
    (document,) = parse(read_text(path), str(path))
    jobs = document["workflow"]["jobs"]
    for job in jobs:
        job["parents"] = [name for name in job["parents"] if name != job["name"]]
        job["children"] = [name for name in job["children"] if name != job["name"]]

    with pytest.raises(InvalidWorkflow, match="tasks wait for each other") as caught:
        parse_workflows(json.dumps(document), "rnaseq.json", pool="pool", event_time_ms=0)

    parents_of = {job["id"]: set(job["parents"]) for job in jobs}
    name_of = {job["id"]: job["name"] for job in jobs}
    shown = caught.value.problem.removeprefix("tasks wait for each other: ").split(" -> ")
    cycle = [name.strip("'") for name in shown]
    known = [pair for pair in pairwise(cycle) if name_of.keys() >= set(pair)]
    assert len(known) >= 2
    assert all(name_of[parent] in parents_of[child] for parent, child in known)
