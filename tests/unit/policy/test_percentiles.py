"""Percentiles of the last hours, in little memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.percentiles import ERROR, HOUR_MS, RollingPercentile

DAY = 24


def of(values: list[float], hours: int = 7 * DAY) -> RollingPercentile:
    found = RollingPercentile(hours)
    for value in values:
        found.add(value, 0)
    return found


def test_nothing_has_no_percentile():
    assert of([]).percentile() is None


def test_of_a_hundred_values_the_ninety_fifth_is_meant():
    found = of([float(v) for v in range(1, 101)])

    assert found.percentile(0.95) == pytest.approx(95, rel=ERROR)
    assert found.percentile(0.5) == pytest.approx(50, rel=ERROR)
    assert len(found) == 100


@given(st.lists(st.floats(1e-8, 1e11), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_percentile_is_off_by_the_error_at_most(values, share):
    exact = float(np.percentile(values, 100 * share, method="inverted_cdf"))

    assert of(values).percentile(share) == pytest.approx(exact, rel=1.01 * ERROR)


def test_the_window_forgets_after_seven_days_and_not_before():
    found = of([1000.0])
    found.add(10.0, 7 * DAY * HOUR_MS - 1)
    before = found.percentile()
    found.add(10.0, 7 * DAY * HOUR_MS)

    assert before == pytest.approx(1000.0, rel=ERROR)
    assert found.percentile() == pytest.approx(10.0, rel=ERROR)
    assert len(found) == 2


def test_a_value_that_comes_too_late_for_the_window_has_no_effect():
    found = RollingPercentile(1)
    found.add(1.0, 10 * HOUR_MS)
    found.add(1e6, 8 * HOUR_MS)

    assert found.percentile() == pytest.approx(1.0, rel=ERROR)
    assert len(found) == 1


def test_a_value_of_an_earlier_hour_is_forgotten_with_that_hour():
    found = RollingPercentile(2)
    found.add(1.0, 2 * HOUR_MS)
    found.add(100.0, 1 * HOUR_MS)
    both = found.percentile()
    found.forget(3 * HOUR_MS)

    assert both == pytest.approx(100.0, rel=ERROR)
    assert found.percentile() == pytest.approx(1.0, rel=ERROR)


def test_values_beyond_the_range_are_taken_for_its_ends_so_that_memory_is_bounded():
    found = of([0.0, 1e300])

    assert found.percentile(0.5) == pytest.approx(1e-9, rel=ERROR)
    assert found.percentile(1.0) == pytest.approx(1e12, rel=ERROR)
