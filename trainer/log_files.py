"""Files of a run: the `trace.jsonl` of `headrace demo --out`, or records of topics, one JSON object a line."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from policy.trace import GIB, TraceRow
from schemas import json_records
from schemas.documents import read_text
from schemas.errors import InvalidRecord
from schemas.node_file import read_nodes
from schemas.records import (
    Edge,
    Env,
    EventKind,
    NodeMetrics,
    NodeSpec,
    Outcome,
    Placement,
    Task,
    TaskEvent,
    TaskReady,
    WorkflowClass,
    WorkflowSubmitted,
)
from trainer.run_log import RunLog

TRACE, NODES = "trace.jsonl", "cluster.json"
RECORD_OF_FIELD: Mapping[str, type] = {
    "start_time": TraceRow,
    "outcome": Placement,
    "kind": TaskEvent,
    "tasks": WorkflowSubmitted,
    "values": NodeMetrics,
    "attempt": TaskReady,
}
"""A field by which a record is known, tried in this order."""
KIND_OF_END = {"finished": EventKind.FINISHED, "failed": EventKind.FAILED, "migrated": EventKind.KILLED}


def read_logs(paths: Sequence[Path], specs: Iterable[NodeSpec] = ()) -> RunLog:
    """The run in these files and folders; a `cluster.json` beside a file names its nodes.

    specs  nodes that are known besides
    Raises InvalidInput, which names file and line.
    """
    log = RunLog()
    for path in paths:
        file = path / TRACE if path.is_dir() else path
        nodes = file.parent / NODES
        if nodes.exists():
            log.specs.update((spec.node_id, spec) for spec in read_nodes(nodes))
        lines = [(_where(file, number), found) for number, found in _lines(file)]
        if not lines:
            raise InvalidRecord(str(file), "is empty", f"give a {TRACE}, or records as JSON lines")
        rows = [(where, found) for where, found in lines if isinstance(found, TraceRow)]
        for record in (*_records_of(rows, log), *(found for _, found in lines if not isinstance(found, TraceRow))):
            log.apply(record)
    log.specs.update((spec.node_id, spec) for spec in specs)
    return log


def read_records(path: Path) -> Iterator[tuple[int, object]]:
    """The records of topics in a file of JSON lines, each with the number of its line.

    Raises InvalidInput, which names file and line; also for a trace, whose rows do not tell from what environment.
    """
    for number, found in _lines(path):
        if isinstance(found, TraceRow):
            raise InvalidRecord(
                _where(path, number), "is a row of a trace, which does not say its env", "give records of the topics"
            )
        yield number, found


def _where(path: Path, number: int) -> str:
    return f"{path}: line {number}"


def _lines(path: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, _record(line, _where(path, number))


def _record(line: str, where: str) -> object:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(where, f"is no JSON: {error}", "give one JSON object a line") from error
    kind = next((k for f, k in RECORD_OF_FIELD.items() if isinstance(plain, dict) and f in plain), None)
    if kind is None:
        raise InvalidRecord(
            where,
            f"is no record that can be compared: {line.strip()[:60]}",
            "give lines of trace.jsonl, or records of workflow-submitted, task-ready, placements, task-events or "
            "node-metrics",
        )
    try:
        return json_records.read(line.encode(), kind)
    except InvalidRecord as error:
        raise InvalidRecord(f"{where}: {error.where}", error.problem, error.remedy) from error


def _records_of(rows: Sequence[tuple[str, TraceRow]], log: RunLog) -> Iterator[object]:
    """The records that a trace's rows were folded from, as far as they tell; rows that cannot be are counted."""
    tasks: dict[str, dict[str, Task]] = defaultdict(dict)
    submitted_ms: dict[str, int] = {}
    for where, row in sorted(rows, key=lambda line: line[1].turn):
        if row.event not in KIND_OF_END:
            raise InvalidRecord(where, f"the event '{row.event}' is unknown", f"give {', '.join(KIND_OF_END)}")
        if row.predicted_s is None:
            log.remarks["rows without a prediction (of an older headrace), left out"] += 1
            continue
        if not row.reserve_time <= row.start_time <= row.finish_time or row.predicted_s < 0:
            log.remarks["rows whose times contradict each other, left out"] += 1
            continue
        tasks[row.workflow_id].setdefault(row.task_id, _task(row))
        submitted_ms[row.workflow_id] = _ms(row.submit_time)
        yield from _attempt(row)
    for workflow_id, found in tasks.items():
        unknown = (WorkflowClass.UNKNOWN, Env.UNKNOWN)
        at_ms = submitted_ms[workflow_id]
        yield WorkflowSubmitted("", workflow_id, at_ms, workflow_id, *unknown, tuple(found.values()))


def _task(row: TraceRow) -> Task:
    parent_bytes = row.parent_bytes or (0,) * len(row.parents)
    return Task(
        row.task_id,
        row.predicted_s or 0.0,
        row.cpu,
        round(row.mem * GIB),
        row.gpu,
        parents=tuple(map(Edge, row.parents, parent_bytes)),
    )


def _attempt(row: TraceRow) -> Iterator[object]:
    key = (row.workflow_id, row.task_id, row.attempt)
    yield TaskReady("", *key, _ms(row.ready_time))
    yield Placement("", *key, _ms(row.reserve_time), Outcome.PLACED, row.node, policy=row.policy)
    transfer_s = row.start_time - row.reserve_time
    yield TaskEvent("", *key, row.node, _ms(row.start_time), EventKind.STARTED, transfer_s=transfer_s)
    if row.node_lost:
        yield TaskEvent("", "", "", 0, row.node, _ms(row.finish_time), EventKind.NODE_LOST)
    else:
        yield TaskEvent("", *key, row.node, _ms(row.finish_time), KIND_OF_END[row.event])


def _ms(at_s: float) -> int:
    return round(1000 * at_s)
