"""Decisions kept as numbers to learn from, and put together into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from policy.encodings import Dag, NodeInputs, dag_of, node_inputs, node_key, tasks_of
from policy.features import (
    Graphs,
    free_shares,
    graphs,
    pool_features,
    task_features,
    window_features,
)
from policy.network import Moments
from policy.observation import Observation
from policy.pair_features import Workspace, pair_features
from policy.state import State


@dataclass(frozen=True, slots=True)
class Moment:
    """One decision as the actor sees it.

    snapshot, dag  which of the memory's; row: which task of the DAG
    task_f, pool_f, pair_pn, mask_n   as of `Moments`, of this decision
    """

    snapshot: int
    dag: int
    row: int
    task_f: np.ndarray
    pool_f: np.ndarray
    pair_pn: np.ndarray
    mask_n: np.ndarray


class Memory:
    """Moments, with the snapshots of nodes and the DAGs that they share."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._snapshots: list[NodeInputs] = []
        self._dags: list[Graphs] = []
        self._newest: WeakKeyDictionary[State, int] = WeakKeyDictionary()
        self._dag_of: dict[Dag, int] = {}
        self._space = Workspace()

    def keep(self, seen: Observation) -> range:
        """Keep every decision of a batch; returns their places in `moments`."""
        first = len(self.moments)
        snapshot, free_3n = self._snapshot(seen.state), free_shares(seen)
        task_bf, pool_f = task_features(seen), pool_features(seen, free_3n)
        pair_bpn = pair_features(seen, free_3n, self._space).copy()
        for at, task in enumerate(seen.tasks):
            dag, row = dag_of(task)
            moment = Moment(snapshot, self._dag(dag), row, task_bf[at], pool_f, pair_bpn[at], seen.mask_bn[at])
            self.moments.append(moment)
        return range(first, len(self.moments))

    def forget_workflows(self) -> None:
        """An episode is over: its workflows come no more."""
        self._dag_of.clear()

    def by_snapshot(self, chosen: Sequence[int], rng: np.random.Generator, size: int) -> Iterator[list[int]]:
        """The chosen moments in random batches of about this size; those of one snapshot stay together.

        To encode a snapshot costs far more than to score a decision.
        """
        groups: dict[int, list[int]] = {}
        for at in chosen:
            groups.setdefault(self.moments[at].snapshot, []).append(at)
        batch: list[int] = []
        for key in rng.permutation(list(groups)).tolist():
            batch += groups[key]
            if len(batch) >= size:
                yield batch
                batch = []
        if batch:
            yield batch

    def together(self, chosen: Sequence[int]) -> Moments:
        """The chosen moments as one batch."""
        moments = [self.moments[at] for at in chosen]
        snapshots, snapshot_b = np.unique([m.snapshot for m in moments], return_inverse=True)
        dags, dag_b = np.unique([m.dag for m in moments], return_inverse=True)
        graph, first_g = _side_by_side([self._dags[at] for at in dags.tolist()])
        inputs = [self._snapshots[at] for at in snapshots.tolist()]
        nodes = max(len(i.present_n) for i in inputs)
        task_b = first_g[dag_b] + [m.row for m in moments]
        return Moments(
            torch.from_numpy(_padded([window_features(i.window_tnm) for i in inputs], nodes, 0)),
            torch.from_numpy(_padded([i.node_nf for i in inputs], nodes, 0)),
            torch.from_numpy(_padded([i.present_n for i in inputs], nodes, 0)),
            torch.from_numpy(graph.graph_tf),
            torch.from_numpy(graph.edges_2e),
            torch.from_numpy(graph.weight_gt),
            torch.from_numpy(snapshot_b),
            torch.from_numpy(dag_b),
            torch.from_numpy(task_b),
            torch.from_numpy(np.stack([m.task_f for m in moments])),
            torch.from_numpy(np.stack([m.pool_f for m in moments])),
            torch.from_numpy(_padded([m.pair_pn for m in moments], nodes, 1)),
            torch.from_numpy(_padded([m.mask_n for m in moments], nodes, 0)),
        )

    def _snapshot(self, state: State) -> int:
        at = self._newest.get(state)
        if at is None or self._snapshots[at].key != node_key(state):
            at = self._newest[state] = len(self._snapshots)
            self._snapshots.append(node_inputs(state))
        return at

    def _dag(self, dag: Dag) -> int:
        at = self._dag_of.get(dag)
        if at is None:
            at = self._dag_of[dag] = len(self._dags)
            self._dags.append(graphs([tasks_of(dag)]))
        return at


def _side_by_side(dags: Sequence[Graphs]) -> tuple[Graphs, np.ndarray]:
    """These DAGs as one `Graphs`, and the first row of each."""
    counts = [len(dag.graph_tf) for dag in dags]
    first_g = np.cumsum([0, *counts[:-1]])
    weight_gt = np.zeros((len(dags), sum(counts)), np.float32)
    for at, (dag, first, count) in enumerate(zip(dags, first_g.tolist(), counts, strict=True)):
        weight_gt[at, first : first + count] = dag.weight_gt[0]
    edges = [dag.edges_2e + first for dag, first in zip(dags, first_g.tolist(), strict=True)]
    graph_tf = np.concatenate([dag.graph_tf for dag in dags])
    return Graphs(graph_tf, np.concatenate(edges, axis=1), weight_gt), first_g


def _padded(arrays: Sequence[np.ndarray], nodes: int, axis: int) -> np.ndarray:
    """Stacked along a new first axis, each filled up to this many nodes along its axis with 0 (False)."""
    padded = []
    for array in arrays:
        fill = [(0, 0)] * array.ndim
        fill[axis] = (0, nodes - array.shape[axis])
        padded.append(np.pad(array, fill))
    return np.stack(padded)
