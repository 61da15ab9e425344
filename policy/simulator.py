"""A cluster that is not there: placements in, the records of a real one out.

Event-driven, seeded, with time as an argument. The live loop's simulated cluster and training run this same code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policy import physics
from policy.ledger import AttemptKey
from policy.physics import FREE, NOW, PLANNED, log_normal
from policy.resources import RESOURCES, capacity, request
from schemas.checks import check_spec
from schemas.errors import InvalidCluster, InvalidConfiguration
from schemas.records import (
    METRICS,
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
FIRST_PLACES = 64
SCHEDULED = 64
"""Losses of a node, after which they repeat; its slow spells and its latency spikes, after which there are no more."""
HOUR_MS = 3_600_000
CAPACITY_LABEL, SPOT = "capacity", "spot"
"""The label of a node that may be taken back, and its value."""
LOSSES_STREAM, SPIKES_STREAM, SPOT_STREAM = 2, 3, 4
"""Streams of random numbers: without one trouble the others stay as they were."""
GONE = 2**31
"""Where a task finished whose node is no more: on none of those that there are."""


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
    slow_spells_per_hour: float = 0.0
    """How often each node is slow for a while, per hour of event time; nobody is told."""
    slow_spell_s: float = 300.0
    """Mean time of such a spell."""
    slow_factor: float = 2.5
    """How many times as long an attempt takes that starts in one."""
    crowding: float = 0.0
    """How much longer attempts take on a node whose cpu is full; it begins at 50 %."""
    latency_spikes_per_hour: float = 0.0
    """How often the link of each node is slow for a while, per hour of event time; its measured latency shows it."""
    latency_spike_s: float = 120.0
    """Mean time of such a spike."""
    latency_factor: float = 8.0
    """How many times as long a transfer takes that begins in one, and how many times the usual latency is measured."""
    spot_share: float = 0.0
    """Share of the nodes that are spot: labelled `capacity: spot`, cheaper, and taken back at times."""
    spot_price_factor: float = 0.35
    """Their price, as a share of what the node costs otherwise; nodes that have the label already keep theirs."""
    spot_interruptions_per_hour: float = 0.0
    """How often each spot node is taken back, per hour of event time, beside the losses that meet all nodes."""
    spot_repair_s: float = 600.0
    """Mean time until a node takes the place of one that was taken back."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in (
            ("runtime_noise", 3.0),
            ("transfer_noise", 3.0),
            ("failure_rate", 0.99),
            ("node_losses_per_hour", 3600.0),
            ("repair_s", 1e9),
            ("slow_spells_per_hour", 3600.0),
            ("slow_spell_s", 1e9),
            ("slow_factor", 1000.0),
            ("crowding", 1000.0),
            ("latency_spikes_per_hour", 3600.0),
            ("latency_spike_s", 1e9),
            ("latency_factor", 1000.0),
            ("spot_share", 1.0),
            ("spot_price_factor", 1.0),
            ("spot_interruptions_per_hour", 3600.0),
            ("spot_repair_s", 1e9),
        ):
            if not 0 <= getattr(self, name) <= most:
                raise InvalidConfiguration(
                    f"cluster.simulator.{name}",
                    f"{getattr(self, name)} is out of range",
                    f"give a number from 0 to {most:g}",
                )


@dataclass(slots=True)
class _KnownTask:
    workflow_id: str
    task: Task
    env: Env
    place: int
    attempt: int = -1
    """The newest attempt that was accepted or turned down."""
    node: int = FREE
    """Where that attempt was accepted."""
    accepted_ms: int = 0
    finished_on: int = FREE

    @property
    def key(self) -> AttemptKey:
        return (self.workflow_id, self.task.task_id, self.attempt)


