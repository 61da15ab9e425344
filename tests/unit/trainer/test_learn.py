"""The network learns from its choices: to the same weights every time, and however often it is stopped."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policy.simulator import is_spot
from policy.weight_set import Manifest, WeightSet, read_weights
from schemas.errors import InvalidConfiguration
from trainer import learn as learning
from trainer.ablation import FULL, AblationSettings, Row, as_json, table, two_way_interval
from trainer.acceptance import START
from trainer.anomalies import FILE, MOST, recordings, with_anomalies
from trainer.checkpoint import Checkpoint
from trainer.clone import one_thread
from trainer.evaluate import usual_baseline
from trainer.learn import LearnSettings, Training, beginning, learn, priority
from trainer.practice import CALM, RECORDED, Adversary, Lesson, tasks_at
from trainer.presets import best_of
from trainer.returns import Scale, advantages
from trainer.rollouts import RolloutSettings
from trainer.workers import start_workers


def silent(line: str) -> None:
    pass


def small(tmp_path: Path, updates: int = 3, **fields) -> LearnSettings:
    rollouts = RolloutSettings(environments=4, steps=8, pool=2)
    known = {"decisions": 32 * updates, "rollouts": rollouts, "minibatches": 2, "checked": 2, "processes": 1}
    return LearnSettings(out=tmp_path / "weights", **(known | fields))


@pytest.fixture(scope="module")
def usual():
    with start_workers(1) as workers:
        return usual_baseline(workers)


def trained(
    settings: LearnSettings, usual, checkpoint: Checkpoint | None = None
) -> tuple[list[np.ndarray], list[float]]:
    """The weights, and the curve of the entropy."""
    with one_thread():
        training = Training(settings, beginning(settings), usual)
        log = Curve()
        training.run(silent, log, checkpoint)
    return [value.numpy().copy() for value in training.network.state_dict().values()], log.entropy


class Curve:
    """In place of TensorBoard."""

    def __init__(self) -> None:
        self.entropy: list[float] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if name == "learn/entropy":
            self.entropy.append(value)


def are_equal(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def test_one_seed_makes_one_network_and_another_another(tmp_path, usual):
    first, again = (trained(small(tmp_path), usual) for _ in range(2))
    other = trained(small(tmp_path, seed=1), usual)

    assert are_equal(first[0], again[0])
    assert first[1] == again[1]
    assert not are_equal(first[0], other[0])


@pytest.mark.parametrize("fields", [{}, {"clip": 0.2, "epochs": 2}], ids=["A2C", "PPO"])
def test_who_is_stopped_goes_on_to_the_same_curve_and_network(tmp_path, usual, monkeypatch, fields):
    settings = small(tmp_path, updates=4, warm_up=0.0, **fields)
    straight, curve = trained(settings, usual)
    checkpoint = Checkpoint(settings.out, settings.essence)
    write = Checkpoint.write

    def write_and_stop(self, state):
        write(self, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        trained(settings, usual, checkpoint)
    monkeypatch.setattr(Checkpoint, "write", write)
    resumed, rest = trained(settings, usual, checkpoint)

    assert are_equal(resumed, straight)
    assert rest == curve[-len(rest) :]
    assert 0 < len(rest) < len(curve)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    Checkpoint(tmp_path / "weights", small(tmp_path).essence).write({"done": 1})

    with pytest.raises(InvalidConfiguration, match="other settings"):
        Checkpoint(tmp_path / "weights", small(tmp_path, seed=5).essence).read()


def test_while_only_the_critic_learns_the_policy_stays(tmp_path, usual):
    settings = small(tmp_path, warm_up=0.99)
    with one_thread():
        training = Training(settings, beginning(settings), usual)
        before = [
            p.detach().clone() for p in (*training.network.head.parameters(), *training.network.dags.parameters())
        ]
        critic = training.network.critic.value[2].weight.detach().clone()
        training.run(silent)

    after = [*training.network.head.parameters(), *training.network.dags.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert not torch.equal(training.network.critic.value[2].weight, critic)


def test_what_looks_at_windows_has_no_say_after_training(tmp_path, usual):
    settings = small(tmp_path, warm_up=0.0)
    with one_thread():
        training = Training(settings, beginning(settings), usual)
        training.run(silent)

    head, nodes = training.network.head, training.network.nodes
    assert head.weight.weight.any()
    assert not any(part.any() for part in (head.query.weight, head.query.bias, nodes.bias.weight))
    assert not head.mix[0].weight[:, learning.changing_columns().stop :].any()


def test_a_network_that_is_no_better_for_sure_leaves_the_start_in_place(tmp_path, usual):
    said: list[str] = []

    folder = learn(small(tmp_path, updates=1, log=tmp_path / "runs"), said.append)

    weights = read_weights(folder)
    assert weights.manifest.parent is None
    assert any("its start, which it does not beat for sure" in line for line in said)
    assert any("left" in line for line in said)
    assert list((tmp_path / "runs").glob("events.*"))
    assert not folder.with_name("weights.checkpoint").exists()
    kept = learn(
        replace(small(tmp_path, updates=2), start=folder, out=tmp_path / "kept", keep_anyway=True), said.append
    )
    assert read_weights(kept).manifest.parent == weights.manifest.version
    manifest = read_weights(kept).manifest
    assert "load 0.7, reward over its start" in manifest.evaluation
    assert len(manifest.data) == len(manifest.config) == 64
    assert "pair.finish" in manifest.statistics


@pytest.mark.parametrize(
    "wrong",
    [{"decisions": 0}, {"epochs": 2}, {"key_share": 0.0}, {"minibatches": 9}, {"learning_rate": 1.0}, {"checked": 1}],
)
def test_settings_that_cannot_be_are_refused(tmp_path, wrong):
    with pytest.raises(InvalidConfiguration, match="learn"):
        small(tmp_path, **wrong)


def test_advantages_by_hand():
    reward_se, value_se = np.array([[1.0], [2.0]]), np.array([[0.5], [1.0]])
    discount_se, last_e = np.array([[0.5], [0.5]]), np.array([4.0])

    found = advantages(reward_se, discount_se, value_se, last_e, trace=0.8)

    second = 2.0 + 0.5 * 4.0 - 1.0
    assert found[:, 0].tolist() == pytest.approx([1.0 + 0.5 * 1.0 - 0.5 + 0.5 * 0.8 * second, second])


def test_with_the_whole_trace_advantages_are_returns_less_values():
    rng = np.random.default_rng(0)
    reward_se, value_se, last_e = rng.random((5, 3)), rng.random((5, 3)), rng.random(3)
    discount_se = np.full((5, 3), 0.9)
    return_e = last_e
    for s in reversed(range(5)):
        return_e = reward_se[s] + 0.9 * return_e

    found = advantages(reward_se, discount_se, value_se, last_e, trace=1.0)

    assert found[0] + value_se[0] == pytest.approx(return_e)


def test_the_scale_follows_the_returns():
    scale = Scale()
    for _ in range(200):
        scale.learn(np.array([3.0, 5.0]))

    assert (scale.centre, scale.spread) == pytest.approx((4.0, 1.0))
    assert Scale().spread == 1.0


def test_decisions_without_a_choice_matter_least():
    advantage_se = np.array([[3.0, 3.0, 0.0, -6.0]])
    mask_sen = np.array([[[1, 1], [1, 0], [1, 1], [1, 1]]], bool)

    found = priority(advantage_se, mask_sen)[0]

    assert found.argmax() == 3
    assert found[1] < found[0]
    assert found.min() > 0


def test_workflows_grow_with_the_training_unless_they_do_not():
    assert [tasks_at(share, True)[1] for share in (0.0, 0.1, 0.3, 0.9)] == [5, 10, 20, 50]
    assert tasks_at(0.0, False) == (5, 50)


def test_the_adversary_brings_what_the_policy_is_worst_at():
    adversary, rng = Adversary(), np.random.default_rng(0)
    for _ in range(20):
        adversary.learn("stragglers", -0.1)
        adversary.learn("latency", +0.1)

    brought = [adversary.choose(rng) for _ in range(400)]

    assert brought.count("stragglers") > 150
    assert brought.count(CALM) > 150
    assert brought.count("latency") == 0
    assert {Adversary(names=(CALM,)).choose(rng) for _ in range(20)} == {CALM}


def test_recorded_anomalies_slow_the_nodes_down(tmp_path):
    rows = [f"m1,{60 * i},{90 if i % 100 >= 96 else 10},1" for i in range(400)]
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_bytes(gzip.compress("\n".join(rows).encode()))

    (spells_k2,) = recordings(tmp_path)
    course = Lesson((2, 5), RECORDED, 0).course(0, [spells_k2])

    assert spells_k2.tolist() == [[60 * (100 * k + 96), 60 * (100 * k + 99) + 60] for k in range(4)]
    slow_ms_nk = course.machines().slow_ms_nk
    assert slow_ms_nk.shape == (len(course.specs), MOST, 2)
    assert set((slow_ms_nk[:, 0, 1] - slow_ms_nk[:, 0, 0]).tolist()) == {240_000}
    again = with_anomalies(course, [spells_k2], np.random.default_rng(1)).machines().slow_ms_nk
    assert again.tolist() != slow_ms_nk.tolist()


def test_a_folder_without_recordings_is_refused(tmp_path):
    with pytest.raises(InvalidConfiguration, match=r"learn\.traces"):
        recordings(tmp_path)


def test_an_interval_counts_trainings_and_scenarios_as_chance():
    same_for_all_trainings = np.tile(np.array([0.0, 1.0]), (3, 1))

    mean, margin = two_way_interval(same_for_all_trainings)

    assert mean == 0.5
    assert margin == pytest.approx(4.303 * (0.5 / 2) ** 0.5)
    assert two_way_interval(np.ones((3, 4))) == (1.0, 0.0)


def test_the_table_has_a_row_for_each_variant():
    rows = [
        Row(FULL, 0.01, 0.002, 0.0, 0.0, {"load 0.7": 0.01}),
        Row("without", 0.0, 0.001, -0.01, 0.002, {"load 0.7": 0}),
    ]

    text = table(rows)

    assert text.count("\n") == 2
    assert "-0.0100 ± 0.0020" in text
    assert '"command": "headrace train ablation' in as_json(rows, AblationSettings())


def test_a_stage_ships_only_where_it_is_better_for_sure():
    def weights(gain: float, margin: float) -> WeightSet:
        evaluation = {f"load 0.7, reward over {START}": gain, f"load 0.7, reward over {START}, margin": margin}
        return WeightSet(
            Manifest(version="v", opset=1, command="", seed=0, files={}, golden={}, evaluation=evaluation), {}
        )

    linear, unsure, sure = Path("linear"), Path("unsure"), Path("sure")

    assert best_of({linear: weights(0, 0), unsure: weights(0.02, 0.03)}, linear)[0] == linear
    assert best_of({linear: weights(0, 0), unsure: weights(0.02, 0.03), sure: weights(0.01, 0.005)}, linear)[0] == sure


def test_the_adversary_s_latency_and_spot_nodes_are_the_simulator_s():
    calm, latency, spot = (Lesson((2, 5), trouble, 0).course(1) for trouble in (CALM, "latency", "spot"))

    spikes = [course.machines().spike_ms_nk.shape[1] > 0 for course in (calm, latency, spot)]
    spot_nodes = [sum(map(is_spot, course.specs)) for course in (calm, latency, spot)]

    assert spikes == [False, True, False]
    assert spot_nodes == [0, 0, len(spot.specs) // 2]
