"""The nodes of a pool as columns: what they are, and whether they are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from policy.resources import RESOURCES, capacity
from schemas.records import NodeSpec

Derived = TypeVar("Derived")

FIRST_ROOM = 16
NEVER_MS = -1


class NodeTable:
    """Every node ever seen in a pool, one column each. A column keeps its place as long as its node is known.

    capacity_rn      [R, N]  int64
    device_memory_n  [N]     int64, bytes of one GPU
    speed_n, price_n, bandwidth_n  [N]  float64; price per hour, bytes per second
    seen_ms_n        [N]     int64, event time of the last sample; -1: never
    lost_ms_n        [N]     int64, event time of the last loss; -1: never
    is_present_n     [N]     bool, False after the node was lost
    """

    def __init__(self) -> None:
        self.specs: list[NodeSpec] = []
        self.index: dict[str, int] = {}
        self.version = 0
        """Grows with each change of a specification or of presence."""
        self._derived: dict[Callable[[NodeTable], Any], tuple[int, Any]] = {}
        self.encoded: list[tuple[NodeSpec, bytes]] = []
        """Specifications with their encoded records: `policy.state_columns` encodes each once, and keeps them here."""
        self._room = 0
        self._grow(FIRST_ROOM)

    def __len__(self) -> int:
        return len(self.specs)

    @property
    def capacity_rn(self) -> np.ndarray:
        return self._capacity_rn[:, : len(self.specs)]

    @property
    def device_memory_n(self) -> np.ndarray:
        return self._device_memory_n[: len(self.specs)]

    @property
    def speed_n(self) -> np.ndarray:
        return self._speed_n[: len(self.specs)]

    @property
    def price_n(self) -> np.ndarray:
        return self._price_n[: len(self.specs)]

    @property
    def bandwidth_n(self) -> np.ndarray:
        return self._bandwidth_n[: len(self.specs)]

    @property
    def seen_ms_n(self) -> np.ndarray:
        return self._seen_ms_n[: len(self.specs)]

    @property
    def lost_ms_n(self) -> np.ndarray:
        return self._lost_ms_n[: len(self.specs)]

    @property
    def is_present_n(self) -> np.ndarray:
        return self._is_present_n[: len(self.specs)]

    def put(self, spec: NodeSpec, reusable: int | None = None) -> int:
        """Take in a node's specification; returns its column. A new node takes the column `reusable`, if given."""
        at = self.index.get(spec.node_id)
        if at is None:
            at = self._new_column(spec, reusable)
        elif self.specs[at] == spec:
            return at
        self.specs[at] = spec
        self._capacity_rn[:, at] = capacity(spec)
        self._device_memory_n[at] = spec.gpu_memory_bytes
        self._speed_n[at] = spec.speed
        self._price_n[at] = spec.price_per_hour
        self._bandwidth_n[at] = spec.bandwidth_bytes_per_s
        self.version += 1
        return at

    def derived(self, make: Callable[[NodeTable], Derived]) -> Derived:
        """What `make` gathers from the specifications; gathered again after one of them changed."""
        version, value = self._derived.get(make, (None, None))
        if version != self.version:
            value = make(self)
            self._derived[make] = (self.version, value)
        return cast(Derived, value)

    def lose(self, at: int, at_ms: int) -> bool:
        """The node of this column was lost at this event time; a later sample brings it back, or has done so.

        Returns whether that is news: a repeat has no effect.
        """
        if at_ms <= self._lost_ms_n[at]:
            return False
        self._lost_ms_n[at] = at_ms
        if self._seen_ms_n[at] > at_ms:
            return True
        self._is_present_n[at] = False
        self._seen_ms_n[at] = max(self._seen_ms_n[at], at_ms)
        self.version += 1
        return True

    def see(self, columns: np.ndarray, at_ms: np.ndarray | int) -> list[int]:
        """Samples of these columns, taken at these event times, have arrived; returns the columns that are back."""
        seen_ms = self._seen_ms_n[columns]
        self._seen_ms_n[columns] = np.maximum(seen_ms, at_ms)
        back = columns[(~self._is_present_n[columns]) & (seen_ms < at_ms)]
        if len(back):
            self._is_present_n[back] = True
            self.version += 1
        return back.tolist()

    def _new_column(self, spec: NodeSpec, reusable: int | None) -> int:
        if reusable is not None:
            del self.index[self.specs[reusable].node_id]
            at = reusable
        else:
            at = len(self.specs)
            if at == self._room:
                self._grow(2 * self._room)
            self.specs.append(spec)
        self.index[spec.node_id] = at
        self._seen_ms_n[at] = self._lost_ms_n[at] = NEVER_MS
        self._is_present_n[at] = True
        return at

    def _grow(self, room: int) -> None:
        used, grown = self._room, room - self._room
        if used == 0:
            self._capacity_rn = np.zeros((len(RESOURCES), room), np.int64)
            self._device_memory_n = np.zeros(room, np.int64)
            self._speed_n = np.ones(room)
            self._price_n = np.zeros(room)
            self._bandwidth_n = np.ones(room)
            self._seen_ms_n = np.full(room, NEVER_MS, np.int64)
            self._lost_ms_n = np.full(room, NEVER_MS, np.int64)
            self._is_present_n = np.zeros(room, bool)
        else:
            self._capacity_rn = np.pad(self._capacity_rn, ((0, 0), (0, grown)))
            self._device_memory_n = np.pad(self._device_memory_n, (0, grown))
            self._speed_n = np.pad(self._speed_n, (0, grown), constant_values=1.0)
            self._price_n = np.pad(self._price_n, (0, grown))
            self._bandwidth_n = np.pad(self._bandwidth_n, (0, grown), constant_values=1.0)
            self._seen_ms_n = np.pad(self._seen_ms_n, (0, grown), constant_values=NEVER_MS)
            self._lost_ms_n = np.pad(self._lost_ms_n, (0, grown), constant_values=NEVER_MS)
            self._is_present_n = np.pad(self._is_present_n, (0, grown))
        self._room = room