class SimulatedCluster:
    """Nodes that run tasks. Whoever drives it calls `advance` to move its time on; every answer is records."""

    def __init__(self, pool: str, specs: Sequence[NodeSpec], settings: SimulatorSettings, start_ms: int) -> None:
        if not specs:
            raise InvalidCluster("nodes", "there are none", "give at least one node")
        self.pool = pool
        for spec in specs:
            check_spec(spec, "nodes")
        self.specs = specs = with_spot(specs, settings)
        self.settings = settings
        self._index = {spec.node_id: at for at, spec in enumerate(specs)}
        if len(self._index) < len(specs):
            raise InvalidCluster("nodes", "two nodes have one name", "name them apart")
        self._machines = machines_of(specs, settings, start_ms, FIRST_PLACES)
        self._is_taken_back_nk = _losses(specs, settings, _losses_rng(settings))[2]
        self._tasks: dict[TaskKey, _KnownTask] = {}
        self._at: list[_KnownTask | None] = [None] * FIRST_PLACES
        """Whose each place is."""
        self._vacant = list(reversed(range(FIRST_PLACES)))
        self._early: dict[TaskKey, list[Placement]] = {}
        self._samples = 0
        self._sample_rng = np.random.default_rng((settings.seed, 1))
        self._recent_n = np.zeros((2, len(specs)))  # failed, ended: decaying counts

    @property
    def now_ms(self) -> int:
        """Its own time: as far as it was moved on."""
        return int(self._machines.counters[NOW])

    @property
    def next_ms(self) -> int | None:
        """When something happens next, if nothing is placed until then."""
        m = self._machines
        return int(m.at_ms_s[m.heap_s[0]]) if m.counters[PLANNED] else None

    @property
    def running(self) -> int:
        """Attempts on the nodes."""
        return int(self._machines.held_n.sum())

    @property
    def cost(self) -> float:
        """What the nodes have cost while they held anything, up to now."""
        for node in range(len(self.specs)):
            physics.bill(self._machines, node)
        return float(self._machines.cost_n.sum())

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
            if key not in self._tasks:
                self._tasks[key] = self._settle(_KnownTask(record.workflow_id, task, env, FREE))
            for placement in self._early.pop(key, ()):
                events += self.place(placement)
        return events

    def finished_before(self, workflow_id: str, task_id: str, node_id: str) -> None:
        """A known task finished on this node before the cluster's own time began: what it hands on lies there."""
        self._tasks[workflow_id, task_id].finished_on = self._index.get(node_id, GONE)

    def forget(self, workflow_id: str, task_ids: Sequence[str]) -> None:
        """Drop what is known of a finished workflow."""
        for task_id in task_ids:
            known = self._tasks.pop((workflow_id, task_id), None)
            if known is not None and self._machines.node_a[known.place] == FREE:
                self._leave(known)

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
        key = (*task_key, placement.attempt)
        if known.finished_on >= 0:
            known.attempt = placement.attempt
            return [self._event(key, placement.node_id or "", EventKind.KILLED, known.env, "the task has finished")]
        events = self._kill(known)
        known.attempt = placement.attempt
        node = self._index.get(placement.node_id or "", -1)
        problem = self._problem(node, known.place)
        if problem:
            return [*events, self._event(key, placement.node_id or "", EventKind.REJECTED, known.env, problem)]
        self._accept(known, node)
        return events

    def advance(self, until_ms: int) -> Iterator[TaskEvent]:
        """Everything that happens up to and including this time, in order."""
        while self.next_ms is not None and self.next_ms <= until_ms:
            what, index = physics.happen(self._machines)
            if what == physics.LOST:
                yield self._node_event(index, self._why_lost(index))
            elif what == physics.REPAIRED:
                self._samples = 0
            else:
                yield self._started(index) if what == physics.STARTED else self._ended(index)
        self._machines.counters[NOW] = max(self.now_ms, until_ms)

    def sample(self) -> NodeMetrics:
        """What a collector measures on the nodes that are up, now."""
        up = np.flatnonzero(self._machines.is_up_n)
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

    def _settle(self, known: _KnownTask) -> _KnownTask:
        """Give the task a place."""
        if not self._vacant:
            places = len(self._at)
            self._machines = physics.grown(self._machines, 2 * places)
            self._at += [None] * places
            self._vacant = list(reversed(range(places, 2 * places)))
        known.place = self._vacant.pop()
        self._at[known.place] = known
        self._machines.request_ar[known.place] = request(known.task)
        return known

    def _leave(self, known: _KnownTask) -> None:
        self._at[known.place] = None
        self._vacant.append(known.place)

    def _problem(self, node: int, place: int) -> str | None:
        m = self._machines
        if node < 0:
            return "no such node"
        if not m.is_up_n[node]:
            return "the node is down"
        if physics.fits(m, place, node):
            return None
        wanted_r = m.request_ar[place]
        is_short_r = (wanted_r > 0) & (m.used_nr[node] + wanted_r > m.capacity_nr[node])
        return f"too little {', '.join(np.array(RESOURCES)[is_short_r])} left"

    def _accept(self, known: _KnownTask, node: int) -> None:
        m = self._machines
        of_transfer, of_run, fails = chances(self.settings, known.key)
        transfer = physics.transfer_ms(m, node, self._remote_bytes(known, node), of_transfer)
        run = physics.run_ms(m, known.place, node, known.task.runtime_s, of_run)
        physics.accept(m, known.place, node, transfer, run, fails)
        known.node, known.accepted_ms = node, self.now_ms

    def _remote_bytes(self, known: _KnownTask, node: int) -> float:
        """Bytes of a task's inputs that do not lie on the node."""
        remote = 0.0
        for edge in known.task.parents:
            parent = self._tasks.get((known.workflow_id, edge.task_id))
            if parent is None or parent.finished_on != node:
                remote += edge.bytes
        return remote

    def _whose(self, place: int) -> _KnownTask:
        known = self._at[place]
        assert known is not None, "an attempt's place is its task's"
        return known

    def _started(self, place: int) -> TaskEvent:
        known, m = self._whose(place), self._machines
        node_id, transfer_s = self.specs[m.node_a[place]].node_id, int(m.transfer_ms_a[place]) / 1000
        return self._event(known.key, node_id, EventKind.STARTED, known.env, transfer_s=transfer_s)

    def _ended(self, place: int) -> TaskEvent:
        known, m = self._whose(place), self._machines
        node, fails = known.node, bool(m.fails_a[place])
        self._recent_n[:, node] *= 0.9
        self._recent_n[:, node] += (fails, 1)
        if not fails:
            known.finished_on = node
        if self._tasks.get(known.key[:2]) is not known:  # forgotten meanwhile
            self._leave(known)
        return self._event(
            known.key,
            self.specs[node].node_id,
            EventKind.FAILED if fails else EventKind.FINISHED,
            known.env,
            "simulated failure" if fails else None,
            runtime_s=int(m.run_ms_a[place]) / 1000,
            transfer_s=int(m.transfer_ms_a[place]) / 1000,
        )

    def _kill(self, known: _KnownTask) -> list[TaskEvent]:
        """End the attempt that the task has on a node, if any."""
        m, place = self._machines, known.place
        if m.node_a[place] == FREE:
            return []
        node_id = self.specs[m.node_a[place]].node_id
        ran_ms = max(0, self.now_ms - known.accepted_ms - int(m.transfer_ms_a[place]))
        physics.release(m, place)
        reason = "a later attempt was placed"
        return [self._event(known.key, node_id, EventKind.KILLED, known.env, reason, runtime_s=ran_ms / 1000)]

    def _measure(self) -> np.ndarray:
        """values_nm [N, M] of METRICS."""
        m = self._machines
        used_nr = m.used_nr / np.maximum(m.capacity_nr, 1)
        bandwidth_n = np.array([spec.bandwidth_bytes_per_s for spec in self.specs])
        busy_links_n = np.zeros(len(self.specs))
        busy_links_n[m.node_a[(m.node_a != FREE) & ~m.is_running_a & (m.transfer_ms_a > 0)]] = 1.0
        noise = self._sample_rng
        shape = len(self.specs)
        values_nm = np.full((shape, len(METRICS)), np.nan)
        values_nm[:, 0] = np.clip(used_nr[:, CPU] * noise.uniform(0.8, 1.0, shape), 0, 1)
        values_nm[:, 1] = np.clip(used_nr[:, MEMORY] * noise.uniform(0.9, 1.0, shape), 0, 1)
        values_nm[:, 2] = np.clip(0.5 * used_nr[:, CPU] * noise.uniform(0.5, 1.0, shape), 0, 1)
        values_nm[:, 3] = bandwidth_n * np.clip(busy_links_n * noise.uniform(0.7, 1.0, shape), 0, 1)
        has_gpu_n = m.capacity_nr[:, GPU] > 0
        values_nm[has_gpu_n, 4] = used_nr[has_gpu_n, GPU_MEMORY]
        values_nm[:, 5] = self._recent_n[0] / np.maximum(self._recent_n[1], 1)
        values_nm[has_gpu_n, 6] = np.clip(used_nr[has_gpu_n, GPU] * noise.uniform(0.3, 0.9, int(has_gpu_n.sum())), 0, 1)
        spike_n = np.array([physics.latency(m, node) for node in range(shape)])
        values_nm[:, 7] = 0.0005 * np.exp(0.3 * noise.standard_normal(shape)) * (1 + 4 * busy_links_n) * spike_n
        return values_nm

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

    def _why_lost(self, node: int) -> str:
        turn = int(self._machines.losses_n[node] - 1) % SCHEDULED
        return "spot interruption" if self._is_taken_back_nk[node, turn] else "simulated loss"

    def _node_event(self, node: int, reason: str) -> TaskEvent:
        return TaskEvent(
            self.pool, "", "", 0, self.specs[node].node_id, self.now_ms, EventKind.NODE_LOST, reason=reason
        )


