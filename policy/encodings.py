"""What the actor keeps of a pool between decisions: its encoded nodes and DAGs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from policy.features import node_features
from policy.state import State
from policy.workflows import TaskState, Workflow

NodeKey = tuple[int, int]
"""Version of the node table, newest step of the windows."""

FIRST_SWEEP = 64


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """What the node encoder needs of a pool: a copy, safe to hand to another thread.

    window_tnm [T, N, M], node_nf [N, len(NODE_FEATURES)], present_n [N] float32
    """

    key: NodeKey
    window_tnm: np.ndarray
    node_nf: np.ndarray
    present_n: np.ndarray


def node_inputs(state: State) -> NodeInputs:
    """Copy what the node encoder needs. Best called when the samples of the newest step are in."""
    nodes = state.nodes
    return NodeInputs(
        node_key(state),
        state.windows.read(len(nodes)),
        node_features(state),
        nodes.is_present_n.astype(np.float32),
    )


def node_key(state: State) -> NodeKey:
    """What an encoding of the pool's nodes depends on: while it stays, so does the encoding."""
    return (state.nodes.version, state.windows.step)


@dataclass(frozen=True, slots=True)
class NodeEncoding:
    """What the head needs of a pool's nodes: key_kn [K, N], bias_n [N], pool_h [H]."""

    key: NodeKey
    key_kn: np.ndarray
    bias_n: np.ndarray
    pool_h: np.ndarray

    def fit(self, nodes: int) -> NodeEncoding:
        """The encoding of this many nodes: those that are newer than it count as the average node."""
        missing = nodes - len(self.bias_n)
        if missing <= 0:
            return self
        filled = max(len(self.bias_n), 1)
        mean_k1 = self.key_kn.sum(axis=1, keepdims=True) / filled
        return replace(
            self,
            key_kn=np.concatenate([self.key_kn, np.repeat(mean_k1, missing, axis=1)], axis=1),
            bias_n=np.append(self.bias_n, np.full(missing, self.bias_n.sum() / filled, np.float32)),
        )


def empty(key: NodeKey, like: Mapping[str, np.ndarray]) -> NodeEncoding:
    """The encoding of a pool without nodes, of the same widths as these outputs of the node encoder."""
    width, hidden = len(like["key_kn"]), len(like["pool_h"])
    return NodeEncoding(key, np.zeros((width, 0), np.float32), np.zeros(0, np.float32), np.zeros(hidden, np.float32))


def joined(key: NodeKey, slices: list[NodeEncoding], counts: list[float]) -> NodeEncoding:
    """The encoding of nodes that were encoded slice by slice; `counts`: how many nodes of each slice count."""
    weights = np.array(counts, np.float32) / max(sum(counts), 1.0)
    return NodeEncoding(
        key,
        np.concatenate([part.key_kn for part in slices], axis=1),
        np.concatenate([part.bias_n for part in slices]),
        weights @ np.stack([part.pool_h for part in slices]),
    )


@dataclass(frozen=True, slots=True)
class DagEncoding:
    """What the head needs of a DAG: fixed_tc [T, C], each task's fixed features, embedding and vector of its DAG."""

    fixed_tc: np.ndarray


Dag = Workflow | TaskState
"""What is encoded as one DAG: a workflow; of an open one, whose tasks come one by one, each task on its own."""


def dag_of(task: TaskState) -> tuple[Dag, int]:
    """The DAG that the task is encoded in, and its row there."""
    workflow = task.workflow
    return (task, 0) if workflow.is_open else (workflow, workflow.index[task.task.task_id])


def tasks_of(dag: Dag) -> list[TaskState]:
    """The tasks of the DAG, one a row."""
    return [dag] if isinstance(dag, TaskState) else dag.tasks


class PoolMemory:
    """The encodings of one pool."""

    def __init__(self) -> None:
        self.nodes: NodeEncoding | None = None
        self.dags: dict[Dag, DagEncoding] = {}
        self._sweep_at = FIRST_SWEEP

    def sweep(self, state: State) -> None:
        """Forget the DAGs that are over, whenever their number has doubled."""
        if len(self.dags) >= self._sweep_at:
            self.dags = {dag: encoding for dag, encoding in self.dags.items() if _is_live(dag, state)}
            self._sweep_at = max(FIRST_SWEEP, 2 * len(self.dags))


def _is_live(dag: Dag, state: State) -> bool:
    workflow = dag.workflow if isinstance(dag, TaskState) else dag
    is_over = isinstance(dag, TaskState) and dag.is_over
    return not is_over and state.workflows.get(workflow.workflow_id) is workflow
