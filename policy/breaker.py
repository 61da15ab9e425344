"""The load-skew breaker: when nodes are used too unequally, a pool's next tasks take its nodes in turn.

It is judged once in each step of the windows, from the samples of the step before, and only where decisions can have
made the skew: not in pools of a few nodes, where one busy node is skew whatever anybody decides, and not where the
busy nodes hold nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.errors import InvalidConfiguration


@dataclass(frozen=True, kw_only=True)
class BreakerSettings:
    """When the breaker opens, and what follows."""

    opens_above: float = 0.4
    """Standard deviation of the nodes' CPU utilisation above which it opens. It is never more than 0.5."""
    closes_below: float = 0.3
    """It closes below this: between the two it stays as it is."""
    tasks: int = 10
    """So many tasks go round robin when it opens; 0: there is no breaker."""
    least_nodes: int = 8
    """With fewer nodes that report, it does not open: of four, one busy node alone is a deviation of 0.43."""
    again_s: float = 300.0
    """It opens once more when the skew lasts that long: a window of samples."""
    retrain_s: float = 3600.0
    """Emergency retraining is asked for at most once in that time, and learns from the decisions of that time."""

    def __post_init__(self) -> None:
        if not 0 <= self.closes_below <= self.opens_above:
            raise InvalidConfiguration(
                "state.breaker", f"closes_below {self.closes_below} is above opens_above", "give 0 to opens_above"
            )
        for name, least in (("tasks", 0), ("least_nodes", 1), ("again_s", 1), ("retrain_s", 1)):
            if not least <= getattr(self, name) < float("inf"):
                raise InvalidConfiguration(
                    f"state.breaker.{name}", f"{getattr(self, name)} is out of range", f"give {least} or more"
                )


NO_BREAKER = BreakerSettings(tasks=0)


class Breaker:
    """Of one pool. Times are event times, Unix milliseconds."""

    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        self.is_open = False
        self.turns = 0
        """Tasks that still go round robin."""
        self.spread = 0.0
        """Standard deviation of the CPU utilisation when it was last judged; 0 where that says nothing."""
        self.opened_ms = 0
        self.openings = 0
        self.asked_ms: int | None = None
        """When emergency retraining was last asked for."""

    def judge(self, cpu_n: np.ndarray, held_n: np.ndarray, at_ms: int) -> None:
        """Look at the nodes that report: what is used of their CPUs (NaN: not measured), attempts that they hold."""
        settings = self.settings
        if not settings.tasks:
            return
        is_known_n = ~np.isnan(cpu_n)
        used_n, held_n = cpu_n[is_known_n].astype(np.float64), held_n[is_known_n]
        self.spread = float(used_n.std()) if len(used_n) >= settings.least_nodes else 0.0
        if self.is_open and self.spread < settings.closes_below:
            self.is_open, self.turns = False, 0
        if self.spread <= settings.opens_above or not _is_ours(used_n, held_n):
            return
        if not self.is_open or at_ms - self.opened_ms >= 1000 * settings.again_s:
            self._open(at_ms)

    def placed(self) -> None:
        """A task was placed."""
        self.turns = max(0, self.turns - 1)

    def to_plain(self) -> dict[str, Any]:
        """All of it but its settings, as JSON takes it."""
        return {name: value for name, value in vars(self).items() if name != "settings"}

    def put_back(self, plain: Mapping[str, Any]) -> None:
        """Become what `to_plain` gave; what it lacks stays."""
        for name in vars(self).keys() & plain.keys():
            setattr(self, name, plain[name])

    def _open(self, at_ms: int) -> None:
        self.is_open, self.turns = True, self.settings.tasks
        self.opened_ms = at_ms
        self.openings += 1
        if self.asked_ms is None or at_ms - self.asked_ms >= 1000 * self.settings.retrain_s:
            self.asked_ms = at_ms


def _is_ours(used_n: np.ndarray, held_n: np.ndarray) -> bool:
    """Whether most of the nodes that are busier than the mean hold attempts of ours."""
    is_hot_n = used_n > used_n.mean()
    return bool(2 * (is_hot_n & (held_n > 0)).sum() > is_hot_n.sum())