def chances(settings: SimulatorSettings, key: AttemptKey) -> tuple[float, float, bool]:
    """What an attempt meets: factors of its transfers' and its run's time, and whether it fails.

    The same on every node and under every policy, so that policies can be compared.
    """
    digest = hashlib.blake2b(f"{settings.seed}\0{key[0]}\0{key[1]}\0{key[2]}".encode(), digest_size=8).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest)))
    of_transfer, of_run = rng.standard_normal(2).tolist()
    fails = bool(rng.random() < settings.failure_rate)
    run = log_normal(of_run, settings.runtime_noise) * (rng.random() if fails else 1.0)
    return log_normal(of_transfer, settings.transfer_noise), run, fails


def with_spot(specs: Sequence[NodeSpec], settings: SimulatorSettings) -> tuple[NodeSpec, ...]:
    """The nodes, a share of them spot: those that are already, and as many others as are missing.

    Which others hangs on their names: a larger share adds to them, and takes none away.
    """

    def chance(spec: NodeSpec) -> bytes:
        return hashlib.blake2b(f"{settings.seed}\0spot\0{spec.node_id}".encode(), digest_size=8).digest()

    others = sorted([spec for spec in specs if not is_spot(spec)], key=chance)
    missing = round(settings.spot_share * len(specs)) - (len(specs) - len(others))
    chosen = {spec.node_id for spec in others[: max(0, missing)]}
    return tuple([_as_spot(spec, settings) if spec.node_id in chosen else spec for spec in specs])


