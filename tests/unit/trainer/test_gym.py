"""The simulator is a Gymnasium environment as Gymnasium itself understands it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from trainer.gym import INFEASIBLE, Placing
from trainer.suite import Setup
from trainer.workloads import WorkloadSettings


@pytest.fixture
def placing() -> Placing:
    return Placing(Setup(name="small", nodes=6, workload=WorkloadSettings(workflows=6, tasks=(2, 6), load=0.9)))


def played(placing: Placing, seed: int, best: bool = True) -> tuple[list[float], list[np.ndarray]]:
    """One episode: of the feasible nodes always the one that is done first, or always node 0."""
    shown, _ = placing.reset(seed=seed)
    rewards, seen, is_over = [], [shown["pairs"]], False
    while not is_over:
        action = shown["pairs"][:, 0].argmax() if best else np.int64(0)
        shown, reward, is_over, is_cut, info = placing.step(action)
        assert not is_cut
        assert (info["action_mask"] == shown["mask"]).all()
        rewards.append(reward)
        seen.append(shown["pairs"])
    return rewards, seen


def test_gymnasium_finds_nothing_wrong(placing):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Box observation space.*infinity.*")
        warnings.filterwarnings("ignore", message=".*(minimum|maximum) value.*infinity.*")
        check_env(placing, skip_render_check=True)


def test_one_seed_makes_one_episode_and_another_another(placing):
    first, again, other = (played(placing, seed) for seed in (3, 3, 4))

    assert first[0] == again[0]
    assert all(np.array_equal(a, b) for a, b in zip(first[1], again[1], strict=True))
    assert first[0] != other[0]


def test_an_episode_ends_with_nothing_left_to_choose(placing):
    rewards, seen = played(placing, seed=0)

    assert len(rewards) >= 12
    assert not seen[-1].any()


def test_an_infeasible_node_is_replaced_and_costs(placing):
    rewards = []
    for offset in (0, 1):
        shown, _ = placing.reset(seed=5)
        while shown["mask"].all():
            shown, *_ = placing.step(shown["pairs"][:, 0].argmax())
        closed = int(np.flatnonzero((shown["mask"] == 0) & (np.roll(shown["mask"], -1) == 1))[0])
        rewards.append(placing.step(np.int64((closed + offset) % 6))[1])

    assert rewards[0] == pytest.approx(rewards[1] + INFEASIBLE)
