"""Tasks of executions recorded in WfFormat, versions 1.2 to 1.6.

A recording is not a request, so some numbers are taken over with care:

* Runtime: as measured. 0 means shorter than the recorder could see (most of them count whole seconds), and becomes
  `UNSEEN_RUNTIME_S`. A task without any runtime is refused: nothing in the file says how long it takes.
* Memory: the resident set, as measured. Missing, or 0 because the task ended before it was sampled, it becomes
  `UNSEEN_MEMORY_BYTES`. Some recorders wrote KiB into the field that is to hold bytes; see `_memory_unit_bytes`.
  Versions 1.2 and 1.3 count memory in kB of 1,000 bytes, as the format's own migration does.
* Cores: as asked for, else the mean CPU use in whole cores, rounded up but for `CPU_NOISE_CORES`, and no more than the
  largest machine has: short tasks are recorded with 190 % of a machine's only core. Without either, one core.
* Edges: what `parents` and `children` say together. Up to version 1.4 they name tasks by id in some files and by name
  in others. Where a file declares no edge at all, a task depends on those that write the files it reads.
* Bytes of an edge: the sizes of all files that the parent writes and the child reads; 0 where there is none.
* Priority is left out. Only Pegasus records one, it just grows with the depth in the DAG, and no document says which
  end is the urgent one. GPUs are not recorded.

Source of the fields' meanings: the WfFormat JSON schemas of github.com/wfcommons/WfFormat.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from schemas.errors import InvalidInput
from schemas.fields import Fields, fields_of
from schemas.quantities import parse_bytes, parse_cpu, parse_number, shown
from schemas.records import Edge, Task

UNSEEN_RUNTIME_S = 0.5
"""The mean of what is rounded down to 0 whole seconds."""
UNSEEN_MEMORY_BYTES = 2 * 2**30
"""Half of what a core usually comes with."""
CPU_NOISE_CORES = 0.1
"""A task that fills one core is measured at up to 110 %."""
LEAST_MACHINE_BYTES_PER_CORE = 16 * 2**20
LEAST_PROCESS_BYTES = 2**20

SPLIT_VERSIONS = ("1.5", "1.6")
"""Their specification and execution are two lists."""
JOINT_VERSIONS = ("1.2", "1.3", "1.4")
"""They keep everything about a task in one place."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A task of whatever version."""

    task_id: str
    name: str
    parents: tuple[str, ...]  # ids or names, as the file has them
    children: tuple[str, ...]
    inputs: tuple[str, ...]  # keys into the file sizes
    outputs: tuple[str, ...]
    measured: Fields


@dataclass(frozen=True, slots=True)
class _Machines:
    """The largest machine of a recording; None where the file does not say."""

    cores: float | None
    memory_bytes: float | None  # as written, so perhaps KiB


def is_wfformat(document: object) -> bool:
    """Whether this is an execution in WfFormat, rather than a workflow file of our own."""
    if not isinstance(document, Mapping):
        return False
    workflow = document.get("workflow")
    parts = ("specification", "tasks", "jobs")
    return "schemaVersion" in document or (isinstance(workflow, Mapping) and any(part in workflow for part in parts))


def read_name(document: object, where: str) -> str:
    """The recording's name. Raises InvalidInput."""
    return fields_of(document, where).text("name")


def read_tasks(document: object, where: str) -> tuple[Task, ...]:
    """The recorded tasks, in the file's order, with requests and edges as described above. Raises InvalidInput."""
    root = fields_of(document, where)
    version = root.text("schemaVersion")
    workflow = _present(root.required("workflow"), root.place("workflow"))
    if version in SPLIT_VERSIONS:
        recorded, sizes, execution = _read_split(workflow)
    elif version in JOINT_VERSIONS:
        recorded, sizes = _read_joint(workflow)
        execution = workflow
    else:
        known = ", ".join((*JOINT_VERSIONS, *SPLIT_VERSIONS))
        raise InvalidInput(where, f"is WfFormat {shown(version)}", f"convert it to one of {known}")
    machines = _largest_machine(execution)
    memory_unit_bytes = _memory_unit_bytes(recorded, machines)
    edges = _edges(recorded, sizes, where)
    return tuple(
        Task(
            task_id=task.task_id,
            runtime_s=_runtime_s(task.measured),
            cpu=_cpu(task.measured, machines),
            memory_bytes=_memory_bytes(task.measured, memory_unit_bytes),
            parents=parents,
        )
        for task, parents in zip(recorded, edges, strict=True)
    )


