"""The ring of samples against a model that keeps every sample."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policy.windows import STEP_MS, STEPS, Windows
from schemas.records import METRICS
from tests.builders import START_MS

M = len(METRICS)
NODES = 20
FIRST = START_MS // STEP_MS

samples = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 3), st.integers(0, 60), st.just(200)),  # the step
        st.lists(st.sampled_from([0, 1, 2, NODES - 1]), min_size=1, max_size=3, unique=True),
        st.floats(0, 1, width=32),
        st.booleans(),  # whether one of the metrics was not measured
    ),
    max_size=25,
)


class EverySample:
    """Keeps all that was written, and looks it up slowly."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, int], list[float]] = {}
        self.latest: dict[int, list[float]] = {}
        self.last: dict[int, int] = {}
        self.newest = -1
        self.late = 0

    def write(self, node: int, step: int, values: list[float]) -> None:
        if step <= self.newest - STEPS:
            self.late += 1
            return
        self.values[node, step] = values
        if step >= self.last.get(node, -1):
            before = self.latest.get(node, [np.nan] * M)
            self.latest[node] = [old if np.isnan(new) else new for new, old in zip(values, before, strict=True)]
        self.last[node] = max(step, self.last.get(node, -1))

    def read(self) -> np.ndarray:
        steps = range(self.newest - STEPS + 1, self.newest + 1)
        unseen = [np.nan] * M
        return np.array([[self.values.get((n, s), unseen) for n in range(NODES)] for s in steps], np.float32)


@given(samples)
def test_the_ring_holds_what_a_full_record_of_all_samples_holds(written):
    windows, model = Windows(), EverySample()

    for step, nodes, value, has_gap in written:
        values_nm = np.array([[value + n / 100] * M for n in nodes], np.float32)
        values_nm[:, 2] = np.nan if has_gap else values_nm[:, 2]
        windows.write(np.array(nodes), values_nm, START_MS + step * STEP_MS + 7)
        for node, values in zip(nodes, values_nm.tolist(), strict=True):
            model.write(node, FIRST + step, values)
        model.newest = max(model.newest, FIRST + step)

    np.testing.assert_array_equal(windows.read(NODES), model.read())
    latest_nm = np.array([model.latest.get(n, [np.nan] * M) for n in range(NODES)], np.float32)
    np.testing.assert_array_equal(windows.latest(NODES), latest_nm)
    assert windows.late_samples == model.late


def test_the_newest_of_several_samples_in_one_step_counts():
    windows = Windows()

    write(windows, 0, 0.1)
    write(windows, 0, 0.2)

    assert windows.read(1)[-1, 0, 0] == np.float32(0.2)


def test_a_sample_within_the_window_fills_its_own_step():
    windows = Windows()
    write(windows, 5, 0.5)

    write(windows, 3, 0.3)

    assert np.array_equal(windows.read(1)[-3:, 0, 0], np.array([0.3, np.nan, 0.5], np.float32), equal_nan=True)
    assert windows.latest(1)[0, 0] == 0.5


def test_a_sample_that_comes_after_its_window_is_counted_and_left_aside():
    windows = Windows()
    write(windows, STEPS, 0.9)

    write(windows, 0, 0.1)

    assert windows.late_samples == 1
    assert np.isnan(windows.read(1)[:-1]).all()


def test_a_node_that_was_silent_shows_no_old_samples():
    windows = Windows()
    write(windows, 0, 0.1)

    write(windows, 2 * STEPS, 0.2, node=1)

    assert np.isnan(windows.read(2)[:, 0]).all()
    assert windows.latest(2)[0, 0] == np.float32(0.1)


def test_nothing_is_known_of_a_forgotten_node():
    windows = Windows()
    write(windows, 0, 0.1)

    windows.forget(0)
    write(windows, 1, 0.2)

    assert np.array_equal(windows.read(1)[-2:, 0, 0], np.array([np.nan, 0.2], np.float32), equal_nan=True)


def write(windows: Windows, step: int, value: float, node: int = 0) -> None:
    windows.write(np.array([node]), np.full((1, M), value, np.float32), START_MS + step * STEP_MS)
