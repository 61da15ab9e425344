"""Which nodes carry a label, an image or a soft taint, looked up by what is carried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from policy.nodes import NodeTable
from schemas.records import Effect, Taint, Toleration

NO_COLUMNS = np.array([], np.int64)


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a pool's nodes, those that are lost included; what is looked up are columns of the node table.

    labels       key -> value -> columns
    images       name -> (columns, bytes on each of them)
    soft_taints  taint -> columns
    """

    labels: Mapping[str, Mapping[str, np.ndarray]]
    images: Mapping[str, tuple[np.ndarray, np.ndarray]]
    soft_taints: Mapping[Taint, np.ndarray]

    def labelled(self, key: str, value: str) -> np.ndarray:
        """The columns of the nodes whose label `key` has this value."""
        return self.labels.get(key, {}).get(value, NO_COLUMNS)


def marks(nodes: NodeTable) -> Marks:
    """Gather the marks of all nodes; `nodes.derived(marks)` does so once for each change of the nodes."""
    labels: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    images: dict[str, list[tuple[int, int]]] = defaultdict(list)
    soft_taints: dict[Taint, list[int]] = defaultdict(list)
    for column, spec in enumerate(nodes.specs):
        for key, value in spec.labels.items():
            labels[key][value].append(column)
        for name, size in spec.images.items():
            images[name].append((column, size))
        for taint in spec.taints:
            if taint.effect == Effect.PREFER_NO_SCHEDULE:
                soft_taints[taint].append(column)
    return Marks(
        {key: {value: np.array(columns) for value, columns in values.items()} for key, values in labels.items()},
        {name: (np.array([c for c, _ in on]), np.array([size for _, size in on])) for name, on in images.items()},
        {taint: np.array(columns) for taint, columns in soft_taints.items()},
    )


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether the toleration covers the taint."""
    return (
        toleration.key in ("", taint.key)
        and toleration.value in (None, taint.value)
        and toleration.effect in (Effect.UNKNOWN, taint.effect)
    )
