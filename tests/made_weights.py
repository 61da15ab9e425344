"""Sets of weights that must not decide."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.weights import with_file
from policy.weight_set import WeightSet, file_name


def not_finite(weights: WeightSet) -> WeightSet:
    """Whose head answers NaN."""
    model = onnx.load_from_string(weights.files[file_name("head")])
    for initializer in model.graph.initializer:
        array = numpy_helper.to_array(initializer)
        if array.dtype == np.float32:
            initializer.CopyFrom(numpy_helper.from_array(np.full_like(array, np.nan), initializer.name))
    return with_file(weights, file_name("head"), model.SerializeToString())
