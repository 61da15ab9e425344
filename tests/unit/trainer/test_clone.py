"""Behaviour cloning: what is collected, that it is learnt, and that a run can be repeated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from policy.actor import Actor, ActorSettings
from policy.heuristics import heuristic
from policy.network import ActorCritic
from policy.weight_set import read_weights
from schemas.errors import InvalidConfiguration
from tests.builders import a_node, a_state, a_task, an_observation, some_nodes, submit
from trainer import clone as cloning
from trainer.clone import EVALUATION, HELD_OUT, TRAINING, CloneSettings, Lessons, agreed, collect, fit, scenario
from trainer.moments import Memory


def small(tmp_path, **fields) -> CloneSettings:
    """Settings of a run of seconds."""
    known = {
        "out": tmp_path / "weights",
        "episodes": 3,
        "held_out": 1,
        "evaluated": 2,
        "nodes": (6,),
        "workflows": 10,
        "tasks": (2, 10),
        "epochs": 8,
        "batch": 32,
    }
    return CloneSettings(**(known | fields))


def silent(line: str) -> None:
    pass


def test_every_node_that_the_teacher_likes_best_is_wanted(tmp_path):
    state = a_state(*some_nodes(2, speed=2.0), a_node("n2"), a_node("n3", speed=9.0, cpu=1.0))
    submit(state, a_task(cpu=2.0))
    lessons = Lessons(Memory(), [])
    policy = cloning._recorded(heuristic("random"), heuristic("heft"), lessons)

    scores_bn = policy.score(an_observation(state))

    assert [best_n.tolist() for best_n in lessons.best] == [[True, True, False, False]]
    assert len(lessons.memory.moments) == 1
    assert scores_bn.tolist() == [[0, 0, 0, 0]]


def test_the_network_learns_what_its_prior_does_not_do(tmp_path):
    settings = small(tmp_path, teacher="cost_greedy")
    teacher = heuristic("cost_greedy")
    torch.manual_seed(0)
    network = ActorCritic()
    lessons = collect(settings, teacher, TRAINING, settings.episodes, silent)
    exam = collect(settings, teacher, HELD_OUT, settings.held_out, silent)
    before = agreed(network, exam, settings)

    fit(network, lessons, settings, silent)

    after = agreed(network, exam, settings)
    assert before < 0.8
    assert after > before + 0.1


def test_training_held_out_and_evaluation_never_share_an_episode(tmp_path):
    settings = small(tmp_path)

    played = [scenario(settings, purpose, 0)[1] for purpose in (TRAINING, HELD_OUT, EVALUATION)]

    firsts = [workflows[0].tasks[0].runtime_s for workflows in played]
    assert len(set(firsts)) == 3


def test_an_episode_is_the_same_whoever_plays_it(tmp_path):
    settings = small(tmp_path)

    one, other = scenario(settings, EVALUATION, 1), scenario(settings, EVALUATION, 1)

    assert one == other


def test_the_decisions_that_are_collected_are_the_same_twice(tmp_path):
    settings, teacher = small(tmp_path), heuristic("heft")

    one, other = (collect(settings, teacher, TRAINING, 3, silent) for _ in range(2))

    assert len(one.best) == len(other.best) > 50
    for left, right in zip(one.memory.moments, other.memory.moments, strict=True):
        assert np.array_equal(left.pair_pn, right.pair_pn)


def test_a_clone_is_exported_measured_and_the_same_twice(tmp_path):
    lines: list[str] = []
    settings = small(tmp_path, epochs=2)

    folder = cloning.clone(settings, lines.append)
    again = cloning.clone(replace(settings, out=tmp_path / "again"), silent)

    weights = read_weights(folder)
    assert weights.files == read_weights(again).files
    evaluation = weights.manifest.evaluation
    assert evaluation["agreement"] > 0.9
    assert evaluation["turnaround_clone_over_heft"] == pytest.approx(1.0, abs=0.1)
    assert evaluation["turnaround_actor_over_heft"] == pytest.approx(1.0, abs=0.3)
    assert evaluation["turnaround_random_over_heft"] > evaluation["turnaround_actor_over_heft"]
    assert "--teacher heft" in weights.manifest.command
    assert any("epoch 2/2" in line for line in lines)
    state = a_state(*some_nodes(3))
    submit(state, a_task())
    assert Actor(weights, ActorSettings(device="cpu")).score(an_observation(state)).shape == (1, 3)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"episodes": 0}, "clone.episodes"),
        ({"evaluated": 1}, "clone.evaluated"),
        ({"nodes": ()}, "nodes and loads"),
        ({"loads": (0.0,)}, "nodes and loads"),
        ({"learning_rate": 0.0}, "clone.learning_rate"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path, fields, named):
    with pytest.raises(InvalidConfiguration, match=named):
        small(tmp_path, **fields)


def test_an_unknown_teacher_is_refused_before_anything_is_played(tmp_path):
    with pytest.raises(InvalidConfiguration, match="did you mean 'heft'"):
        cloning.clone(small(tmp_path, teacher="hefty"), silent)
