"""The main job in one go: an installation, workflows, a live table, the figures at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from policy.episode import POOL, Episode, EpisodeSettings
from policy.simulator import with_spot
from policy.summary import Summary, summarise
from policy.trace import Trace, cluster_object
from policy.workflows import from_record
from schemas.dag import check_fits
from schemas.errors import HeadraceError
from schemas.records import NodeSpec, WorkflowSubmitted
from streams import gantt, policies, reward_report
from streams.board import Board
from streams.client import Client
from streams.config import Settings
from streams.installation import Installation
from streams.policies import PolicySettings
from streams.registry import codec_for
from streams.rewards import latest, rewards_of
from streams.watch import Watch

COMPARED = ("kube_default", "heft", "srcp", "random")
MOST_TASKS_COMPARED = 1000
WANTED_S = 15.0
"""How long the longest workflow of a demo should take on the wall's clock."""
LINE_EVERY_S = 2.0
NOTHING_MOVES_S = 60.0


def time_scale_for(workflows: Sequence[WorkflowSubmitted], specs: Sequence[NodeSpec]) -> float:
    """How much faster than real time the workflows should run, for a demo of some seconds."""
    work_s = sum(t.runtime_s * t.cpu for w in workflows for t in w.tasks) / sum(s.cpu * s.speed for s in specs)
    longest_s = max(_path_s(w) for w in workflows)
    return float(min(1000, max(1, round(max(work_s, longest_s) / WANTED_S))))


def _path_s(workflow: WorkflowSubmitted) -> float:
    return from_record(workflow, workflow.event_time_ms).path_s


def run(
    settings: Settings,
    workflows: Sequence[WorkflowSubmitted],
    specs: Sequence[NodeSpec],
    out: Path | None,
    console: Console,
) -> bool:
    """Place these workflows; returns whether every task finished. Raises HeadraceError."""
    specs = with_spot(specs, settings.cluster.simulator)
    for workflow in workflows:
        check_fits(workflow, specs, f"workflow {workflow.workflow_id}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    started = time.time()
    with Installation(settings, out, lambda step: console.print(f"[dim]… {step}[/]")) as installation:
        watch = Watch(installation.kafka, settings.topics, codec_for(installation.kafka), settings.pool)
        board = Board(specs, watch.trace, settings.cluster.time_scale)
        watch.on_record = board.take
        try:
            with Client(installation.kafka, settings.pool, settings.topics) as client:
                for workflow in workflows:
                    client.submit(replace(workflow, event_time_ms=int(time.time() * 1000)))
            follow(watch, board, sum(len(w.tasks) for w in workflows), console)
        finally:
            watch.close()
        if out is not None:
            rewards = rewards_of(settings, installation.kafka, (time.time() - started) / 3600)
            title = f"headrace: what the decisions of {settings.policy.name} were worth"
            reward_report.write(latest([*rewards.recorded(), *rewards.news()]), out, title)
    report(watch.trace, workflows, specs, settings, out, console)
    return watch.trace.open_tasks == 0 and not watch.trace.refused


def follow(watch: Watch, board: Board, tasks: int, console: Console) -> None:
    """Show the run until every task is over. Raises HeadraceError when nothing moves any more."""
    moved = shown = time.monotonic()
    with Live(board, console=console, refresh_per_second=8, transient=True, auto_refresh=console.is_terminal):
        while len(watch.trace.tasks) < tasks or watch.trace.open_tasks:
            if watch.poll():
                moved = time.monotonic()
            elif time.monotonic() - moved > NOTHING_MOVES_S:
                raise HeadraceError(
                    f"nothing has happened for {NOTHING_MOVES_S:g} s, and {watch.trace.open_tasks} tasks are open; "
                    "see worker.log and cluster.log"
                )
            if not console.is_terminal and time.monotonic() - shown > LINE_EVERY_S:
                console.print(board.line())
                shown = time.monotonic()
    console.print(board.line())


def report(
    trace: Trace,
    workflows: Sequence[WorkflowSubmitted],
    specs: Sequence[NodeSpec],
    settings: Settings,
    out: Path | None,
    console: Console,
) -> None:
    """Figures and files of a run."""
    for (workflow_id, task_id), reason in list(trace.refused.items())[:10]:
        console.print(f"[red]refused[/] {workflow_id}/{task_id}: {reason}")
    summaries = [("live", summarise(trace, specs, settings.policy.name))]
    tasks = sum(len(w.tasks) for w in workflows)
    if tasks <= MOST_TASKS_COMPARED:
        summaries += [("simulated", s) for s in compare(workflows, specs, settings)]
    else:
        console.print(f"[dim]{tasks} tasks: other policies are only simulated for up to {MOST_TASKS_COMPARED}[/]")
    console.print(table_of(summaries))
    if out is not None:
        write(trace, specs, summaries, out, settings.policy.name)
        console.print(
            f"[dim]wrote trace.jsonl, cluster.json, summary.json, gantt.svg, rewards.jsonl and reward.svg to {out}[/]"
        )


def compare(workflows: Sequence[WorkflowSubmitted], specs: Sequence[NodeSpec], settings: Settings) -> list[Summary]:
    """The same work in the simulator, under the policy that ran and some others; same noise for all."""
    episode = EpisodeSettings(cluster=settings.cluster.simulator, state=settings.state, decide=settings.decide)
    pooled = [replace(w, pool=POOL, event_time_ms=episode.start_ms + 1) for w in workflows]
    summaries = []
    for name in dict.fromkeys((settings.policy.name, *COMPARED)):
        chosen: PolicySettings = replace(settings.policy, name=name)
        trace = Episode(specs, pooled, policies.build(chosen), episode).run()
        summaries.append(summarise(trace, specs, name))
    return summaries


def table_of(summaries: Sequence[tuple[str, Summary]]) -> Table:
    """One line a policy."""
    table = Table(title="how it went (times in event time)")
    table.add_column("policy")
    for name in ("turnaround mean", "p95", "span", "cost", "gpu cost", "SLA", "load std"):
        table.add_column(name, justify="right")
    for kind, s in summaries:
        table.add_row(
            f"{s.policy} [dim]({kind})[/]",
            f"{s.turnaround_mean_s:,.0f} s",
            f"{s.turnaround_p95_s:,.0f} s",
            f"{s.makespan_s:,.0f} s",
            f"{s.cost:.2f}",
            f"{s.gpu_cost:.2f}",
            f"{100 * s.sla:.1f} %",
            f"{s.load_std:.3f}",
        )
    return table


def write(
    trace: Trace, specs: Sequence[NodeSpec], summaries: Sequence[tuple[str, Summary]], out: Path, policy: str
) -> None:
    """trace.jsonl, cluster.json, summary.json, gantt.svg."""
    with (out / "trace.jsonl").open("w", encoding="utf-8") as lines:
        for row in trace.rows():
            lines.write(json.dumps(row) + "\n")
    (out / "cluster.json").write_text(json.dumps(cluster_object(tuple(specs)), indent=1) + "\n", encoding="utf-8")
    rows = [{"kind": kind, **{f: getattr(s, f) for f in s.__slots__}} for kind, s in summaries]
    (out / "summary.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    picture = gantt.draw(list(trace.attempts()), specs, f"headrace: {policy} on {len(specs)} nodes")
    (out / "gantt.svg").write_text(picture, encoding="utf-8")
