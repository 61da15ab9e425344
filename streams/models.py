"""Which weights decide for each pool of a worker, and how others take their place while it works.

A thread beside the decisions reads the topics `models` and `control`, opens new weights, checks them, and runs them at
the pool's size. What takes their place is one reference, between two rounds of decisions, under the partition's lock.
Weights that must not decide are refused in a record; those in use stay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from policy.canary import Canary
from policy.canary_stages import CANARY, Progress
from policy.encodings import NodeEncoding, NodeInputs, node_inputs, node_key
from policy.observation import Policy
from policy.state import State
from schemas.errors import BrokerError, HeadraceError, InvalidInput, UnusableWeights
from schemas.records import WorkflowClass
from schemas.steps import Uses
from schemas.topics import TopicSettings, partition_of
from streams import metrics
from streams.kafka import Publisher
from streams.model_topic import ModelTopic, PoolModels, refusal_in_force, refuse
from streams.partition import Partition
from streams.policies import PolicySettings, Roles, looking_ahead

if TYPE_CHECKING:
    from policy.actor import Actor

log = logging.getLogger("headrace.models")

Answer = TypeVar("Answer")

POLL_S = 0.5
AGAIN_S = 30.0
"""After this time, what had to wait for memory is tried again."""
ENCODINGS = 5
"""Times that the nodes are encoded anew, since they changed meanwhile, before they are encoded between decisions."""
BATCH = 64
"""Tasks of the batch that new weights are tried with."""
MIB = 2**20
LOADED = 12
"""Bytes in memory for each byte of the files: three sessions, the golden values, and what their first runs take."""


class TooLittleMemory(HeadraceError):
    """New weights have to wait."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the topics want for a pool: versions, each with the offset of its record, and the canary's part."""

    stable: tuple[str, int] = ("", -1)
    canary: tuple[str, int] = ("", -1)
    share: float = 0.0
    classes: frozenset[WorkflowClass] = frozenset()


