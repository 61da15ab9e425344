"""The promotion rule: what a day says, and what a row of them does."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from replay.promotion import Finding, PairedDifference, Promotion, PromotionSettings, in_words
from schemas.errors import InvalidConfiguration, StateLost

DAY_MS = 86_400_000
SETTINGS = PromotionSettings(late_s=0, draws=500)


def day_of(
    promotion: Promotion, day: int, mean: float, count: int = 240, spread: float = 0.03, cost: float = 0.0
) -> None:
    """A day's differences of the makespan, normal around this mean."""
    rng = np.random.default_rng(day)
    makespan = mean + spread * rng.standard_normal(count)
    for at, value in enumerate(makespan.tolist()):
        promotion.observe(PairedDifference(day * DAY_MS + at * DAY_MS // count, value, cost))
    promotion.pass_time((day + 1) * DAY_MS)


def promotion_after(*means: float, settings: PromotionSettings = SETTINGS) -> Promotion:
    """A promotion that saw days of these means; NaN: of too few differences."""
    promotion = Promotion(settings)
    for day, mean in enumerate(means):
        day_of(promotion, day, 0.0 if np.isnan(mean) else mean, 20 if np.isnan(mean) else 240)
    return promotion


def test_seven_better_days_in_a_row_promote_and_six_do_not():
    assert promotion_after(*[-0.02] * 7).promoted_day == 6
    assert not promotion_after(*[-0.02] * 6).is_promoted


def test_a_day_that_is_not_better_begins_the_row_anew():
    promotion = promotion_after(*[-0.02] * 6, 0.0, *[-0.02] * 6)
    assert not promotion.is_promoted

    day_of(promotion, 13, -0.02)

    assert promotion.promoted_day == 13


def test_a_day_with_too_few_neither_counts_nor_breaks():
    promotion = promotion_after(*[-0.02] * 3, np.nan, np.nan, *[-0.02] * 4)

    assert promotion.promoted_day == 8
    assert [day.finding for day in promotion.days[3:5]] == [Finding.TOO_FEW] * 2


def test_a_row_over_too_many_skipped_days_begins_anew():
    promotion = promotion_after(*[-0.02] * 3, settings=replace(SETTINGS, most_skipped=2))

    for day in (6, 7, 8, 9):
        day_of(promotion, day, -0.02)

    assert promotion.row == [6, 7, 8, 9]


def test_a_candidate_that_is_better_on_two_thirds_of_single_differences_is_better_on_nearly_all_samples():
    (day,) = promotion_after(-0.012).days

    assert 0.55 < day.single_share < 0.75
    assert day.better_share > 0.99
    assert day.finding == Finding.BETTER


def test_what_is_saved_on_one_side_must_not_be_lost_on_the_other():
    promotion = Promotion(SETTINGS)

    day_of(promotion, 0, mean=-0.2, cost=0.05)

    (day,) = promotion.days
    assert day.better_share == 1
    assert day.cost_share == 0
    assert day.finding == Finding.NOT_BETTER


def test_a_candidate_like_the_incumbent_is_not_better():
    (day,) = promotion_after(0.0).days
    same = Promotion(SETTINGS)
    day_of(same, 0, mean=0.0, spread=0.0)

    assert day.finding == Finding.NOT_BETTER
    assert same.days[0].finding == Finding.NOT_BETTER


def test_an_equal_candidate_has_a_better_day_about_as_often_as_the_share_allows():
    rng = np.random.default_rng(1)
    promotion = Promotion(replace(SETTINGS, draws=200, most_skipped=365))

    for day in range(300):
        for at, value in enumerate(rng.standard_normal(120).tolist()):
            promotion.observe(PairedDifference(day * DAY_MS + at * DAY_MS // 120, 0.03 * value, 0.0))
    promotion.pass_time(300 * DAY_MS)

    found = sum(day.finding == Finding.BETTER for day in promotion.days)
    assert len(promotion.days) == 60
    assert found <= 10  # 3 of the last 60 days are expected
    assert not promotion.is_promoted


def test_differences_of_one_hour_count_as_one_whatever_their_number():
    alone, together = Promotion(SETTINGS), Promotion(SETTINGS)
    rng = np.random.default_rng(2)
    hour_values = -0.002 + 0.01 * rng.standard_normal(24)
    for hour, value in enumerate(hour_values.tolist()):
        for copy in range(100):
            together.observe(PairedDifference(hour * DAY_MS // 24 + copy, value, 0.0))
        alone.observe(PairedDifference(hour * DAY_MS // 24, value, 0.0))

    for promotion in (alone, together):
        promotion.pass_time(DAY_MS)

    assert together.days[0].better_share == alone.days[0].better_share
    assert together.days[0].finding == Finding.NOT_BETTER


def test_one_heavy_weight_is_not_many_differences():
    promotion = Promotion(SETTINGS)
    for at in range(240):
        promotion.observe(PairedDifference(at * DAY_MS // 240, -0.02, 0.0, weight=1000.0 if at == 0 else 0.01))
    promotion.pass_time(DAY_MS)

    (day,) = promotion.days
    assert day.effective == pytest.approx(1.0, abs=0.01)
    assert day.finding == Finding.TOO_FEW


def test_days_take_late_differences_for_a_while_and_are_judged_alike_in_any_order():
    settings = replace(SETTINGS, late_s=3600.0)
    rng = np.random.default_rng(3)
    differences = [
        PairedDifference(at * DAY_MS // 240, float(v), 0.0) for at, v in enumerate(rng.normal(-0.01, 0.03, 240))
    ]
    in_order, mixed = Promotion(settings), Promotion(settings)
    for at in range(240):
        in_order.observe(differences[at])
    mixed.observe(PairedDifference(DAY_MS + 1, 0.0, 0.0))
    for at in rng.permutation(240):
        mixed.observe(differences[at])

    for promotion in (in_order, mixed):
        promotion.pass_time(DAY_MS + 3_600_000)
        promotion.observe(differences[0])

    assert mixed.days[0].better_share == pytest.approx(in_order.days[0].better_share)
    assert (mixed.left_out, in_order.left_out) == (1, 1)


def test_what_is_not_finite_is_left_out():
    promotion = Promotion(SETTINGS)

    for wrong in ({"makespan": np.nan}, {"cost": np.inf}, {"weight": 0.0}, {"weight": -1.0}):
        promotion.observe(PairedDifference(**{"at_ms": 0, "makespan": 0.0, "cost": 0.0, **wrong}))

    assert promotion.left_out == 4


def test_a_restart_at_any_moment_changes_nothing():
    whole, halved = Promotion(SETTINGS), Promotion(SETTINGS)
    rng = np.random.default_rng(4)
    differences = [
        PairedDifference(int(at), float(v), 0.001)
        for at, v in zip(np.linspace(0, 9 * DAY_MS, 2000), rng.normal(-0.015, 0.03, 2000), strict=True)
    ]

    for at, difference in enumerate(differences):
        whole.observe(difference)
        halved.observe(difference)
        if at % 333 == 0:
            halved = Promotion.from_plain(json.loads(json.dumps(halved.to_plain())), SETTINGS)

    assert halved.to_plain() == whole.to_plain()
    assert halved.days == whole.days
    assert whole.is_promoted
    assert "promoted: better on 7 days in a row" in in_words(whole)[0]
    assert len(in_words(whole)) == 1 + len(whole.days)


@pytest.mark.parametrize("damage", [{"row": None}, {"days": [{"day": 1}]}, {"open": {"0": {}}}, {"day_s": 60.0}])
def test_a_damaged_state_or_one_of_other_days_is_refused(damage):
    plain = promotion_after(-0.02).to_plain() | damage

    with pytest.raises(StateLost, match="begin to compare anew"):
        Promotion.from_plain(plain, SETTINGS)


@pytest.mark.parametrize("wrong", [{"days": 0}, {"share": 1.1}, {"makespan_weight": 0.0, "cost_weight": 0.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidConfiguration, match=r"promotion\."):
        PromotionSettings(**wrong)
