"""From a log to what may be learnt of it: each decision of the actor as it saw it, with what came of it.

Two readings. Rewards follow from the records that may be learnt from (`replay.quality`), and from no other. What was
seen follows from all records that were folded, as it was: a test that held a node really held it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from policy.constraints import Constraints
from policy.credit import Credits
from policy.encodings import Dag, dag_of, tasks_of
from policy.features import free_shares, graphs, pool_features, task_features
from policy.fencing import Fence
from policy.ledger import AttemptKey
from policy.network import HIDDEN, ActorCritic
from policy.observation import Observation
from policy.pair_features import Workspace, pair_features
from policy.state import State, StateSettings
from policy.workflows import TaskState
from replay.logged import Logged
from replay.player import Range
from replay.shadow import Plays
from schemas.errors import InvalidInput
from schemas.records import METRICS, REWARD_TERMS, DecisionBatch, EventKind, Placement, Reward, Stage
from streams.partition import Partition
from trainer.clone import one_thread
from trainer.fine_tune import Lessons

MAKESPAN = REWARD_TERMS.index("makespan")
CPU_UTILISATION = METRICS.index("cpu_utilisation")
ACTOR = "actor"
BUCKETS = 2**16
SWEEP_EVERY = 256
"""Whenever a multiple of so many DAGs are kept, those that are over are forgotten."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt that is over."""

    reward: Reward
    ran_s: float
    """From the decision to the attempt's end."""

    @property
    def is_negative(self) -> bool:
        """Whether the attempt did not finish: it was migrated, failed, or was lost with its node."""
        return self.reward.end != EventKind.FINISHED


@dataclass(frozen=True, slots=True)
class Seen:
    """One decision as the scoring head saw it. Arrays as in `trainer.fine_tune.Lessons`, of one decision."""

    key: AttemptKey
    context_c: np.ndarray
    pair_pn: np.ndarray
    mask_n: np.ndarray
    node: int
    log_prob: float
    temperature: float
    urgency: float
    """Share of the workflow's remaining path that hangs on the task: 1 where it has no slack."""
    skew: float
    """Standard deviation of the nodes' CPU utilisation, as last measured."""
    offset: int
    """Of its evidence, in the decisions topic."""

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        return self.context_c.nbytes + self.pair_pn.nbytes + self.mask_n.nbytes


def outcomes(records: Iterable[Logged], credits: Credits, number: int, partitions: int) -> dict[AttemptKey, Outcome]:
    """What came of the attempts of one pool that are over by the end of these records."""
    fence, checks = Fence(), Partition(number, partitions, StateSettings())
    ended_ms: dict[AttemptKey, int] = {}
    found: dict[AttemptKey, Outcome] = {}
    for logged in records:
        record = logged.record
        if isinstance(record, Placement) and not fence.admits(record, logged.offset):
            continue
        if record.pool != credits.pool:  # type: ignore[attr-defined]
            continue
        try:
            checks.check(record)
            rewards = credits.apply(record)
        except InvalidInput:
            continue  # its owner sent it to the dead letters
        for reward in rewards:
            if reward.stage in (Stage.ENDED, Stage.SETTLED):
                key = (reward.workflow_id, reward.task_id, reward.attempt)
                at_ms = ended_ms.setdefault(key, reward.event_time_ms)
                found[key] = Outcome(reward, max(0, at_ms - reward.decided_ms) / 1000)
    return found


def worth(outcome: Outcome, urgency: float, negative: float) -> float:
    """What a decision was worth, by what itself has moved.

    The reward of `policy.credit`, but for the makespan, which hundreds of decisions share: in its place the time from
    the decision to the attempt's end, as far as the workflow waits for it, in the same unit. That is the potential of
    the remaining critical path; what the task takes anyway is part of what its state lets expect. An attempt that did
    not finish (migrated, failed, lost with its node) is worth `negative` less.
    """
    reward = outcome.reward
    usual_s = reward.turnaround_p95_s or reward.turnaround_s or outcome.ran_s
    late = min(1.0, urgency * outcome.ran_s / usual_s) if usual_s > 0 else 0.0
    rest = math.fsum(c for at, c in enumerate(reward.contributions) if at != MAKESPAN)
    return rest + reward.weights[MAKESPAN] * late - (negative if outcome.is_negative else 0.0)


