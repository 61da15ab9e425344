"""The life of a worker: takes partitions over, saves their state, and would rather end than do things by halves."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from policy.state import StateSettings
from schemas import topics as catalogue
from schemas.codec import Codec
from schemas.errors import HeadraceError, InvalidConfiguration
from schemas.topics import PLACEMENTS, TopicSettings
from streams import metrics, snapshots
from streams.agents import Trunk
from streams.claims import later_owner
from streams.kafka import KafkaSettings, Publisher, brokers_found, reader, watermarks
from streams.partition import Partition
from streams.restore import restore

log = logging.getLogger("headrace.worker")

Answer = TypeVar("Answer")

TICK_S = 0.5
BACKGROUND_THREADS = 4
"""Partitions that are restored at the same time."""
SAVED_AT_ONCE = 1000
"""Records that a restore may fold before its result is worth a snapshot."""
EXIT_FAILED = 70
"""The exit code of a worker that could not go on; its successor carries on from the topics."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How a worker lives."""

    group: str = "headrace"
    """Consumer group: workers of one group share the partitions."""
    instance: str = ""
    """A name that stays over restarts: a worker that comes back under it gets its partitions at once."""
    host: str = "127.0.0.1"
    """Where /metrics, /healthz and /readyz listen."""
    port: int = 9108
    """Their port; 0 takes a free one."""
    snapshot_s: float = 30.0
    """Seconds between two snapshots of a partition that changed."""
    start_deadline_s: float = 60.0
    """A worker that is not ready by then ends."""
    drain_s: float = 20.0
    """A worker that was told to stop ends by then, whatever is left."""
    loop_lag_limit_s: float = 10.0
    """/healthz fails when the event loop is later than this."""
    session_timeout_s: float = 10.0
    """Kafka gives a dead worker's partitions to others after this time."""

    def __post_init__(self) -> None:
        if not self.group:
            raise InvalidConfiguration("worker.group", "is empty", "name the consumer group")
        if not 0 <= self.port < 65536:
            raise InvalidConfiguration("worker.port", f"{self.port} is no port", "give 0 to 65535")
        for name in ("snapshot_s", "start_deadline_s", "drain_s", "loop_lag_limit_s", "session_timeout_s"):
            if not 0 < getattr(self, name) <= 86_400:
                raise InvalidConfiguration(f"worker.{name}", f"{getattr(self, name)}", "give seconds, above 0")


