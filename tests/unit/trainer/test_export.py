"""From torch to ONNX: the same answers at every size, or no weights at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from policy.actor import Actor, ActorSettings
from policy.network import ActorCritic
from policy.sessions import INPUTS, open_session
from policy.weight_set import FILES, NETWORK, PARTS, WeightSet, file_name, read_weights, write_weights
from schemas.errors import UnusableWeights
from tests.builders import a_node, a_ready, a_state, a_task, an_observation, some_nodes, submit
from trainer import export
from trainer.export import AXES, PARITY_SIZES, check_axes, check_parity, restored, sample
from trainer.moments import Memory

MODULES = {"node": "nodes", "dag": "dags", "head": "head"}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("sizes", PARITY_SIZES, ids=str)
def test_onnx_answers_what_torch_does_at_every_size(weights, network, part, sizes):
    session = open_session(part, weights.files[file_name(part)], "CPUExecutionProvider")

    check_parity(session, getattr(network, MODULES[part]), sample(part, sizes, np.random.default_rng(9)), sizes)


@pytest.mark.parametrize("part", PARTS)
def test_every_open_axis_is_open_in_the_file(weights, part):
    graph = onnx.load_from_string(weights.files[file_name(part)]).graph

    found = {v.name: tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim) for v in graph.input}

    assert found == dict(AXES[part])


def test_the_inputs_are_those_that_the_actor_gives():
    assert {part: tuple(axes) for part, axes in AXES.items()} == INPUTS


def test_an_axis_that_was_fixed_is_refused(weights):
    model = onnx.load_from_string(weights.files["head.onnx"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5

    with pytest.raises(UnusableWeights, match=r"head.onnx: context_bc has the axes \(5, "):
        check_axes("head", model.SerializeToString())


def test_a_mistranslated_network_is_refused_and_nothing_is_written(network, tmp_path, monkeypatch):
    exported_before = export._to_onnx
    other = ActorCritic()

    def another_network(part, module):
        return exported_before(part, getattr(other, MODULES[part]).eval())

    monkeypatch.setattr(export, "_to_onnx", another_network)

    with pytest.raises(UnusableWeights, match="from torch's at"):
        export.export(network, tmp_path / "weights", export.Origin("test", 0))
    assert list(tmp_path.iterdir()) == []


def test_self_loops_alone_many_parents_and_equal_scores_answer_as_torch(weights, network):
    """Segment maximum and softmax are what exporters have mistranslated."""
    session = open_session("dag", weights.files["dag.onnx"], "CPUExecutionProvider")
    tasks = 30
    selves = np.arange(tasks)
    into_one = np.stack([selves[1:], np.zeros(tasks - 1, int)])
    edges_2e = np.concatenate([into_one, into_one[::-1], np.stack([selves, selves])], axis=1).astype(np.int64)
    shape = sample("dag", {"T": tasks, "G": 1, "E": 2}, np.random.default_rng(0))["graph_tf"].shape
    for graph_tf in (np.full(shape, -9.0), np.zeros(shape), np.full(shape, 9.0)):
        inputs = {
            "graph_tf": graph_tf.astype(np.float32),
            "edges_2e": edges_2e,
            "weight_gt": np.full((1, tasks), 1 / tasks, np.float32),
        }

        check_parity(session, network.dags, inputs, {"T": tasks})


def test_the_files_tell_nothing_of_the_machine_they_were_made_on(weights):
    for part in PARTS:
        content = weights.files[file_name(part)]
        graph = onnx.load_from_string(content).graph
        assert str(Path(export.__file__).parents[1]).encode() not in content
        assert not any(node.metadata_props or node.doc_string for node in graph.node)


def test_the_manifest_says_where_the_weights_come_from(weights):
    manifest = weights.manifest

    assert manifest.version == weights.digest[:12]
    assert (manifest.command, manifest.seed, manifest.parent) == ("headrace train clone", 3, "0123456789ab")
    assert set(manifest.golden) == set(PARTS)
    assert set(manifest.files) == set(FILES)
    assert manifest.made_with["torch"] == torch.__version__


def test_exported_weights_are_read_back_and_decide(weights, tmp_path):
    write_weights(weights, tmp_path / "weights")
    state = a_state(*some_nodes(3))
    submit(state, a_task())

    actor = Actor(read_weights(tmp_path / "weights"), ActorSettings(device="cpu"))

    assert actor.score(an_observation(state)).shape == (1, 3)


def test_the_actor_scores_what_the_network_does_in_training(weights, network):
    """The serving path, cached and cut in three, against the training path, whole and in one batch."""
    state = a_state(*some_nodes(4), a_node("n4", gpu=2, gpu_memory_bytes=2**34, speed=1.7, price_per_hour=2.0))
    submit(state, a_task("a", 30.0), a_task("b", 40.0, after=["a"]), a_task("c", gpu=1))
    submit(state, a_task("d", critical=True), workflow_id="w1")
    state.apply(a_ready(a_task("e"), task_id="e", workflow_id="open"))
    seen = an_observation(state)
    memory = Memory()

    kept = memory.keep(seen)
    with torch.no_grad():
        trained_bn, _ = network(memory.together(kept))
    served_bn = Actor(weights, ActorSettings(device="cpu")).score(seen)

    assert len(seen.tasks) == 4
    assert served_bn[seen.mask_bn] == pytest.approx(trained_bn.numpy()[seen.mask_bn], rel=1e-4, abs=1e-4)


def test_the_network_is_restored_to_the_last_bit(weights, network):
    found, wanted = restored(weights).state_dict(), network.state_dict()

    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_arrays_of_another_network_are_refused(weights):
    broken = WeightSet(weights.manifest, {**weights.files, NETWORK: b"PK\x05\x06" + b"\0" * 18})

    with pytest.raises(UnusableWeights, match="is not this network"):
        restored(broken)


def test_an_export_is_the_same_twice(weights, network):
    again = export.exported(network, export.Origin("headrace train clone", 3))

    assert again.digest == weights.digest
