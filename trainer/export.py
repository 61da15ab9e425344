"""From the trained network to a set of weights: three ONNX files that answer what torch does."""

from __future__ import annotations

import hashlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import torch_geometric
from torch import Tensor, nn

from policy.features import GRAPH_FEATURES, NODE_FEATURES, PAIR_FEATURES, WINDOW_FEATURES
from policy.network import CONTEXT, KEY, ActorCritic
from policy.sessions import CPU, OUTPUTS, Session, open_session, relative_difference
from policy.weight_set import (
    NETWORK,
    SHORTEST_PATH,
    Arrays,
    Golden,
    Manifest,
    WeightSet,
    digest,
    file_name,
    write_weights,
)
from policy.windows import STEPS
from schemas.errors import UnusableWeights

OPSET = 20
TOLERANCE = 5e-5
"""Relative to 1 and to the value: what ONNX Runtime's outputs may differ from torch's by. Scores are sums of some
fifteen float32 terms of up to about 50, which may nearly cancel; a mistranslation shows in the first digits."""

SAMPLE_SIZES = {"N": 7, "B": 5, "G": 3, "T": 11, "E": 29}
"""Sizes of the samples that are traced: from 2 on and all different, or an axis is fixed without a word."""

GOLDEN_SIZES = {"N": 3, "B": 2, "G": 2, "T": 5, "E": 9}

PARITY_SIZES = (
    {"N": 1, "B": 1, "G": 1, "T": 1, "E": 1},
    {"N": 2, "B": 3, "G": 1, "T": 40, "E": 121},
    {"N": 100, "B": 64, "G": 17, "T": 200, "E": 650},
    {"N": 5000, "B": 2, "G": 2, "T": 1738, "E": 6000},
)
"""Sizes at which the files are compared with torch: smallest, odd, usual, largest."""


@dataclass(frozen=True)
class Origin:
    """Where weights come from: what goes into their manifest."""

    command: str
    """What made them, to be run again."""
    seed: int
    parent: str | None = None
    """Version of the weights that they were trained on from."""
    evaluation: Mapping[str, float] | None = None
    """How well they did."""
    order: Mapping[str, float] | None = None
    """How waiting tasks are ordered; None: the workflow with the shortest path left first."""
    data: str = ""
    """SHA-256 of what they were trained on, and of the settings of the training."""
    config: str = ""
    statistics: Mapping[str, Mapping[str, float]] | None = None
    """Of each feature, how it was distributed there."""


def export(network: ActorCritic, folder: Path, origin: Origin) -> WeightSet:
    """Write the actor's parts into the folder as a set of weights.

    Raises UnusableWeights, and writes nothing, when a file does not answer what torch does.
    """
    weights = exported(network, origin)
    write_weights(weights, folder)
    return weights


def exported(network: ActorCritic, origin: Origin) -> WeightSet:
    """The actor's parts as a set of weights. Raises UnusableWeights."""
    modules = {"node": network.nodes, "dag": network.dags, "head": network.head}
    files, golden = {}, {}
    for part, module in modules.items():
        module.eval()
        content = _to_onnx(part, module)
        check_axes(part, content)
        session = open_session(part, content, CPU)
        rng = np.random.default_rng(origin.seed)
        for sizes in PARITY_SIZES:
            check_parity(session, module, sample(part, sizes, rng), sizes)
        inputs = sample(part, GOLDEN_SIZES, rng)
        files[file_name(part)] = content
        golden[part] = Golden(inputs, dict(zip(session.outputs, session.run(inputs), strict=True)))
    files[NETWORK] = network_bytes(network)
    manifest = Manifest(
        version=digest(files)[:12],
        parent=origin.parent,
        opset=OPSET,
        command=origin.command,
        seed=origin.seed,
        made_with={
            "torch": torch.__version__,
            "torch_geometric": torch_geometric.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
        },
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        golden=golden,
        evaluation=origin.evaluation or {},
        order=origin.order or SHORTEST_PATH,
        data=origin.data,
        config=origin.config,
        statistics=origin.statistics or {},
    )
    return WeightSet(manifest, files)


def network_bytes(network: ActorCritic) -> bytes:
    """Every weight of the network, as arrays by name in an npz container."""
    container = io.BytesIO()
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    np.savez(container, allow_pickle=False, **arrays)
    return container.getvalue()


