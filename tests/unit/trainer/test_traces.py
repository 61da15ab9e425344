"""Traces become workflows; what cannot is counted, or an error that names the row."""

from __future__ import annotations

import pytest

from schemas.errors import InvalidInput
from schemas.records import Edge, WorkflowClass
from tests.traces import trace_path
from tests.unit.trainer.trace_folder import (
    JOBS,
    JOBS_HEADER,
    PODS,
    PODS_HEADER,
    PROFILES,
    QUERIES,
    execution,
    jobs_path,
    pods_path,
    write_json,
    write_rows,
    write_traces,
)
from trainer.traces import EXECUTOR_CORES, EXECUTORS, INSTANCES, MACHINE_BYTES, READERS, read_trace


@pytest.fixture
def folder(tmp_path):
    return write_traces(tmp_path / "traces")


def noted(trace, words: str) -> int:
    """How often what these words say was noted."""
    return sum(count for what, count in trace.notes.items() if words in what)


def test_an_execution_counts_once_whatever_its_versions_and_one_in_a_circle_not_at_all(folder):
    trace = read_trace(folder, "executions")

    assert [w.name for w in trace.workflows] == ["montage"]
    assert [t.parents for t in trace.workflows[0].tasks] == [(), (Edge("a"),)]
    assert not trace.has_arrivals
    assert noted(trace, "another version") == 1
    assert noted(trace, "circle.v1.2.json") == 1


def test_a_stage_becomes_executors_with_the_profile_s_work(folder):
    trace = read_trace(folder, "queries")

    (query,) = trace.workflows
    stages = {number: [t for t in query.tasks if t.task_id.startswith(f"{number}.")] for number in "012"}
    assert [len(stages[number]) for number in "012"] == [EXECUTORS, 2, 1]
    assert [sum(t.cpu * t.runtime_s for t in stages[number]) for number in "012"] == pytest.approx([200, 5, 0.5005])
    assert all(t.cpu <= EXECUTOR_CORES for t in query.tasks)
    assert {e.task_id for e in stages["2"][0].parents} == {t.task_id for t in (*stages["0"], *stages["1"])}
    assert query.workflow_class == WorkflowClass.ETL_BATCH
    assert noted(trace, "50 cores") == 1


def test_the_dag_of_a_job_is_in_the_names_of_its_tasks(folder):
    trace = read_trace(folder, "batch_jobs")

    job = trace.workflows[0]
    tasks = {t.task_id: t for t in job.tasks}
    assert [(w.workflow_id, w.event_time_ms) for w in trace.workflows] == [("j_dag", 100_000), ("j_late", 900_000)]
    assert list(tasks) == ["1.0", "1.1", "2.0", *(f"4.{i}" for i in range(INSTANCES))]
    assert [e.task_id for e in tasks["4.0"].parents] == ["1.0", "1.1", "2.0"]
    assert (tasks["2.0"].runtime_s, tasks["2.0"].cpu) == (5.5, 0.5)
    assert tasks["1.0"].memory_bytes == round(MACHINE_BYTES / 100)
    assert trace.has_arrivals


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("had not ended well", 2),
        ("was cut", 1),
        ("does not tell its parents", 1),
        ("has no plan", 1),
        ("more than 8 instances", 1),
        ("unknown parent", 0),
    ],
)
def test_jobs_that_cannot_be_run_again_are_counted(folder, words, count):
    assert noted(read_trace(folder, "batch_jobs"), words) == count


def test_a_job_with_a_lost_parent_and_one_in_a_circle_are_left_out_by_name(folder):
    trace = read_trace(folder, "batch_jobs")

    assert noted(trace, "line 12") == 1
    assert noted(trace, "wait for each other") == 1
    assert len(trace.workflows) + sum(trace.notes.values()) - noted(trace, "instances") == 9


def test_a_pod_is_a_task_of_its_own_and_a_share_of_a_gpu_a_whole_one(folder):
    trace = read_trace(folder, "pods")

    found = [(w.workflow_id, w.event_time_ms, w.tasks[0].runtime_s, w.tasks[0].gpu) for w in trace.workflows]
    assert found == [("share", 10_000, 100, 1), ("whole", 20_000, 30, 2), ("late", 500_000, 100, 0)]
    assert trace.workflows[0].tasks[0].cpu == 6
    assert trace.workflows[0].tasks[0].memory_bytes == 2 * 2**30
    assert noted(trace, "share of a GPU") == 1
    assert noted(trace, "gpu_spec") == 1
    assert noted(trace, "never ran") == 1
    assert noted(trace, "ended when they began") == 1


def refused(folder, source: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_trace(folder, source)
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("j,M1,1,Terminated,5,6,long,100,0.5", "line 3: duration must be a number, not 'long'"),
        ("j,M1,1,Terminated,5,6,nan,100,0.5", "line 3: duration"),
        ("j,M1,1.5,Terminated,5,6,1,100,0.5", "line 3: instance_num"),
        ("j,M1,1,Terminated,5,6,,100,0.5", "line 3: has no duration"),
        ("j,M1,1,Terminated,5,6,1,100,0.5,9", "line 3: has more fields"),
        ("j_late,M1,1,Terminated,5,6,1,100,0.5", None),
    ],
)
def test_a_row_of_a_job_that_is_none_is_named(folder, row, words):
    write_rows(jobs_path(folder), JOBS_HEADER, (JOBS[0], row))

    if words is None:
        assert read_trace(folder, "batch_jobs").workflows == ()
    else:
        with pytest.raises(InvalidInput, match=words):
            read_trace(folder, "batch_jobs")


