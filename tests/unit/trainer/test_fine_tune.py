"""What fine-tuning from logged decisions does to a policy, and what it leaves alone."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from policy.features import PAIR_FEATURES
from policy.network import CONTEXT, HIDDEN, ActorCritic
from policy.weight_set import shipped_weights
from schemas.errors import InvalidConfiguration
from trainer.export import restored
from trainer.fine_tune import (
    Expectation,
    FineTuneSettings,
    Lessons,
    Tuned,
    estimated_gain,
    fine_tune,
    importance,
    log_probs,
)

COST = PAIR_FEATURES.index("cost")
QUICK = FineTuneSettings(steps=40, batch=128)


@pytest.fixture(scope="module")
def parent() -> ActorCritic:
    return restored(shipped_weights())


def lessons_of(parent: ActorCritic, count: int = 400, seed: int = 0) -> Lessons:
    """Decisions of the parent's own, worth as much as the chosen node's `cost` says, and noise."""
    rng = np.random.default_rng(seed)
    context_bc = rng.random((count, CONTEXT), np.float32)
    context_bc[:, -HIDDEN:] = 0
    pair_bpn = rng.random((count, len(PAIR_FEATURES), 6), np.float32)
    mask_bn = rng.random((count, 6)) < 0.8
    mask_bn[:, 0] = True
    asked = Lessons(
        context_bc,
        pair_bpn,
        mask_bn,
        np.zeros(count, np.int64),
        np.zeros(count),
        np.full(count, 8.0),
        np.zeros(count),
    )
    chance_bn = np.stack([np.exp(log_probs(parent, replace(asked, node_b=np.full(count, n)))) for n in range(6)], 1)
    node_b = np.array([rng.choice(6, p=p_n / p_n.sum()) for p_n in chance_bn])
    reward_b = pair_bpn[np.arange(count), COST, node_b] + 0.1 * rng.standard_normal(count)
    return replace(asked, node_b=node_b, log_prob_b=np.log(chance_bn[np.arange(count), node_b]), reward_b=reward_b)


def favours(network: ActorCritic, parent: ActorCritic, lessons: Lessons) -> float:
    """Whether the network likes better what was worth more than the parent does: a correlation."""
    moved_b = log_probs(network, lessons) - log_probs(parent, lessons)
    return float(np.corrcoef(moved_b, lessons.reward_b)[0, 1])


def test_a_weight_is_a_ratio_of_probabilities_up_to_the_most():
    log_prob_b, behaviour_b = torch.log(torch.tensor([0.2, 0.9])), torch.log(torch.tensor([0.4, 0.3]))

    assert importance(log_prob_b, behaviour_b, 1.0).tolist() == pytest.approx([0.5, 1.0])
    assert importance(log_prob_b, behaviour_b, 20.0).tolist() == pytest.approx([0.5, 3.0])


def test_what_came_out_better_becomes_likelier(parent):
    lessons = lessons_of(parent)

    tuned = fine_tune(parent, lessons, replace(QUICK, most_kl=1.0))

    assert tuned.ended_by == "steps"
    assert tuned.kl > 0
    assert favours(tuned.network, parent, lessons_of(parent, seed=1)) > 0.2


def test_what_came_out_worse_becomes_less_likely(parent):
    lessons = lessons_of(parent)
    lost = replace(lessons, reward_b=-lessons.reward_b)

    tuned = fine_tune(parent, lost, replace(QUICK, most_kl=1.0))

    assert favours(tuned.network, parent, lessons) < -0.2


def test_decisions_that_the_policy_would_hardly_make_count_little(parent):
    lessons = lessons_of(parent)
    others = replace(lessons, log_prob_b=lessons.log_prob_b + math.log(4.0))

    assert fine_tune(parent, lessons, QUICK).mean_weight == pytest.approx(1.0, abs=1e-4)
    assert fine_tune(parent, others, QUICK).mean_weight == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("most_kl", [1e-3, 1e-2])
def test_the_distance_from_the_parent_stays_within_its_bound(parent, most_kl):
    lessons = lessons_of(parent)

    tuned = fine_tune(parent, lessons, replace(QUICK, learning_rate=0.3, kl_weight=0.0, most_kl=most_kl, check_every=1))

    assert tuned.ended_by == "kl"
    assert 0 <= tuned.kl <= most_kl
    assert tuned.steps < QUICK.steps


def test_a_bound_that_no_step_keeps_leaves_the_parent(parent):
    tuned = fine_tune(parent, lessons_of(parent), replace(QUICK, learning_rate=10.0, most_kl=1e-6))

    assert (tuned.steps, tuned.kl, tuned.ended_by) == (0, 0.0, "kl")
    assert bits(tuned) == {name: tensor.numpy().tobytes() for name, tensor in parent.state_dict().items()}


def test_the_end_of_the_time_keeps_what_was_reached(parent):
    answers = iter([False] * 25 + [True])

    tuned = fine_tune(parent, lessons_of(parent), QUICK, lambda: next(answers))

    assert (tuned.steps, tuned.ended_by) == (20, "time")


def test_equal_lessons_and_seeds_make_equal_weights_and_other_seeds_others(parent):
    first, second = (fine_tune(parent, lessons_of(parent), QUICK) for _ in range(2))
    other = fine_tune(parent, lessons_of(parent), replace(QUICK, seed=1))

    assert bits(first) == bits(second)
    assert bits(first) != bits(other)


def test_only_what_weighs_the_features_changes_and_silent_units_stay_silent(parent):
    tuned = fine_tune(parent, lessons_of(parent), QUICK).network
    before, after = parent.state_dict(), tuned.state_dict()

    changed = {name for name in before if not torch.equal(before[name], after[name])}

    assert changed == {"head.weight.weight", "head.weight.bias"}
    is_silent_h = ~before["head.weight.weight"].any(dim=0)
    assert is_silent_h.any()
    assert not after["head.weight.weight"][:, is_silent_h].any()


def test_what_was_to_be_expected_is_no_surprise():
    rng = np.random.default_rng(0)
    features_bf = np.column_stack([rng.random((500, 2)), np.ones(500)])
    reward_b = 3 + 2 * features_bf[:, 0] - features_bf[:, 1]

    expected_b = Expectation.fitted(features_bf, reward_b).of(features_bf)

    assert expected_b == pytest.approx(reward_b, abs=0.02)


def test_the_estimate_tells_a_better_policy_from_a_worse_one(parent):
    lessons, held = lessons_of(parent, 800), lessons_of(parent, 800, seed=1)
    flow_b = np.arange(800) // 8
    settings = replace(QUICK, steps=100, learning_rate=0.1, most_kl=1.0, kl_weight=0.01)
    better = fine_tune(parent, lessons, settings)
    worse = fine_tune(parent, replace(lessons, reward_b=-lessons.reward_b), settings)

    gain, margin = estimated_gain(better.network, parent, held, flow_b, better.expectation)
    loss, of_loss = estimated_gain(worse.network, parent, held, flow_b, better.expectation)
    none, _ = estimated_gain(copy.deepcopy(parent), parent, held, flow_b, better.expectation)

    assert gain > margin > 0
    assert loss + of_loss < 0
    assert none == 0


def test_an_emergency_takes_fifty_steps_of_ten_times_the_size():
    found = FineTuneSettings(learning_rate=0.002).emergency

    assert (found.steps, found.learning_rate) == (50, pytest.approx(0.02))


@pytest.mark.parametrize("field", ["steps", "batch", "learning_rate", "most_kl", "most_weight"])
def test_settings_that_mean_nothing_are_refused(field):
    with pytest.raises(InvalidConfiguration, match=field):
        FineTuneSettings(**{field: 0})


def bits(tuned: Tuned) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tuned.network.state_dict().items()}