class Reader:
    """Reads what the actor saw out of a history that is played."""

    def __init__(
        self, network: ActorCritic, constraints: Constraints, pool: str, is_wanted: Callable[[AttemptKey], bool]
    ) -> None:
        """network  that of the weights to learn from: its DAG encoder says what the head sees of a DAG"""
        self.skipped: dict[str, int] = {}
        """Decisions that cannot be learnt from, by why."""
        self._network = network
        self._constraints = constraints
        self._pool = pool
        self._is_wanted = is_wanted
        self._space = Workspace()
        self._dags: WeakKeyDictionary[State, dict[Dag, np.ndarray]] = WeakKeyDictionary()

    def read(self, player: Plays, wanted: Range) -> Iterator[Seen]:
        """Yields each decision of the actor that is wanted, in order. Raises HistoryLost, BrokerError."""
        for moment in player.play(wanted):
            moment.is_folded = True
            for made, placements in zip(moment.made, moment.placements, strict=True):
                state = moment.partition.pools[made.batch.pool]
                if made.batch.pool == self._pool and made.batch.width:
                    yield from self._look(state, made.batch, placements, made.offset)
                for placement in placements:
                    state.apply(placement)

    def _look(self, state: State, batch: DecisionBatch, placements: Sequence[Placement], offset: int) -> Iterator[Seen]:
        """One recorded batch, in the state before it."""
        if batch.policy != ACTOR:
            self._skip("decided by another policy", len(placements))
            return
        if batch.temperature <= 0:
            self._skip("decided without chance", len(placements))
            return
        placed = {(p.workflow_id, p.task_id, p.attempt): p for p in placements}
        rows = [
            (task, attempt, placement)
            for workflow_id, task_id, attempt in zip(batch.workflow_ids, batch.task_ids, batch.attempts, strict=True)
            if (placement := placed.get((workflow_id, task_id, attempt))) is not None
            and placement.node_id in state.nodes.index
            and (task := _task(state, workflow_id, task_id)) is not None
        ]
        self._skip("their placement is not in the topic", len(batch.workflow_ids) - len(rows))
        if rows and any(self._is_wanted(_key(placement)) for _, _, placement in rows):
            yield from self._rows(state, rows, batch.temperature, offset)

    def _rows(
        self, state: State, rows: Sequence[tuple[TaskState, int, Placement]], temperature: float, offset: int
    ) -> Iterator[Seen]:
        tasks, attempts, placements = (list(column) for column in zip(*rows, strict=True))
        free_rn = state.ledger.free_rn
        mask_bn = self._constraints.mask(state, tasks, free_rn, state.fresh())
        seen = Observation(state, tasks, attempts, mask_bn, free_rn)
        free_3n = free_shares(seen)
        context_bc = self._context(seen, free_3n)
        pair_bpn, skew = pair_features(seen, free_3n, self._space), _skew(state)
        left_rn = free_rn.copy()
        for row, placement in enumerate(placements):
            node = state.nodes.index[placement.node_id or ""]
            request_r = seen.request_br[row]
            # What the batch took before, this one did not find.
            mask_n = mask_bn[row] & (request_r[:, None] <= left_rn).all(axis=0)
            left_rn[:, node] -= request_r
            key = _key(placement)
            if not self._is_wanted(key):
                continue
            if placement.log_prob is None or not mask_n[node]:
                self._skip("decided under other rules", 1)
                continue
            yield Seen(
                key,
                context_bc[row],
                pair_bpn[row].copy(),
                mask_n,
                node,
                placement.log_prob,
                temperature,
                min(1.0, tasks[row].rank_s / max(tasks[row].workflow.path_s, 1e-6)),
                skew,
                offset,
            )

    def _context(self, seen: Observation, free_3n: np.ndarray) -> np.ndarray:
        """context_bc [B, CONTEXT] of the head; the pool's state, which has no say, is 0."""
        fixed_bc = np.stack([self._fixed(seen.state, task) for task in seen.tasks])
        count, pool_f = len(seen.tasks), pool_features(seen, free_3n)
        pool_bf = np.broadcast_to(pool_f, (count, len(pool_f)))
        none_bh = np.zeros((count, HIDDEN), np.float32)
        return np.concatenate([fixed_bc, task_features(seen), pool_bf, none_bh], axis=1, dtype=np.float32)

    def _fixed(self, state: State, task: TaskState) -> np.ndarray:
        """A task's fixed features, embedding, and its DAG's vector."""
        dags = self._dags.setdefault(state, {})
        dag, row = dag_of(task)
        if dag not in dags:
            together = graphs([tasks_of(dag)])
            with one_thread(), torch.no_grad():
                arrays = (together.graph_tf, together.edges_2e, together.weight_gt)
                embedding_th, vector_gh = self._network.dags(*map(torch.from_numpy, arrays))
            of_dag_th = np.repeat(vector_gh.numpy(), len(embedding_th), axis=0)
            dags[dag] = np.concatenate([together.graph_tf, embedding_th.numpy(), of_dag_th], axis=1)
            if len(dags) % SWEEP_EVERY == 0:
                for gone in [other for other in dags if not _is_live(other, state)]:
                    del dags[gone]
        return dags[dag][row]

    def _skip(self, why: str, count: int) -> None:
        if count:
            self.skipped[why] = self.skipped.get(why, 0) + count


