"""Rewards as files, as a table, as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from policy.decision_terms import signed
from policy.reward import RewardWeights
from schemas.errors import InvalidConfiguration
from schemas.records import EventKind, Reward, Stage, WorkflowClass
from streams import reward_picture, reward_report
from streams.rewards import latest, means
from tests.builders import START_MS

SVG = "{http://www.w3.org/2000/svg}"
TERMS = (0.5, 0.1, 0.2, 0.0, 1.0, 0.4, -0.5, 0.0)


def a_reward(task_id: str = "t0", stage: Stage = Stage.SETTLED, at_s: int = 0, **fields: object) -> Reward:
    weights = signed(RewardWeights())
    contributions = tuple(weight * term for weight, term in zip(weights, TERMS, strict=True))
    made = Reward(
        "pool",
        "w0",
        task_id,
        0,
        START_MS + 1000 * at_s + 5000,
        stage,
        START_MS + 1000 * at_s,
        "n0",
        WorkflowClass.MIXED,
        sum(contributions),
        TERMS,
        weights,
        contributions,
        (0.1, 0.2, 0.0),
        50.0,
        20.0,
        100.0,
        (0.4, 0.5, 0.1),
        30,
        2.5,
        0.25,
        EventKind.FINISHED,
        "actor",
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def text_of(shown: object) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rewards = [a_reward("a"), a_reward("b", turnaround_s=None, wait_s=None)]

    reward_report.write(rewards, tmp_path / "new", "title")

    assert reward_report.read(tmp_path / "new") == rewards


def test_a_folder_without_rewards_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"rewards\.jsonl: there is no such file"):
        reward_report.read(tmp_path)


def test_the_table_has_a_line_for_each_decision_with_each_contribution() -> None:
    lines = text_of(reward_report.table([a_reward("load"), a_reward("train")])).splitlines()

    (line,) = [line for line in lines if "w0/train#0" in line]
    numbers = [cell.strip() for cell in line.split("│")[4:-1]]
    assert numbers == ["-0.155", "-0.200", "-0.030", "-0.060", "0", "+0.200", "-0.040", "-0.025", "0"]


def test_a_decision_in_full_says_what_each_term_comes_from() -> None:
    text = text_of(reward_report.details(a_reward()))

    for words in (
        "w0/t0#0 on n0, by actor: settled, reward -0.1550",
        "50 s; usual up to 100 s, of 30 workflows",
        "0.2000; usual up to 0.5000",
        "waited 2.5 s",
        "25% of the free GPUs are of use to no task",
    ):
        assert words in text


def test_decisions_are_chosen_by_workflow_or_by_task() -> None:
    rewards = [a_reward("a"), a_reward("b"), a_reward("a", workflow_id="w1")]

    assert reward_report.chosen(rewards, "w0") == rewards[:2]
    assert reward_report.chosen(rewards, "w0/b") == rewards[1:2]
    with pytest.raises(InvalidConfiguration, match="w9: none of the 3 decisions"):
        reward_report.chosen(rewards, "w9")


def test_of_each_attempt_the_latest_stage_is_in_effect_whatever_the_order() -> None:
    late, early = a_reward("late", at_s=9), a_reward("early", at_s=1)
    stages = [replace(late, stage=Stage.ENDED), late, replace(late, stage=Stage.PLACED), early]

    assert latest(stages) == [early, late]


def test_means_are_of_the_contributions() -> None:
    found = means([a_reward("a"), a_reward("b", reward=0.0, contributions=(0.0,) * 8)])

    assert found["reward"] == pytest.approx(-0.155 / 2)
    assert found["sla"] == pytest.approx(0.1)


def test_the_picture_has_a_bar_for_every_contribution_that_is_something() -> None:
    root = ET.fromstring(reward_picture.draw([a_reward("a"), a_reward("b", at_s=5)], "a <title>"))

    groups = root.findall(f"{SVG}g")
    assert [len(group.findall(f"{SVG}rect")) for group in groups] == [6, 6]
    # what is bad hangs below zero, one under the other: makespan 0.2, cost 0.09, fragmentation 0.04, balance 0.025
    heights = [float(rect.get("height", 0)) for rect in groups[0].findall(f"{SVG}rect")]
    assert heights[0] / heights[3] == pytest.approx(0.2 / 0.2, rel=0.01)
    assert heights[1] / heights[2] == pytest.approx(0.03 / 0.06, rel=0.01)
    assert "a <title>" in [text.text for text in root.iter(f"{SVG}text")]


def test_the_picture_marks_where_the_weights_changed() -> None:
    other = signed(RewardWeights(cost=0.6))
    rewards = [a_reward("a"), a_reward("b", at_s=10, weights=other), a_reward("c", at_s=20, weights=other)]

    root = ET.fromstring(reward_picture.draw(rewards, "title"))

    assert [line.get("x1") for line in root.iter(f"{SVG}line") if line.get("stroke-dasharray")] == ["620.0"]
    assert "cost 0.6" in [text.text for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("count", [0, 1, 500])
def test_any_number_of_decisions_makes_a_picture(count: int) -> None:
    root = ET.fromstring(reward_picture.draw([a_reward(f"t{at}", at_s=at) for at in range(count)], "title"))

    assert len(root.findall(f"{SVG}g")) == min(count, reward_picture.DECISIONS)
    lines = list(root.iter(f"{SVG}polyline"))
    assert all(len(line.get("points", "").split()) <= 2 * reward_picture.POINTS for line in lines)
    assert len(lines) == (7 if count else 0)