def restored(weights: WeightSet) -> ActorCritic:
    """The network of a set of weights, to train it further. Raises UnusableWeights."""
    network = ActorCritic()
    try:
        with np.load(io.BytesIO(weights.files[NETWORK]), allow_pickle=False) as container:
            network.load_state_dict({name: torch.from_numpy(container[name]) for name in container.files})
    except (RuntimeError, ValueError, OSError) as error:
        raise UnusableWeights(f"{NETWORK} of {weights.manifest.version} is not this network: {error}") from error
    return network


AXES: Mapping[str, Mapping[str, tuple[str | int, ...]]] = {
    "node": {
        "window_ntf": ("N", STEPS, len(WINDOW_FEATURES)),
        "node_nf": ("N", len(NODE_FEATURES)),
        "present_n": ("N",),
    },
    "dag": {
        "graph_tf": ("T", len(GRAPH_FEATURES)),
        "edges_2e": (2, "E"),
        "weight_gt": ("G", "T"),
    },
    "head": {
        "context_bc": ("B", CONTEXT),
        "key_kn": (KEY, "N"),
        "bias_n": ("N",),
        "pair_bpn": ("B", len(PAIR_FEATURES), "N"),
    },
}
"""Of each part's inputs, in the order of the module's arguments, the sizes of the axes; open ones by name."""


def sample(part: str, sizes: Mapping[str, int], rng: np.random.Generator) -> Arrays:
    """Random inputs of a part, of these sizes, with few decimals."""
    arrays = {}
    for name, axes in AXES[part].items():
        shape = [axis if isinstance(axis, int) else sizes[axis] for axis in axes]
        arrays[name] = rng.uniform(-1, 2, shape).round(2).astype(np.float32)
    if part == "node":
        arrays["present_n"] = (arrays["present_n"] > -0.5).astype(np.float32)
    if part == "dag":
        arrays["edges_2e"] = _random_edges(sizes, rng)
        arrays["weight_gt"] = np.abs(arrays["weight_gt"])
    return arrays


def _random_edges(sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    """Edges_2e [2, E] among T tasks: a self-loop for each as far as they go, then any."""
    tasks, edges = sizes["T"], sizes["E"]
    selves = np.arange(min(tasks, edges))
    others = rng.integers(0, tasks, (2, edges - len(selves)))
    return np.concatenate([np.stack([selves, selves]), others], axis=1).astype(np.int64)


def _to_onnx(part: str, module: nn.Module) -> bytes:
    inputs = sample(part, SAMPLE_SIZES, np.random.default_rng(0))
    axes = {
        name: {at: torch.export.Dim(axis, min=1) for at, axis in enumerate(shape) if isinstance(axis, str)}
        for name, shape in AXES[part].items()
    }
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            module,
            tuple(_tensors(inputs)),
            dynamo=True,
            external_data=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(OUTPUTS[part]),
            dynamic_shapes=tuple(axes.values()),
            verbose=False,
        )
    assert program is not None
    return _stripped(program.model_proto)


def _tensors(inputs: Arrays) -> list[Tensor]:
    return [torch.from_numpy(array) for array in inputs.values()]


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own deprecations and lists operators that nobody uses."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _stripped(model: onnx.ModelProto) -> bytes:
    """The model without the traces of the machine that it was made on: source lines with their paths."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return bytes(model.SerializeToString(deterministic=True))


def check_axes(part: str, content: bytes) -> None:
    """Refuse a file whose inputs have not the axes of AXES: an open axis that the exporter fixed without a word.

    Raises UnusableWeights.
    """
    graph = onnx.load_from_string(content).graph
    for value in graph.input:
        axes = tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
        if axes != AXES[part].get(value.name):
            raise UnusableWeights(
                f"{file_name(part)}: {value.name} has the axes {axes}, not {AXES[part].get(value.name)}; "
                "export with samples whose sizes are 2 or more and all different"
            )
    missing = set(AXES[part]) - {value.name for value in graph.input}
    if missing:
        raise UnusableWeights(f"{file_name(part)}: does not look at {', '.join(sorted(missing))}")


def check_parity(session: Session, module: nn.Module, inputs: Arrays, sizes: Mapping[str, int]) -> None:
    """Refuse a file that does not answer what torch does. Raises UnusableWeights."""
    with torch.no_grad():
        wanted = module(*_tensors(inputs))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for name, found, tensor in zip(session.outputs, session.run(inputs), wanted, strict=True):
        difference = relative_difference(found, tensor.numpy())
        if not difference <= TOLERANCE:
            raise UnusableWeights(
                f"{file_name(session.part)}: {name} differs by {difference:.2g} from torch's at {dict(sizes)}, "
                f"more than {TOLERANCE:g}; the exporter has mistranslated the network"
            )
