"""What is usual: 95th percentiles over the last days of event time, by class of workflow."""

from __future__ import annotations

from policy.percentiles import RollingPercentile
from schemas.records import WorkflowClass

DAYS = 7
LEAST_VALUES = 20
"""A class of which there are fewer is judged by all classes together: a 95th percentile of fewer is their largest."""
TURNAROUND, STRETCH, COST = "turnaround", "stretch", "cost"


class Usual:
    """Percentiles of each class, and of all classes together.

    Turnarounds of different classes do not compare, but stretches do: turnaround over the critical path of predicted
    run times. Costs by kind are those of attempts.
    """

    def __init__(self) -> None:
        self._percentiles: dict[tuple[str, int, WorkflowClass | None], RollingPercentile] = {}

    def add_workflow(self, workflow_class: WorkflowClass, turnaround_s: float, path_s: float, at_ms: int) -> None:
        """A workflow finished."""
        self._of(TURNAROUND, 0, workflow_class).add(turnaround_s, at_ms)
        if path_s > 0:
            self._of(STRETCH, 0, None).add(turnaround_s / path_s, at_ms)

    def add_cost(self, workflow_class: WorkflowClass, kind: int, cost: float, at_ms: int) -> None:
        """An attempt finished that cost so much of this kind."""
        for group in (workflow_class, None):
            self._of(COST, kind, group).add(cost, at_ms)

    def turnaround_p95_s(self, workflow_class: WorkflowClass, path_s: float, now_ms: int) -> tuple[float | None, int]:
        """What is usual for a workflow of this critical path, and on how many workflows that rests."""
        of_class = self._at(TURNAROUND, 0, workflow_class, now_ms)
        if len(of_class) >= LEAST_VALUES:
            return of_class.percentile(), len(of_class)
        of_all = self._at(STRETCH, 0, None, now_ms)
        stretch = of_all.percentile()
        return (None, 0) if stretch is None or path_s <= 0 else (stretch * path_s, len(of_all))

    def cost_p95(self, workflow_class: WorkflowClass, kind: int, now_ms: int) -> float | None:
        """What an attempt that costs anything of this kind usually costs of it."""
        of_class = self._at(COST, kind, workflow_class, now_ms)
        if len(of_class) >= LEAST_VALUES:
            return of_class.percentile()
        return self._at(COST, kind, None, now_ms).percentile()

    def _of(self, what: str, kind: int, group: WorkflowClass | None) -> RollingPercentile:
        return self._percentiles.setdefault((what, kind, group), RollingPercentile(24 * DAYS))

    def _at(self, what: str, kind: int, group: WorkflowClass | None, now_ms: int) -> RollingPercentile:
        percentiles = self._of(what, kind, group)
        percentiles.forget(now_ms)
        return percentiles