def newest(seen: Iterable[Seen], most_bytes: int) -> list[Seen]:
    """The newest of them that take no more memory than this."""
    kept: list[Seen] = []
    total, first = 0, 0
    for one in seen:
        kept.append(one)
        total += one.bytes
        while total > most_bytes and first < len(kept) - 1:
            total -= kept[first].bytes
            first += 1
        if first > 1024:
            del kept[:first]
            first = 0
    return kept[first:]


def together(seen: Sequence[Seen], found: Mapping[AttemptKey, Outcome], negative: float) -> Lessons:
    """Decisions and what came of them, side by side."""
    nodes = max(len(one.mask_n) for one in seen)
    return Lessons(
        np.stack([one.context_c for one in seen]),
        np.stack([np.pad(one.pair_pn, ((0, 0), (0, nodes - one.pair_pn.shape[1]))) for one in seen]),
        np.stack([np.pad(one.mask_n, (0, nodes - len(one.mask_n))) for one in seen]),
        np.array([one.node for one in seen], np.int64),
        np.array([one.log_prob for one in seen]),
        np.array([one.temperature for one in seen]),
        np.array([worth(found[one.key], one.urgency, negative) for one in seen]),
    )


def is_held_out(workflow_id: str, share: float) -> bool:
    """Whether a workflow's decisions are kept for the judgement: the same ones whoever asks."""
    digest = hashlib.blake2b(f"held out\0{workflow_id}".encode(), digest_size=2).digest()
    return int.from_bytes(digest) < share * BUCKETS


def _key(placement: Placement) -> AttemptKey:
    return placement.workflow_id, placement.task_id, placement.attempt


def _task(state: State, workflow_id: str, task_id: str) -> TaskState | None:
    workflow = state.workflows.get(workflow_id)
    task = workflow.get(task_id) if workflow is not None else None
    return None if task is None or task.is_over else task


def _is_live(dag: Dag, state: State) -> bool:
    workflow = dag.workflow if isinstance(dag, TaskState) else dag
    return state.workflows.get(workflow.workflow_id) is workflow


def _skew(state: State) -> float:
    used_n = state.windows.latest(len(state.nodes))[state.nodes.is_present_n, CPU_UTILISATION]
    used_n = used_n[~np.isnan(used_n)]
    return float(used_n.std()) if len(used_n) else 0.0
