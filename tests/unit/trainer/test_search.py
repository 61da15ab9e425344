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
from trainer.acceptance import START, refuse_worse
from trainer.checkpoint import Checkpoint
from trainer.evaluate import USUAL, EvaluationSettings, as_json, evaluate, show
from trainer.figures import NAMES
from trainer.rules import HEURISTIC_RULES, rule_of
from trainer.scenarios import digest, run
from trainer.search import SearchSettings, checkpoint_of, find, search
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
    first, second = (find(small(tmp_path / name), silent)[0].vector().tolist() for name in "ab")
    other = find(small(tmp_path / "c", seed=1), silent)[0].vector().tolist()

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
    assert resumed.vector().tolist() == straight.vector().tolist()
    assert not checkpoint_of(settings).path.exists()


def test_a_checkpoint_of_another_search_is_refused_and_so_is_a_broken_one(tmp_path):
    settings = small(tmp_path)
    checkpoint_of(settings).write((None, None, 3))

    with pytest.raises(InvalidConfiguration, match="other settings"):
        checkpoint_of(replace(settings, seed=5)).read()
    checkpoint_of(settings).path.write_bytes(b"not a checkpoint")
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        checkpoint_of(settings).read()


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


def test_a_network_that_looks_at_the_nodes_windows_is_not_played(weights):
    with pytest.raises(UnusableWeights, match="nodes' windows"):
        rule_of(weights, 0.3)


def test_hidden_units_are_searched_from_linear_weights_on(found, tmp_path):
    parent = read_weights(found[0])
    settings = small(tmp_path, hidden=3, start=found[0], generations=3, step=0.3)

    weights = read_weights(search(settings, silent))

    manifest = weights.manifest
    assert manifest.parent == parent.manifest.version
    assert {"load 0.7, reward over its start", "load 0.9, reward over its start, margin"} <= set(manifest.evaluation)
    assert manifest.command.startswith(f"{parent.manifest.command} --out start && headrace train search ")
    assert "--hidden 3 --seed 0 --start start" in manifest.command
    assert callable(rule_of(weights, 0.3))


def test_search_begins_with_linear_weights_only(found, tmp_path):
    search(small(tmp_path, hidden=2, start=found[0], generations=1, step=0.1), silent)

    with pytest.raises(InvalidConfiguration, match="not linear"):
        find(small(tmp_path / "next", hidden=2, start=tmp_path / "weights"), silent)


def test_weights_that_are_worse_than_their_start_are_refused():
    worse = {f"load 0.7, reward over {START}": -0.02, f"load 0.7, reward over {START}, margin": 0.01}

    refuse_worse({name: value / 4 if "margin" not in name else value for name, value in worse.items()})
    with pytest.raises(UnusableWeights, match="worse than what they were trained from"):
        refuse_worse(worse)


def test_the_manifest_says_what_the_weights_were_made_of(found):
    manifest = read_weights(found[0]).manifest

    assert len(manifest.data) == len(manifest.config) == 64
    share = manifest.statistics["pair.finish"]
    assert 0 < share["p1"] <= share["mean"] <= share["p99"] == 1
    assert set(manifest.statistics["pool.queue_length"]) == {"mean", "std", "p1", "p99"}


def test_the_digest_of_scenarios_tells_one_set_from_another():
    setup = Setup(name="small", nodes=6, workload=WorkloadSettings(workflows=4, tasks=(2, 4), load=0.5))
    first, second = (setup.course(TRAINING, seed) for seed in (0, 1))

    assert digest([first, second]) == digest([setup.course(TRAINING, 0), second])
    assert digest([first, second]) != digest([second, first])


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
    console = Console(width=180, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115

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
