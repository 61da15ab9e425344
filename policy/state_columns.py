"""A pool's state as plain arrays, and back.

Axes: all nodes [N], all live workflows [W], those of their tasks that are or were due [D], all reservations [H], all
waiting attempts [P]. Records stand as Avro, one behind the other; texts as one JSON document.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import numpy as np

from policy import workflows
from policy.nodes import NodeTable
from policy.queue import attempt_key
from policy.resources import RESOURCES
from policy.state import State, StateSettings
from policy.workflows import NONE, Status, TaskState, Workflow
from schemas.codec import SINGLE_OBJECT, Codec
from schemas.records import Env, NodeMetrics, Task, TaskReady, WorkflowClass, WorkflowSubmitted

Columns = Mapping[str, np.ndarray]
Places = Mapping[TaskState, int]
"""The tasks that are or were due, by their place among all tasks of all live workflows."""

NUMBERS = (
    "status",
    "attempt",
    "ready_attempt",
    "pending_attempt",
    "ended_attempt",
    "node",
    "ran_on",
    "rollbacks",
    "ready_ms",
    "placed_ms",
)
"""The fields of a task that are whole numbers."""
numbers_of = attrgetter(*NUMBERS)
ROW = struct.Struct(f"<{len(NUMBERS)}q?q?d")
ROW_FIELDS = np.dtype(
    [
        *((name, "<i8") for name in NUMBERS),
        ("has_started", "?"),
        ("started_ms", "<i8"),
        ("is_expected", "?"),
        ("expected_s", "<f8"),
    ]
)
"""A task's row, as `struct` packs it and as numpy reads it."""
STATUSES = tuple(Status)

FAST = 1
"""The level at which submitted workflows are compressed: they are the largest part, and shrink to a third."""
GONE = -1
"""In place of a task whose workflow is no more."""

codec = Codec()


def to_columns(state: State) -> dict[str, np.ndarray]:
    """Everything that the state's further answers depend on. Records are encoded once, and kept with the state."""
    at_of = {task: at for at, task in enumerate(_all_tasks(state)) if task.status or task.pending_attempt != NONE}
    return {
        "texts": _packed(json.dumps(_texts(state, at_of)).encode()),
        **_within("node", _nodes(state)),
        **_within("window", state.windows.saved(len(state.nodes))),
        **_within("workflow", _workflows(list(state.workflows.values()))),
        **_within("task", _tasks(at_of)),
        **_within("held", _reservations(state, at_of)),
        **_within("waiting", _queue(state, at_of)),
    }


def from_columns(columns: Columns, settings: StateSettings) -> State:
    """The state with these columns. Raises KeyError, ValueError, InvalidRecord and others where they are not such."""
    texts = json.loads(columns["texts"].tobytes())
    state = State(texts["pool"], settings)
    state.now_ms, state.placed, state.looked_step = texts["now_ms"], texts["placed"], texts["looked_step"]
    state.counts = Counter(texts["counts"])
    state.breaker.put_back(texts.get("breaker", {}))
    state.finished = dict.fromkeys(texts["finished"])
    state.given_up = dict.fromkeys(map(tuple, texts["given_up"]))
    _restore_nodes(state, _of("node", columns))
    state.windows.restore(_of("window", columns))
    _restore_workflows(state, _of("workflow", columns))
    tasks = _all_tasks(state)
    _restore_tasks(tasks, _of("task", columns), texts["excluded_nodes"])
    _restore_reservations(state, tasks, _of("held", columns), texts["gone"])
    _restore_queue(state, tasks, _of("waiting", columns))
    return state


def _all_tasks(state: State) -> list[TaskState]:
    return [task for workflow in state.workflows.values() for task in workflow.tasks]


def _texts(state: State, at_of: Places) -> dict[str, Any]:
    """What has no place in a column, as JSON takes it."""
    return {
        "pool": state.pool,
        "now_ms": state.now_ms,
        "placed": state.placed,
        "looked_step": state.looked_step,
        "counts": state.counts,
        "breaker": state.breaker.to_plain(),
        "finished": list(state.finished),
        "given_up": list(state.given_up),
        "excluded_nodes": [(at, task.excluded_nodes) for task, at in at_of.items() if task.excluded_nodes],
        "gone": [key[:2] for key, task in state.running.items() if task not in at_of],
    }


# Nodes: their specifications are records.


def _nodes(state: State) -> dict[str, np.ndarray]:
    nodes = state.nodes
    return {
        **_records(_encoded_specs(state.pool, nodes)),
        "version": np.array(nodes.version),
        "is_present_n": nodes.is_present_n,
        "seen_ms_n": nodes.seen_ms_n,
        "lost_ms_n": nodes.lost_ms_n,
        "failure_n": state.failure_n,
        "busy_until_ms_n": state.busy_until_ms_n,
        "freed": np.array(sorted(state.ledger.freed), np.int64),
    }


