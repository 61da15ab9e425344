"""A canary's share of the workflows, and how a round of decisions keeps it apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from policy.canary import CLASSES, Canary, is_within
from policy.constraints import Constraints
from policy.decide import Batch, DecideSettings, Stamp, decide
from policy.heuristics import HEURISTICS
from policy.state import State
from schemas.records import WorkflowClass
from tests.builders import MOST_BATCHES, a_state, a_task, some_nodes, submit

HEFT = HEURISTICS["heft"]
OTHER = replace(HEURISTICS["srcp"], version="canary")
ALL = frozenset(CLASSES)


def rounds(state: State, canary: Canary | None, batch: int = 64) -> list[Batch]:
    settings = DecideSettings(batch=batch, batch_share=1.0)
    batches = decide(state, HEFT, Constraints(), settings, Stamp(), canary=canary)
    return list(islice(batches, MOST_BATCHES))


def test_a_share_is_kept_and_a_larger_one_covers_all_of_a_smaller_one() -> None:
    names = [f"workflow-{i}" for i in range(20_000)]

    covered = {share: {n for n in names if is_within(n, share)} for share in (0.0, 0.01, 0.1, 0.3, 1.0)}

    assert [len(found) for found in covered.values()] == [
        0,
        pytest.approx(200, abs=45),
        pytest.approx(2000, abs=130),
        pytest.approx(6000, abs=200),
        20_000,
    ]
    assert covered[0.01] < covered[0.1] < covered[0.3] < covered[1.0]


def test_each_workflow_is_decided_by_one_policy_and_each_batch_too() -> None:
    state = a_state(*some_nodes(32))
    for at in range(40):
        submit(state, a_task("a"), a_task("b"), workflow_id=f"w{at}")
    canary = Canary(OTHER, 0.3, ALL)

    batches = rounds(state, canary)

    placed = {(p.workflow_id, p.task_id): p for b in batches for p in b.placements}
    assert len(placed) == 80
    for (workflow_id, _), placement in placed.items():
        wanted = OTHER if is_within(workflow_id, 0.3) else HEFT
        assert (placement.policy, placement.model_version) == (wanted.name, wanted.version)
    assert {b.evidence.policy for b in batches} == {"heft", "srcp"}
    assert all(p.policy == b.evidence.policy for b in batches for p in b.placements)


def test_a_batch_begins_with_the_most_urgent_task_whoever_decides_for_it() -> None:
    state = a_state(*some_nodes(32))
    for at in range(20):
        submit(state, workflow_id=f"w{at}")
    canary = Canary(OTHER, 0.5, ALL)
    is_canary = [is_within(f"w{at}", 0.5) for at in range(20)]
    assert set(is_canary[:8]) == {True, False}

    first, second, *_ = rounds(state, canary, batch=8)

    assert [p.workflow_id for p in first.placements] == [f"w{i}" for i in range(8) if is_canary[i] == is_canary[0]]
    assert second.placements[0].workflow_id == f"w{is_canary.index(not is_canary[0])}"


def test_a_workflow_of_another_class_or_with_a_critical_task_is_left_alone() -> None:
    state = a_state(*some_nodes(32))
    submit(state, workflow_id="plain", workflow_class=WorkflowClass.ETL_BATCH)
    submit(state, workflow_id="other", workflow_class=WorkflowClass.AI_TRAINING)
    submit(state, a_task("a"), a_task("b", after=["a"], critical=True), workflow_id="critical")

    batches = rounds(state, Canary(OTHER, 1.0, frozenset({WorkflowClass.ETL_BATCH})))

    assert {p.workflow_id: p.policy for b in batches for p in b.placements} == {
        "plain": "srcp",
        "other": "heft",
        "critical": "heft",
    }


def test_without_a_share_everything_is_as_without_a_canary() -> None:
    with_none, with_nothing = a_state(*some_nodes(32)), a_state(*some_nodes(32))
    for at in range(40):
        submit(with_none, workflow_id=f"w{at}")
        submit(with_nothing, workflow_id=f"w{at}")

    assert rounds(with_none, None) == rounds(with_nothing, Canary(OTHER, 0.0, ALL))