def _present(value: object, where: str) -> Fields:
    """The fields of a mapping; writers of the format put null where they know nothing."""
    fields = fields_of(value, where)
    return Fields(where, {key: field for key, field in fields.values.items() if field is not None})


def _read_split(workflow: Fields) -> tuple[list[_Recorded], dict[str, int], Fields]:
    """Tasks, file sizes and execution part of version 1.5 and later."""
    specification = _present(workflow.required("specification"), workflow.place("specification"))
    execution = _present(workflow.required("execution"), workflow.place("execution"))
    measured = {}
    for place, item in execution.items("tasks"):
        record = _present(item, place)
        measured[record.text("id")] = record
    recorded = []
    for place, item in specification.items("tasks"):
        task = _present(item, place)
        task_id = task.text("id")
        if task_id not in measured:
            raise InvalidInput(place, f"task {shown(task_id)} has no execution record", "its runtime must be known")
        recorded.append(
            _Recorded(
                task_id,
                task.text("name", task_id),
                task.texts("parents"),
                task.texts("children"),
                task.texts("inputFiles"),
                task.texts("outputFiles"),
                measured[task_id],
            )
        )
    sizes = {}
    for place, item in specification.items("files"):
        file = _present(item, place)
        sizes[file.text("id")] = file.amount("sizeInBytes", parse_bytes, 0)
    return recorded, sizes, execution


def _read_joint(workflow: Fields) -> tuple[list[_Recorded], dict[str, int]]:
    """Tasks and file sizes of version 1.4 and earlier."""
    key = "jobs" if "jobs" in workflow else "tasks"
    recorded, sizes = [], {}
    for place, item in workflow.items(key):
        task = _present(item, place)
        used: dict[str, list[str]] = {"input": [], "output": []}
        for file_place, file_item in task.items("files"):
            file = _present(file_item, file_place)
            name = f"{file.text('path', '').rstrip('/')}/{file.text('name')}"
            link = file.text("link")
            if link not in used:
                raise InvalidInput(file.place("link"), f"does not know {shown(link)}", "write input or output")
            used[link].append(name)
            sizes[name] = file.amount("sizeInBytes" if "sizeInBytes" in file else "size", parse_bytes, 0)
        name = task.text("name")
        recorded.append(
            _Recorded(
                task.text("id", name),
                name,
                task.texts("parents"),
                task.texts("children"),
                tuple(used["input"]),
                tuple(used["output"]),
                task,
            )
        )
    return recorded, sizes


def _largest_machine(execution: Fields) -> _Machines:
    cores, memory = [], []
    for place, item in execution.items("machines"):
        machine = _present(item, place)
        if "memoryInBytes" in machine:
            memory.append(machine.amount("memoryInBytes", parse_number))
        cpu = _present(machine.section("cpu").values, machine.place("cpu"))
        key = "coreCount" if "coreCount" in cpu else "count"
        if key in cpu:
            cores.append(cpu.amount(key, parse_number))
    return _Machines(max(cores, default=0.0) or None, max(memory, default=0.0) or None)


def _memory_unit_bytes(recorded: Sequence[_Recorded], machines: _Machines) -> int:
    """What `memoryInBytes` counts: 1, or 1,024 in the files whose recorder wrote KiB.

    The sizes tell: no machine has less than `LEAST_MACHINE_BYTES_PER_CORE`; and where none is known, no workflow keeps
    all its processes below `LEAST_PROCESS_BYTES`, which a shell alone exceeds.
    """
    if machines.memory_bytes is not None:
        return 1024 if machines.memory_bytes < LEAST_MACHINE_BYTES_PER_CORE * (machines.cores or 1) else 1
    largest = max((task.measured.amount("memoryInBytes", parse_number, 0.0) for task in recorded), default=0.0)
    return 1024 if 0 < largest < LEAST_PROCESS_BYTES else 1