def _encoded_specs(pool: str, nodes: NodeTable) -> Iterator[bytes]:
    kept = nodes.encoded
    for at, spec in enumerate(nodes.specs):
        if at == len(kept) or kept[at][0] is not spec:
            kept[at : at + 1] = [(spec, codec.encode(NodeMetrics(pool, 0, "", (), b"", (spec,)), ""))]
        yield kept[at][1]


def _restore_nodes(state: State, columns: Columns) -> None:
    nodes = state.nodes
    for payload in _each_record(columns):
        (spec,) = codec.decode(payload, NodeMetrics).specs
        nodes.put(spec)
        nodes.encoded.append((spec, payload))
    nodes.version = int(columns["version"])
    nodes.is_present_n[:] = columns["is_present_n"]
    nodes.seen_ms_n[:] = columns["seen_ms_n"]
    nodes.lost_ms_n[:] = columns["lost_ms_n"]
    state.failure_n[:] = columns["failure_n"]
    state.busy_until_ms_n[:] = columns["busy_until_ms_n"]
    state.ledger.freed.update(columns["freed"].tolist())


# Workflows: a submitted one is one record; one whose tasks come one by one, a record for each of them.


def _workflows(live: Sequence[Workflow]) -> dict[str, np.ndarray]:
    return {
        **_records(chain.from_iterable(map(_encoded, live))),
        "records_w": _whole(len(w.encoded) for w in live),
        "is_open_w": np.array([w.is_open for w in live], bool),
        "submitted_ms_w": _whole(w.submitted_ms for w in live),
        "over_w": _whole(w.over for w in live),
        "refused_w": _whole(w.refused for w in live),
        "work_s_w": np.array([w.work_s for w in live], np.float64),
        "path_s_w": np.array([w.path_s for w in live], np.float64),
    }


def _encoded(workflow: Workflow) -> list[bytes]:
    kept = workflow.encoded
    if workflow.record is None:
        kept += [codec.encode(_announced(task), "") for task in islice(workflow.tasks, len(kept), None)]
    elif not kept:
        kept.append(zlib.compress(codec.encode(workflow.record, ""), FAST))
    return kept


def keep(state: State, record: object, payload: bytes) -> None:
    """Spare a snapshot the encoding of a record that was folded in just now, and came as these bytes.

    Only single-object encoding is kept: it can be read without a registry.
    """
    if payload[:2] != SINGLE_OBJECT or not isinstance(record, WorkflowSubmitted | TaskReady):
        return
    workflow = state.workflows.get(record.workflow_id)
    if workflow is None:
        return
    if workflow.record is record:
        workflow.encoded = [zlib.compress(payload, FAST)]
        return
    if isinstance(record, TaskReady) and workflow.is_open and len(workflow.encoded) == len(workflow.tasks) - 1:
        is_newest = record.task is not None and workflow.tasks[-1].task is record.task
        workflow.encoded += [payload] if is_newest else []


def _announced(task: TaskState) -> TaskReady:
    """The record by which a task of an open workflow became known."""
    workflow = task.workflow
    return TaskReady(
        "",
        workflow.workflow_id,
        task.task.task_id,
        0,
        workflow.submitted_ms,
        task.task,
        workflow.workflow_class,
        workflow.env,
    )


def _restore_workflows(state: State, columns: Columns) -> None:
    payloads = _each_record(columns)
    names = ("is_open_w", "records_w", "submitted_ms_w", "over_w", "refused_w", "work_s_w", "path_s_w")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    for is_open, records, submitted_ms, over, refused, work_s, path_s in rows:
        encoded = list(islice(payloads, records))
        workflow = _opened(encoded) if is_open else _submitted(encoded[0], submitted_ms)
        workflow.encoded = encoded
        workflow.over, workflow.refused = over, refused
        workflow.work_s, workflow.path_s = work_s, path_s
        state.workflows[workflow.workflow_id] = workflow


def _submitted(payload: bytes, submitted_ms: int) -> Workflow:
    return workflows.from_record(codec.decode(zlib.decompress(payload), WorkflowSubmitted), submitted_ms)


def _opened(payloads: Sequence[bytes]) -> Workflow:
    announced = [codec.decode(payload, TaskReady) for payload in payloads]
    workflow = workflows.from_ready(announced[0])
    for ready in announced:
        assert ready.task is not None
        workflow.add(ready.task)
    return workflow


# Tasks: one that was never due is as it was submitted, but for its parents that are done.


def _tasks(at_of: Places) -> dict[str, np.ndarray]:
    rows_d = np.frombuffer(b"".join([task.kept_row or _row(task) for task in at_of]), ROW_FIELDS)
    numbers = {f"{name}_d": _narrow(rows_d[name]) for name in (*NUMBERS, "started_ms")}
    others = {f"{name}_d": rows_d[name] for name in ("has_started", "is_expected", "expected_s")}
    return {"at_d": _whole(at_of.values()), **numbers, **others}


