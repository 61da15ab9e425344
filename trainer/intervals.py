"""What paired figures say together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval."""
    return float(np.mean(values)), 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5
