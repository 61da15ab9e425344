"""A course as the learner sees it: its DAGs one by one, and what the network says of each task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from policy.features import PAIR_FEATURES
from policy.network import HIDDEN, ActorCritic
from trainer.arena import CHANGING, LEARNT, LEARNT_ORDER, PAIRS, Rule
from trainer.residual import FIXED, changing_columns
from trainer.scenarios import Course

OF_TASK = FIXED + 2 * HIDDEN
"""A task's fixed features, its embedding, its DAG's vector: the first columns of the scoring head's context."""


class Board:
    """A course with the fixed part of its tasks' contexts; of DAGs that are not encoded yet, embeddings are 0."""

    def __init__(self, course: Course) -> None:
        self.course = course
        graphs, workflow_t = course.graphs, course.scenario.workflow_t
        by_workflow = np.argsort(workflow_t[graphs.edges_2e[0]], kind="stable")
        edges = np.bincount(workflow_t[graphs.edges_2e[0]], minlength=len(course.workflows))
        self.first_w = course.scenario.first_w
        self._edges_2e = graphs.edges_2e[:, by_workflow]
        self._first_edge_w = np.concatenate([[0], np.cumsum(edges)])
        self._weight_t = graphs.weight_gt.sum(axis=0)  # a task counts in its own DAG only
        self.fixed_tc = np.zeros((len(workflow_t), OF_TASK), np.float32)
        self.fixed_tc[:, :FIXED] = graphs.graph_tf
        self.is_encoded_w = np.zeros(len(course.workflows), bool)

    def rows(self, workflow: int) -> slice:
        """The tasks of the workflow."""
        return slice(self.first_w[workflow], self.first_w[workflow + 1])

    def edges(self, workflow: int) -> np.ndarray:
        """edges_2e [2, E] of the workflow, among its own tasks."""
        first, end = self._first_edge_w[workflow : workflow + 2]
        return self._edges_2e[:, first:end] - self.first_w[workflow]

    def weights(self, workflow: int) -> np.ndarray:
        """How much each task counts in the vector of the workflow."""
        return self._weight_t[self.rows(workflow)]

    def forget(self) -> None:
        """The network has changed."""
        self.fixed_tc[:, FIXED:] = 0
        self.is_encoded_w[:] = False


Dags = Sequence[tuple[Board, int]]
"""Workflows of boards."""


def encoded(network: ActorCritic, dags: Dags) -> tuple[Tensor, Tensor]:
    """embedding_th [T, HIDDEN] of the tasks of all these DAGs, one DAG after the other; vector_gh [G, HIDDEN]."""
    sizes = [int(board.first_w[w + 1] - board.first_w[w]) for board, w in dags]
    first_g = np.cumsum([0, *sizes])
    edges = [board.edges(w) + first for (board, w), first in zip(dags, first_g, strict=False)]
    graph_tf = np.concatenate([board.fixed_tc[board.rows(w), :FIXED] for board, w in dags])
    weight_t = np.concatenate([board.weights(w) for board, w in dags])
    at_2t = np.stack([np.repeat(np.arange(len(dags)), sizes), np.arange(len(graph_tf))])
    weight_gt = torch.sparse_coo_tensor(
        torch.from_numpy(at_2t),
        torch.from_numpy(weight_t),
        (len(dags), len(graph_tf)),
        is_coalesced=True,
        check_invariants=False,
    )
    found: tuple[Tensor, Tensor] = network.dags(
        torch.from_numpy(graph_tf), torch.from_numpy(np.concatenate(edges, axis=1)), weight_gt
    )
    return found


@torch.no_grad()
def encode(network: ActorCritic, dags: Iterable[tuple[Board, int]]) -> None:
    """Write down on the boards what the network says of those of these DAGs that are not encoded yet."""
    new = [(board, w) for board, w in dags if not board.is_encoded_w[w]]
    if not new:
        return
    embedding_th, vector_gh = (tensor.numpy() for tensor in encoded(network, new))
    first = 0
    for (board, w), vector_h in zip(new, vector_gh, strict=True):
        fixed_tc = board.fixed_tc[board.rows(w)]
        fixed_tc[:, FIXED : FIXED + HIDDEN] = embedding_th[first : first + len(fixed_tc)]
        fixed_tc[:, FIXED + HIDDEN :] = vector_h
        board.is_encoded_w[w] = True
        first += len(fixed_tc)


class Head:
    """The scoring head of a network as arrays, without what looks at the nodes' windows."""

    def __init__(self, network: ActorCritic) -> None:
        mix, weight = network.head.mix[0], network.head.weight
        into_hc, mix_ph = mix.weight.detach().numpy(), weight.weight.detach().numpy()[:PAIRS]
        has_say_h = mix_ph.any(axis=0)
        self.fixed_ch = into_hc[has_say_h, :OF_TASK].T.copy()
        self.changing_ch = into_hc[has_say_h, changing_columns()].T.copy()
        self.bias_h = mix.bias.detach().numpy()[has_say_h]
        self.mix_hp = mix_ph[:, has_say_h].T.copy()
        self.weight_p = weight.bias.detach().numpy()[:PAIRS].copy()

    @property
    def sees_dags(self) -> bool:
        """Whether anything of it looks at what the DAG encoder says."""
        return bool(self.fixed_ch[FIXED:].any())

    def logits(self, fixed_bc: np.ndarray, changing_bc: np.ndarray, pair_bpn: np.ndarray) -> np.ndarray:
        """logits_bn [B, N] of tasks with these features."""
        hidden_bh = np.maximum(fixed_bc @ self.fixed_ch + changing_bc @ self.changing_ch + self.bias_h, 0)
        weight_bp = hidden_bh @ self.mix_hp + self.weight_p
        logits_bn: np.ndarray = (weight_bp[:, None] @ pair_bpn)[:, 0]
        return logits_bn

    def rule(self, fixed_tc: np.ndarray, weight_k: np.ndarray, temperature: float) -> Rule:
        """How it decides in whole episodes; fixed_tc [T, OF_TASK] of the course's tasks."""
        return Rule(
            LEARNT_ORDER,
            LEARNT,
            self.weight_p.astype(np.float64),
            weight_k,
            temperature,
            (fixed_tc @ self.fixed_ch + self.bias_h).astype(np.float32),
            self.changing_ch,
            self.mix_hp,
        )


def rule_in(network: ActorCritic, weight_k: np.ndarray, temperature: float, board: Board) -> Rule:
    """How the network decides on this board."""
    head = Head(network)
    if head.sees_dags:
        encode(network, [(board, w) for w in range(len(board.course.workflows))])
    return head.rule(board.fixed_tc, weight_k, temperature)


assert len(PAIR_FEATURES) == PAIRS + 1
assert changing_columns().stop - changing_columns().start == CHANGING