def _row(task: TaskState) -> bytes:
    started_ms, expected_s = task.started_ms, task.expected_s
    has_started, is_expected = started_ms is not None, expected_s is not None
    row = ROW.pack(
        *numbers_of(task),
        has_started,
        started_ms if has_started else 0,
        is_expected,
        expected_s if is_expected else 0.0,
    )
    if task.is_over:
        task.kept_row = row
    return row


def _restore_tasks(tasks: Sequence[TaskState], columns: Columns, excluded: Iterable[tuple[int, Sequence[str]]]) -> None:
    due = [tasks[at] for at in columns["at_d"].tolist()]
    for name in NUMBERS:
        for task, number in zip(due, columns[f"{name}_d"].tolist(), strict=True):
            setattr(task, name, number)
    names = ("has_started", "started_ms", "is_expected", "expected_s")
    rows = zip(due, *(columns[f"{name}_d"].tolist() for name in names), strict=True)
    for task, has_started, started_ms, is_expected, expected_s in rows:
        task.status = STATUSES[task.status]
        task.started_ms = started_ms if has_started else None
        task.expected_s = expected_s if is_expected else None
        if task.status == Status.DONE:
            for child in task.children:
                task.workflow.tasks[child].missing_parents -= 1
    for at, node_ids in excluded:
        tasks[at].excluded_nodes = tuple(node_ids)


# Reservations, each by its attempt in `State.running`; those whose workflow is gone, included.


def _reservations(state: State, at_of: Places) -> dict[str, np.ndarray]:
    keys, held = [key for key, _ in state.ledger], [reservation for _, reservation in state.ledger]
    assert keys == list(state.running), "an attempt holds its node as long as it runs"
    request_hr = np.array([amount for reservation in held for amount in reservation.request], np.int64)
    return {
        "task_h": _whole([at_of.get(task, GONE) for task in state.running.values()]),
        "attempt_h": _whole([attempt for _, _, attempt in keys]),
        "node_h": _whole([reservation.node for reservation in held]),
        "request_hr": request_hr.reshape(-1, len(RESOURCES)),
    }


def _restore_reservations(
    state: State, tasks: Sequence[TaskState], columns: Columns, gone: Iterable[Sequence[str]]
) -> None:
    ids_of_gone = iter(gone)
    names = ("task_h", "attempt_h", "node_h", "request_hr")
    for at, attempt, node, request in zip(*(columns[name].tolist() for name in names), strict=True):
        task = _gone(*next(ids_of_gone)) if at == GONE else tasks[at]
        key = attempt_key(task, attempt)
        state.ledger.reserve(key, node, tuple(request))
        state.running[key] = task


def _gone(workflow_id: str, task_id: str) -> TaskState:
    """In place of a task that was over before its workflow went: only the end of an attempt is still to come."""
    task = TaskState(Workflow(workflow_id, WorkflowClass.UNKNOWN, Env.UNKNOWN, 0, None), Task(task_id, 0.0))
    task.status = Status.DONE
    return task


# The queue, as its rows lie.


def _queue(state: State, at_of: Places) -> dict[str, np.ndarray]:
    rows = state.queue.rows()
    return {
        "task_p": _whole(at_of[task] for task in rows.tasks),
        "attempt_p": _whole(rows.attempts),
        "arrival_p": rows.arrival_p,
        "is_blocked_p": rows.is_blocked_p,
        "arrivals": np.array(state.queue.arrivals),
    }


def _restore_queue(state: State, tasks: Sequence[TaskState], columns: Columns) -> None:
    waiting = [tasks[at] for at in columns["task_p"].tolist()]
    rows = zip(waiting, columns["attempt_p"].tolist(), strict=True)
    state.queue.restore(rows, columns["arrival_p"], columns["is_blocked_p"])
    state.queue.arrivals = int(columns["arrivals"])


# Columns.


def _within(part: str, columns: Columns) -> dict[str, np.ndarray]:
    return {f"{part}.{name}": column for name, column in columns.items()}


def _of(part: str, columns: Columns) -> Columns:
    return {name.removeprefix(f"{part}."): c for name, c in columns.items() if name.startswith(f"{part}.")}


def _whole(numbers: Iterable[int]) -> np.ndarray:
    return _narrow(np.fromiter(numbers, np.int64))


def _narrow(column: np.ndarray) -> np.ndarray:
    """The column in the narrowest type that holds its whole numbers."""
    least, most = (column.min(), column.max()) if len(column) else (0, 0)
    for narrow in (np.int8, np.int16, np.int32):
        if np.iinfo(narrow).min <= least and most <= np.iinfo(narrow).max:
            return column.astype(narrow)
    return column


def _records(payloads: Iterable[bytes]) -> dict[str, np.ndarray]:
    kept = list(payloads)
    return {"records": _packed(b"".join(kept)), "record_bytes": _whole(map(len, kept))}


def _each_record(columns: Columns) -> Iterator[bytes]:
    payload = columns["records"].tobytes()
    start = 0
    for size in columns["record_bytes"].tolist():
        yield payload[start : start + size]
        start += size


def _packed(payload: bytes) -> np.ndarray:
    return np.frombuffer(payload, np.uint8)
