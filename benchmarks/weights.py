"""Sets of weights that are like the shipped ones, but for one thing."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from policy.weight_set import NETWORK, Golden, WeightSet, digest, file_name


def with_file(weights: WeightSet, name: str, content: bytes) -> WeightSet:
    """With another content of a file; the manifest says so."""
    files = {**weights.files, name: content}
    known = {one: hashlib.sha256(its).hexdigest() for one, its in files.items()}
    manifest = replace(weights.manifest, version=digest(files)[:12], files=known, parent=weights.manifest.version)
    return WeightSet(manifest, files)


def renamed(weights: WeightSet, mark: bytes) -> WeightSet:
    """The same weights under another version: what they score is equal, and costs as much."""
    return with_file(weights, NETWORK, weights.files[NETWORK] + mark)


def upside_down(weights: WeightSet) -> WeightSet:
    """Whose best node is the worst: passes every check, and decides badly."""
    import onnx
    from onnx import helper

    model = onnx.load_from_string(weights.files[file_name("head")])
    (output,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = ["kept" if name == output.name else name for name in node.output]
        node.input[:] = ["kept" if name == output.name else name for name in node.input]
    model.graph.node.append(helper.make_node("Neg", ["kept"], [output.name]))
    made = with_file(weights, file_name("head"), model.SerializeToString())
    golden = made.manifest.golden["head"]
    answers = {name: -array for name, array in golden.outputs.items()}
    return replace(
        made,
        manifest=replace(made.manifest, golden={**made.manifest.golden, "head": Golden(golden.inputs, answers)}),
    )
