"""The search finds something, can be stopped and gone on with, and says how it did."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from policy.actor import Actor, ActorSettings
from policy.features import ORDER_FEATURES
from policy.weight_set import read_weights
from schemas.errors import InvalidConfiguration, UnusableWeights
from trainer.evaluate import NAMES, USUAL, EvaluationSettings, as_json, evaluate, show
from trainer.rules import HEURISTIC_RULES, rule_of
from trainer.scenarios import run
from trainer.search import Checkpoint, SearchSettings, find, search
from trainer.suite import EVALUATION, REFERENCE, STANDARD, TRAINING, Setup
from trainer.workloads import WorkloadSettings


def silent(line: str) -> None:
    pass


def small(tmp_path, **fields) -> SearchSettings:
    """Settings of a search of seconds, in this process."""
    known = {"generations": 4, "candidates": 6, "episodes": 2, "pool": 6, "checked": 4, "processes": 1}
    return SearchSettings(out=tmp_path / "weights", **(known | fields))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A short search: its folder, and what it said."""
    said: list[str] = []
    settings = small(tmp_path_factory.mktemp("search"), generations=20)
    return search(settings, said.append), said


def test_a_short_search_beats_the_cluster_s_own_scheduler_on_fresh_scenarios(found):
    folder, said = found
    weights = read_weights(folder)

    gain = weights.manifest.evaluation["load 0.7, reward over kube_default"]

    assert gain - weights.manifest.evaluation["load 0.7, reward over kube_default, margin"] > 0
    assert any("left" in line for line in said)


def test_what_was_found_serves(found):
    weights = read_weights(found[0])

    actor = Actor(weights, ActorSettings(device="cpu"))

    assert actor.version == weights.manifest.version
    assert set(weights.manifest.order) == set(ORDER_FEATURES)


def test_one_seed_makes_one_set_of_weights_and_another_another(tmp_path):
    first, second = (find(small(tmp_path / name), silent)[0].tolist() for name in "ab")
    other = find(small(tmp_path / "c", seed=1), silent)[0].tolist()

    assert first == second
    assert first != other


class Stopped(Exception):
    """In place of a kill."""


def test_a_search_that_was_stopped_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    straight, _ = find(small(tmp_path / "straight", generations=12), silent)
    settings = small(tmp_path / "stopped", generations=12)
    write = Checkpoint.write

    def write_and_stop(checkpoint, where):
        write(checkpoint, where)
        raise Stopped

    monkeypatch.setattr(Checkpoint, "write", write_and_stop)
    with pytest.raises(Stopped):
        find(settings, silent)
    monkeypatch.setattr(Checkpoint, "write", write)
    said: list[str] = []
    resumed, _ = find(settings, said.append)

    assert any("goes on after generation 10" in line for line in said)
    assert resumed.tolist() == straight.tolist()
    assert not Checkpoint(settings).path.exists()


def test_a_checkpoint_of_another_search_is_refused_and_so_is_a_broken_one(tmp_path):
    settings = small(tmp_path)
    Checkpoint(settings).write((None, None, 3))

    with pytest.raises(InvalidConfiguration, match="other settings"):
        Checkpoint(replace(settings, seed=5)).read()
    Checkpoint(settings).path.write_bytes(b"not a checkpoint")
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        Checkpoint(settings).read()


@pytest.mark.parametrize("wrong", [{"generations": 0}, {"candidates": 3}, {"episodes": 7}, {"checked": 1}])
def test_settings_that_cannot_be_are_refused(tmp_path, wrong):
    with pytest.raises(InvalidConfiguration, match=r"search\."):
        small(tmp_path, **wrong)


def test_scenarios_of_one_purpose_are_in_no_other():
    setup = Setup(name="small", nodes=6, workload=WorkloadSettings(workflows=4, tasks=(2, 4), load=0.5))

    arrivals = {
        purpose: setup.course(purpose, 0).scenario.arrival_ms_w.tolist()
        for purpose in (TRAINING, EVALUATION, REFERENCE)
    }

    assert len({tuple(a) for a in arrivals.values()}) == 3
    assert setup.course(TRAINING, 0).scenario.arrival_ms_w.tolist() == arrivals[TRAINING]


def test_a_network_that_adds_to_the_linear_score_is_not_played_as_one(weights):
    with pytest.raises(UnusableWeights, match="not linear"):
        rule_of(weights, 0.3)


@pytest.fixture(scope="module")
def report(found):
    """A comparison of the found weights with everybody, on a few scenarios."""
    actor = rule_of(read_weights(found[0]), 0.3)
    return evaluate(EvaluationSettings(suite="quick", seeds=2, processes=1), {"actor": actor}, silent)


def test_the_report_holds_what_the_runs_gave(report):
    setup = STANDARD[0]
    measured = run(setup.course(EVALUATION, 1), HEURISTIC_RULES["srpt"]).measured()

    assert report.figures[setup.name]["srpt"][1].cost == pytest.approx(measured.cost_w.sum())
    assert report.against(setup.name, USUAL, USUAL, "reward") == (0, 0)
    assert report.best_heuristic(setup.name) in HEURISTIC_RULES


def test_the_table_names_every_policy_and_the_best_heuristic(report):
    console = Console(width=140, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115

    show(report, console, "actor")

    text = console.export_text()
    assert all(name in text for name in (*HEURISTIC_RULES, "actor"))
    assert text.count("actor against the best heuristic") == 2


def test_the_json_is_whole(report):
    plain = json.loads(as_json(report))

    assert set(plain["setups"]["load 0.7"]["actor"]["mean"]) == set(NAMES)


@pytest.mark.parametrize("wrong", [{"suite": "none"}, {"seeds": 1}])
def test_an_evaluation_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidConfiguration, match=r"evaluate\."):
        EvaluationSettings(**wrong)
