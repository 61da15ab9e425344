"""A cluster that is not there: placements in, the records of a real one out.

Event-driven, seeded, with time as an argument. The live loop's simulated cluster and training run this same code.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from policy.ledger import AttemptKey
from policy.resources import RESOURCES, Request, capacity, request
from schemas.checks import check_spec
from schemas.errors import InvalidCluster, InvalidConfiguration
from schemas.records import (
    METRICS,
    Edge,
    Env,
    EventKind,
    NodeMetrics,
    NodeSpec,
    Outcome,
    Placement,
    Task,
    TaskEvent,
    TaskReady,
    WorkflowSubmitted,
)

CPU, MEMORY, GPU, GPU_MEMORY = range(len(RESOURCES))
TaskKey = tuple[str, str]
SPECS_EVERY = 4
"""Samples between two repeats of the nodes' specifications."""


@dataclass(frozen=True, kw_only=True)
class SimulatorSettings:
    """What goes unlike the plan on the simulated cluster."""

    runtime_noise: float = 0.2
    """Standard deviation of the logarithm of run times; their mean is the prediction."""
    transfer_noise: float = 0.2
    """The same for transfers."""
    failure_rate: float = 0.0
    """Share of attempts that fail, at a random point of their run."""
    node_losses_per_hour: float = 0.0
    """How often each node is lost, per hour of event time."""
    repair_s: float = 120.0
    """Mean time until a lost node is back."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in (
            ("runtime_noise", 3.0),
            ("transfer_noise", 3.0),
            ("failure_rate", 0.99),
            ("node_losses_per_hour", 3600.0),
            ("repair_s", 1e9),
        ):
            if not 0 <= getattr(self, name) <= most:
                raise InvalidConfiguration(
                    f"cluster.simulator.{name}",
                    f"{getattr(self, name)} is out of range",
                    f"give a number from 0 to {most:g}",
                )


@dataclass(slots=True)
class RunningAttempt:
    """An attempt on a node, from its acceptance to its end."""

    key: AttemptKey
    node: int
    request: Request
    env: Env
    accepted_ms: int
    transfer_ms: int
    run_ms: int
    fails: bool
    input_bytes: float


@dataclass(order=True, slots=True)
class _Event:
    at_ms: int
    order: int
    kind: str = field(compare=False)
    key: AttemptKey | None = field(compare=False, default=None)
    node: int = field(compare=False, default=-1)


@dataclass(slots=True)
class _KnownTask:
    task: Task
    env: Env
    attempt: int = -1
    """The newest attempt that was accepted or turned down."""
    finished_on: int = -1


class SimulatedCluster:
    """Nodes that run tasks. Whoever drives it calls `advance` to move its time on; every answer is records."""

    def __init__(self, pool: str, specs: Sequence[NodeSpec], settings: SimulatorSettings, start_ms: int) -> None:
        if not specs:
            raise InvalidCluster("nodes", "there are none", "give at least one node")
        self.pool = pool
        self.specs = tuple(specs)
        self.settings = settings
        self.now_ms = start_ms
        for spec in specs:
            check_spec(spec, "nodes")
        self._index = {spec.node_id: at for at, spec in enumerate(specs)}
        if len(self._index) < len(specs):
            raise InvalidCluster("nodes", "two nodes have one name", "name them apart")
        self._capacity_nr = np.array([capacity(spec) for spec in specs], np.int64)
        self._used_nr = np.zeros_like(self._capacity_nr)
        self._is_up_n = np.ones(len(specs), bool)
        self._tasks: dict[TaskKey, _KnownTask] = {}
        self._running: dict[AttemptKey, RunningAttempt] = {}
        self._early: dict[TaskKey, list[Placement]] = {}
        self._events: list[_Event] = []
        self._order = 0
        self._samples = 0
        self._sample_rng = np.random.default_rng((settings.seed, 1))
        self._loss_rng = np.random.default_rng((settings.seed, 2))
        self._recent_n = np.zeros((2, len(specs)))  # failed, ended: decaying counts
        if settings.node_losses_per_hour > 0:
            for node in range(len(specs)):
                self._plan_loss(node)

    @property
    def next_ms(self) -> int | None:
        """When something happens next, if nothing is placed until then."""
        return self._events[0].at_ms if self._events else None

    @property
    def running(self) -> int:
        """Attempts on the nodes."""
        return len(self._running)

    def lose_all(self) -> list[TaskEvent]:
        """What a cluster says that has just started: whatever was on its nodes is gone."""
        return [self._node_event(node, "the cluster started anew") for node in range(len(self.specs))]

    def learn(self, record: WorkflowSubmitted | TaskReady) -> list[TaskEvent]:
        """Take in what the tasks are; placements that came before are obeyed now."""
        if isinstance(record, TaskReady):
            known = [record.task] if record.task is not None else []
            env = record.env
        else:
            known, env = list(record.tasks), record.env
        events: list[TaskEvent] = []
        for task in known:
            key = (record.workflow_id, task.task_id)
            self._tasks.setdefault(key, _KnownTask(task, env))
            for placement in self._early.pop(key, ()):
                events += self.place(placement)
        return events

    def forget(self, workflow_id: str, task_ids: Sequence[str]) -> None:
        """Drop what is known of a finished workflow."""
        for task_id in task_ids:
            self._tasks.pop((workflow_id, task_id), None)

    def place(self, placement: Placement) -> list[TaskEvent]:
        """Obey a placement now. A repeat has no effect; what cannot be obeyed is rejected, with the reason."""
        if placement.outcome != Outcome.PLACED or placement.pool != self.pool:
            return []
        task_key = (placement.workflow_id, placement.task_id)
        known = self._tasks.get(task_key)
        if known is None:
            self._early.setdefault(task_key, []).append(placement)
            return []
        if placement.attempt <= known.attempt:
            return []
        earlier, known.attempt = known.attempt, placement.attempt
        key = (*task_key, placement.attempt)
        if known.finished_on >= 0:
            return [self._event(key, placement.node_id or "", EventKind.KILLED, known.env, "the task has finished")]
        events = self._kill((*task_key, earlier))
        node = self._index.get(placement.node_id or "", -1)
        problem = self._problem(node, request(known.task))
        if problem:
            return [*events, self._event(key, placement.node_id or "", EventKind.REJECTED, known.env, problem)]
        self._accept(key, known, node)
        return events

    def advance(self, until_ms: int) -> Iterator[TaskEvent]:
        """Everything that happens up to and including this time, in order."""
        while self._events and self._events[0].at_ms <= until_ms:
            event = heapq.heappop(self._events)
            self.now_ms = max(self.now_ms, event.at_ms)
            yield from self._happen(event)
        self.now_ms = max(self.now_ms, until_ms)

    def sample(self) -> NodeMetrics:
        """What a collector measures on the nodes that are up, now."""
        up = np.flatnonzero(self._is_up_n)
        values_nm = self._measure()[up]
        with_specs = self._samples % SPECS_EVERY == 0
        self._samples += 1
        return NodeMetrics(
            self.pool,
            self.now_ms,
            "simulated-cluster",
            tuple(self.specs[n].node_id for n in up.tolist()),
            values_nm.astype("<f4").tobytes(),
            tuple(self.specs[n] for n in up.tolist()) if with_specs else (),
        )

    def _problem(self, node: int, wanted: Request) -> str | None:
        if node < 0:
            return "no such node"
        if not self._is_up_n[node]:
            return "the node is down"
        short = [
            name
            for name, want, used, has in zip(
                RESOURCES, wanted, self._used_nr[node], self._capacity_nr[node], strict=True
            )
            if want and used + want > has
        ]
        return f"too little {', '.join(short)} left" if short else None

    def _accept(self, key: AttemptKey, known: _KnownTask, node: int) -> None:
        spec, task, settings = self.specs[node], known.task, self.settings
        rng = _rng(settings.seed, key)
        noise = rng.standard_normal(2)
        input_bytes = self._remote_bytes(key[0], task.parents, node)
        transfer_s = input_bytes / spec.bandwidth_bytes_per_s * _log_normal(noise[0], settings.transfer_noise)
        run_s = task.runtime_s / spec.speed * _log_normal(noise[1], settings.runtime_noise)
        fails = bool(rng.random() < settings.failure_rate)
        if fails:
            run_s *= rng.random()
        attempt = RunningAttempt(
            key,
            node,
            request(task),
            known.env,
            self.now_ms,
            math.ceil(1000 * transfer_s),
            max(1, round(1000 * run_s)),
            fails,
            input_bytes,
        )
        self._running[key] = attempt
        self._used_nr[node] += attempt.request
        self._plan(self.now_ms + attempt.transfer_ms, "start", key)

    def _remote_bytes(self, workflow_id: str, parents: Sequence[Edge], node: int) -> float:
        """Bytes of a task's inputs that do not lie on the node."""
        remote = 0.0
        for edge in parents:
            parent = self._tasks.get((workflow_id, edge.task_id))
            if parent is None or parent.finished_on != node:
                remote += edge.bytes
        return remote

    def _happen(self, event: _Event) -> Iterator[TaskEvent]:
        if event.kind == "lose":
            yield from self._lose(event.node)
        elif event.kind == "repair":
            self._is_up_n[event.node] = True
            self._samples = 0
            self._plan_loss(event.node)
        elif event.key is not None and event.key in self._running:
            yield self._start(event.key) if event.kind == "start" else self._end(event.key)

    def _start(self, key: AttemptKey) -> TaskEvent:
        attempt = self._running[key]
        self._plan(self.now_ms + attempt.run_ms, "end", key)
        return self._event(
            key,
            self.specs[attempt.node].node_id,
            EventKind.STARTED,
            attempt.env,
            transfer_s=attempt.transfer_ms / 1000,
        )

    def _end(self, key: AttemptKey) -> TaskEvent:
        attempt = self._drop(key)
        self._recent_n[:, attempt.node] *= 0.9
        self._recent_n[:, attempt.node] += (attempt.fails, 1)
        if not attempt.fails:
            self._tasks[key[:2]].finished_on = attempt.node
        return self._event(
            key,
            self.specs[attempt.node].node_id,
            EventKind.FAILED if attempt.fails else EventKind.FINISHED,
            attempt.env,
            "simulated failure" if attempt.fails else None,
            runtime_s=attempt.run_ms / 1000,
            transfer_s=attempt.transfer_ms / 1000,
        )

    def _kill(self, key: AttemptKey) -> list[TaskEvent]:
        if key not in self._running:
            return []
        attempt = self._drop(key)
        ran_ms = max(0, self.now_ms - attempt.accepted_ms - attempt.transfer_ms)
        return [
            self._event(
                key,
                self.specs[attempt.node].node_id,
                EventKind.KILLED,
                attempt.env,
                "a later attempt was placed",
                runtime_s=ran_ms / 1000,
            )
        ]

    def _lose(self, node: int) -> Iterator[TaskEvent]:
        self._is_up_n[node] = False
        for key in [k for k, a in self._running.items() if a.node == node]:
            self._drop(key)
        repair_ms = max(1, round(1000 * self.settings.repair_s * self._loss_rng.exponential()))
        self._push(_Event(self.now_ms + repair_ms, self._next_order(), "repair", node=node))
        yield self._node_event(node, "simulated loss")

    def _drop(self, key: AttemptKey) -> RunningAttempt:
        attempt = self._running.pop(key)
        self._used_nr[attempt.node] -= attempt.request
        return attempt

    def _measure(self) -> np.ndarray:
        """values_nm [N, M] of METRICS."""
        has_nr = np.maximum(self._capacity_nr, 1)
        used_nr = self._used_nr / has_nr
        bandwidth_n = np.array([spec.bandwidth_bytes_per_s for spec in self.specs])
        busy_links_n = np.zeros(len(self.specs))
        for attempt in self._running.values():
            if self.now_ms < attempt.accepted_ms + attempt.transfer_ms:
                busy_links_n[attempt.node] = 1.0
        noise = self._sample_rng
        shape = len(self.specs)
        values_nm = np.full((shape, len(METRICS)), np.nan)
        values_nm[:, 0] = np.clip(used_nr[:, CPU] * noise.uniform(0.8, 1.0, shape), 0, 1)
        values_nm[:, 1] = np.clip(used_nr[:, MEMORY] * noise.uniform(0.9, 1.0, shape), 0, 1)
        values_nm[:, 2] = np.clip(0.5 * used_nr[:, CPU] * noise.uniform(0.5, 1.0, shape), 0, 1)
        values_nm[:, 3] = bandwidth_n * np.clip(busy_links_n * noise.uniform(0.7, 1.0, shape), 0, 1)
        has_gpu_n = self._capacity_nr[:, GPU] > 0
        values_nm[has_gpu_n, 4] = used_nr[has_gpu_n, GPU_MEMORY]
        values_nm[:, 5] = self._recent_n[0] / np.maximum(self._recent_n[1], 1)
        values_nm[has_gpu_n, 6] = np.clip(used_nr[has_gpu_n, GPU] * noise.uniform(0.3, 0.9, int(has_gpu_n.sum())), 0, 1)
        values_nm[:, 7] = 0.0005 * np.exp(0.3 * noise.standard_normal(shape)) * (1 + 4 * busy_links_n)
        return values_nm

    def _plan(self, at_ms: int, kind: str, key: AttemptKey) -> None:
        self._push(_Event(at_ms, self._next_order(), kind, key))

    def _plan_loss(self, node: int) -> None:
        wait_s = self._loss_rng.exponential(3600 / self.settings.node_losses_per_hour)
        self._push(_Event(self.now_ms + round(1000 * wait_s), self._next_order(), "lose", node=node))

    def _push(self, event: _Event) -> None:
        heapq.heappush(self._events, event)

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def _event(
        self,
        key: AttemptKey,
        node_id: str,
        kind: EventKind,
        env: Env,
        reason: str | None = None,
        runtime_s: float | None = None,
        transfer_s: float | None = None,
    ) -> TaskEvent:
        return TaskEvent(self.pool, *key, node_id, self.now_ms, kind, env, runtime_s, transfer_s, reason)

    def _node_event(self, node: int, reason: str) -> TaskEvent:
        return TaskEvent(
            self.pool, "", "", 0, self.specs[node].node_id, self.now_ms, EventKind.NODE_LOST, reason=reason
        )


def _rng(seed: int, key: AttemptKey) -> np.random.Generator:
    """Chance of one attempt: the same on every node and under every policy, so that policies can be compared."""
    digest = hashlib.blake2b(f"{seed}\0{key[0]}\0{key[1]}\0{key[2]}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest)))


def _log_normal(normal: float, sigma: float) -> float:
    """A factor of mean 1."""
    return math.exp(sigma * normal - sigma * sigma / 2)
