"""The actor's network: an encoder for nodes, one for DAGs, a head that scores pairs; and the critic that trains it.

The parts are cut where their inputs change: nodes with each step of the window, a DAG once, pairs with each batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv

from policy.features import (
    GRAPH_FEATURES,
    NODE_FEATURES,
    PAIR_FEATURES,
    POOL_FEATURES,
    TASK_FEATURES,
    WINDOW_FEATURES,
)

HIDDEN = 64
KEY = 16
"""Length of the vectors by which tasks and nodes are matched: all their products are a decision's dearest step."""
HEADS = 4
GAT_LAYERS = 3

PAIR_PRIOR = {
    "finish": 30.0,
    "cost": 0.0,
    "free_after": 0.0,
    "crowding": 0.0,
    "imbalance": 0.0,
    "gpu_unneeded": 0.0,
    "failure_rate": -3.0,
    "transfer_share": 0.0,
    "local_share": 0.0,
    "urgent_finish": 0.0,
    "crowded_finish": 0.0,
    "extra_cost": 0.0,
    "opening": 0.0,
    "wishes": 6.0,
}
"""What a network that has learnt nothing weighs the pair features with: early, safe, as wished."""


class NodeEncoder(nn.Module):
    """The windows and specifications of nodes -> the keys that tasks are matched with.

    Shapes, of one pool or, with leading axes, of several:
        window_ntf [N, T, len(WINDOW_FEATURES)], node_nf [N, len(NODE_FEATURES)]
        present_n  [N]    how much the node counts in the pool: 0 where it is gone
        -> key_kn [KEY, N], bias_n [N], pool_h [H], the mean state of the nodes that count
    """

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(len(WINDOW_FEATURES), HIDDEN, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(HIDDEN + len(NODE_FEATURES), HIDDEN), nn.ReLU())
        self.key = nn.Linear(HIDDEN, KEY)
        self.bias = _zeroed(nn.Linear(HIDDEN, 1))

    def forward(self, window_ntf: Tensor, node_nf: Tensor, present_n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, (last, _) = self.lstm(window_ntf.flatten(0, -3))
        state_nh = last[0].reshape(*window_ntf.shape[:-2], HIDDEN)
        mixed_nh = self.mix(torch.cat([state_nh, node_nf], dim=-1))
        count = present_n.sum(dim=-1, keepdim=True).clamp(min=1.0)
        pool_h = (present_n.unsqueeze(-2) @ state_nh).squeeze(-2) / count
        return self.key(mixed_nh).transpose(-1, -2), self.bias(mixed_nh).squeeze(-1), pool_h


class DagEncoder(nn.Module):
    """DAGs, side by side -> an embedding of each task; of each DAG its mean by priority and criticality.

    Shapes: graph_tf [T, len(GRAPH_FEATURES)], edges_2e [2, E] with self-loops, weight_gt [G, T]
        -> embedding_th [T, H], vector_gh [G, H]
    """

    def __init__(self) -> None:
        super().__init__()
        widths = [len(GRAPH_FEATURES)] + [HIDDEN] * GAT_LAYERS
        self.layers = nn.ModuleList(
            GATConv(width, HIDDEN // HEADS, heads=HEADS, add_self_loops=False) for width in widths[:-1]
        )

    def forward(self, graph_tf: Tensor, edges_2e: Tensor, weight_gt: Tensor) -> tuple[Tensor, Tensor]:
        embedding_th = graph_tf
        for layer in self.layers:
            embedding_th = nn.functional.leaky_relu(layer(embedding_th, edges_2e), 0.2)
        return embedding_th, weight_gt @ embedding_th


CONTEXT = len(GRAPH_FEATURES) + 2 * HIDDEN + len(TASK_FEATURES) + len(POOL_FEATURES) + HIDDEN
"""Side by side: a task's fixed features, embedding, DAG's vector, changing features; its pool's features and state."""


class ScoringHead(nn.Module):
    """Tasks against nodes -> logits: query . key + bias of the node + pair features, weighted as the task asks.

    The pair features pass straight through: with the rest at 0, this is a linear policy.

    Shapes: context_bc [B, CONTEXT], pair_bpn [B, len(PAIR_FEATURES), N]; key_kn [KEY, N] and bias_n [N] of one pool, or
        with a leading axis B -> logits_bn [B, N]
    """

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(CONTEXT, HIDDEN), nn.ReLU())
        self.query = _zeroed(nn.Linear(HIDDEN, KEY))
        self.weight = _zeroed(nn.Linear(HIDDEN, len(PAIR_FEATURES)))
        with torch.no_grad():
            self.weight.bias.copy_(torch.tensor([PAIR_PRIOR[name] for name in PAIR_FEATURES]))

    def forward(self, context_bc: Tensor, key_kn: Tensor, bias_n: Tensor, pair_bpn: Tensor) -> Tensor:
        mixed_bh = self.mix(context_bc)
        query_bh = self.query(mixed_bh)
        matched_bn = query_bh @ key_kn if key_kn.dim() == 2 else (query_bh.unsqueeze(1) @ key_kn).squeeze(1)
        return matched_bn + bias_n + (self.weight(mixed_bh).unsqueeze(1) @ pair_bpn).squeeze(1)


class Critic(nn.Module):
    """What a decision's state is worth: value_b [B].

    Shapes: as of the head; mask_bn [B, N] bool, over which it takes the mean and the least of the pair features.
    """

    def __init__(self) -> None:
        super().__init__()
        width = CONTEXT + 2 * len(PAIR_FEATURES)
        self.value = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), _zeroed(nn.Linear(HIDDEN, 1)))

    def forward(self, context_bc: Tensor, pair_bpn: Tensor, mask_bn: Tensor) -> Tensor:
        mask_b1n = mask_bn.unsqueeze(1)
        mean_bp = (pair_bpn * mask_b1n).sum(dim=-1) / mask_b1n.sum(dim=-1).clamp(min=1)
        least_bp = torch.where(mask_b1n, pair_bpn, -CLOSED).amin(dim=-1)
        least_bp = torch.where(mask_b1n.any(dim=-1), least_bp, 0.0)
        value_b1: Tensor = self.value(torch.cat([context_bc, mean_bp, least_bp], dim=-1))
        return value_b1.squeeze(-1)


