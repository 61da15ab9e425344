"""The worker's setting for a second look at decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count

import pytest

from policy.heuristics import heuristic
from schemas.errors import InvalidConfiguration
from streams.config import load
from streams.policies import PolicySettings, looking_ahead
from streams.second_look import OnlineLookaheadSettings, affordable, looking_twice
from tests.builders import a_node, a_state, a_task, decided, submit

pytestmark = pytest.mark.usefixtures("no_variables")


def test_without_a_budget_the_policy_is_the_same_object():
    policy = heuristic("srcp")

    assert looking_ahead(policy, PolicySettings()) is policy


def test_with_a_budget_decisions_say_that_they_were_looked_at_twice():
    settings = PolicySettings(lookahead=OnlineLookaheadSettings(budget_ms=50, samples=6))
    state = a_state(a_node())
    submit(state, a_task())

    (placement,) = decided(state, looking_ahead(heuristic("srcp"), settings))

    assert (placement.node_id, placement.policy) == ("n0", "srcp+lookahead/6")


def clock_of(step_s: float) -> Callable[[], float]:
    """Goes on by so much with each look at it."""
    return (at * step_s for at in count()).__next__


@pytest.mark.parametrize(("budget_ms", "samples"), [(8.5, 8), (4.5, 4), (3.5, 3), (200.0, 24)])
def test_time_becomes_as_many_samples_as_fit_into_it_and_no_more_than_are_of_use(budget_ms, samples):
    assert affordable(budget_ms, clock_of(0.004)) == samples  # four take 4 ms


def test_a_worker_measures_once_and_its_policy_says_how_often_it_plays():
    look, clock_s = OnlineLookaheadSettings(budget_ms=8.5), clock_of(0.004)

    first, second = (looking_twice(heuristic(name), look, clock_s) for name in ("srcp", "heft"))

    assert (first.name, second.name) == ("srcp+lookahead/8", "heft+lookahead/8")
    assert clock_s() == pytest.approx(0.004 * 10)  # five times before and after, and no more


def test_a_number_of_samples_that_is_given_needs_no_clock():
    def never() -> float:
        raise AssertionError("nobody asked for the time")

    look = OnlineLookaheadSettings(budget_ms=8.5, samples=5)

    assert looking_twice(heuristic("srcp"), look, never).name == "srcp+lookahead/5"


def test_a_budget_that_is_too_small_is_said_and_changes_nothing(caplog):
    policy = heuristic("srcp")

    with caplog.at_level(logging.WARNING, "headrace.policy"):
        assert looking_twice(policy, OnlineLookaheadSettings(budget_ms=3.5), clock_of(0.004)) is policy

    assert [record.message for record in caplog.records] == ["lookahead.off"]


def test_samples_without_a_budget_are_refused():
    with pytest.raises(InvalidConfiguration, match=r"policy\.lookahead\.samples"):
        OnlineLookaheadSettings(samples=8)


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