class Models:
    """The roles in every pool of one worker."""

    def __init__(
        self,
        settings: PolicySettings,
        base: Roles,
        topics: TopicSettings,
        publisher: Publisher,
        find: Callable[[int], Partition | None],
        source: ModelTopic | None = None,
        who: str = "worker",
    ) -> None:
        """base  who decides where nothing was chosen; source  where choices come from; None: base decides for good"""
        self._settings = settings
        self._base = base
        self._partitions = topics.partitions
        self._publisher = publisher
        self._find = find
        self._source = source
        self._who = who
        self._background = ThreadPoolExecutor(1, "models")
        self._is_stopping = False
        self._roles: dict[str, Roles] = {}
        self._taken_up: WeakKeyDictionary[State, Roles] = WeakKeyDictionary()
        self._met: dict[str, Wanted] = {}
        self._not_before: dict[str, float] = {}
        self._actors: dict[str, Actor] = {base.actor.version: base.actor} if base.actor else {}
        self._reported: set[tuple[str, str, str]] = set()

    def roles(self, pool: str) -> Roles:
        """Who decides for this pool now."""
        return self._roles.get(pool, self._base)

    def take_up(self, partition: Partition, state: State) -> Roles:
        """Who decides the round that begins. The caller holds the partition's lock.

        Of a state that no round was decided on yet, the evidence tells the roles where they are not the worker's own.
        """
        roles, before = self.roles(state.pool), self._taken_up.get(state)
        if before is not roles:
            if roles is not (before or self._base):
                partition.note_before_last(_told(partition, state.pool, roles))
            self._taken_up[state] = roles
            self._show(state.pool)
        return roles

    def tell_again(self, partition: Partition) -> None:
        """Note who decides for pools that somebody else than the worker's own decides for."""
        for pool, state in partition.pools.items():
            if self._taken_up.get(state, self._base) is not self._base:
                partition.note(_told(partition, pool, self._taken_up[state]))

    def failed(self, policy: Policy, pool: str, error: Exception) -> None:
        """A policy failed in a decision: say so, once, where it came from the topic."""
        is_ours = self._base.actor is not None and policy.version == self._base.actor.version
        if policy.version in self._actors and not is_ours:
            self._refuse(pool, policy.version, f"it failed while it decided: {error}")

    # At the start, before anything is decided.

    def begin(self) -> None:
        """Load what the topics want by now; blocks. What cannot be used is refused, the choice before it tried."""
        if self._source is None:
            return
        self._source.catch_up()
        for pool in list(self._source.pools):
            wanted = self._wanted(pool)
            self._met[pool] = wanted
            choices = (self._version(choice.version) for choice in reversed(self._source.of(pool).chosen))
            stable = next((chosen for chosen in choices if self._is_usable(pool, chosen)), ("", -1))
            self._roles[pool] = self._made(pool, replace(wanted, stable=stable), self._base, 0)
            self._show(pool)

    def _is_usable(self, pool: str, chosen: tuple[str, int]) -> bool:
        assert self._source is not None
        if refusal_in_force(self._source, pool, chosen[0]):
            log.warning("model.refused_before", extra={"pool": pool, "version": chosen[0]})
            return False
        try:
            self._actor(chosen, 0)
        except (UnusableWeights, InvalidInput) as error:
            self._refuse(pool, chosen[0], str(error))
            return False
        except TooLittleMemory as error:
            log.warning("model.postponed", extra={"pool": pool, "version": chosen[0], "problem": str(error)})
            return False
        return True

    # While the worker works.

    async def follow(self) -> None:
        """Runs as long as the worker: reads what is new, and brings it into use."""
        while self._source is not None and not self._is_stopping:
            try:
                await self._in_background(partial(self._source.poll, POLL_S))
                for pool in list(self._source.pools):
                    await self._meet(pool)
            except BrokerError as error:
                log.warning("models.unread", extra={"error": str(error)})
                await asyncio.sleep(POLL_S)

    def stop(self) -> None:
        """Have `follow` end soon."""
        self._is_stopping = True

    async def _meet(self, pool: str) -> None:
        """Give the pool what it wants, where that is new."""
        wanted, started = self._wanted(pool), time.monotonic()
        if wanted == self._met.get(pool, Wanted()) or started < self._not_before.get(pool, 0.0):
            return
        before = self.roles(pool)
        try:
            roles = await self._in_background(partial(self._made, pool, wanted, before, self._nodes(pool)))
        except TooLittleMemory as error:
            metrics.SWAPS.labels("postponed").inc()
            log.warning("model.postponed", extra={"pool": pool, "version": wanted.stable[0], "problem": str(error)})
            self._not_before[pool] = started + AGAIN_S
            return
        self._met[pool] = wanted
        if roles != before and await self._swap(pool, roles):
            took_s = time.monotonic() - started
            metrics.SWAPS.labels("swapped").inc()
            metrics.SWAP_SECONDS.observe(took_s)
            extra = {"pool": pool, "before": before.policy.version, "version": roles.policy.version}
            log.info("model.swapped", extra={**extra, "share": _share(roles), "seconds": round(took_s, 3)})
        self._show(pool)
        await self._forget_unused()

    async def _swap(self, pool: str, roles: Roles) -> bool:
        """Put the roles in force between two rounds; returns whether that could be.

        New actors know the pool's nodes by then: they are encoded beside the decisions, again where they changed.
        """
        partition = self._find(partition_of(pool, self._partitions))
        state = partition.pools.get(pool) if partition is not None and partition.restored.is_set() else None
        if partition is None or state is None:
            self._roles[pool] = roles
            return True
        new = [actor for actor in roles.actors if actor not in self.roles(pool).actors]
        async with partition.lock:
            inputs = node_inputs(state)
        for attempt in range(ENCODINGS):
            encodings = []
            for actor in new:
                try:
                    encodings.append(await self._in_background(partial(_encoded, actor, inputs)))
                except UnusableWeights as error:
                    self._refuse(pool, actor.version, str(error))
                    return False
            async with partition.lock:
                is_last = attempt + 1 == ENCODINGS
                if node_key(state) == inputs.key or is_last:
                    for actor, encoding in zip(new, encodings, strict=True):
                        actor.use(state, encoding)
                        actor.prepare(state)
                    self._roles[pool] = self._taken_up[state] = roles
                    partition.note(replace(_told(partition, pool, roles), is_swap=True))
                    break
                inputs = node_inputs(state)
        return True

    async def _forget_unused(self) -> None:
        """Close what decides nowhere any more. No round is under way that it began: the lock was ours meanwhile."""
        used = {actor for roles in (self._base, *self._roles.values()) for actor in roles.actors}
        unused = [self._actors.pop(version) for version, actor in list(self._actors.items()) if actor not in used]
        await self._in_background(unused.clear)

    # In the background's thread.

    def _made(self, pool: str, wanted: Wanted, before: Roles, nodes: int) -> Roles:
        """The roles that are wanted, as far as they can be had. Raises TooLittleMemory."""
        stable = Roles(before.policy, before.actor)
        try:
            stable = self._alone(self._actor(wanted.stable, nodes), before)
        except (UnusableWeights, InvalidInput) as error:
            self._refuse(pool, wanted.stable[0], str(error))
        if not wanted.canary[0] or not wanted.share:
            return stable
        try:
            canary_actor = self._actor(wanted.canary, nodes)
        except (UnusableWeights, InvalidInput) as error:
            self._refuse(pool, wanted.canary[0], str(error))
            return stable
        if canary_actor is None:  # the canary is what the worker has anyway
            return stable
        canary = Canary(self._policy(canary_actor), wanted.share, wanted.classes)
        return replace(stable, canary=canary, canary_actor=canary_actor)

    def _alone(self, actor: Actor | None, before: Roles) -> Roles:
        """The roles where this actor decides everything; None: who decides where nothing was chosen."""
        if actor is None or actor is self._base.actor:
            return self._base
        return Roles(before.policy if actor is before.actor else self._policy(actor), actor)

    def _policy(self, actor: Actor) -> Policy:
        """The actor as it decides under the settings."""
        return looking_ahead(actor.policy(), self._settings)

    def _actor(self, chosen: tuple[str, int], nodes: int) -> Actor | None:
        """The actor of a version that was chosen, tried out; of none, that of the worker's settings."""
        version, _ = chosen
        if not version:
            return self._base.actor
        if version not in self._actors:
            self._actors[version] = self._load(version, nodes)
        return self._actors[version]

    def _load(self, version: str, nodes: int) -> Actor:
        from policy.actor import Actor, ActorSettings

        assert self._source is not None
        self._check_memory(LOADED * self._source.found(version).size)
        weights = self._source.weights(version)
        settings = ActorSettings(
            device=self._settings.device, temperature=self._settings.temperature, synchronous=False
        )
        actor = Actor(weights, settings)
        actor.try_out(BATCH, nodes)
        started = time.monotonic()
        actor.try_out(BATCH, nodes)
        took_ms = 1000 * (time.monotonic() - started)
        if took_ms > self._settings.deadline_ms:
            raise UnusableWeights(
                f"weights {version}: all parts together take {took_ms:.0f} ms for {nodes} nodes, and a batch may take "
                f"{self._settings.deadline_ms:g} ms; train smaller ones, or raise policy.deadline_ms"
            )
        return actor

    def _check_memory(self, needed: int) -> None:
        free = free_memory()
        least = needed + round(MIB * self._settings.headroom_mib)
        if free is not None and free < least:
            raise TooLittleMemory(
                f"{free // MIB} MiB of memory are free, and {least // MIB} MiB are needed; "
                "give the worker more, or lower policy.headroom_mib"
            )

    def _refuse(self, pool: str, version: str, reason: str) -> None:
        if (pool, version, reason) not in self._reported:
            self._reported.add((pool, version, reason))
            metrics.SWAPS.labels("refused").inc()
            log.error("model.refused", extra={"pool": pool, "version": version, "reason": reason})
            refuse(self._publisher, pool, version, self._who, reason)

    # What the topics want.

    def _wanted(self, pool: str) -> Wanted:
        assert self._source is not None
        models = self._source.of(pool)
        canary = _progress(models)
        stable = self._version(models.version)
        if canary is None or not canary.is_running or refusal_in_force(self._source, pool, canary.version):
            return Wanted(stable)
        return Wanted(stable, self._version(canary.version), canary.share, canary.classes)

    def _version(self, version: str) -> tuple[str, int]:
        """With its offset: what was published again is tried again."""
        assert self._source is not None
        is_own = self._base.actor is not None and version == self._base.actor.version
        published = self._source.published.get(version)
        return ("", -1) if is_own else (version, published.offset if published else -1)

    def _nodes(self, pool: str) -> int:
        partition = self._find(partition_of(pool, self._partitions))
        state = partition.pools.get(pool) if partition is not None else None
        return len(state.nodes) if state is not None else 0

    def _show(self, pool: str) -> None:
        roles = self.roles(pool)
        metrics.MODEL.remove_by_labels({"pool": pool})
        metrics.MODEL.labels(pool, "stable", roles.policy.version).set(1)
        if roles.canary is not None:
            metrics.MODEL.labels(pool, "canary", roles.canary.policy.version).set(1)
        metrics.CANARY_SHARE.labels(pool).set(_share(roles))

    async def _in_background(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._background, work)


