"""Rewards for people: a table, a single decision in full, JSON lines and a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from schemas import json_records
from schemas.conversion import to_plain
from schemas.documents import raising, read_text
from schemas.errors import InvalidConfiguration
from schemas.records import REWARD_TERMS, Reward
from streams import reward_picture

FILE = "rewards.jsonl"
PICTURE = "reward.svg"


def table(rewards: Sequence[Reward]) -> Table:
    """One line a decision, with the contribution of each of its terms."""
    shown = Table(title="what decisions were worth (contributions: weight * term)")
    for name in ("decision", "node", "stage"):
        shown.add_column(name)
    for name in ("reward", *REWARD_TERMS):
        shown.add_column(name.replace("cost_", "cost "), justify="right")
    for reward in rewards:
        shown.add_row(
            f"{reward.workflow_id}/{reward.task_id}#{reward.attempt}",
            reward.node_id,
            str(reward.stage),
            f"[bold]{reward.reward:+.3f}[/]",
            *[f"{contribution:+.3f}" if contribution else "0" for contribution in reward.contributions],
        )
    return shown


def details(reward: Reward) -> Table:
    """Every term of one decision: what was measured, what is usual, what comes of it."""
    name = f"{reward.workflow_id}/{reward.task_id}#{reward.attempt}"
    shown = Table(
        title=f"{name} on {reward.node_id}, by {reward.policy or '?'}: {reward.stage}, reward {reward.reward:+.4f}"
    )
    shown.add_column("term")
    shown.add_column("from")
    for column in ("term", "weight", "contribution"):
        shown.add_column(column, justify="right")
    columns = zip(REWARD_TERMS, _sources(reward), reward.terms, reward.weights, reward.contributions, strict=True)
    for term, source, value, weight, contribution in columns:
        shown.add_row(term, source, f"{value:+.4f}", f"{weight:+g}", f"{contribution:+.4f}")
    return shown


def _sources(reward: Reward) -> list[str]:
    """What each term is made of, in words."""
    makespan = "can never finish" if reward.turnaround_s is None else f"{reward.turnaround_s:,.0f} s"
    if reward.turnaround_p95_s is None:
        makespan += "; nothing is usual yet"
    else:
        makespan += f"; usual up to {reward.turnaround_p95_s:,.0f} s, of {reward.usual_of} workflows"
    costs = [f"{cost:.4f}; usual up to {p95:.4f}" for cost, p95 in zip(reward.costs, reward.costs_p95, strict=True)]
    waited = "never started" if reward.wait_s is None else f"waited {reward.wait_s:,.1f} s"
    stranded = (
        "" if reward.stranded_gpu is None else f"{reward.stranded_gpu:.0%} of the free GPUs are of use to no task"
    )
    return [makespan, *costs, waited, stranded, "", ""]


def write(rewards: Sequence[Reward], out: Path, title: str) -> None:
    """rewards.jsonl, one JSON object a decision, and reward.svg."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / FILE).open("w", encoding="utf-8") as lines:
        for reward in rewards:
            lines.write(json.dumps(to_plain(reward)) + "\n")
    (out / PICTURE).write_text(reward_picture.draw(rewards, title), encoding="utf-8")


def read(folder: Path) -> list[Reward]:
    """What `write` wrote. Raises InvalidConfiguration."""
    path = folder / FILE
    with raising(InvalidConfiguration):
        lines = read_text(path).splitlines()
        return [json_records.read(line.encode(), Reward) for line in lines]


def chosen(rewards: Sequence[Reward], name: str) -> list[Reward]:
    """Those of a workflow, or, as WORKFLOW/TASK, of a task. Raises InvalidConfiguration where there are none."""
    found = [r for r in rewards if name in (r.workflow_id, f"{r.workflow_id}/{r.task_id}")]
    if not found:
        raise InvalidConfiguration(
            name, f"none of the {len(rewards)} decisions is of it", "look further back with --hours, or --from-start"
        )
    return found
