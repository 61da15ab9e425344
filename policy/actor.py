"""The actor: the learned policy on ONNX Runtime.

What changes rarely is encoded rarely: nodes with each step of their windows, a DAG once. A decision is a lookup of
both, the pair features and one small matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from policy.encodings import (
    Dag,
    DagEncoding,
    NodeEncoding,
    NodeInputs,
    PoolMemory,
    dag_of,
    empty,
    joined,
    node_inputs,
    node_key,
    tasks_of,
)
from policy.features import (
    ORDER_FEATURES,
    free_shares,
    graphs,
    order_features,
    pool_features,
    task_features,
    window_features,
)
from policy.observation import Observation, Policy
from policy.pair_features import Workspace, pair_features
from policy.queue import Rows
from policy.sessions import DEVICES, open_sessions
from policy.state import State
from policy.weight_set import WeightSet, read_weights, shipped_weights
from schemas.errors import InvalidConfiguration, UnusableWeights

GRAPH_TASKS = 2000
"""DAGs are encoded side by side up to about this many tasks."""

WARM_UP = ((1, 2), (8, 100), (64, 1000))
"""Sizes, tasks and nodes, of the runs that warm the sessions up."""


INLINE_NODES = 500
"""Nodes that are encoded between two decisions without a decision being late for it."""


@dataclass(frozen=True, kw_only=True)
class ActorSettings:
    """Where and how the actor runs."""

    device: str = "auto"
    """`cuda` or `cpu`; `auto`: CUDA where it works."""
    temperature: float = 0.3
    """Softmax temperature over the feasible nodes; 0 takes the best one."""
    synchronous: bool = True
    """Encode the nodes when a decision finds them changed; else, in a pool of more than `INLINE_NODES`, whoever calls
    `encode` does, beside the decisions."""
    slice_nodes: int = 256
    """Nodes that are encoded at a time: other threads get a turn in between."""

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise InvalidConfiguration("actor.device", f"'{self.device}' is unknown", "give auto, cuda or cpu")
        if not 0 <= self.temperature <= 100:
            raise InvalidConfiguration("actor.temperature", f"{self.temperature} is out of range", "give 0 to 100")
        if self.slice_nodes < 1:
            raise InvalidConfiguration("actor.slice_nodes", f"{self.slice_nodes} is out of range", "give 1 or more")


class Actor:
    """Scores with one set of weights, for any number of pools.

    `encode` may run beside all else in another thread; everything else belongs to one thread.
    """

    def __init__(self, weights: WeightSet, settings: ActorSettings | None = None) -> None:
        """Open the sessions and warm them up. Raises UnusableWeights."""
        self.settings = settings or ActorSettings()
        self.version = weights.manifest.version
        self._order_k = np.array([weights.manifest.order.get(name, 0.0) for name in ORDER_FEATURES])
        self._sessions = open_sessions(weights, self.settings.device)
        self._node_outputs = weights.manifest.golden["node"].outputs
        self._space = Workspace()
        self._memories: WeakKeyDictionary[State, PoolMemory] = WeakKeyDictionary()
        self._warm_up()

    @property
    def provider(self) -> str:
        """The execution provider of ONNX Runtime that the actor runs on."""
        return self._sessions["head"].provider

    def policy(self) -> Policy:
        """The actor as a policy."""
        return Policy("actor", self.score, self.urgency, self.settings.temperature, version=self.version)

    def urgency(self, rows: Rows) -> np.ndarray:
        """urgency_p [P]: how the waiting attempts are ordered."""
        return order_features(rows) @ self._order_k

    def score(self, seen: Observation) -> np.ndarray:
        """logits_bn [B, N] float32. Raises UnusableWeights when one of them is not finite."""
        memory = self._memory(seen.state)
        nodes = self._nodes(memory, seen.state)
        free_3n = free_shares(seen)
        (logits_bn,) = self._sessions["head"].run(
            {
                "context_bc": self._context(seen, self._fixed(memory, seen), free_3n, nodes.pool_h),
                "key_kn": nodes.key_kn,
                "bias_n": nodes.bias_n,
                "pair_bpn": pair_features(seen, free_3n, self._space),
            }
        )
        if not math.isfinite(np.add.reduce(logits_bn, axis=None)):
            raise UnusableWeights(f"weights {self.version}: a score is not finite; go back to earlier weights")
        return logits_bn

    def is_behind(self, state: State) -> bool:
        """Whether the pool's nodes have changed since they were encoded."""
        nodes = self._memory(state).nodes
        return nodes is None or nodes.key != node_key(state)

    def waits_for_encoding(self, state: State) -> bool:
        """Whether the pool's nodes have changed, and nobody will encode them but who calls `encode`."""
        is_inline = self.settings.synchronous or len(state.nodes) <= INLINE_NODES
        return not is_inline and self._memory(state).nodes is not None and self.is_behind(state)

    def encode(self, inputs: NodeInputs) -> NodeEncoding:
        """Encode nodes, slice by slice; changes nothing, so that another thread may do it."""
        nodes, size = len(inputs.present_n), self.settings.slice_nodes
        if nodes == 0:  # on an LSTM over nothing ONNX Runtime aborts the process
            return empty(inputs.key, self._node_outputs)
        slices, counts = [], []
        for first in range(0, nodes, size):
            part = slice(first, first + size)
            present_n = inputs.present_n[part]
            window_ntf = window_features(inputs.window_tnm[:, part])
            outputs = self._sessions["node"].run(
                {"window_ntf": window_ntf, "node_nf": inputs.node_nf[part], "present_n": present_n}
            )
            slices.append(NodeEncoding(inputs.key, *outputs))
            counts.append(float(present_n.sum()))
        return joined(inputs.key, slices, counts)

    def use(self, state: State, encoding: NodeEncoding) -> None:
        """Decide with these encoded nodes from now on."""
        self._memory(state).nodes = encoding

    def prepare(self, state: State) -> None:
        """Have the pool's nodes encoded as they are now."""
        if self.is_behind(state):
            self.use(state, self.encode(node_inputs(state)))

    def _memory(self, state: State) -> PoolMemory:
        memory = self._memories.get(state)
        if memory is None:
            memory = self._memories[state] = PoolMemory()
        return memory

    def _nodes(self, memory: PoolMemory, state: State) -> NodeEncoding:
        is_inline = self.settings.synchronous or len(state.nodes) <= INLINE_NODES
        if memory.nodes is None or (is_inline and memory.nodes.key != node_key(state)):
            memory.nodes = self.encode(node_inputs(state))
        memory.nodes = memory.nodes.fit(len(state.nodes))
        return memory.nodes

    def _context(
        self, seen: Observation, fixed: list[np.ndarray], free_3n: np.ndarray, pool_h: np.ndarray
    ) -> np.ndarray:
        """context_bc [B, C], as `ScoringHead` takes it; fixed: of each task, its row of `DagEncoding.fixed_tc`."""
        width, task_bf, pool_f = len(fixed[0]), task_features(seen), pool_features(seen, free_3n)
        changing = width + task_bf.shape[1]
        context_bc = np.empty((len(fixed), changing + len(pool_f) + len(pool_h)), np.float32)
        context_bc[:, :width] = np.concatenate(fixed).reshape(len(fixed), width)
        context_bc[:, width:changing] = task_bf
        context_bc[:, changing : changing + len(pool_f)] = pool_f
        context_bc[:, changing + len(pool_f) :] = pool_h
        return context_bc

    def _fixed(self, memory: PoolMemory, seen: Observation) -> list[np.ndarray]:
        """What never changes of each task of the batch; DAGs that are new are encoded."""
        memory.sweep(seen.state)
        found = [dag_of(task) for task in seen.tasks]
        for group in _groups([dag for dag in dict(found) if dag not in memory.dags]):
            memory.dags.update(self._encode_dags(group))
        return [memory.dags[dag].fixed_tc[row] for dag, row in found]

    def _encode_dags(self, dags: Sequence[Dag]) -> dict[Dag, DagEncoding]:
        together = graphs([tasks_of(dag) for dag in dags])
        embedding_th, vector_gh = self._sessions["dag"].run(
            {"graph_tf": together.graph_tf, "edges_2e": together.edges_2e, "weight_gt": together.weight_gt}
        )
        sizes = [len(tasks_of(dag)) for dag in dags]
        of_dag_th = np.repeat(vector_gh, sizes, axis=0)
        fixed_tc = np.concatenate([together.graph_tf, embedding_th, of_dag_th], axis=1)
        encodings, first = {}, 0
        for dag, size in zip(dags, sizes, strict=True):
            encodings[dag] = DagEncoding(fixed_tc[first : first + size].copy())
            first += size
        return encodings

    def _warm_up(self) -> None:
        """Run every session at a few sizes, so that no decision pays for its first run."""
        for batch, nodes in WARM_UP:
            self.try_out(batch, nodes)

    def try_out(self, batch: int, nodes: int) -> None:
        """Run every session at this size, on zeros. May run beside all else in another thread.

        Raises UnusableWeights when it fails, or an output is not finite.
        """
        for session in self._sessions.values():
            sizes = {"B": batch, "N": max(1, nodes), "G": batch, "T": 4 * batch, "E": 12 * batch}
            for name, output in zip(session.outputs, session.run(session.zeros(sizes)), strict=True):
                if not np.isfinite(output).all():
                    raise UnusableWeights(f"weights {self.version}: {name} of nothing but zeros is not finite")


def _groups(dags: Sequence[Dag]) -> list[list[Dag]]:
    """The DAGs in groups of about GRAPH_TASKS tasks."""
    groups: list[list[Dag]] = []
    tasks = GRAPH_TASKS
    for dag in dags:
        tasks += len(tasks_of(dag))
        if tasks > GRAPH_TASKS:
            groups.append([])
            tasks = len(tasks_of(dag))
        groups[-1].append(dag)
    return groups


def load_actor(
    weights: Path | None = None, *, device: str = "auto", temperature: float = 0.3, synchronous: bool = True
) -> Actor:
    """An actor with the weights in a folder; without one, with those that come with headrace.

    Raises UnusableWeights.
    """
    settings = ActorSettings(device=device, temperature=temperature, synchronous=synchronous)
    return Actor(shipped_weights() if weights is None else read_weights(weights), settings)
