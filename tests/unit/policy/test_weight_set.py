"""A set of weights on disk: whole or refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from policy.features import SCHEMA
from policy.weight_set import (
    FILES,
    MANIFEST,
    Golden,
    Manifest,
    WeightSet,
    checked,
    digest,
    from_record,
    manifest_json,
    parse_manifest,
    read_weights,
    shipped_weights,
    to_record,
    write_weights,
)
from schemas.errors import UnusableWeights


def some_weights(content: bytes = b"weights") -> WeightSet:
    """A set whose files are no ONNX: nothing here looks into them."""
    files = {name: content + name.encode() for name in FILES}
    golden = Golden({"x": np.array([[0.1, -2.5e-8]], np.float32)}, {"y": np.array([3, 4])})
    manifest = Manifest(
        version=digest(files)[:12],
        opset=20,
        command="headrace train clone",
        seed=7,
        files={name: hashlib.sha256(files[name]).hexdigest() for name in FILES},
        golden={"node": golden, "dag": golden, "head": golden},
        evaluation={"agreement": 0.98},
    )
    return WeightSet(manifest, files)

    return hashlib.sha256(content).hexdigest()


def test_what_is_written_is_read_back(tmp_path):
    weights = some_weights()

    write_weights(weights, tmp_path / "made" / "weights")
    found = read_weights(tmp_path / "made" / "weights")

    assert found.files == weights.files
    assert manifest_json(found.manifest) == manifest_json(weights.manifest)
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["weights"]


def test_golden_values_keep_every_bit():
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    golden = Golden({"x": values}, {"y": values.astype(np.float64)})
    manifest = replace(some_weights().manifest, golden={"node": golden, "dag": golden, "head": golden})

    found = parse_manifest("here", manifest_json(manifest)).golden["node"]

    assert found.inputs["x"].dtype == np.float32
    assert np.array_equal(found.inputs["x"], values)
    assert np.array_equal(found.outputs["y"], golden.outputs["y"])


def test_a_second_set_replaces_the_first_and_leaves_other_files_alone(tmp_path):
    write_weights(some_weights(b"old"), tmp_path / "weights")
    (tmp_path / "weights" / "notes.txt").write_text("mine")

    write_weights(some_weights(b"new"), tmp_path / "weights")

    assert read_weights(tmp_path / "weights").files == some_weights(b"new").files
    assert (tmp_path / "weights" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_missing_file_is_named(tmp_path, name):
    write_weights(some_weights(), tmp_path / "weights")
    (tmp_path / "weights" / name).unlink()

    with pytest.raises(UnusableWeights, match=f"{name} cannot be read"):
        read_weights(tmp_path / "weights")


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_refused(tmp_path, name):
    write_weights(some_weights(), tmp_path / "weights")
    (tmp_path / "weights" / name).write_bytes(b"changed")

    with pytest.raises(UnusableWeights, match=f"{name} has the SHA-256"):
        read_weights(tmp_path / "weights")


def test_weights_of_other_features_are_refused():
    weights = some_weights()
    manifest = replace(weights.manifest, features="0123456789abcdef")

    with pytest.raises(UnusableWeights, match=f"0123456789abcdef.*{SCHEMA}"):
        checked("here", manifest_json(manifest), weights.files)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"golden": {}}', '{"golden": {"node": {"inputs": 1}}}'])
def test_what_is_no_manifest_is_refused(text):
    with pytest.raises(UnusableWeights, match="not one of ours"):
        parse_manifest("here", text)


def test_golden_values_over_nothing_are_refused():
    nothing = Golden({"x": np.zeros((0, 3), np.float32)}, {"y": np.zeros(0, np.float32)})
    manifest = replace(some_weights().manifest, golden={"node": nothing, "dag": nothing, "head": nothing})

    with pytest.raises(UnusableWeights, match="must not be empty"):
        parse_manifest("here", manifest_json(manifest))


def test_a_manifest_of_a_later_version_may_say_more():
    members = json.loads(manifest_json(some_weights().manifest)) | {"colour": "blue"}

    manifest = parse_manifest("here", json.dumps(members))

    assert manifest.seed == 7


def test_a_record_carries_the_set():
    weights = some_weights()

    record = to_record(weights, "stable", 1_767_225_600_000)

    assert record.version == weights.manifest.version
    assert from_record(record).files == weights.files


def test_a_record_with_another_digest_is_refused():
    record = replace(to_record(some_weights(), "stable", 0), digest="0" * 64)

    with pytest.raises(UnusableWeights, match="of channel stable: its files have the digest"):
        from_record(record)


def test_equal_files_have_equal_digests():
    assert some_weights().digest == some_weights().digest
    assert some_weights(b"a").digest != some_weights(b"b").digest


def test_the_shipped_weights_are_whole_and_small():
    weights = shipped_weights()

    assert weights.manifest.version == weights.digest[:12]
    assert sum(map(len, weights.files.values())) < 1_000_000
    assert weights.manifest.command.startswith("headrace train")
    assert weights.manifest.evaluation
