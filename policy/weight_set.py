"""A set of the actor's weights, with a manifest that says what they are: a folder, or a record of `models`."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from policy.features import ORDER_FEATURES, SCHEMA
from schemas.errors import UnusableWeights
from schemas.records import Model

PARTS = ("node", "dag", "head")
"""What the actor runs, each an ONNX file."""
NETWORK = "network.npz"
"""The same weights, and the critic's, as arrays: what training goes on from."""
MANIFEST = "manifest.json"

SHORTEST_PATH = {"remaining_path": -1.0}
"""The workflow with the shortest critical path left first."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Golden:
    """What one part must answer: its inputs and outputs by name."""

    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a set of weights is, where it comes from, and what it must answer."""

    version: str
    """The first characters of the digest, so that equal weights have equal names."""
    parent: str | None = None
    """Version of the weights that these were trained on from."""
    features: str = SCHEMA
    """Fingerprint of the features that they were trained with."""
    opset: int
    command: str
    """What made them, to be run again."""
    seed: int
    made_with: Mapping[str, str] = field(default_factory=dict)
    """Versions of the libraries that made them."""
    files: Mapping[str, str]
    """SHA-256 of each file."""
    golden: Mapping[str, Golden]
    """Of each part, one input and what it must answer."""
    evaluation: Mapping[str, float] = field(default_factory=dict)
    """How well they did when they were made."""
    data: str = ""
    """SHA-256 of what they were trained on, and of the settings of the training."""
    config: str = ""
    statistics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of each feature, how it was distributed where they were trained."""
    learned_from: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of weights that learnt from a log: "topic/partition" -> the first offset read, and the one after the last."""
    order: Mapping[str, float] = field(default_factory=lambda: dict(SHORTEST_PATH))
    """By which waiting tasks are ordered: weights of ORDER_FEATURES, the largest sum first."""


@dataclass(frozen=True, slots=True)
class WeightSet:
    """The files of a set, by name, with their manifest."""

    manifest: Manifest
    files: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """SHA-256 over the files, in the order of FILES."""
        return digest(self.files)


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over the files of a set, in the order of FILES."""
    whole = hashlib.sha256()
    for name in FILES:
        whole.update(hashlib.sha256(files[name]).digest())
    return whole.hexdigest()


def file_name(part: str) -> str:
    """The file of a part of PARTS."""
    return f"{part}.onnx"


FILES = (*map(file_name, PARTS), NETWORK)


def shipped_weights() -> WeightSet:
    """The weights that come with headrace. Raises UnusableWeights."""
    folder = resources.files("policy.weights")
    with resources.as_file(folder) as path:
        return read_weights(path)


def read_weights(folder: Path) -> WeightSet:
    """The set of weights in a folder. Raises UnusableWeights when it is not complete, or not what its manifest says."""
    try:
        text = (folder / MANIFEST).read_text("utf-8")
        files = {name: (folder / name).read_bytes() for name in FILES}
    except OSError as error:
        missing = Path(error.filename or folder).name
        raise UnusableWeights(
            f"{folder}: {missing} cannot be read ({error.strerror}); give a folder that `headrace train` wrote"
        ) from error
    return checked(str(folder), text, files)


def write_weights(weights: WeightSet, folder: Path) -> None:
    """Put the set into the folder. A new folder appears as a whole; in an old one the manifest is replaced last.

    Whoever reads an old folder meanwhile finds a set that its manifest does not fit, and refuses it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        made.chmod(0o755)
        names = [*weights.files, MANIFEST]
        for name in names:
            content = weights.files.get(name, manifest_json(weights.manifest).encode())
            (made / name).write_bytes(content)
        if not folder.exists():
            made.rename(folder)
        else:
            for name in names:
                os.replace(made / name, folder / name)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def from_record(record: Model) -> WeightSet:
    """The set in a record of the topic `models`. Raises UnusableWeights."""
    where = f"model {record.version} of channel {record.channel}"
    weights = checked(where, record.manifest, dict(record.files))
    if weights.digest != record.digest:
        raise UnusableWeights(
            f"{where}: its files have the digest {weights.digest}, not {record.digest}; send it again"
        )
    return weights


def to_record(weights: WeightSet, channel: str, event_time_ms: int) -> Model:
    """The set as a record of the topic `models`."""
    manifest = weights.manifest
    return Model(
        manifest.version,
        channel,
        manifest.parent,
        event_time_ms,
        weights.digest,
        manifest_json(manifest),
        weights.files,
    )


def checked(where: str, manifest_text: str, files: Mapping[str, bytes]) -> WeightSet:
    """The set, when its files are complete, what the manifest says, and made for our features.

    Raises UnusableWeights.
    """
    manifest = parse_manifest(where, manifest_text)
    for name in FILES:
        if name not in files or name not in manifest.files:
            raise UnusableWeights(f"{where}: {name} is missing; give a complete set of weights")
        found = hashlib.sha256(files[name]).hexdigest()
        if found != manifest.files[name]:
            raise UnusableWeights(
                f"{where}: {name} has the SHA-256 {found[:12]}…, the manifest says {manifest.files[name][:12]}…; "
                "it was changed or cut short: fetch or export it again"
            )
    if manifest.features != SCHEMA:
        raise UnusableWeights(
            f"{where}: made for the features {manifest.features}, this headrace computes {SCHEMA}; "
            "train weights with this version, or run the version that they were trained with"
        )
    return WeightSet(manifest, {name: files[name] for name in FILES})


def parse_manifest(where: str, text: str) -> Manifest:
    """The manifest in this JSON text. Raises UnusableWeights."""
    try:
        members = json.loads(text)
        golden = {
            part: Golden(_arrays(sample["inputs"]), _arrays(sample["outputs"]))
            for part, sample in members.pop("golden").items()
        }
        known = {f.name for f in fields(Manifest)}
        manifest = Manifest(golden=golden, **{name: value for name, value in members.items() if name in known})
        if set(golden) != set(PARTS) or not isinstance(manifest.files, dict):
            raise ValueError("golden and files must name every part")
        if not set(manifest.order) <= set(ORDER_FEATURES) or not all(map(math.isfinite, manifest.order.values())):
            raise ValueError(f"order must give some of {', '.join(ORDER_FEATURES)} numbers")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnusableWeights(
            f"{where}: {MANIFEST} is not one of ours ({error!r}); export the weights again"
        ) from error
    return manifest


def manifest_json(manifest: Manifest) -> str:
    """The manifest as JSON text."""
    members = {f.name: getattr(manifest, f.name) for f in fields(Manifest)}
    members["golden"] = {
        part: {"inputs": _plain(sample.inputs), "outputs": _plain(sample.outputs)}
        for part, sample in manifest.golden.items()
    }
    return json.dumps(members, indent=1, allow_nan=False) + "\n"


def _arrays(members: Mapping[str, Any]) -> dict[str, np.ndarray]:
    arrays = {
        name: np.array(member["values"].split(), member["type"]).reshape(member["shape"])
        for name, member in members.items()
    }
    if not arrays or not all(array.size for array in arrays.values()):
        raise ValueError("golden arrays must not be empty")  # on some, ONNX Runtime aborts the process
    return arrays


def _plain(arrays: Arrays) -> dict[str, dict[str, object]]:
    """Values as decimals, one text an array: they read back to the same bits."""
    return {
        name: {"type": str(array.dtype), "shape": list(array.shape), "values": " ".join(map(str, array.ravel()))}
        for name, array in arrays.items()
    }
