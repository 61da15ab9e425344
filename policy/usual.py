"""What is usual: the 95th percentiles of each class of workflows over the last days, by event time."""

from __future__ import annotations

from policy.percentiles import RollingPercentile
from schemas.records import WorkflowClass

TURNAROUND, CPU, GPU, STORAGE = range(4)
"""What percentiles are kept of: of workflows the turnaround, of attempts the costs by kind."""
DAYS = 7
LEAST_VALUES = 20
"""A class of which there are fewer is judged by all classes together: a 95th percentile of fewer is their largest."""


class Usual:
    """Percentiles of each class, and of all classes together."""

    def __init__(self) -> None:
        self._of_class: dict[tuple[WorkflowClass | None, int], RollingPercentile] = {}

    def add(self, workflow_class: WorkflowClass, kind: int, value: float, at_ms: int) -> None:
        """Take one value in."""
        for group in (workflow_class, None):
            self._of_class.setdefault((group, kind), RollingPercentile(24 * DAYS)).add(value, at_ms)

    def p95(self, workflow_class: WorkflowClass, kind: int, now_ms: int) -> tuple[float | None, int]:
        """The percentile, and on how many values it rests; None where there are none."""
        for group, least in ((workflow_class, LEAST_VALUES), (None, 1)):
            values = self._of_class.get((group, kind))
            if values is not None:
                values.forget(now_ms)
                if len(values) >= least:
                    return values.percentile(), len(values)
        return None, 0