class ActorCritic(nn.Module):
    """The parts together."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = NodeEncoder()
        self.dags = DagEncoder()
        self.head = ScoringHead()
        self.critic = Critic()

    def forward(self, moments: Moments) -> tuple[Tensor, Tensor]:
        """logits_bn [B, N], CLOSED where infeasible, and value_b [B]."""
        key_skn, bias_sn, pool_sh = self.nodes(moments.window_sntf, moments.node_snf, moments.present_sn)
        embedding_th, vector_gh = self.dags(moments.graph_tf, moments.edges_2e, moments.weight_gt)
        at, task, dag = moments.snapshot_b, moments.task_b, moments.dag_b
        fixed_bf, changing_bf = moments.graph_tf[task], torch.cat([moments.task_bf, moments.pool_bf], dim=-1)
        context_bc = torch.cat([fixed_bf, embedding_th[task], vector_gh[dag], changing_bf, pool_sh[at]], dim=-1)
        logits_bn = self.head(context_bc, key_skn[at], bias_sn[at], moments.pair_bpn)
        value_b = self.critic(context_bc, moments.pair_bpn, moments.mask_bn)
        return logits_bn.masked_fill(~moments.mask_bn, CLOSED), value_b


CLOSED = -1e9
"""The logit of an infeasible node: finite, so that nothing of it is ever NaN."""


@dataclass(frozen=True)
class Moments:
    """Decisions to learn from. Axes: S snapshots of nodes, N nodes (padded), G DAGs, T tasks of them, B decisions.

    window_sntf, node_snf, present_sn  the nodes of each snapshot, as `NodeEncoder` takes them
    graph_tf, edges_2e, weight_gt      the DAGs side by side, as `DagEncoder` takes them
    snapshot_b, dag_b, task_b          [B] which snapshot, which of the G DAGs, which of the T tasks
    task_bf, pool_bf, pair_bpn         the features of each task, of its pool, and with each node
    mask_bn                            bool, where it may go
    """

    window_sntf: Tensor
    node_snf: Tensor
    present_sn: Tensor
    graph_tf: Tensor
    edges_2e: Tensor
    weight_gt: Tensor
    snapshot_b: Tensor
    dag_b: Tensor
    task_b: Tensor
    task_bf: Tensor
    pool_bf: Tensor
    pair_bpn: Tensor
    mask_bn: Tensor


def _zeroed(layer: nn.Linear) -> nn.Linear:
    """The layer with all its weights at 0: it starts without a say."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
