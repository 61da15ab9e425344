"""Guards of a canary: fair under the hypothesis, however often one looks, and quick where there is harm."""

from __future__ import annotations

import itertools
import json
import math
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.sequential import Evidence, Group, Guardrails, GuardrailSettings, MeanGuard, RateGuard
from schemas.errors import InvalidConfiguration, StateLost

FAST_S, SLOW_S = 0.002, 0.1
WHAT = ("decisions", "were late")


def play(
    guardrails: Guardrails, rng: np.random.Generator, observations: int, share: float, late: float, control_late: float
) -> int | None:
    """The number of the canary's decision with which it was called harmful."""
    is_canary_o, chance_o = rng.random(observations) < share, rng.random(observations)
    for is_canary, chance in zip(is_canary_o, chance_o, strict=True):
        is_late = chance < (late if is_canary else control_late)
        guardrails.observe_decision(bool(is_canary), SLOW_S if is_late else FAST_S)
        if guardrails.is_violated:
            return guardrails.latency.groups.canary.count
    return None


def workflows_until_violated(
    guardrails: Guardrails, rng: np.random.Generator, observations: int, worse: float, cost_worse: float = 1.0
) -> int | None:
    """The same for workflows, at a share of 10 %, whose slowdowns are 2 on average and spread as far as they are."""
    is_canary_o, slowdown_o = rng.random(observations) < 0.1, 1 + rng.exponential(1.0, observations)
    cost_o = np.exp(0.4 * rng.standard_normal(observations))
    for is_canary, slowdown, cost in zip(is_canary_o, slowdown_o, cost_o, strict=True):
        guardrails.observe_workflow(
            bool(is_canary), slowdown * (worse if is_canary else 1), cost * (cost_worse if is_canary else 1)
        )
        if guardrails.is_violated:
            return guardrails.turnaround.groups.canary.count
    return None


def test_fair_bets_leave_the_mean_wealth_at_one():
    factors = ((1.5, 0.5, 1.0), (0.5, 1.5, 1.0))  # of heads and tails, for each alternative: 1 on average

    wealth = []
    for tosses in itertools.product(factors, repeat=10):
        evidence = Evidence(3)
        for factor in tosses:
            evidence.bet(np.array(factor))
        wealth.append(evidence.wealth)

    assert np.mean(wealth) == pytest.approx(1.0)


@pytest.mark.parametrize("limit", [0.01, 0.0001])
def test_a_bet_against_the_limit_is_fair_there_and_worse_below(limit):
    guard = RateGuard(WHAT, limit)

    expected = {rate: rate * guard._bad_j + (1 - rate) * guard._good_j for rate in (0.0, limit / 2, limit, 2 * limit)}

    assert expected[limit] == pytest.approx(1)
    assert (expected[0.0] < expected[limit / 2]).all()
    assert (expected[limit / 2] < 1).all()
    assert (expected[2 * limit] > 1).all()


@pytest.mark.parametrize(("canary", "control"), [(1, 1), (1, 7), (5, 1)])
def test_a_bet_on_two_groups_wins_nothing_on_average_where_the_canary_is_no_worse(canary, control):
    guard = RateGuard(WHAT, 0.01)
    rates = (0.0, 0.001, 0.02, 0.3, 0.9, 1.0)

    def mean_factor(canary_rate: float, control_rate: float) -> np.ndarray:
        return sum(
            comb(canary, a) * canary_rate**a * (1 - canary_rate) ** (canary - a)
            * comb(control, b) * control_rate**b * (1 - control_rate) ** (control - b)
            * guard._factor(Group(canary, a), Group(control, b))
            for a in range(canary + 1)
            for b in range(control + 1)
        )  # fmt: skip

    for at, canary_rate in enumerate(rates):
        for control_rate in rates[at:]:
            assert (mean_factor(canary_rate, control_rate) <= 1 + 1e-9).all(), (canary_rate, control_rate)
    assert (mean_factor(0.9, 0.02) > 1).any()


@given(
    margin=st.floats(0, 10),
    canary=st.floats(0, math.inf),
    control=st.floats(0, math.inf),
    bounds=st.sampled_from([(1.0, 30.0), (0.1, 10.0)]),
)
def test_no_workflow_can_take_all_that_is_staked(margin, canary, control, bounds):
    guard = MeanGuard("slowdown", margin, bounds)

    guard.observe(True, canary)
    guard.observe(False, control)

    assert (guard.evidence.stakes_j > 0).all()


def test_a_harmless_canary_is_hardly_ever_called_harmful_however_often_one_looks():
    settings = GuardrailSettings(alpha=0.4)
    rng = np.random.default_rng(1)

    alarms = [
        play(Guardrails(settings), rng, 1500, share=1.0, late=0.01, control_late=0.01) is not None for _ in range(200)
    ]

    # This guard's share of alpha is 0.1: more than 33 of 200 would be seen in one of a thousand such tests.
    assert 0 < sum(alarms) <= 33


def test_where_both_groups_are_as_slow_the_machine_is_and_not_the_canary():
    rng = np.random.default_rng(2)

    found = [play(Guardrails(), rng, 3000, share=0.3, late=0.05, control_late=0.05) for _ in range(20)]

    assert found == [None] * 20


