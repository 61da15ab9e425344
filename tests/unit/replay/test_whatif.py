"""One recorded decision, made otherwise."""

from __future__ import annotations

import pytest

from policy.constraints import Constraints
from policy.heuristics import HEURISTICS
from replay.continuation import ContinuationSettings
from replay.player import Range
from replay.whatif import Change, WhatIf, changes_of, in_lines, what_if
from schemas.codec import Codec
from schemas.decisions import Decision, decisions_of
from schemas.errors import InvalidInput
from schemas.records import DecisionBatch
from schemas.topics import DECISIONS
from tests.unit.replay.test_replay import NUMBER, MemorySource, history, player


@pytest.fixture(scope="module")
def source() -> MemorySource:
    return history(12)


@pytest.fixture(scope="module")
def decisions(source: MemorySource) -> list[Decision]:
    stored = source.read(DECISIONS, NUMBER, *source.bounds(DECISIONS, NUMBER))
    batches = [Codec().decode(each.value() or b"", DecisionBatch) for each in stored]
    return [decision for batch in batches for decision in decisions_of(batch) if decision.node_id]


def asked(source: MemorySource, decision: Decision, change: Change) -> WhatIf:
    name = f"{decision.workflow_id}/{decision.task_id}/{decision.attempt}"
    settings = ContinuationSettings()
    return what_if(player(source), Range(), name, change, HEURISTICS, Constraints(()), settings)


def test_without_a_change_nothing_changes(source: MemorySource, decisions: list[Decision]) -> None:
    found = asked(source, decisions[20], Change())

    assert found.node_id == found.recorded.node_id == decisions[20].node_id
    assert found.makespan[0] == found.workflow[0] == found.cost[0] == 0.0
    assert found.happened.kind == "finished"
    assert found.happened.runtime_s


def test_another_node_is_another_course(source: MemorySource, decisions: list[Decision]) -> None:
    decision = next(d for d in decisions[10:] if len(d.candidates) > 2 and d.feasible > 2)
    other = next(node for node in decision.candidates if node != decision.node_id)

    found = asked(source, decision, Change(node_id=other))

    assert found.node_id == other
    assert found.expected_s != found.otherwise_s
    assert found.workflow[0] != 0.0
    assert any(f"otherwise: {other}" in line for line in in_lines(found))


def test_a_node_that_cannot_take_it_says_why(source: MemorySource, decisions: list[Decision]) -> None:
    decision = next(d for d in decisions if d.feasible < 8)
    tried = [asked(source, decision, Change(node_id=f"n{at:04d}")) for at in range(8)]
    refused = [found for found in tried if found.node_id is None]

    assert len(refused) >= 8 - decision.feasible  # earlier tasks of its batch may have taken more
    assert all(found.why_not and "cannot take it: " in found.why_not for found in refused)
    assert all(found.courses == () for found in refused)


def test_another_policy_decides_then_and_after(source: MemorySource, decisions: list[Decision]) -> None:
    found = asked(source, decisions[0], Change(policy=HEURISTICS["random"]))

    assert found.node_id is not None
    assert found.makespan[0] != 0.0


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("nothing", Change(), "is no decision"),
        ("no/such", Change(), "no such decision"),
        (None, Change(node_id="nowhere"), "there is no node 'nowhere'"),
        (None, Change(metrics={"nowhere": {}}), "there is no node 'nowhere'"),
        (None, Change(metrics={"n0000": {"heat": 1.0}}), "there is no metric 'heat'"),
    ],
)
def test_what_cannot_be_asked_is_refused(source: MemorySource, decisions, name, change: Change, problem: str) -> None:
    name = name or f"{decisions[0].workflow_id}/{decisions[0].task_id}"

    with pytest.raises(InvalidInput, match=problem):
        what_if(player(source), Range(), name, change, HEURISTICS, Constraints(()), ContinuationSettings())


def test_changes_are_written_as_node_metric_and_value() -> None:
    assert changes_of(["a.b.cpu_utilisation=0.5", "a.b.failure_rate=1"]) == {
        "a.b": {"cpu_utilisation": 0.5, "failure_rate": 1.0}
    }
    for text in ("cpu=1", "a.cpu", "a.cpu=much", "a.cpu=nan"):
        with pytest.raises(InvalidInput, match="is not NODE"):
            changes_of([text])
