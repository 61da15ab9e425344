"""What the actor is shown of each task on each node: estimates, where most of its quality comes from.

Every pass over [B, N] counts here: a decision on 5,000 nodes is mostly these.
"""

from __future__ import annotations

import numpy as np

from policy.features import CPU, CROWDED, GPU, PAIR_FEATURES, SLOWED, inverse_capacity
from policy.nodes import NodeTable
from policy.observation import Observation
from policy.wishes import has_wishes, wishes

ROOMY = 1 - CROWDED
"""Share of a node that should stay free: below it, whoever comes next may be slowed down."""
CHEAPEST = 0.01
"""A node's price is at least this share of the dearest one's, so that free nodes still compare by speed."""
PATH_LEAST_S = 1e-6
SMALL = np.float32(1e-6)
TINY = np.float32(1e-30)

FINISH, COST, FREE, CROWDING, IMBALANCE, GPU_UNNEEDED, FAILURE, TRANSFER, LOCAL = range(9)
URGENT, CROWDED_FINISH, EXTRA, OPENING, WISHES = range(9, len(PAIR_FEATURES))


class Workspace:
    """Memory that is used again by call after call: to get it anew from the system costs as much as to fill it."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.float32)
        self._arrays: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def take(self, batch: int, nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """pair_bpn, scratch_2bn and feasible_bn, float32, with anything in them; those of before are overwritten."""
        if self._arrays is None or self._arrays[2].shape != (batch, nodes):
            size, features = batch * nodes, len(PAIR_FEATURES)
            if len(self._buffer) < (features + 3) * size:
                self._buffer = np.empty((features + 3) * size, np.float32)
            pair, scratch, feasible = (
                self._buffer[first * size : last * size]
                for first, last in ((0, features), (features, features + 2), (features + 2, features + 3))
            )
            self._arrays = (
                pair.reshape(batch, features, nodes),
                scratch.reshape(2, batch, nodes),
                feasible.reshape(batch, nodes),
            )
        return self._arrays


def pair_features(seen: Observation, free_3n: np.ndarray, space: Workspace) -> np.ndarray:
    """pair_bpn [B, len(PAIR_FEATURES), N] float32; what they say of infeasible nodes is finite, and does not matter.

    free_3n  from `free_shares`
    space    where the result lies, until the next call
    """
    pair_bpn, scratch_2bn, feasible_bn = space.take(*seen.mask_bn.shape)
    np.copyto(feasible_bn, seen.mask_bn)
    request_3b1 = seen.request_br.T[: GPU + 1, :, None].astype(np.float32)
    takes_gpu = _rows([row for row, task in enumerate(seen.tasks) if task.request[GPU]], len(seen.tasks))
    _room(seen, request_3b1, takes_gpu, free_3n, scratch_2bn, pair_bpn)
    _cost(seen, request_3b1, takes_gpu, feasible_bn, scratch_2bn, pair_bpn)
    _time(seen, free_3n, feasible_bn, scratch_2bn, pair_bpn)
    _hold(seen, feasible_bn, scratch_2bn, pair_bpn)
    _place(seen, takes_gpu, pair_bpn)
    return pair_bpn


Rows = slice | list[int]
NO_ROWS = slice(0, 0)


def _rows(chosen: list[int], batch: int) -> Rows:
    """The rows as a slice where they are all of the batch, or none: numpy then copies nothing."""
    return chosen if 0 < len(chosen) < batch else slice(0, len(chosen))


def _room(
    seen: Observation,
    request_3b1: np.ndarray,
    takes_gpu: Rows,
    free_3n: np.ndarray,
    scratch_2bn: np.ndarray,
    pair_bpn: np.ndarray,
) -> None:
    inverse_31n = seen.state.nodes.derived(inverse_capacity)[:, None]
    np.multiply(request_3b1[:GPU], inverse_31n[:GPU], out=scratch_2bn)
    cpu_bn, memory_bn = np.subtract(free_3n[:GPU, None], scratch_2bn, out=scratch_2bn)
    free_bn = np.minimum(cpu_bn, memory_bn, out=pair_bpn[:, FREE])
    if takes_gpu != NO_ROWS:
        gpu_gn = free_3n[GPU] - request_3b1[GPU, takes_gpu] * inverse_31n[GPU]
        free_bn[takes_gpu] = np.minimum(free_bn[takes_gpu], gpu_gn)
    # numpy's minimum is fast between arrays, slow with a scalar.
    np.minimum(free_bn, seen.state.nodes.derived(roomy), out=pair_bpn[:, CROWDING])
    cpu_bn -= memory_bn
    np.abs(cpu_bn, out=pair_bpn[:, IMBALANCE])


def _cost(
    seen: Observation,
    request_3b1: np.ndarray,
    takes_gpu: Rows,
    feasible_bn: np.ndarray,
    scratch_2bn: np.ndarray,
    pair_bpn: np.ndarray,
) -> None:
    """The largest share that the task takes of a node decides what of the node's price is its own."""
    worth_31n = seen.state.nodes.derived(worth)
    inverse_3b1 = 1 / (request_3b1 + SMALL)
    worth_bn, memory_bn = np.multiply(inverse_3b1[:GPU], worth_31n[:GPU], out=scratch_2bn)
    np.minimum(worth_bn, memory_bn, out=worth_bn)
    if takes_gpu != NO_ROWS:
        gpu_gn = inverse_3b1[GPU, takes_gpu] * worth_31n[GPU]
        worth_bn[takes_gpu] = np.minimum(worth_bn[takes_gpu], gpu_gn)
    _share_of_best(worth_bn, feasible_bn, memory_bn, pair_bpn[:, COST])