def is_spot(spec: NodeSpec) -> bool:
    """Whether the node may be taken back."""
    return spec.labels.get(CAPACITY_LABEL) == SPOT


def _as_spot(spec: NodeSpec, settings: SimulatorSettings) -> NodeSpec:
    price = settings.spot_price_factor * spec.price_per_hour
    return replace(spec, price_per_hour=price, labels={**spec.labels, CAPACITY_LABEL: SPOT})


def machines_of(specs: Sequence[NodeSpec], settings: SimulatorSettings, start_ms: int, places: int) -> physics.Machines:
    """The nodes, with when each is lost, when it and its link are slow, and room for so many tasks."""
    rng = _losses_rng(settings)
    loss_ms_nk, repair_ms_nk, _ = _losses(specs, settings, rng)
    slow = (settings.slow_spells_per_hour, settings.slow_spell_s)
    spikes = (settings.latency_spikes_per_hour, settings.latency_spike_s)
    return physics.machines(
        np.array([capacity(spec) for spec in specs], np.int64),
        np.array([spec.speed for spec in specs], np.float64),
        np.array([spec.bandwidth_bytes_per_s for spec in specs], np.float64),
        np.array([spec.price_per_hour for spec in specs], np.float64),
        loss_ms_nk,
        repair_ms_nk,
        _begin_and_end(rng, len(specs), *slow, start_ms),
        settings.slow_factor,
        _begin_and_end(np.random.default_rng((settings.seed, SPIKES_STREAM)), len(specs), *spikes, start_ms),
        settings.latency_factor,
        settings.crowding,
        places,
        start_ms,
    )