def test_a_job_in_two_places_is_refused(folder):
    write_rows(jobs_path(folder), JOBS_HEADER, (JOBS[0], *JOBS[1:4], JOBS[0]))

    assert "line 6: job 'j_late' began earlier" in refused(folder, "batch_jobs")


def test_a_pod_with_words_for_numbers_is_named(folder):
    write_rows(pods_path(folder), PODS_HEADER, (PODS[0], "p,many,1,0,0,,LS,Running,1,2,1"))

    assert "line 3: cpu_milli must be a number, not 'many'" in refused(folder, "pods")


def test_a_pod_that_is_there_twice_is_refused(folder):
    write_rows(pods_path(folder), PODS_HEADER, (PODS[0], PODS[0]))

    assert "pod 'late' is there twice" in refused(folder, "pods")


def test_a_file_without_its_header_is_refused(folder):
    write_rows(pods_path(folder), PODS[0], PODS[1:])

    assert "has no column name" in refused(folder, "pods")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tpch_q1_50g_maxCores_50": PROFILES["tpch_q1_50g_maxCores_50"][:2]}, "has 2 of 3 stages"),
        ({"tpch_q7_50g_maxCores_50": []}, "q7 has no graph"),
        ({"anything": []}, "is no tpch_q"),
        ({"tpch_q1_50g_maxCores_50": [{"stage_id": 0, "num_tasks": 0, "average_runtime_ms": 1}]}, "has no tasks"),
        ({"tpch_q1_50g_maxCores_50": [{"stage_id": 9, "num_tasks": 1, "average_runtime_ms": 1}]}, "stage 9 is not in"),
    ],
)
def test_profiles_that_contradict_the_graphs_are_named(folder, change, words):
    write_json(folder / "tpch-dags" / "few_profiles.json", change)

    assert words in refused(folder, "queries")


def test_a_graph_with_a_child_that_is_no_stage_is_named(folder):
    (folder / "tpch-dags" / "queries.yaml").write_text(QUERIES.replace("[1, 2]", "[1, 7]"))

    assert "the child 7, which is no stage" in refused(folder, "queries")


def test_a_document_that_is_no_execution_is_named(folder):
    write_json(folder / "wfinstances" / "other.json", {"some": "thing"})

    assert "other.json: is no execution in WfFormat" in refused(folder, "executions")


def test_an_execution_without_a_run_time_is_an_error_that_names_it(folder):
    document = execution()
    del document["workflow"]["execution"]["tasks"][1]["runtimeInSeconds"]
    write_json(folder / "wfinstances" / "broken.json", document)

    with pytest.raises(InvalidInput, match=r"broken.json.*runtime"):
        read_trace(folder, "executions")


@pytest.mark.parametrize("source", READERS)
def test_a_folder_without_the_trace_says_what_is_wanted(tmp_path, source):
    with pytest.raises(InvalidInput, match=str(tmp_path)):
        read_trace(tmp_path, source)
    assert "is no folder" in refused(tmp_path / "none", source)


# The real ones. The counts are those of the README that comes with them, or were counted from the files by hand.


@pytest.mark.traces
def test_the_real_executions_are_read():
    trace = read_trace(trace_path("wfinstances").parent, "executions")

    assert len(trace.workflows) == 28  # 27, and one of the old schema that is none of them
    assert sum(len(w.tasks) for w in trace.workflows) == 7186 + 52
    assert noted(trace, "another version") == 2
    assert noted(trace, "rnaseq-nextflow-chameleon-001.v1.2.json.gz") == 1


@pytest.mark.traces
def test_the_real_queries_are_read():
    trace = read_trace(trace_path("tpch-dags").parent, "queries")

    work_s = {w.workflow_id: sum(t.cpu * t.runtime_s for t in w.tasks) for w in trace.workflows}
    assert len(trace.workflows) == 22 * 4
    assert noted(trace, "50 cores") == 352 - 88
    assert [round(work_s[name]) for name in ("q1-50g", "q1-500g", "q21-500g")] == [2880, 28046, 56619]


@pytest.mark.traces
def test_the_real_batch_jobs_are_read():
    trace = read_trace(trace_path("alibaba-dags-2018").parent, "batch_jobs")

    assert noted(trace, "had not ended well") == 65
    assert noted(trace, "was cut") == 4
    assert len(trace.workflows) == 6600 - 65 - 4
    at_ms = [w.event_time_ms for w in trace.workflows]
    assert at_ms == sorted(at_ms)
    assert at_ms[-1] <= 691_143_000


@pytest.mark.traces
def test_the_real_pods_are_read():
    trace = read_trace(trace_path("alibaba-gpu-2023").parent, "pods")

    assert noted(trace, "never ran") == 897
    assert len(trace.workflows) == 8152 - 897
    assert noted(trace, "gpu_spec") == 0
    assert max(t.gpu for w in trace.workflows for t in w.tasks) == 8