def _encoded(actor: Actor, inputs: NodeInputs) -> NodeEncoding:
    """The pool's nodes as they are. Raises UnusableWeights."""
    encoding = actor.encode(inputs)
    if not all(np.isfinite(part).all() for part in (encoding.key_kn, encoding.bias_n, encoding.pool_h)):
        raise UnusableWeights(f"weights {actor.version}: what they make of the pool's nodes is not finite")
    return encoding


def _told(partition: Partition, pool: str, roles: Roles) -> Uses:
    """What the evidence says of the roles."""
    number, canary = list(partition.pools).index(pool), roles.canary
    if canary is None:
        return Uses(number, roles.policy.version)
    return Uses(number, roles.policy.version, canary.policy.version, canary.share, canary.classes)


def _share(roles: Roles) -> float:
    return roles.canary.share if roles.canary is not None else 0.0


def _progress(models: PoolModels) -> Progress | None:
    record = models.commands.get(CANARY)
    if record is None or "progress" not in record.arguments:  # the answer to a request that was refused
        return None
    try:
        return Progress.of(record)
    except InvalidInput as error:
        log.warning("canary.unreadable", extra={"problem": str(error)})
        return None


def free_memory() -> int | None:
    """Bytes that this process may still take: of the machine, and of its control group. None: nobody tells."""
    known = [
        found
        for found in (_available(Path("/proc/meminfo")), _left_in_group(Path("/sys/fs/cgroup")))
        if found is not None
    ]
    return min(known, default=None)


def _available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _left_in_group(group: Path) -> int | None:
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or one without a limit
        return None