class Worker:
    """Owns partitions from their assignment to their revocation."""

    def __init__(
        self,
        settings: WorkerSettings,
        kafka: KafkaSettings,
        topics: TopicSettings,
        state: StateSettings,
        codec: Codec,
        publisher: Publisher,
    ) -> None:
        self.settings = settings
        self.trunk: Trunk | None = None
        self._kafka = kafka
        self._topics = topics
        self._state = state
        self._codec = codec
        self._publisher = publisher
        self._partitions: dict[int, Partition] = {}
        self._background = ThreadPoolExecutor(BACKGROUND_THREADS, "background")
        self._restoring: set[asyncio.Task[None]] = set()
        self._is_assigned = False
        self._is_stopping = False
        self._is_connected = True
        self._started = self._last_tick = time.monotonic()
        self._saved: dict[int, tuple[int, ...]] = {}
        self.owner = f"{settings.instance or settings.group}-{os.getpid()}"

    def find(self, number: int) -> Partition | None:
        """The partition of this number, if it is ours."""
        return self._partitions.get(number)

    # Assignment, told by Faust.

    async def on_assigned(self, numbers: Set[int]) -> None:
        """These partitions are ours now, and no others."""
        log.info("partitions.assigned", extra={"partitions": sorted(numbers)})
        await self.on_revoked(set(self._partitions) - numbers)
        self._is_assigned = True
        for number in sorted(numbers - set(self._partitions)):
            partition = Partition(number, self._topics.partitions, self._state)
            self._partitions[number] = partition
            task = asyncio.get_running_loop().create_task(self._take_over(partition))
            self._restoring.add(task)
            task.add_done_callback(self._restoring.discard)

    async def on_revoked(self, numbers: Set[int]) -> None:
        """These partitions are ours no longer."""
        if numbers:
            log.info("partitions.revoked", extra={"partitions": sorted(numbers)})
        for number in list(numbers):
            partition = self._partitions.pop(number, None)
            if partition is not None:
                partition.is_revoked = True
                partition.restored.set()
                self._saved.pop(number, None)
                for pool in list(partition.pools):
                    metrics.forget_pool(pool)

    async def _take_over(self, partition: Partition) -> None:
        try:
            started = time.monotonic()
            folded = await self._in_background(
                partial(restore, partition, self._kafka, self._topics, self._codec, self._publisher, self.owner)
            )
            async with partition.lock:
                if not partition.is_revoked and self.trunk is not None:
                    self.trunk.announce(partition, list(partition.due()))
                    await self.trunk.decide(partition)
                    self.trunk.tell_steps(partition)
            metrics.RESTORE_SECONDS.observe(time.monotonic() - started)
            partition.restored.set()
            if folded > SAVED_AT_ONCE:  # whoever dies young must not leave ever more to fold to its successors
                await self._save(partition)
        except Exception as error:
            if not self._is_stopping:
                self.fail(error)

    def on_statistics(self, statistics: str) -> None:
        """What librdkafka says of its connections, now and then."""
        self._is_connected = brokers_found(statistics)

    # What goes on meanwhile.

    async def tick(self) -> None:
        """Runs as long as the worker: loop lag, gauges, the start's deadline."""
        while not self._is_stopping:
            expected = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self._last_tick = time.monotonic()
            metrics.LOOP_LAG.set(max(0.0, self._last_tick - expected))
            self._gauge()
            if any(partition.goes_on() for partition in list(self._partitions.values())):
                self._started = self._last_tick
            for partition in list(self._partitions.values()):
                if partition.written_by_others is not None:
                    self._background.submit(self._check_claim, partition)
            if not self._is_ready_once() and self._last_tick - self._started > self.settings.start_deadline_s:
                self.fail(HeadraceError(f"not ready within {self.settings.start_deadline_s:g} s: {self.is_ready()}"))

    async def save_regularly(self) -> None:
        """Runs as long as the worker: snapshots, and the lag, which is asked of Kafka."""
        while not self._is_stopping:
            await asyncio.sleep(self.settings.snapshot_s)
            try:
                await self._save_all()
                await self._in_background(self._measure_lag)
            except HeadraceError as error:
                self.fail(error)

    async def stop(self) -> None:
        """Save, and let go of everything."""
        if self._is_stopping:
            return
        self._is_stopping = True
        _exit_later(self.settings.drain_s)
        for partition in self._partitions.values():
            if not partition.restored.is_set():
                partition.is_revoked = True  # its restore ends
        try:
            await self._save_all()
            await self._in_background(self._publisher.close)
        except HeadraceError as error:
            self.fail(error)

    async def _save_all(self) -> None:
        for partition in list(self._partitions.values()):
            if partition.restored.is_set() and not partition.is_revoked:
                await self._save(partition)

    async def _save(self, partition: Partition) -> None:
        """Write a snapshot, once all that it is the result of is in Kafka."""
        async with partition.lock:
            if partition.is_revoked or self._saved.get(partition.number) == partition.as_of:
                return
            if self.trunk is not None:
                self.trunk.tell_all(partition)  # whoever begins with the snapshot knows where
            as_of = partition.as_of
            offsets = {
                **partition.offsets,
                PLACEMENTS.name: partition.placements_offset,
                snapshots.EPOCH: partition.epoch,
            }
            sent = self._publisher.sent
            payload = await self._in_background(partial(snapshots.pack, partition.pools))
        await self._in_background(partial(self._publisher.wait_for, sent))
        await self._in_background(partial(self._check_claim, partition))
        slot = int(time.time() * 1000)
        await self._in_background(partial(snapshots.write, self._publisher, partition.number, payload, offsets, slot))
        self._saved[partition.number] = as_of
        metrics.SNAPSHOT_BYTES.labels(str(partition.number)).set(len(payload))

    def _check_claim(self, partition: Partition) -> None:
        """End when somebody claimed the partition after us, without our being told: all that we decide is void."""
        start, partition.written_by_others = partition.written_by_others, None
        if start is None or partition.is_revoked:
            return
        try:
            other = later_owner(self._kafka, self._topics, self._codec, partition.number, partition.epoch, start)
        except HeadraceError as error:
            self.fail(error)
            return
        if other is not None and not partition.is_revoked:
            self.fail(
                HeadraceError(
                    f"partition {partition.number} was claimed by {other} while it was ours; where that repeats, two "
                    "groups work on one set of topics: give them one worker.group, or each a topics.prefix"
                )
            )

    def _measure_lag(self) -> None:
        consumer = reader(self._kafka)
        try:
            for topic in catalogue.STATE_INPUTS:
                lag = 0
                for partition in list(self._partitions.values()):
                    _, high = watermarks(consumer, self._topics.full_name(topic), partition.number)
                    lag += max(0, high - partition.offsets.get(topic.name, 0))
                metrics.LAG.labels(topic.name).set(lag)
        finally:
            consumer.close()

    def _gauge(self) -> None:
        now = time.time()
        for partition in list(self._partitions.values()):
            for pool, state in list(partition.pools.items()):
                metrics.PENDING.labels(pool).set(len(state.queue))
                metrics.RUNNING.labels(pool).set(len(state.ledger))
                metrics.WORKFLOWS.labels(pool).set(len(state.workflows))
                metrics.NODES.labels(pool).set(int(state.fresh().sum()))
                if pool in partition.sampled_at:
                    metrics.WINDOW_AGE.labels(pool).set(max(0.0, now - partition.sampled_at[pool]))

    # How it is.

    def is_alive(self) -> dict[str, str]:
        """What is wrong with the process, by name."""
        late_s = time.monotonic() - self._last_tick - TICK_S
        if late_s > self.settings.loop_lag_limit_s:
            return {"event loop": f"{late_s:.1f} s late"}
        return {}

    def is_ready(self) -> dict[str, str]:
        """What keeps the worker from deciding, by name."""
        if self._is_stopping:
            return {"worker": "is stopping"}
        if not self._is_assigned:
            return {"partitions": "not assigned yet"}
        if not self._is_connected:
            return {"kafka": f"no broker of {self._kafka.bootstrap_servers} can be reached"}
        waiting = [str(p.number) for p in self._partitions.values() if not p.restored.is_set()]
        return {"partitions": f"{', '.join(waiting)} not restored yet"} if waiting else {}

    def _is_ready_once(self) -> bool:
        if not self.is_ready():
            self._started = float("inf")
        return self._started == float("inf")

    def watch_over(self, app: Any) -> None:
        """End the process when Faust has crashed: it may hang then, assigned its partitions and doing nothing."""

        def watch() -> None:
            while not app.crashed:
                time.sleep(TICK_S)
            if self._is_stopping:
                return
            self.fail(app.crash_reason or HeadraceError("Faust has crashed"))

        threading.Thread(target=watch, name="crash-watch", daemon=True).start()

    def fail(self, error: BaseException) -> None:
        """End now: a successor restores from the topics what was half done here."""
        log.critical("worker.failed", extra={"error": str(error)}, exc_info=error)
        logging.shutdown()
        sys.stderr.flush()
        os._exit(EXIT_FAILED)

    async def _in_background(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._background, work)


def _exit_later(seconds: float) -> None:
    """A stop that hangs ends all the same."""

    def end() -> None:
        log.critical("worker.drain_expired", extra={"seconds": seconds})
        os._exit(EXIT_FAILED)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
