"""Plans of one workflow on an empty cluster: how far HEFT and lookahead are from the best that a long search finds."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.line import report
from policy.lookahead import LookaheadSettings, lookahead, search_bound
from policy.plan_bounds import lower_bound
from policy.plan_problem import problem_of
from policy.planners import PLANNERS
from schemas.errors import InvalidConfiguration
from schemas.records import NodeSpec, WorkflowSubmitted
from schemas.workflow_file import read_workflows

TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "wfinstances"
MOST_TASKS = 500
CLUSTERS = (8, 32)
SEARCH_MS = 20_000.0
"""Of CPU time, like lookahead's budget."""
GIB = 2**30
KINDS = (
    (2.0, 8, 1.0, 0.10, 1.25e8),
    (4.0, 16, 1.4, 0.28, 1.25e8),
    (2.0, 8, 0.7, 0.06, 6.25e7),
    (1.0, 4, 2.0, 0.15, 1.25e8),
)
"""Cores, GiB, speed, price per hour, bytes per second: machines small enough for the workflows to fill them."""


@dataclass(frozen=True, slots=True)
class Row:
    """Makespans of one workflow, ms."""

    heft: int
    lookahead: int
    search: int
    lower: int


def node_specs(nodes: int) -> tuple[NodeSpec, ...]:
    """Machines of the four kinds in turn."""
    return tuple(
        NodeSpec(f"n{i:02d}", cpu, memory * GIB, speed=speed, price_per_hour=price, bandwidth_bytes_per_s=bandwidth)
        for i in range(nodes)
        for cpu, memory, speed, price, bandwidth in [KINDS[i % len(KINDS)]]
    )


def workflows() -> Iterator[WorkflowSubmitted]:
    """The real ones of up to MOST_TASKS tasks. Raises InvalidConfiguration where they are missing."""
    if not TRACES.is_dir():
        raise InvalidConfiguration("plans", f"{TRACES} is missing", "put the traces beside the checkout")
    with (TRACES / "index.tsv").open(newline="", encoding="utf-8") as file:
        names = [row["file"] for row in csv.DictReader(file, delimiter="\t") if int(row["tasks"]) <= MOST_TASKS]
    for name in names:
        yield from read_workflows(TRACES / name, pool="bench", event_time_ms=0, workflow_id=name.split(".")[0])


def now_ms() -> float:
    """CPU time of this thread: what else runs on the machine has no say in who is better."""
    return 1000 * time.thread_time()


def measured(workflow: WorkflowSubmitted, nodes: int) -> Row:
    """Plan one workflow in every way, and print its line."""
    problem = problem_of(workflow, node_specs(nodes))
    began_ms = now_ms()
    plans = {"heft": PLANNERS["heft"](problem)}
    heft_ms = now_ms() - began_ms
    plans |= {name: planner(problem) for name, planner in PLANNERS.items() if name != "heft"}
    found = lookahead(problem, list(plans.values()), LookaheadSettings(), now_ms)
    searched = search_bound(problem, [found.plan, *plans.values()], SEARCH_MS, now_ms)
    heft = plans["heft"].makespan_ms
    row = Row(heft, found.plan.makespan_ms, searched.plan.makespan_ms, lower_bound(problem))
    report(
        "makespan of lookahead's plan",
        "s",
        [row.lookahead / 1000],
        workflow=workflow.workflow_id,
        tasks=problem.tasks,
        nodes=nodes,
        **{name: plan.makespan_ms / 1000 for name, plan in plans.items()},
        search_bound=row.search / 1000,
        lower_bound=row.lower / 1000,
        heft_took_ms=heft_ms,
        tried=found.evaluations,
        tried_by_search=searched.evaluations,
    )
    return row


def main() -> None:
    """On 8 and on 32 nodes, one line a workflow; then how much of HEFT's gap to the search bound lookahead closes."""
    for nodes in CLUSTERS:
        rows = [measured(workflow, nodes) for workflow in workflows()]
        gaps = [(row.heft / row.search - 1, row.lookahead / row.search - 1) for row in rows]
        open_gaps = [(heft, left) for heft, left in gaps if heft > 0]
        facts = {"nodes": nodes, "workflows": len(rows)}
        report("HEFT above the search bound", "%", [100 * heft for heft, _ in gaps], **facts)
        report("lookahead above the search bound", "%", [100 * left for _, left in gaps], **facts)
        report(
            "share of HEFT's gap that lookahead closes, of those with a gap",
            "%",
            [100 * (1 - left / heft) for heft, left in open_gaps],
            **facts,
            with_gap=len(open_gaps),
            of_all_gaps=100 * (1 - sum(left for _, left in open_gaps) / sum(heft for heft, _ in open_gaps)),
            heft_optimal=sum(row.heft == row.lower for row in rows),
            lookahead_optimal=sum(row.lookahead == row.lower for row in rows),
            budget_ms=LookaheadSettings().budget_ms,
            search_ms=SEARCH_MS,
        )
