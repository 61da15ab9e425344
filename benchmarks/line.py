"""The line that a benchmark prints for one figure."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np


def report(figure: str, unit: str, values: Sequence[float], **facts: object) -> None:
    """Print a figure: median, least and most of its repetitions, and facts such as its counterpart and their ratio."""
    ordered = sorted(values)
    spread = {"median": float(np.median(ordered)), "min": ordered[0], "max": ordered[-1], "runs": len(ordered)}
    rounded = {name: _short(value) for name, value in {**spread, **facts}.items()}
    print(json.dumps({"figure": figure, "unit": unit, **rounded}), flush=True)


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value
