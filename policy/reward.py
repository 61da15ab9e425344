"""How good a run was, as one number: what training maximises and evaluation compares.

    R = - 0.4 turnaround / P95 - 0.3 cost / P95 + 0.2 SLA - 0.1 fragmentation - 0.05 imbalance

Every term lies in [0, 1]. The P95 are those of the workflow's class under the cluster's own scheduler. What a single
decision of a live pool is worth is `policy.credit`'s; the weights are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from schemas.errors import InvalidConfiguration
from schemas.fields import suggestion

SLA_S = 300.0
"""A task should start within this time of becoming ready."""


@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """What each term counts."""

    turnaround: float = 0.4
    cost: float = 0.3
    sla: float = 0.2
    fragmentation: float = 0.1
    imbalance: float = 0.05
    """Of a whole run's imbalance; of a single decision's balance, 1 - |load - mean| / mean."""
    pcie: float = 0.0
    """Of the share of the PCIe bandwidth that a GPU task finds free on its node; decisions only."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 100:
                raise InvalidConfiguration(f"reward.{name}", f"{value} is out of range", "give 0 to 100")


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is usual: the 95th percentiles of each class of workflows [C], seconds and currency."""

    turnaround_s_c: np.ndarray
    cost_c: np.ndarray


@dataclass(frozen=True, slots=True)
class Run:
    """What is measured of a run. Axes: W workflows.

    class_w        [W] int64, index of the class in the baseline
    turnaround_s_w [W] from submission to the last finish; inf: never finished
    cost_w         [W] currency
    sla_w          [W] share of its tasks that started within SLA_S
    fragmentation  mean over time and nodes of the mean squared free share
    imbalance      mean over time of the nodes' standard deviation of cpu load, over their mean load
    """

    class_w: np.ndarray
    turnaround_s_w: np.ndarray
    cost_w: np.ndarray
    sla_w: np.ndarray
    fragmentation: float
    imbalance: float


def changed(weights: RewardWeights, arguments: Mapping[str, str]) -> RewardWeights:
    """The weights with these instead, which come as text. Raises InvalidConfiguration."""
    values: dict[str, float] = {}
    for name, text in arguments.items():
        if name not in vars(weights):
            raise InvalidConfiguration(f"reward.{name}", "there is no such weight", suggestion(name, vars(weights)))
        try:
            values[name] = float(text)
        except ValueError:
            raise InvalidConfiguration(f"reward.{name}", f"'{text}' is no number", "give 0 to 100") from None
    return replace(weights, **values)


def baseline(runs: list[Run], classes: int) -> Baseline:
    """The baseline that these runs make; a class that they lack counts as the dearest of all."""
    class_w = np.concatenate([run.class_w for run in runs])

    def percentiles(values_w: np.ndarray) -> np.ndarray:
        known = [values_w[class_w == c] for c in range(classes)]
        return np.array([np.percentile(of_class if len(of_class) else values_w, 95) for of_class in known])

    return Baseline(
        percentiles(np.concatenate([run.turnaround_s_w for run in runs])),
        percentiles(np.concatenate([run.cost_w for run in runs])),
    )


def terms(run: Run, usual: Baseline) -> dict[str, float]:
    """The terms of the reward by their weights' names, each in [0, 1]."""
    return {
        "turnaround": _share(run.turnaround_s_w, usual.turnaround_s_c[run.class_w]),
        "cost": _share(run.cost_w, usual.cost_c[run.class_w]),
        "sla": float(run.sla_w.mean()),
        "fragmentation": min(1.0, run.fragmentation),
        "imbalance": min(1.0, run.imbalance),
    }


def reward(run: Run, usual: Baseline, weights: RewardWeights | None = None) -> float:
    """R of the run: larger is better."""
    weights = weights or RewardWeights()
    return sum(
        (1 if name == "sla" else -1) * getattr(weights, name) * value for name, value in terms(run, usual).items()
    )


def _share(values_w: np.ndarray, usual_w: np.ndarray) -> float:
    return float(np.clip(values_w / np.maximum(usual_w, 1e-9), 0, 1).mean())
