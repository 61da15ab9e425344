"""What is reserved on each node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from policy.nodes import NodeTable
from policy.resources import RESOURCES, Request

AttemptKey = tuple[str, str, int]
"""workflow, task, attempt"""


@dataclass(frozen=True, slots=True)
class Reservation:
    """An attempt's hold on a node, from its placement to its end."""

    node: int
    request: Request


class Ledger:
    """Reservations by attempt. Whatever is repeated has no effect: an attempt holds one reservation or none."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._reserved_rn = np.zeros((len(RESOURCES), 16), np.int64)
        self._unasked_rn = np.zeros((len(RESOURCES), 16), np.int64)
        self._held_n = np.zeros(16, np.int64)
        self._reservations: dict[AttemptKey, Reservation] = {}
        self._on_node: dict[int, set[AttemptKey]] = {}
        self.freed: set[int] = set()
        """Nodes where room was made since the last decision; its reader empties it."""

    def __len__(self) -> int:
        return len(self._reservations)

    def __iter__(self) -> Iterator[tuple[AttemptKey, Reservation]]:
        return iter(self._reservations.items())

    def get(self, key: AttemptKey) -> Reservation | None:
        """The attempt's reservation, if it has one."""
        return self._reservations.get(key)

    @property
    def reserved_rn(self) -> np.ndarray:
        """[R, N] amounts held."""
        self._make_room(len(self._nodes))
        return self._reserved_rn[:, : len(self._nodes)]

    @property
    def held_n(self) -> np.ndarray:
        """[N] attempts on the node."""
        self._make_room(len(self._nodes))
        return self._held_n[: len(self._nodes)]

    @property
    def unasked_rn(self) -> np.ndarray:
        """[R, N] attempts on the node that take nothing of the resource: some policies assume an amount for them."""
        self._make_room(len(self._nodes))
        return self._unasked_rn[:, : len(self._nodes)]

    @property
    def free_rn(self) -> np.ndarray:
        """[R, N] amounts left, of a node that shrank below its reservations less than 0; a new array."""
        return self._nodes.capacity_rn - self.reserved_rn

    def reserve(self, key: AttemptKey, node: int, request: Request) -> None:
        """Hold this much on the node for the attempt."""
        if key in self._reservations:
            return
        self._make_room(node + 1)
        self._reservations[key] = Reservation(node, request)
        self._on_node.setdefault(node, set()).add(key)
        self._add(node, request, 1)

    def release(self, key: AttemptKey) -> Reservation | None:
        """Give up what the attempt holds; returns it."""
        held = self._reservations.pop(key, None)
        if held is not None:
            self._on_node[held.node].discard(key)
            self._add(held.node, held.request, -1)
            self.freed.add(held.node)
        return held

    def on_node(self, node: int) -> frozenset[AttemptKey]:
        """The attempts that hold something on the node."""
        return frozenset(self._on_node.get(node, ()))

    def _add(self, node: int, request: Request, sign: int) -> None:
        self._held_n[node] += sign
        for resource, amount in enumerate(request):
            if amount:
                self._reserved_rn[resource, node] += sign * amount
            else:
                self._unasked_rn[resource, node] += sign

    def _make_room(self, nodes: int) -> None:
        room = self._reserved_rn.shape[1]
        if nodes > room:
            grown = ((0, 0), (0, max(nodes, 2 * room) - room))
            self._reserved_rn = np.pad(self._reserved_rn, grown)
            self._unasked_rn = np.pad(self._unasked_rn, grown)
            self._held_n = np.pad(self._held_n, grown[1])
