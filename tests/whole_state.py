"""Everything that a state is made of, as plain values: equal where nobody could ever tell two states apart.

It walks over all attributes, private ones included. One that is added to the state is thus compared from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from policy.state import State, StateSettings
from policy.workflows import TaskState

KEPT_FOR_SPEED = {
    "_derived",
    "_fold",
    "_fresh_at",
    "_fresh_n",
    "_samples",
    "_looked_fresh_n",
    "_kinds",
    "_kind_index",
    "_kind_p",
    "_room",
    "encoded",
    "kept_row",
}
"""Attributes without influence on any answer."""
WITHOUT_ORDER = {"NodeTable.index", "Ledger._on_node", "ReadyQueue._row"}
"""Dicts of which nobody asks more than what stands under a key; nothing and something empty are the same there."""


def whole(state: State) -> Any:
    """The state as plain values."""
    assert len(state.failure_n) == state.ledger.free_rn.shape[1] == len(state.nodes)  # asking makes room for all nodes
    state.windows.latest(len(state.nodes))
    return _Walk(state).of("", state)


class _Walk:
    def __init__(self, state: State) -> None:
        self.state = state
        self.used = {"n": len(state.nodes), "p": len(state.queue)}
        self.met: dict[int, int] = {}

    def of(self, name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self.array(name, value)
        if isinstance(value, Mapping):
            items = [(key, self.of("", item)) for key, item in value.items()]
            return sorted(item for item in items if item[1] != []) if name in WITHOUT_ORDER else items
        if isinstance(value, list):
            return [self.of("", item) for item in value]
        if isinstance(value, set):
            return sorted(value)
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, TaskState) and self.is_gone(value):
            return "gone", value.workflow.workflow_id, value.task.task_id, value.is_over
        if type(value).__module__.startswith("policy.") and not isinstance(value, Enum | StateSettings):
            return self.attributes(value)
        return value

    def attributes(self, value: Any) -> Any:
        """Of an object that was met before, which one it is: aliases are told from copies."""
        if id(value) in self.met:
            return self.met[id(value)]
        self.met[id(value)] = len(self.met)
        kind = type(value)
        names = vars(value) if hasattr(value, "__dict__") else kind.__slots__
        return {n: self.of(f"{kind.__name__}.{n}", getattr(value, n)) for n in names if n not in KEPT_FOR_SPEED}

    def array(self, name: str, array: np.ndarray) -> Any:
        """Without the room for more nodes or rows; the axes stand at the end of its name."""
        axes = name.rpartition("_")[2]
        assert len(axes) == array.ndim, f"the name of {name} does not tell its axes"
        used = array[tuple(slice(self.used.get(axis)) for axis in axes)]
        return str(used.dtype), used.shape, repr(used.tolist())

    def is_gone(self, task: TaskState) -> bool:
        """Whether its workflow is no more, or is another one by now."""
        return self.state.workflows.get(task.workflow.workflow_id) is not task.workflow
