"""Recorded work of four sources as workflows: executions in WfFormat, TPC-H on Spark, batch jobs, pods with GPUs.

A folder of traces has a folder for each source (`READERS`). What a trace says is taken over with care:

* WfFormat (`wfinstances/`, `wfinstances-old-schema/`): as `schemas.wfformat` reads it. Of one execution in two versions
  of the format, the first counts. No arrivals.
* TPC-H (`tpch-dags/`): a query at one size of its data is a workflow; of the profiles, those on `PROFILED_CORES` cores.
  A stage becomes executors that share out its Spark tasks: up to `EXECUTOR_CORES` at a time each, up to `EXECUTORS`
  of them, so its work in core seconds is the profile's. No memory, no bytes and no arrivals are recorded.
* Alibaba 2018 (`alibaba-dags-2018/`): the DAG is in the names of the tasks (`J3_1_2` is number 3, after 1 and 2). A
  task becomes its instances, `INSTANCES` at most. Memory is recorded as a share of a machine, taken for
  `MACHINE_BYTES`. Jobs arrive when their first task started; bytes are not recorded.
* Alibaba GPU 2023 (`alibaba-gpu-2023/`): a pod is a workflow of one task, which runs from `scheduled_time` to
  `deletion_time` and arrives at its `creation_time`. Nodes have whole GPUs here, so a share of one becomes a whole one:
  two tasks never get the same device, and what sharing it would save is not seen.

Where memory is not recorded, a core comes with `UNSEEN_MEMORY_BYTES`. A run time counts as that on a node of speed 1.
A file that is not what its name says is an error; a workflow that contradicts itself, or never ended, is left out, and
`Trace.notes` counts it.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from schemas.dag import check_workflow
from schemas.documents import parse, read_text
from schemas.errors import InvalidInput, InvalidWorkflow
from schemas.fields import Fields, fields_of
from schemas.quantities import GIB, parse_count, parse_number, shown
from schemas.records import Edge, Env, Task, WorkflowClass, WorkflowSubmitted
from schemas.wfformat import UNSEEN_MEMORY_BYTES, is_wfformat, read_name, read_tasks

PROFILED_CORES = 50
EXECUTOR_CORES, EXECUTORS = 4, 12
INSTANCES = 8
MACHINE_BYTES = 384 * GIB
"""Of the trace of 2018, which has 96 cores a machine and no bytes: 4 GiB a core, our assumption."""
LONGEST_NAME = 50
"""Task names of the trace of 2018 were cut there: the parents named last are lost."""
MILLI = 1000
TRACE_POOL = "trace"
WHICH_FOLDER = "give the folder that holds the folders of the traces"

_TASK_NAME = re.compile(r"[A-Za-z]+([0-9]+)((?:_[0-9]+)*)(?:_Stg[0-9]+)?")
_PROFILE_NAME = re.compile(r"tpch_(q[0-9]+)_([0-9]+g)_maxCores_([0-9]+)")


@dataclass(frozen=True)
class Trace:
    """Recorded workflows, each of which can be run."""

    workflows: tuple[WorkflowSubmitted, ...]
    """In order of arrival where arrivals are recorded, `event_time_ms` being milliseconds since the trace began."""
    has_arrivals: bool
    notes: Mapping[str, int]
    """What was left out or changed, in words, and how often."""


def read_trace(folder: Path, source: str) -> Trace:
    """The trace of this source, one of `READERS`, in a folder of traces. Raises InvalidInput."""
    if not folder.is_dir():
        raise InvalidInput(str(folder), "is no folder", WHICH_FOLDER)
    return READERS[source](folder)


def read_executions(folder: Path) -> Trace:
    """The executions in WfFormat. Raises InvalidInput."""
    notes: Counter[str] = Counter()
    workflows: dict[str, WorkflowSubmitted] = {}
    paths = [*_files(folder / "wfinstances", "*.json*"), *_files(folder / "wfinstances-old-schema", "*.json*", True)]
    for path in paths:
        execution = path.name.partition(".")[0]
        if execution in workflows:
            notes["executions left out, as they are there in another version of the format"] += 1
            continue
        documents = parse(read_text(path), str(path))
        if len(documents) != 1 or not is_wfformat(documents[0]):
            raise InvalidInput(str(path), "is no execution in WfFormat", "take it out of this folder")
        name, tasks = read_name(documents[0], str(path)), read_tasks(documents[0], str(path))
        _take(workflows, _workflow(execution, name, WorkflowClass.MIXED, tasks), str(path), notes)
    return Trace(tuple(workflows.values()), False, notes)


def read_queries(folder: Path) -> Trace:
    """The TPC-H queries at each size of their data. Raises InvalidInput."""
    notes: Counter[str] = Counter()
    graphs_path, profiles_path = folder / "tpch-dags" / "queries.yaml", _profiles_path(folder / "tpch-dags")
    graphs = _only(graphs_path, ("graphs",)).sections("graphs", ("name", "graph"))
    parents_of = {graph.text("name").lower(): _stage_parents(graph) for graph in graphs}
    profiles = _only(profiles_path)
    workflows: dict[str, WorkflowSubmitted] = {}
    for key in profiles.values:
        named = _PROFILE_NAME.fullmatch(key)
        if named is None:
            raise InvalidInput(profiles.place(key), "is no tpch_q<N>_<size>_maxCores_<C>", "name the profile so")
        query, size, cores = named.groups()
        if query not in parents_of:
            raise InvalidInput(profiles.place(key), f"{query} has no graph in {graphs_path.name}", "add its graph")
        if int(cores) != PROFILED_CORES:
            notes[f"profiles left out, as they were not made on {PROFILED_CORES} cores"] += 1
            continue
        stages, executors = _profiled_stages(profiles, key, parents_of[query])
        workflow = _workflow(f"{query}-{size}", query, WorkflowClass.ETL_BATCH, stages)
        _take(workflows, workflow, profiles.place(key), notes, executors)
    return Trace(tuple(workflows.values()), False, notes)


def read_batch_jobs(folder: Path) -> Trace:
    """The batch jobs of 2018, in order of arrival. Raises InvalidInput."""
    notes: Counter[str] = Counter()
    path = folder / "alibaba-dags-2018" / "batch_task_6600jobs.csv.gz"
    columns = ("job_name", "task_name", "instance_num", "status", "start_time", "duration", "plan_cpu", "plan_mem")
    workflows: dict[str, WorkflowSubmitted] = {}
    for job_name, group in groupby(_rows(path, columns), key=lambda row: row.text("job_name")):
        rows = list(group)
        if job_name in workflows:
            raise InvalidInput(rows[0].where, f"job {shown(job_name)} began earlier", "keep a job's rows together")
        why_not = _why_not(rows)
        if why_not is not None:
            notes[f"jobs left out, as {why_not}"] += 1
            continue
        capped = sum(row.number("instance_num") > INSTANCES for row in rows)
        notes[f"tasks of more than {INSTANCES} instances, of which so many were kept"] += capped
        start_ms = min(round(1000 * row.number("start_time")) for row in rows)
        tasks = [_batch_task(row) for row in rows]
        instances = {task.task_id: _instances(task, row) for task, row in zip(tasks, rows, strict=True)}
        workflow = _workflow(job_name, job_name, WorkflowClass.ETL_BATCH, tasks, start_ms)
        _take(workflows, workflow, rows[0].where, notes, instances)
    return Trace(_by_arrival(workflows), True, +notes)


def read_pods(folder: Path) -> Trace:
    """The pods of 2023, in order of arrival. Raises InvalidInput."""
    notes: Counter[str] = Counter()
    path = folder / "alibaba-gpu-2023" / "openb_pod_list_default.csv"
    times = ("creation_time", "deletion_time", "scheduled_time")
    columns = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", *times)
    workflows: dict[str, WorkflowSubmitted] = {}
    for row in _rows(path, columns):
        name = row.text("name")
        if name in workflows:
            raise InvalidInput(row.where, f"pod {shown(name)} is there twice", "keep one of its rows")
        if not row.values["scheduled_time"]:
            notes["pods left out, as they never ran (no scheduled_time)"] += 1
            continue
        runtime_s = row.number("deletion_time") - row.number("scheduled_time")
        if runtime_s <= 0:
            notes["pods left out, as they ended when they began"] += 1
            continue
        gpu = row.whole("num_gpu")
        notes["pods with a share of a GPU, which get a whole one"] += gpu == 1 and row.whole("gpu_milli") < MILLI
        notes["pods whose wish for a GPU model (gpu_spec) is not known here"] += bool(row.values["gpu_spec"])
        task = Task(name, runtime_s, row.whole("cpu_milli") / MILLI, row.whole("memory_mib") * 2**20, gpu)
        kind = WorkflowClass.AI_TRAINING if gpu else WorkflowClass.MICROSERVICE
        _take(workflows, _workflow(name, name, kind, (task,), 1000 * row.whole("creation_time")), row.where, notes)
    return Trace(_by_arrival(workflows), True, +notes)


READERS: Mapping[str, Callable[[Path], Trace]] = {
    "executions": read_executions,
    "queries": read_queries,
    "batch_jobs": read_batch_jobs,
    "pods": read_pods,
}


# What the readers share.


def _workflow(
    workflow_id: str, name: str, kind: WorkflowClass, tasks: Sequence[Task], arrival_ms: int = 0
) -> WorkflowSubmitted:
    return WorkflowSubmitted(TRACE_POOL, workflow_id, arrival_ms, name, kind, Env.TEST, tuple(tasks))


def _take(
    workflows: dict[str, WorkflowSubmitted],
    workflow: WorkflowSubmitted,
    where: str,
    notes: Counter[str],
    parts: Mapping[str, Sequence[Task]] | None = None,
) -> None:
    """Take the workflow in, unless it cannot be run.

    parts  what takes the place of each task; each part then comes after all parts of the task's parents
    """
    try:
        check_workflow(workflow, where)
    except InvalidWorkflow as error:
        notes[f"left out: {error.where}: {error.problem}"] += 1
        return
    tasks = workflow.tasks if parts is None else _in_parts(workflow.tasks, parts)
    workflows[workflow.workflow_id] = replace(workflow, tasks=tasks)


def _in_parts(tasks: Sequence[Task], parts: Mapping[str, Sequence[Task]]) -> tuple[Task, ...]:
    edges = {name: tuple(Edge(part.task_id) for part in its_parts) for name, its_parts in parts.items()}
    return tuple(
        replace(part, parents=tuple(edge for parent in task.parents for edge in edges[parent.task_id]))
        for task in tasks
        for part in parts[task.task_id]
    )


def _by_arrival(workflows: Mapping[str, WorkflowSubmitted]) -> tuple[WorkflowSubmitted, ...]:
    return tuple(sorted(workflows.values(), key=lambda w: (w.event_time_ms, w.workflow_id)))


def _files(folder: Path, pattern: str, may_lack: bool = False) -> list[Path]:
    paths = sorted(folder.glob(pattern))
    if not paths and not may_lack:
        raise InvalidInput(str(folder), f"has no file {pattern}", WHICH_FOLDER)
    return paths


def _only(path: Path, keys: tuple[str, ...] | None = None) -> Fields:
    """The fields of the only document in a file."""
    documents = parse(read_text(path), str(path))
    if len(documents) != 1:
        raise InvalidInput(str(path), f"holds {len(documents)} documents", "write all into one")
    return fields_of(documents[0], str(path), keys)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a CSV file."""

    where: str
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """What is there. Raises InvalidInput where nothing is."""
        if not self.values[column]:
            raise InvalidInput(self.where, f"has no {column}", "fill it in, or leave the row out")
        return self.values[column]

    def number(self, column: str) -> float:
        """A number, 0 or more. Raises InvalidInput."""
        text = self.text(column)
        try:
            return parse_number(float(text), f"{self.where}: {column}")
        except ValueError:
            raise InvalidInput(self.where, f"{column} must be a number, not {shown(text)}", "correct it") from None

    def whole(self, column: str) -> int:
        """A whole number, 0 or more. Raises InvalidInput."""
        return parse_count(self.number(column), f"{self.where}: {column}")


