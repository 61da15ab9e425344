"""Scores to choices: probabilities, ties, room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.arbiter import BLOCK, NOWHERE, arbitrate, draw, masked

LARGEST = 200.0


@dataclass(frozen=True)
class Batch:
    """What `arbitrate` is asked about."""

    logits_bn: np.ndarray
    mask_bn: np.ndarray
    request_br: np.ndarray
    free_rn: np.ndarray
    draw_b: np.ndarray

    def choices(self, temperature: float):
        return arbitrate(masked(self.logits_bn, self.mask_bn), self.request_br, self.free_rn, temperature, self.draw_b)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Up to six tasks on up to five nodes; what does not fit on its own is masked, and some more."""
    tasks, nodes = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    numbers = st.lists(st.floats(-LARGEST, LARGEST, width=32), min_size=tasks * nodes, max_size=tasks * nodes)
    logits_bn = np.array(draw(numbers), np.float32).reshape(tasks, nodes)
    masked = st.lists(st.sampled_from((True, True, False)), min_size=tasks * nodes, max_size=tasks * nodes)
    request_br = np.array(draw(st.lists(st.sampled_from(((1, 1), (2, 0), (0, 3))), min_size=tasks, max_size=tasks)))
    request_br = request_br.reshape(tasks, 2)
    free_rn = np.array(draw(st.lists(st.integers(0, 4), min_size=2 * nodes, max_size=2 * nodes))).reshape(2, nodes)
    fits_bn = (request_br[:, :, None] <= free_rn[None]).all(axis=1)
    draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=tasks, max_size=tasks)
    mask_bn = np.array(draw(masked), bool).reshape(tasks, nodes) & fits_bn
    return Batch(logits_bn, mask_bn, request_br, free_rn, np.array(draw(draws)))


def one_by_one(batch: Batch, temperature: float, chosen: list[int]) -> list[np.ndarray]:
    """Each task's softmax over what the tasks before it, which took `chosen`, left; slowly."""
    free_rn, probabilities = batch.free_rn.copy(), []
    for row, node in enumerate(chosen):
        request_r = batch.request_br[row]
        ok = [bool(m) and (request_r <= free_rn[:, n]).all() for n, m in enumerate(batch.mask_bn[row])]
        scaled = [
            float(x) / temperature if is_ok else -np.inf for x, is_ok in zip(batch.logits_bn[row], ok, strict=True)
        ]
        weights = np.array([np.exp(s - max(scaled)) if any(ok) and s > -np.inf else 0.0 for s in scaled])
        probabilities.append(weights / weights.sum() if any(ok) else weights)
        if node != NOWHERE:
            free_rn[:, node] -= request_r
    return probabilities


@given(batches(), st.sampled_from((0.05, 0.3, 1.0)))
def test_the_probabilities_are_those_of_a_softmax_computed_task_by_task(batch, temperature):
    choices = batch.choices(temperature)

    expected = one_by_one(batch, temperature, [c.node for c in choices])
    for choice, probability_n in zip(choices, expected, strict=True):
        np.testing.assert_allclose(choice.probability_n, probability_n, rtol=1e-4, atol=1e-30)
        if choice.node == NOWHERE:
            assert not probability_n.any()
        else:
            assert choice.log_prob == pytest.approx(np.log(probability_n[choice.node]), rel=1e-4, abs=1e-6)


@given(batches(), st.sampled_from((0.0, 0.3, 1.0)))
def test_a_batch_never_takes_more_than_is_free(batch, temperature):
    choices = batch.choices(temperature)

    left_rn = batch.free_rn.copy()
    for row, choice in enumerate(choices):
        if choice.node != NOWHERE:
            assert batch.mask_bn[row, choice.node]
            left_rn[:, choice.node] -= batch.request_br[row]
    assert (left_rn >= 0).all()