def _runtime_s(measured: Fields) -> float:
    key = "runtimeInSeconds" if "runtimeInSeconds" in measured else "runtime"
    return measured.amount(key, parse_number) or UNSEEN_RUNTIME_S


def _memory_bytes(measured: Fields, unit_bytes: int) -> int:
    if "memoryInBytes" in measured:
        memory_bytes = measured.amount("memoryInBytes", parse_bytes) * unit_bytes
    else:
        memory_bytes = measured.amount("memory", parse_bytes, 0) * 1000
    return memory_bytes or UNSEEN_MEMORY_BYTES


def _cpu(measured: Fields, machines: _Machines) -> float:
    asked = measured.amount("coreCount" if "coreCount" in measured else "cores", parse_cpu, 0.0)
    if asked:
        return asked
    used = measured.amount("avgCPU", parse_number, 0.0) / 100
    whole = max(1, math.ceil(used - CPU_NOISE_CORES))
    return float(min(whole, machines.cores or whole))


def _edges(recorded: Sequence[_Recorded], sizes: Mapping[str, int], where: str) -> list[tuple[Edge, ...]]:
    """Each task's parents, in the order of the file."""
    parents = _declared_parents(recorded, where)
    writers = _writers(recorded)
    if not any(parents):
        parents = [_parents_by_files(i, task, writers) for i, task in enumerate(recorded)]
    return [
        tuple(Edge(recorded[parent].task_id, size) for parent, size in _bytes_from(found, task, writers, sizes).items())
        for task, found in zip(recorded, parents, strict=True)
    ]


def _declared_parents(recorded: Sequence[_Recorded], where: str) -> list[set[int]]:
    index_of = _references(recorded, where)
    parents: list[set[int]] = [set() for _ in recorded]
    for i, task in enumerate(recorded):
        parents[i].update(_find(index_of, name, task, where) for name in task.parents)
        for name in task.children:
            parents[_find(index_of, name, task, where)].add(i)
    return parents


def _references(recorded: Sequence[_Recorded], where: str) -> dict[str, int | None]:
    """Task of each id, else of each name; None where several tasks share a name."""
    index_of: dict[str, int | None] = {}
    for i, task in enumerate(recorded):
        index_of[task.name] = None if task.name in index_of else i
    ids: dict[str, int | None] = {}
    for i, task in enumerate(recorded):
        if task.task_id in ids:
            raise InvalidInput(where, f"has several tasks {shown(task.task_id)}", "give each task an id of its own")
        ids[task.task_id] = i
    return index_of | ids


def _find(index_of: Mapping[str, int | None], name: str, task: _Recorded, where: str) -> int:
    index = index_of.get(name)
    if index is None:
        problem = "is the name of several tasks" if name in index_of else "is no task of this workflow"
        remedy = "refer to tasks by their ids"
        raise InvalidInput(where, f"task {shown(task.task_id)}: its parent or child {shown(name)} {problem}", remedy)
    return index


def _writers(recorded: Iterable[_Recorded]) -> dict[str, list[int]]:
    writers: dict[str, list[int]] = defaultdict(list)
    for i, task in enumerate(recorded):
        for name in dict.fromkeys(task.outputs):
            writers[name].append(i)
    return writers


def _parents_by_files(index: int, task: _Recorded, writers: Mapping[str, Sequence[int]]) -> set[int]:
    return {writer for name in task.inputs for writer in writers.get(name, ()) if writer != index}


def _bytes_from(
    parents: set[int], task: _Recorded, writers: Mapping[str, Sequence[int]], sizes: Mapping[str, int]
) -> dict[int, int]:
    """Bytes that the task reads from each of its parents, by the parent's index."""
    read_bytes = dict.fromkeys(sorted(parents), 0)
    for name in dict.fromkeys(task.inputs):
        for writer in writers.get(name, ()):
            if writer in read_bytes:
                read_bytes[writer] += sizes.get(name, 0)
    return read_bytes