def _rows(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    """The rows of a CSV file that has these columns."""
    reader = csv.DictReader(io.StringIO(read_text(path)), restval="")
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise InvalidInput(str(path), f"has no column {', '.join(missing)}", "give the trace's file with its header")
    try:
        for row in reader:
            where = f"{path}: line {reader.line_num}"
            if None in row:
                raise InvalidInput(where, "has more fields than the header", "put the field with a comma into quotes")
            yield _Row(where, row)
    except csv.Error as error:
        raise InvalidInput(str(path), f"is no valid CSV after line {reader.line_num} ({error})", "repair it") from error


# TPC-H.


def _profiles_path(folder: Path) -> Path:
    paths = _files(folder, "*_profiles.json*")
    if len(paths) > 1:
        raise InvalidInput(str(folder), f"has {len(paths)} files of profiles", "keep one of them")
    return paths[0]


def _stage_parents(graph: Fields) -> dict[str, tuple[str, ...]]:
    """The parents of each stage, from the children that the graph names."""
    parents: dict[str, list[str]] = {}
    children: dict[str, list[str]] = {}
    for stage in graph.sections("graph", ("name", "children")):
        name = str(stage.amount("name", parse_count))
        parents[name] = []
        children[name] = [str(parse_count(child, place)) for place, child in stage.items("children")]
    for name, its_children in children.items():
        for child in its_children:
            if child not in parents:
                raise InvalidInput(graph.where, f"stage {name} has the child {child}, which is no stage", "add it")
            parents[child].append(name)
    return {name: tuple(its_parents) for name, its_parents in parents.items()}


def _profiled_stages(
    profiles: Fields, key: str, parents_of: Mapping[str, tuple[str, ...]]
) -> tuple[list[Task], dict[str, list[Task]]]:
    """The stages as tasks, and the executors of each."""
    stages, executors = [], {}
    for place, item in profiles.items(key):
        fields = fields_of(item, place)
        name = str(fields.amount("stage_id", parse_count))
        if name not in parents_of:
            raise InvalidInput(place, f"stage {name} is not in the query's graph", "correct the one or the other")
        count = fields.amount("num_tasks", parse_count)
        mean_s = fields.amount("average_runtime_ms", parse_number) / 1000
        if not count or not mean_s:
            raise InvalidInput(place, "has no tasks or no run time", "give numbers above 0")
        stages.append(Task(name, count * mean_s, parents=tuple(Edge(parent) for parent in parents_of[name])))
        executors[name] = list(_executors(name, count, mean_s))
    if len(stages) != len(parents_of):
        raise InvalidInput(profiles.place(key), f"has {len(stages)} of {len(parents_of)} stages", "give all stages")
    return stages, executors


def _executors(stage: str, count: int, mean_s: float) -> Iterator[Task]:
    """Executors that share out so many Spark tasks; each works through its own, as many at a time as it has cores."""
    executors = min(-(-count // EXECUTOR_CORES), EXECUTORS)
    for number in range(executors):
        share = count // executors + (number < count % executors)
        cores = min(share, EXECUTOR_CORES)
        yield Task(f"{stage}.{number}", mean_s * share / cores, cores, cores * UNSEEN_MEMORY_BYTES)


# Alibaba 2018.


def _why_not(rows: Sequence[_Row]) -> str | None:
    """Why a job cannot be run again from what was recorded of it."""
    if any(row.text("status") != "Terminated" for row in rows):
        return "a task of theirs had not ended well"
    if any(len(row.text("task_name")) >= LONGEST_NAME for row in rows):
        return "the name of a task was cut, and parents with it"
    if any(_TASK_NAME.fullmatch(row.text("task_name")) is None for row in rows):
        return "the name of a task does not tell its parents"
    if any(not row.values[name] for row in rows for name in ("instance_num", "plan_cpu", "plan_mem")):
        return "a task has no plan"
    return None


def _batch_task(row: _Row) -> Task:
    named = _TASK_NAME.fullmatch(row.text("task_name"))
    assert named is not None, "checked by _why_not"
    parents = dict.fromkeys(named[2].split("_")[1:])
    memory_bytes = round(row.number("plan_mem") / 100 * MACHINE_BYTES)
    edges = tuple(Edge(parent) for parent in parents)
    return Task(named[1], row.number("duration"), row.number("plan_cpu") / 100, memory_bytes, parents=edges)


def _instances(task: Task, row: _Row) -> list[Task]:
    count = max(1, min(row.whole("instance_num"), INSTANCES))
    return [replace(task, task_id=f"{task.task_id}.{i}") for i in range(count)]