def test_equal_workflows_are_no_reason_to_go_back():
    settings = GuardrailSettings(alpha=0.4, turnaround_margin=0.0, cost_margin=0.0)
    rng = np.random.default_rng(3)

    alarms = [workflows_until_violated(Guardrails(settings), rng, 3000, worse=1.0) is not None for _ in range(40)]

    assert sum(alarms) <= 15  # 8 at most are expected; more than 15 in one of a thousand such tests


@pytest.mark.parametrize(("late", "most"), [(1.0, 10), (0.1, 200), (0.03, 1500)])
def test_a_slow_canary_is_found_after_few_of_its_decisions(late, most):
    found = play(Guardrails(), np.random.default_rng(4), 50_000, share=0.1, late=late, control_late=0.002)

    assert found is not None
    assert found <= most


@pytest.mark.parametrize(("share", "most"), [(0.01, 500), (0.1, 1500), (1.0, 1000)])
def test_a_failure_rate_of_one_percent_is_found(share, most):
    guardrails = Guardrails()
    rng = np.random.default_rng(5)

    while not guardrails.is_violated and guardrails.success.groups.canary.count <= most:
        is_canary = bool(rng.random() < share)
        guardrails.observe_attempt(is_canary, not (is_canary and rng.random() < 0.01))

    assert guardrails.verdict().guard == "success"


@pytest.mark.parametrize(("worse", "most"), [(1.1, 2500), (1.5, 250), (5.0, 60)])
def test_a_longer_turnaround_is_found(worse, most):
    found = workflows_until_violated(Guardrails(), np.random.default_rng(6), 40_000, worse)

    assert found is not None
    assert found <= most


def test_a_dearer_canary_is_found_and_the_cause_has_the_numbers():
    guardrails = Guardrails()

    workflows_until_violated(guardrails, np.random.default_rng(7), 20_000, worse=1.0, cost_worse=1.5)

    verdict = guardrails.verdict()
    assert verdict.guard == "cost"
    assert verdict.evidence["cost"] >= 1
    assert f"of the canary's {guardrails.cost.groups.canary.count} workflows" in verdict.cause
    assert "5 % more may be" in verdict.cause


def test_harm_that_begins_late_is_found_as_well():
    guardrails = Guardrails()
    rng = np.random.default_rng(8)
    assert play(guardrails, rng, 20_000, share=0.5, late=0.001, control_late=0.001) is None
    before = guardrails.latency.groups.canary.count

    found = play(guardrails, rng, 5_000, share=0.5, late=0.1, control_late=0.001)

    assert found is not None
    assert found - before <= 400


def test_a_violation_stays():
    guardrails = Guardrails()
    for _ in range(30):
        guardrails.observe_decision(True, SLOW_S)
    violated = guardrails.verdict()

    for _ in range(5000):
        guardrails.observe_decision(True, FAST_S)

    assert violated.guard == "latency"
    assert guardrails.verdict().cause == violated.cause


def test_a_control_group_that_is_hardly_there_excuses_nothing():
    guardrails = Guardrails()
    for _ in range(5):
        guardrails.observe_attempt(False, True)

    for _ in range(100):
        guardrails.observe_attempt(True, False)

    assert guardrails.verdict().guard == "success"


def test_what_was_saved_goes_on_as_if_it_had_never_stopped():
    settings = GuardrailSettings(alpha=0.001, cost_margin=0.1, slowdown_range=(1.0, 50.0))
    whole, rng = Guardrails(settings), np.random.default_rng(9)
    play(whole, rng, 500, share=0.2, late=0.02, control_late=0.01)
    workflows_until_violated(whole, rng, 300, worse=1.2)

    saved = Guardrails.from_plain(json.loads(json.dumps(whole.to_plain())))

    assert saved.settings == settings
    for guardrails in (whole, saved):
        rng = np.random.default_rng(10)
        play(guardrails, rng, 300, share=0.2, late=0.3, control_late=0.01)
        workflows_until_violated(guardrails, rng, 300, worse=1.2)
    assert saved.to_plain() == whole.to_plain()
    assert saved.verdict() == whole.verdict()
    assert whole.verdict().is_violated


@pytest.mark.parametrize("damage", [{"cost": {}}, {"latency": 7}, {"settings": {"alpha": 2}}, {"violated": []}])
def test_a_damaged_state_is_refused(damage):
    plain = Guardrails().to_plain() | damage

    with pytest.raises(StateLost, match="begin the canary anew"):
        Guardrails.from_plain(plain)


def test_workflows_whose_cost_is_unknown_are_judged_by_their_turnaround():
    guardrails = Guardrails()

    guardrails.observe_workflow(True, 2.0, math.nan)

    assert guardrails.turnaround.groups.canary.count == 1
    assert guardrails.cost.groups.canary.count == 0


@pytest.mark.parametrize(
    "wrong", [{"alpha": 0.0}, {"success_rate": 1.0}, {"cost_margin": -0.1}, {"cost_range": (2.0, 1.0)}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidConfiguration, match=f"guardrails.{next(iter(wrong))}"):
        GuardrailSettings(**wrong)
