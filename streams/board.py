"""A run while it goes on: workflows, nodes and placements as a live table."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from policy.ledger import AttemptKey
from policy.trace import ENDS, Trace
from schemas.records import EventKind, NodeSpec, Outcome, Placement, TaskEvent, WorkflowSubmitted

NODES_SHOWN = 24
WORKFLOWS_SHOWN = 12
PLACEMENTS_SHOWN = 8


class Board:
    """Takes every record that a watch sees, and renders the whole."""

    def __init__(self, specs: Sequence[NodeSpec], trace: Trace, time_scale: float) -> None:
        self._specs = specs
        self._trace = trace
        self._time_scale = time_scale
        self._total: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._running: dict[AttemptKey, tuple[str, float, int]] = {}
        self._recent: deque[str] = deque(maxlen=PLACEMENTS_SHOWN)
        self._started = time.monotonic()

    def take(self, record: object) -> None:
        """Note one record."""
        if isinstance(record, WorkflowSubmitted):
            self._total[record.workflow_id] = len(record.tasks)
        elif isinstance(record, Placement):
            self._recent.append(_in_words(record))
        elif isinstance(record, TaskEvent):
            self._event(record)

    def _event(self, event: TaskEvent) -> None:
        key = (event.workflow_id, event.task_id, event.attempt)
        if event.kind == EventKind.NODE_LOST:
            self._running = {k: v for k, v in self._running.items() if v[0] != event.node_id}
            if event.reason and "anew" not in event.reason:
                self._recent.append(f"[red]{event.node_id} is lost[/]")
        elif event.kind == EventKind.STARTED:
            task = self._trace.tasks.get(key[:2])
            self._running[key] = (event.node_id, task.cpu if task else 0.0, task.gpu if task else 0)
        elif event.kind in ENDS:
            self._running.pop(key, None)
            if event.kind == EventKind.FINISHED:
                self._done[event.workflow_id] = self._done.get(event.workflow_id, 0) + 1
            elif event.kind == EventKind.FAILED:
                self._recent.append(f"[red]failed[/] {event.workflow_id}/{event.task_id}#{event.attempt}")

    def line(self) -> str:
        """The state in one line, for where there is no terminal."""
        trace = self._trace
        return (
            f"{time.monotonic() - self._started:5.1f} s  {len(trace.finished)}/{len(trace.tasks)} tasks finished, "
            f"{len(self._running)} running, {len(trace.placements)} placements, {len(trace.refused)} refused"
        )

    def __rich__(self) -> RenderableType:
        trace = self._trace
        total = max(1, len(trace.tasks))
        head = Table.grid(padding=(0, 1))
        head.add_row(
            ProgressBar(total=total, completed=len(trace.finished), width=40),
            f"{len(trace.finished)}/{len(trace.tasks)} tasks",
            f"{len(self._running)} running",
            f"{len(trace.placements)} placements",
            f"[dim]{time.monotonic() - self._started:.0f} s, time runs {self._time_scale:g} times as fast[/]",
        )
        sides = Table.grid(padding=(0, 2))
        sides.add_row(self._nodes(), Group(self._workflows(), Panel("\n".join(self._recent), title="latest decisions")))
        return Group(head, sides)

    def _nodes(self) -> Table:
        table = Table(title="nodes", title_style="bold", box=None)
        for name in ("node", "cpu", "", "gpu", "running"):
            table.add_column(name)
        used: dict[str, list[float]] = {}
        for node_id, cpu, gpu in self._running.values():
            of_node = used.setdefault(node_id, [0.0, 0, 0])
            of_node[0] += cpu
            of_node[1] += gpu
            of_node[2] += 1
        for spec in self._specs[:NODES_SHOWN]:
            cpu, gpu, count = used.get(spec.node_id, (0.0, 0, 0))
            table.add_row(
                spec.node_id,
                f"{cpu:g}/{spec.cpu:g}",
                ProgressBar(total=spec.cpu, completed=cpu, width=14),
                f"{gpu:g}/{spec.gpu}" if spec.gpu else "",
                str(int(count)),
            )
        if len(self._specs) > NODES_SHOWN:
            table.add_row(f"… {len(self._specs) - NODES_SHOWN} more")
        return table

    def _workflows(self) -> Table:
        table = Table(title="workflows", title_style="bold", box=None)
        for name in ("workflow", "", "tasks"):
            table.add_column(name)
        open_first = sorted(self._total, key=lambda w: (self._done.get(w, 0) == self._total[w], w))
        for workflow_id in open_first[:WORKFLOWS_SHOWN]:
            done, total = self._done.get(workflow_id, 0), self._total[workflow_id]
            table.add_row(workflow_id[:40], ProgressBar(total=total, completed=done, width=20), f"{done}/{total}")
        if len(open_first) > WORKFLOWS_SHOWN:
            table.add_row(f"… {len(open_first) - WORKFLOWS_SHOWN} more")
        return table


def _in_words(placement: Placement) -> str:
    name = f"{placement.workflow_id[:24]}/{placement.task_id[-24:]}#{placement.attempt}"
    if placement.outcome == Outcome.PLACED:
        return f"[green]{placement.node_id}[/] ← {name} [dim]{placement.policy}[/]"
    colour = "red" if placement.outcome == Outcome.REFUSED else "yellow"
    return f"[{colour}]{placement.outcome}[/] {name} [dim]{placement.reason}[/]"
