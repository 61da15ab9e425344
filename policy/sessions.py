"""The actor's parts as ONNX Runtime sessions on the device that was asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnxruntime

from policy.weight_set import PARTS, Arrays, WeightSet, file_name
from schemas.errors import UnusableWeights

INPUTS = {
    "node": ("window_ntf", "node_nf", "present_n"),
    "dag": ("graph_tf", "edges_2e", "weight_gt"),
    "head": ("context_bc", "key_kn", "bias_n", "pair_bpn"),
}
OUTPUTS = {
    "node": ("key_kn", "bias_n", "pool_h"),
    "dag": ("embedding_th", "vector_gh"),
    "head": ("logits_bn",),
}
"""What each part is given, and what it answers; `policy.network` says what they are."""
DEVICES = ("auto", "cuda", "cpu")
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
GOLDEN_TOLERANCE = 1e-4
"""Relative to 1 and to the value: what the golden outputs may differ by."""


@dataclass(frozen=True, slots=True)
class Session:
    """One part. `run` may be called by several threads at once."""

    part: str
    onnx: onnxruntime.InferenceSession
    outputs: tuple[str, ...]

    @property
    def provider(self) -> str:
        """The execution provider that it runs on."""
        return str(self.onnx.get_providers()[0])

    def zeros(self, sizes: Mapping[str, int]) -> Arrays:
        """Inputs of these sizes, all 0: the size of each axis that the file leaves open, by its name."""
        return {
            value.name: np.zeros([sizes[n] if isinstance(n, str) else n for n in value.shape], TYPES[value.type])
            for value in self.onnx.get_inputs()
        }

    def run(self, inputs: Arrays) -> list[np.ndarray]:
        """Its outputs, in order. Raises UnusableWeights when it fails."""
        try:
            return self.onnx.run(self.outputs, inputs)
        except Exception as error:  # onnxruntime's errors have no common base but this
            raise UnusableWeights(f"{file_name(self.part)}: the run failed: {error}") from error


def open_sessions(weights: WeightSet, device: str) -> dict[str, Session]:
    """A session for each of PARTS, each checked against its golden outputs.

    `auto` takes CUDA where it works and the CPU elsewhere. Raises UnusableWeights when the device that was asked for
    cannot be had, or when a part does not answer what its manifest says.
    """
    provider = CPU if device == "cpu" or (device == "auto" and not has_cuda()) else CUDA
    sessions = {part: open_session(part, weights.files[file_name(part)], provider) for part in PARTS}
    given = {session.provider for session in sessions.values()}
    if device == "cuda" and given != {CUDA}:
        raise UnusableWeights(
            f"the actor was to run on cuda, but ONNX Runtime gave {', '.join(sorted(given))}; "
            "check the NVIDIA driver, CUDA and cuDNN, or set the device to auto or cpu"
        )
    for session in sessions.values():
        golden = weights.manifest.golden[session.part]
        check_golden(session, golden.inputs, golden.outputs)
    return sessions


def has_cuda() -> bool:
    """Whether there is a CUDA driver with a device. ONNX Runtime lists its provider with or without one."""
    if CUDA not in onnxruntime.get_available_providers():
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def check_golden(session: Session, inputs: Arrays, outputs: Arrays) -> None:
    """Refuse a part that does not answer what it did when it was exported. Raises UnusableWeights."""
    for name, found in zip(session.outputs, session.run(inputs), strict=True):
        wanted = outputs.get(name)
        if wanted is None or wanted.shape != found.shape:
            raise UnusableWeights(
                f"{file_name(session.part)}: its output {name} has not the shape that its manifest says"
            )
        difference = relative_difference(found, wanted)
        if not difference <= GOLDEN_TOLERANCE:
            raise UnusableWeights(
                f"{file_name(session.part)}: {name} differs by {difference:.2g} from what it answered when it was "
                f"exported, more than {GOLDEN_TOLERANCE:g}; export it again for this version of ONNX Runtime"
            )


def relative_difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, relative to the value or to 1; NaN where one of them is."""
    return float((np.abs(found - wanted) / np.maximum(np.abs(wanted), 1)).max(initial=0))


def open_session(part: str, content: bytes, provider: str) -> Session:
    if provider == CUDA:
        onnxruntime.preload_dlls()
        providers: list[str | tuple[str, Mapping[str, str]]] = [(CUDA, {"use_tf32": "0"}), CPU]
    else:
        providers = [CPU]
    try:
        onnx = onnxruntime.InferenceSession(content, _options(), providers=providers)
    except Exception as error:  # onnxruntime's errors have no common base but this
        raise UnusableWeights(f"{file_name(part)}: ONNX Runtime cannot load it: {error}") from error
    inputs, outputs = (tuple(value.name for value in values) for values in (onnx.get_inputs(), onnx.get_outputs()))
    if (inputs, outputs) != (INPUTS[part], OUTPUTS[part]):
        raise UnusableWeights(
            f"{file_name(part)}: makes {', '.join(outputs)} of {', '.join(inputs)}, "
            f"not {', '.join(OUTPUTS[part])} of {', '.join(INPUTS[part])}; "
            "train weights with this version, or run the version that they were trained with"
        )
    return Session(part, onnx, outputs)


def _options() -> onnxruntime.SessionOptions:
    """One thread, that does not spin: a worker scales by processes, and shares its cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options
