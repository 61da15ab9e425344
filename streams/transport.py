"""A Faust transport that delivers chunks: one event carries all that one fetch brought of one partition.

Stock Faust makes four tasks for every record; that, not decoding, is what a record costs there. A chunk's event has the
offset of its last record. Handlers run in order, one at a time for each topic, so the offset after the newest
acknowledged chunk may be committed: everything before it was handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiokafka
import faust
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage

LARGEST_CHUNK = 2048


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of one partition: `value`, `key`, `headers`, `offset`, `timestamp` (ms) each."""

    topic: str
    partition: int
    records: Sequence[Any]


class UntouchedSchema(faust.Schema):
    """Hands the chunk on as it is."""

    def loads_key(self, app: Any, message: Any, **_: Any) -> Any:
        return message.key

    def loads_value(self, app: Any, message: Any, **_: Any) -> Any:
        return message.value


class ChunkConsumerThread(driver.AIOKafkaConsumerThread):
    """aiokafka's consumer with the range assignor: equal partitions of all topics go to one member."""

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        return aiokafka.AIOKafkaConsumer(
            client_id=conf.broker_client_id,
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            bootstrap_servers=driver.server_list(transport.url, transport.default_port),
            partition_assignment_strategy=[RangePartitionAssignor],
            enable_auto_commit=False,
            auto_offset_reset=conf.consumer_auto_offset_reset,
            max_poll_interval_ms=int(conf.broker_max_poll_interval * 1000),
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            fetch_max_wait_ms=500,
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            metadata_max_age_ms=conf.consumer_metadata_max_age_ms,
        )


class ChunkConsumer(driver.Consumer):
    """Drains fetches into chunks."""

    def _new_consumer_thread(self) -> ChunkConsumerThread:
        # At a stop Faust cancels the thread's futures from this thread: uvloop crashes the process then, asyncio's own
        # loop does not.
        loop = asyncio.SelectorEventLoop()
        return ChunkConsumerThread(self, loop=self.loop, beacon=self.beacon, thread_loop=loop)

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            while not (self.should_stop or fetcher.should_stop):
                fetched, _ = await self._wait_next_records(1.0)
                if not fetched or self.should_stop:
                    await asyncio.sleep(0)
                elif not self.flow_active:
                    await self.perform_seek()
                else:
                    await self._deliver(fetched)
        except self.consumer_stopped_errors:
            if not self.transport.app.should_stop:
                raise
        except asyncio.CancelledError:
            if not self.transport.app.should_stop:
                raise

    async def _deliver(self, fetched: Any) -> None:
        generation = self.app.consumer_generation_id
        for tp, records in fetched.items():
            for chunk in _cut(tp, records):
                if not self.flow_active or self.app.consumer_generation_id != generation:
                    return
                last = chunk.records[-1]
                await self.callback(self._chunk_message(tp, chunk, last))
                self._read_offset[tp] = last.offset

    def _chunk_message(self, tp: TP, chunk: Chunk, last: Any) -> ConsumerMessage:
        return ConsumerMessage(
            tp.topic,
            tp.partition,
            last.offset,
            last.timestamp / 1000,
            last.timestamp_type,
            [],
            None,
            chunk,
            None,
            0,
            0,
            TP(tp.topic, tp.partition),
            generation_id=self.app.consumer_generation_id,
        )

    def _new_offset(self, tp: TP) -> int | None:
        """The offset to commit: chunks are acknowledged in order, so the newest one counts."""
        acknowledged = self._acked[tp]
        if not acknowledged:
            return None
        offset: int = max(acknowledged) + 1
        acknowledged.clear()
        self._acked_index[tp].clear()
        return offset


class ChunkTransport(driver.Transport):
    """aiokafka's transport with chunk delivery."""

    Consumer = ChunkConsumer


def _cut(tp: TP, records: Sequence[Any]) -> Iterator[Chunk]:
    for start in range(0, len(records), LARGEST_CHUNK):
        yield Chunk(tp.topic, tp.partition, records[start : start + LARGEST_CHUNK])
