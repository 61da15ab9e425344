"""A second look at each decision: a policy's best nodes, each played on a few times before one is taken.

What is played on is what the pool knows: the attempts on its nodes, the task's workflow, and those that wait beside it.
Run times are noisy, the same for every node that is tried; what is still to come, and what may fail, is left out.
Axes: N nodes, R resources, T tasks that are played, C candidates, S samples.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np

from policy.arbiter import NOWHERE, arbitrate, draw, masked
from policy.features import CROWDED, SLOWED
from policy.observation import Observation, Policy
from policy.queue import attempt_key
from policy.resources import dominant_share
from policy.reward import RewardWeights
from policy.state import LONGEST_S
from policy.workflows import NONE, Status, TaskState, Workflow
from schemas.errors import InvalidConfiguration

SUFFIX = "+lookahead"
"""Of the name of a policy that looks ahead; the number of samples follows."""
CPU, GPU = 0, 2
FEWEST_SAMPLES = 4
"""A gain that fewer show is none: its error is not known."""
NEIGHBOURS = 16
"""Waiting attempts, the first of the queue, whose workflows are played beside the task's own."""
UNENDED = 0.1
"""Share of its expected time that an attempt has left at least, however long it has run."""
HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """What is played on, and when its outcome counts."""

    candidates: int = 3
    """Nodes that are tried: the policy's choice, and those of its best scores beside it."""
    samples: int = 24
    """Samples of a task; each plays every candidate once, under the same noise."""
    runtime_noise: float = 0.35
    """Standard deviation of the logarithm of run times."""
    placements: int = 100
    """Placements after which an outcome is estimated."""
    sure: float = 2.0
    """Standard errors that a gain must exceed."""

    def __post_init__(self) -> None:
        for name, least in (("candidates", 2), ("samples", 0), ("runtime_noise", 0), ("placements", 0), ("sure", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise InvalidConfiguration(
                    f"lookahead.{name}", f"{getattr(self, name)} is out of range", f"give {least} or more"
                )


def with_lookahead(policy: Policy, settings: RolloutSettings) -> Policy:
    """The policy, its choices switched where that promises more; its name says that it looks ahead, and how far.

    The same state makes the same decision.
    """

    def score(seen: Observation) -> np.ndarray:
        logits_bn = policy.score(seen)
        for row in range(len(seen.tasks)):
            logits_bn = _looked_ahead(seen, row, logits_bn, policy, settings)
        return logits_bn

    return replace(policy, name=f"{policy.name}{SUFFIX}/{settings.samples}", score=score, max_batch=1)


def _looked_ahead(
    seen: Observation, row: int, logits_bn: np.ndarray, policy: Policy, settings: RolloutSettings
) -> np.ndarray:
    """The scores, in which another node is above all others where it is better than the policy's own choice."""
    temperature = policy.temperature
    candidates = _candidates(seen, row, logits_bn, temperature, settings.candidates)
    if len(candidates) < 2:
        return logits_bn
    switched = _better(_Outlook(seen, row, settings), candidates, settings)
    if switched is None:
        return logits_bn
    best = float(masked(logits_bn[row], seen.mask_bn[row]).max())
    raised_bn = logits_bn.copy()
    raised_bn[row, switched] = best + max(1.0, abs(best)) + 50 * temperature  # e^-50: no draw falls beside it
    return raised_bn


def _candidates(seen: Observation, row: int, logits_bn: np.ndarray, temperature: float, count: int) -> list[int]:
    """The node that the policy's scores would take, then those of the best scores beside it."""
    task, attempt = seen.tasks[row], seen.attempts[row]
    score_n = masked(logits_bn[row], seen.mask_bn[row])
    drawn = np.array([draw(task.workflow.workflow_id, task.task.task_id, attempt)])
    (choice,) = arbitrate(score_n[None], seen.request_br[row : row + 1], seen.free_rn, temperature, drawn)
    if choice.node == NOWHERE:
        return []
    best = [node for node in np.argsort(-score_n, kind="stable").tolist() if np.isfinite(score_n[node])]
    return [choice.node, *[node for node in best if node != choice.node][: count - 1]]


def _better(outlook: _Outlook, candidates: Sequence[int], settings: RolloutSettings) -> int | None:
    """The candidate that is better than the first beyond its error, and most of these; None: none is."""
    if settings.samples < FEWEST_SAMPLES:
        return None
    noises = [outlook.noise(sample) for sample in range(settings.samples)]
    losses = np.array([[outlook.loss_s(node, *noise) for node in candidates] for noise in noises])
    gain_sc = losses[:, :1] - losses[:, 1:]
    mean_c = gain_sc.mean(axis=0)
    error_c = gain_sc.std(axis=0, ddof=1) / math.sqrt(settings.samples)
    sure_c = np.where(mean_c > np.maximum(settings.sure * error_c, 1e-9), mean_c, -np.inf)
    best = int(sure_c.argmax())
    return candidates[1 + best] if np.isfinite(sure_c[best]) else None


class _Outlook:
    """What is known of the pool when one task is decided about, as arrays that many samples are played from."""

    def __init__(self, seen: Observation, row: int, settings: RolloutSettings) -> None:
        state, self.settings, self.seen, self._row = seen.state, settings, seen, row
        task, attempt = seen.tasks[row], seen.attempts[row]
        self._seed = _seed(attempt_key(task, attempt))
        waiting = _waiting(seen, row)
        self.flows = list({id(t.workflow): t.workflow for t in waiting}.values())
        self.tasks = [t for flow in self.flows for t in flow.tasks if not t.is_over]
        at = {id(t): i for i, t in enumerate(self.tasks)}
        self.first = at[id(task)]
        self.flow_t = _flow_of(self.flows)
        self.waiting = [at[id(t)] for t in waiting[1:]]
        of = [[t.workflow.tasks[child] for child in t.children] for t in self.tasks]
        self.children_t = [[at[id(child)] for child in children if not child.is_over] for children in of]
        self.missing_t = [t.missing_parents for t in self.tasks]
        self.request_tr = np.array([t.request for t in self.tasks], np.int64)
        self.runtime_t = [t.task.runtime_s for t in self.tasks]
        self.rank_t = [t.rank_s for t in self.tasks]
        self.bytes_t = [float(sum(edge.bytes for edge in t.task.parents)) for t in self.tasks]
        nodes = state.nodes
        self.usable_n = state.fresh()
        self.capacity_rn = np.maximum(nodes.capacity_rn, 1)
        self.slowness_n = 1 / nodes.speed_n
        self.bandwidth_n = nodes.bandwidth_n
        self.price_n = nodes.price_n
        self.has_gpu_n = nodes.capacity_rn[GPU] > 0
        self.mean_slowness = float(self.slowness_n.mean())
        self.running = _running(seen, at, task)
        self.seconds_per_price = self._worth_of_money()

    def noise(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        """Factors of the run times: of the tasks [T], of the attempts on the nodes; the same for every candidate."""
        rng = np.random.default_rng((self._seed, sample))
        sigma = self.settings.runtime_noise
        normal = rng.standard_normal(len(self.tasks) + len(self.running))
        factor = np.exp(sigma * normal - sigma * sigma / 2)
        return factor[: len(self.tasks)], factor[len(self.tasks) :]

    def loss_s(self, node: int, noise_t: np.ndarray, noise_a: np.ndarray) -> float:
        """What it comes to when the task goes to the node: seconds, of the workflows' ends and of the bill."""
        play = _Play(self, noise_t, noise_a)
        play.put(self.first, node, float(self.seen.transfer_bn[self._row, node]))
        play.run(self.waiting)
        return play.loss_s()

    def _worth_of_money(self) -> float:
        """Seconds of turnaround that are worth one unit of price, as the reward has it for usual workflows."""
        weights = RewardWeights()
        share_tn = dominant_share(self.request_tr.T, self.capacity_rn)
        cost_t = (share_tn * self.price_n * self.slowness_n).mean(axis=1) * np.array(self.runtime_t) / HOUR_S
        path_s = sum(flow.path_s for flow in self.flows)
        return weights.cost / weights.turnaround * path_s / float(max(cost_t.sum(), 1e-9))


class _Play:
    """One way in which things may go on. Whoever waits goes, in the order of waiting, where it would be done first.

    Nodes with GPUs are for tasks that take some, where others have room: the sparing form of the best heuristic.
    """

    def __init__(self, outlook: _Outlook, noise_t: np.ndarray, noise_a: np.ndarray) -> None:
        self._o = outlook
        self._noise_t = noise_t
        self._now_s = 0.0
        self._free_rn = outlook.seen.free_rn.copy()
        self._missing_t = list(outlook.missing_t)
        self._waits: list[tuple[float, int]] = []
        """Tasks that no node has room for, the shortest way to the workflow's end first."""
        self._ends: list[tuple[float, int, int, int]] = []
        """When, which task (NONE: of no workflow that is played), where, which attempt on the nodes."""
        self._end_s_t = [math.nan] * len(self._missing_t)
        self._held_n: dict[int, int] = {}
        self._since_n: dict[int, float] = {}
        self._bill = 0.0
        self._left = outlook.settings.placements
        for attempt, (task, node, passed_s, expected_s, _) in enumerate(outlook.running):
            left_s = max(expected_s * float(noise_a[attempt]) - passed_s, UNENDED * expected_s)
            self._ends.append((left_s, task, node, attempt))
            self._hold(node)
            if task != NONE:
                self._end_s_t[task] = left_s
        heapify(self._ends)

    def put(self, task: int, node: int, transfer_s: float) -> None:
        """The task goes to the node."""
        o = self._o
        used = 1 - self._free_rn[CPU, node] / o.capacity_rn[CPU, node]
        slowed = 1 + SLOWED * max(0.0, used - CROWDED) / (1 - CROWDED)
        run_s = o.runtime_t[task] * o.slowness_n[node] * float(self._noise_t[task]) * slowed
        end_s = self._now_s + transfer_s + float(run_s)
        self._free_rn[:, node] -= o.request_tr[task]
        self._end_s_t[task] = end_s
        self._hold(node)
        heappush(self._ends, (end_s, task, node, NONE))

    def run(self, ready: Sequence[int]) -> None:
        """With these tasks ready, until everything that is played is over, or enough was placed."""
        self._place(ready, NOWHERE)
        while self._ends and self._left > 0:
            self._now_s, task, node, attempt = heappop(self._ends)
            self._let_go(node)
            self._free_rn[:, node] += self._o.request_tr[task] if attempt == NONE else self._o.running[attempt][4]
            self._place(self._freed_by(task), node)

    def _freed_by(self, task: int) -> list[int]:
        """The children that the end of the task makes ready."""
        ready = []
        for child in self._o.children_t[task] if task != NONE else ():
            self._missing_t[child] -= 1
            if self._missing_t[child] == 0:
                ready.append(child)
        return ready

    def loss_s(self) -> float:
        """Of each workflow when it ends, or would if nothing waited any more; and the bill, in seconds."""
        o = self._o
        end_s_w = [0.0] * len(o.flows)
        for task, end_s in enumerate(self._end_s_t):
            own = o.runtime_t[task]
            if math.isnan(end_s):
                reach_s = self._now_s + o.rank_t[task] * o.mean_slowness
            else:
                reach_s = end_s if end_s <= self._now_s else end_s + (o.rank_t[task] - own) * o.mean_slowness
            flow = o.flow_t[task]
            end_s_w[flow] = max(end_s_w[flow], reach_s)
        for node in list(self._since_n):
            self._charge(node, self._now_s)
        return sum(end_s_w) + self._bill * o.seconds_per_price

    def _place(self, ready: Sequence[int], freed: int) -> None:
        """Place those that have become ready, and of those that wait the ones that the node has room for again."""
        o = self._o
        new = [(o.flows[o.flow_t[task]].path_s, task) for task in ready]
        entries, self._waits = sorted([*self._waits, *new]), []
        for entry in entries:
            task = entry[1]
            node, transfer_s = self._best(task) if task in ready else self._again(task, freed)
            if node == NOWHERE or self._left <= 0:
                self._waits.append(entry)
            else:
                self.put(task, node, transfer_s)
                self._left -= 1

    def _again(self, task: int, node: int) -> tuple[int, float]:
        """As `_best` for a task that waits, where only this node has more room than before."""
        o = self._o
        if node == NOWHERE or not o.usable_n[node] or not (self._free_rn[:, node] >= o.request_tr[task]).all():
            return NOWHERE, 0.0
        return node, o.bytes_t[task] / float(o.bandwidth_n[node])

    def _best(self, task: int) -> tuple[int, float]:
        """Where the task would be done first, and how long its transfers take; NOWHERE: nothing has room."""
        o = self._o
        request_r = o.request_tr[task]
        may_n = o.usable_n & (self._free_rn >= request_r[:, None]).all(axis=0)
        if request_r[GPU] == 0 and (may_n & ~o.has_gpu_n).any():
            may_n &= ~o.has_gpu_n
        nodes = np.flatnonzero(may_n)
        if not len(nodes):
            return NOWHERE, 0.0
        finish = o.runtime_t[task] * o.slowness_n[nodes] + o.bytes_t[task] / o.bandwidth_n[nodes]
        node = int(nodes[finish.argmin()])
        return node, o.bytes_t[task] / float(o.bandwidth_n[node])

    def _hold(self, node: int) -> None:
        self._held_n[node] = self._held_n.get(node, 0) + 1
        self._since_n.setdefault(node, self._now_s)

    def _let_go(self, node: int) -> None:
        self._held_n[node] -= 1
        if not self._held_n[node]:
            self._charge(node, self._now_s)
            del self._since_n[node]

    def _charge(self, node: int, until_s: float) -> None:
        self._bill += (until_s - self._since_n[node]) / HOUR_S * float(self._o.price_n[node])


def _waiting(seen: Observation, row: int) -> list[TaskState]:
    """The task, then the first that wait beside it and whose nodes nobody has chosen yet; each once."""
    task = seen.tasks[row]
    rows = seen.state.queue.rows()
    first = [t for t, _ in rows.first(NEIGHBOURS + 1, -rows.path_p)]
    return list({id(t): t for t in [task, *[t for t in first if t.status == Status.READY]]}.values())


def _flow_of(flows: Sequence[Workflow]) -> list[int]:
    """Of each task that is played, which of the workflows is its own."""
    return [number for number, flow in enumerate(flows) for task in flow.tasks if not task.is_over]


def _running(
    seen: Observation, at: dict[int, int], decided: TaskState
) -> list[tuple[int, int, float, float, np.ndarray]]:
    """The attempts on the nodes: task or NONE, node, how long it has been there, what was expected, what it holds.

    An older attempt of the task that is decided about holds its room, and brings nothing.
    """
    state = seen.state
    found = []
    for (workflow_id, task_id, attempt), held in state.ledger:
        workflow = state.workflows.get(workflow_id)
        task = workflow.get(task_id) if workflow is not None else None
        if task is None or task.attempt != attempt:
            continue
        since_ms = task.placed_ms if task.started_ms is None else task.started_ms
        passed_s = max(0, state.now_ms - since_ms) / 1000
        expected_s = task.expected_s
        if expected_s is None or not 0 <= expected_s <= LONGEST_S:  # it comes from a topic
            expected_s = task.task.runtime_s
        number = NONE if task is decided else at.get(id(task), NONE)
        found.append((number, held.node, passed_s, expected_s, np.array(held.request, np.int64)))
    return found


def _seed(key: tuple[str, str, int]) -> int:
    named = f"{key[0]}\0{key[1]}\0{key[2]}\0lookahead".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest())
