"""The worker's setting for a second look at decisions."""

from __future__ import annotations

import pytest

from policy.heuristics import heuristic
from schemas.errors import InvalidConfiguration
from streams.config import load
from streams.policies import OnlineLookaheadSettings, PolicySettings, looking_ahead
from tests.builders import a_node, a_state, a_task, decided, submit

pytestmark = pytest.mark.usefixtures("no_variables")


def test_without_a_budget_the_policy_is_the_same_object():
    policy = heuristic("srcp")

    assert looking_ahead(policy, PolicySettings()) is policy


def test_with_a_budget_decisions_say_that_they_were_looked_at_twice():
    settings = PolicySettings(lookahead=OnlineLookaheadSettings(budget_ms=50))
    state = a_state(a_node())
    submit(state, a_task())

    (placement,) = decided(state, looking_ahead(heuristic("srcp"), settings))

    assert (placement.node_id, placement.policy) == ("n0", "srcp+lookahead")


def test_the_budget_is_read_from_a_file_and_a_variable(tmp_path, monkeypatch):
    file = tmp_path / "headrace.yaml"
    file.write_text("policy:\n  lookahead:\n    budget_ms: 20\n")

    assert load(file).policy.lookahead.budget_ms == 20
    monkeypatch.setenv("HEADRACE_POLICY__LOOKAHEAD__BUDGET_MS", "30")
    assert load(file).policy.lookahead.budget_ms == 30


@pytest.mark.parametrize("budget_ms", [-1.0, float("nan"), float("inf")])
def test_a_budget_that_is_no_time_is_refused(budget_ms):
    with pytest.raises(InvalidConfiguration, match=r"policy\.lookahead\.budget_ms"):
        OnlineLookaheadSettings(budget_ms=budget_ms)


def test_a_budget_that_the_deadline_leaves_no_room_for_is_refused():
    with pytest.raises(InvalidConfiguration, match="deadline_ms"):
        PolicySettings(deadline_ms=100, lookahead=OnlineLookaheadSettings(budget_ms=100))