@given(batches())
def test_without_temperature_the_best_node_that_has_room_is_taken(batch):
    choices = batch.choices(0.0)

    left_rn = batch.free_rn.copy()
    for row, choice in enumerate(choices):
        ok_n = batch.mask_bn[row] & (batch.request_br[row][:, None] <= left_rn).all(axis=0)
        assert (choice.node == NOWHERE) == (not ok_n.any())
        if choice.node != NOWHERE:
            best = batch.logits_bn[row][ok_n].max()
            assert batch.logits_bn[row, choice.node] == pytest.approx(best, rel=1e-5, abs=1e-5)
            left_rn[:, choice.node] -= batch.request_br[row]


def test_a_masked_node_has_probability_zero_whatever_its_score():
    mask_bn = np.array([[True, False]])
    request_br, free_rn = np.ones((1, 1), int), np.ones((1, 2), int)

    for score in (1e30, np.nan, np.inf, -np.inf):
        (choice,) = arbitrate(masked(np.array([[0.0, score]]), mask_bn), request_br, free_rn, 1.0, np.array([0.999]))

        assert (choice.node, choice.log_prob, choice.probability_n.tolist()) == (0, 0.0, [1.0, 0.0])


@pytest.mark.parametrize("nodes", [1, 3, BLOCK, BLOCK + 1, 5 * BLOCK - 1])
def test_nodes_are_chosen_as_often_as_their_probability_says(nodes):
    shares_n = np.random.default_rng(nodes).integers(0, 7, nodes) + (np.arange(nodes) == nodes // 2)
    tasks = int(shares_n.sum())
    logits_bn = np.tile(np.log(np.maximum(shares_n, 1)), (tasks, 1))
    mask_bn = np.tile(shares_n > 0, (tasks, 1))
    draw_b = (np.arange(tasks) + 0.5) / tasks

    choices = arbitrate(masked(logits_bn, mask_bn), np.ones((tasks, 1), int), np.full((1, nodes), tasks), 1.0, draw_b)

    assert np.bincount([c.node for c in choices], minlength=nodes).tolist() == shares_n.tolist()


def test_of_equal_scores_the_draw_decides():
    logits_bn = np.array([[1.0, 2.0, 2.0]] * 2)
    request_br, free_rn = np.ones((2, 1), int), np.full((1, 3), 9)

    low, high = arbitrate(logits_bn.astype(np.float32), request_br, free_rn, 0.0, np.array([0.49, 0.51]))

    assert (low.node, high.node) == (1, 2)
    assert low.probability_n.tolist() == [0.0, 0.5, 0.5]


def test_a_full_favourite_leaves_the_next_best_even_if_its_share_was_nothing():
    logits_bn = np.array([[1000.0, 0.0, 1.0]] * 2)
    request_br, free_rn = np.ones((2, 1), int), np.ones((1, 3), int)

    first, second = arbitrate(logits_bn.astype(np.float32), request_br, free_rn, 0.3, np.array([0.5, 0.5]))

    assert (first.node, second.node) == (0, 2)
    assert second.log_prob == pytest.approx(-np.log1p(np.exp(-1 / 0.3)))


def test_a_batch_of_nothing_and_a_pool_of_nothing_are_no_error():
    assert arbitrate(np.zeros((0, 3), np.float32), np.zeros((0, 1)), np.ones((1, 3)), 1.0, np.zeros(0)) == []
    (choice,) = arbitrate(np.zeros((1, 0), np.float32), np.ones((1, 1)), np.ones((1, 0)), 1.0, np.zeros(1))
    assert choice.node == NOWHERE


def test_the_draw_of_an_attempt_is_its_own_and_always_the_same():
    draws = [draw("w", "t", attempt) for attempt in range(1000)]

    assert draws == [draw("w", "t", attempt) for attempt in range(1000)]
    assert len(set(draws)) == 1000
    assert all(0 <= d < 1 for d in draws)
    assert 0.45 < np.mean(draws) < 0.55


def test_names_that_run_together_have_different_draws():
    assert draw("ab", "c", 0) != draw("a", "bc", 0)