def _losses_rng(settings: SimulatorSettings) -> np.random.Generator:
    """Draws losses, and behind them slow spells."""
    return np.random.default_rng((settings.seed, LOSSES_STREAM))


def _losses(
    specs: Sequence[NodeSpec], settings: SimulatorSettings, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How long each node is up before each loss, how long it is gone then, and whether it was taken back.

    Each [N, SCHEDULED], int64 ms but for the last; 0: for ever. Both kinds of loss have no memory: whichever comes
    first ends the time that the node is up, and both begin anew when it is back.
    """
    nodes = len(specs)
    loss_ms_nk, repair_ms_nk = _spells(rng, nodes, settings.node_losses_per_hour, settings.repair_s)
    spot_rng = np.random.default_rng((settings.seed, SPOT_STREAM))
    taken_ms_nk, gone_ms_nk = _spells(spot_rng, nodes, settings.spot_interruptions_per_hour, settings.spot_repair_s)
    is_spot_n1 = np.array([is_spot(spec) for spec in specs], bool)[:, None]
    is_taken_nk = is_spot_n1 & (taken_ms_nk > 0) & ((loss_ms_nk == 0) | (taken_ms_nk < loss_ms_nk))
    return np.where(is_taken_nk, taken_ms_nk, loss_ms_nk), np.where(is_taken_nk, gone_ms_nk, repair_ms_nk), is_taken_nk


def _begin_and_end(rng: np.random.Generator, nodes: int, per_hour: float, lasts_s: float, start_ms: int) -> np.ndarray:
    """Spells of each node, from and to [N, K, 2] int64 ms; without any, K is 0."""
    until_ms_nk, lasts_ms_nk = _spells(rng, nodes, per_hour, lasts_s)
    begin_ms_nk = start_ms + np.cumsum(until_ms_nk + lasts_ms_nk, axis=1) - lasts_ms_nk
    return np.stack([begin_ms_nk, begin_ms_nk + lasts_ms_nk], axis=2)[:, : SCHEDULED if per_hour > 0 else 0]


def _spells(rng: np.random.Generator, nodes: int, per_hour: float, lasts_s: float) -> tuple[np.ndarray, np.ndarray]:
    """For each node the times between its spells, and how long they last [N, SCHEDULED] int64 ms; 0: there are none."""
    shape = (nodes, SCHEDULED)
    if per_hour == 0:
        return np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    between_ms = 1 + np.round(HOUR_MS / per_hour * rng.exponential(size=shape)).astype(np.int64)
    return between_ms, 1 + np.round(1000 * lasts_s * rng.exponential(size=shape)).astype(np.int64)
