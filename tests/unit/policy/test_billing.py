"""Who pays for a node, and for what."""

from __future__ import annotations

import pytest

from policy.billing import Bill, CostSettings, split
from schemas.errors import InvalidConfiguration

HOUR_MS = 3_600_000
A, B = ("w", "a", 0), ("w", "b", 0)
GIB = 2**30


def test_an_attempt_that_is_alone_pays_for_the_whole_node():
    bill = Bill()
    bill.begin(A, "n0", 0.25, 2.0, 0)

    assert bill.end(A, 2.0, HOUR_MS) == pytest.approx(2.0)


def test_those_who_share_a_node_share_its_price_by_their_shares():
    bill = Bill()
    bill.begin(A, "n0", 0.25, 2.0, 0)
    bill.begin(B, "n0", 0.75, 2.0, HOUR_MS)

    of_a = bill.end(A, 2.0, 2 * HOUR_MS)  # an hour alone, and a quarter of the next one
    of_b = bill.end(B, 2.0, 3 * HOUR_MS)  # three quarters of that, and an hour alone

    assert of_a == pytest.approx(2.0 + 0.5)
    assert of_b == pytest.approx(1.5 + 2.0)


def test_an_idle_node_costs_nobody_anything():
    bill = Bill()
    bill.begin(A, "n0", 0.5, 2.0, 0)
    bill.end(A, 2.0, HOUR_MS)
    bill.begin(B, "n0", 0.5, 2.0, 9 * HOUR_MS)

    assert bill.end(B, 2.0, 10 * HOUR_MS) == pytest.approx(2.0)


def test_an_attempt_that_takes_nothing_pays_nothing():
    bill = Bill()
    bill.begin(A, "n0", 0.0, 2.0, 0)

    assert bill.expected(A, 2.0, 60.0) == 0.0
    assert bill.end(A, 2.0, HOUR_MS) == 0.0


def test_what_is_expected_is_what_it_pays_when_nobody_comes_or_leaves():
    bill = Bill()
    bill.begin(A, "n0", 0.25, 2.0, 0)
    bill.begin(B, "n0", 0.75, 2.0, 0)

    assert bill.expected(B, 2.0, 1800.0) == pytest.approx(0.75)
    assert bill.end(B, 2.0, HOUR_MS // 2) == pytest.approx(0.75)


def test_the_price_goes_to_cpu_and_gpu_as_the_task_takes_them_and_storage_comes_on_top():
    costs = split(3.0, (8000, 4 * GIB, 2, 0), 5 * GIB, CostSettings(gpu_in_cores=8, storage_per_gib=0.01))

    assert costs == pytest.approx((1.0, 2.0, 0.05))


def test_a_task_without_gpu_pays_for_cpu_alone():
    assert split(3.0, (0, GIB, 0, 0), 0, CostSettings()) == (3.0, 0.0, 0.0)


@pytest.mark.parametrize("name", ["gpu_in_cores", "storage_per_gib"])
def test_a_price_below_nothing_is_refused_by_its_name(name):
    with pytest.raises(InvalidConfiguration, match=rf"cost\.{name}"):
        CostSettings(**{name: -1.0})