def _time(
    seen: Observation,
    free_3n: np.ndarray,
    feasible_bn: np.ndarray,
    scratch_2bn: np.ndarray,
    pair_bpn: np.ndarray,
) -> None:
    inverse_bn, spare_bn = scratch_2bn
    slowed_n = 1 + SLOWED / (1 - CROWDED) * np.maximum(0, 1 - CROWDED - free_3n[CPU])
    slowed_bn = np.multiply(seen.run_bn, slowed_n.astype(np.float32), out=inverse_bn)
    if seen.input_b.any():
        slowed_bn += seen.transfer_bn
    slowed_bn += SMALL
    np.reciprocal(slowed_bn, out=slowed_bn)
    _share_of_best(slowed_bn, feasible_bn, spare_bn, pair_bpn[:, CROWDED_FINISH])
    np.add(seen.finish_bn, SMALL, out=inverse_bn)
    np.reciprocal(inverse_bn, out=inverse_bn)
    _share_of_best(inverse_bn, feasible_bn, spare_bn, pair_bpn[:, FINISH])
    urgent_b = [t.rank_s / max(t.workflow.path_s, PATH_LEAST_S) for t in seen.tasks]
    np.multiply(pair_bpn[:, FINISH], np.array(urgent_b, np.float32)[:, None], out=pair_bpn[:, URGENT])
    input_b = seen.input_b
    if input_b.any():
        np.multiply(seen.transfer_bn, inverse_bn, out=pair_bpn[:, TRANSFER])
        np.multiply(seen.local_bn, 1 / np.maximum(input_b, 1)[:, None], out=pair_bpn[:, LOCAL])
    else:
        pair_bpn[:, TRANSFER : LOCAL + 1] = 0


def _hold(seen: Observation, feasible_bn: np.ndarray, scratch_2bn: np.ndarray, pair_bpn: np.ndarray) -> None:
    """A node is paid for as long as it holds anything: what the task adds to that."""
    state, (whole_bn, extra_bn) = seen.state, scratch_2bn
    price_n = state.nodes.derived(price)
    np.multiply(seen.finish_bn, price_n, out=whole_bn)
    np.subtract(seen.finish_bn, state.held_for_s_n, out=extra_bn)
    np.maximum(extra_bn, state.nodes.derived(zeros), out=extra_bn)
    extra_bn *= price_n
    whole_bn *= feasible_bn
    dearest_b1 = np.maximum.reduce(whole_bn, axis=1, keepdims=True)
    np.multiply(extra_bn, 1 / (dearest_b1 + TINY), out=pair_bpn[:, EXTRA])
    pair_bpn[:, OPENING] = state.ledger.held_n == 0


def _place(seen: Observation, takes_gpu: Rows, pair_bpn: np.ndarray) -> None:
    pair_bpn[:, GPU_UNNEEDED] = seen.state.nodes.derived(has_gpu)
    if takes_gpu != NO_ROWS:
        pair_bpn[takes_gpu, GPU_UNNEEDED] = 0
    pair_bpn[:, FAILURE] = seen.state.failure_n
    pair_bpn[:, WISHES] = 0
    if has_wishes(seen):
        for row in range(len(seen.tasks)):
            pair_bpn[row, WISHES] = wishes(seen, row)


def _share_of_best(merit_bn: np.ndarray, feasible_bn: np.ndarray, spare_bn: np.ndarray, out_bn: np.ndarray) -> None:
    """Each node's merit as a share of the largest of the row's feasible nodes."""
    np.multiply(merit_bn, feasible_bn, out=spare_bn)
    best_b1 = np.maximum.reduce(spare_bn, axis=1, keepdims=True)
    np.multiply(merit_bn, 1 / (best_b1 + TINY), out=out_bn)


def worth(nodes: NodeTable) -> np.ndarray:
    """worth_31n [3, 1, N] float32: capacity in cpu, memory and gpu * speed / price of the whole node, in some unit.

    Over what a task takes of each resource, the smallest of the three is inverse to what its run costs there.
    """
    capacity_3n = nodes.capacity_rn[: GPU + 1]
    dearest = nodes.price_n.max(initial=0.0)
    price_n = np.maximum(nodes.price_n / dearest, CHEAPEST) if dearest > 0 else np.ones(len(nodes))
    return (capacity_3n * (nodes.speed_n / price_n)).astype(np.float32)[:, None]


def has_gpu(nodes: NodeTable) -> np.ndarray:
    """[N] float32, 1 where the node has GPUs."""
    return (nodes.capacity_rn[GPU] > 0).astype(np.float32)


def price(nodes: NodeTable) -> np.ndarray:
    """[N] float32, per hour."""
    return nodes.price_n.astype(np.float32)


def zeros(nodes: NodeTable) -> np.ndarray:
    """[N] float32."""
    return np.zeros(len(nodes), np.float32)


def roomy(nodes: NodeTable) -> np.ndarray:
    """[N] float32, ROOMY for every node."""
    return np.full(len(nodes), ROOMY, np.float32)
