"""Checks of records that hold whatever their source: a file, a topic, a call."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from schemas.errors import InvalidCluster, InvalidRecord
from schemas.records import METRICS, NodeMetrics, NodeSpec

EARLIEST_MS = 946_684_800_000  # 2000-01-01
LATEST_MS = 4_102_444_800_000  # 2100-01-01
LARGEST_BYTES = 2**60


def check_time(event_time_ms: int, where: str) -> None:
    """Refuse an event time that is no Unix time in milliseconds, such as one in seconds. Raises InvalidRecord."""
    if not EARLIEST_MS <= event_time_ms < LATEST_MS:
        raise InvalidRecord(
            where, f"event_time_ms {event_time_ms} is not between 2000 and 2100", "give Unix milliseconds (UTC)", "time"
        )


def check_samples(record: NodeMetrics) -> None:
    """Refuse samples whose shape or time contradicts what the record says of itself. Raises InvalidRecord."""
    where = f"node-metrics of {record.source or 'an unnamed source'}"
    check_time(record.event_time_ms, where)
    expected = 4 * len(METRICS) * len(record.nodes)
    if len(record.values) != expected:
        raise InvalidRecord(
            where,
            f"{len(record.values)} bytes of values for {len(record.nodes)} nodes, not {expected}",
            f"give {len(METRICS)} float32 a node: {', '.join(METRICS)}",
            "shape",
        )
    if len(record.nodes) > 1 and len(set(record.nodes)) < len(record.nodes):
        raise InvalidRecord(where, "a node is sampled twice in one record", "send one row a node", "shape")


def sampled(records: Sequence[NodeMetrics]) -> np.ndarray:
    """The samples of checked records below each other: values_nm [n, M] float32, NaN: nothing usable was measured."""
    values_nm = np.frombuffer(b"".join([record.values for record in records]), "<f4").reshape(-1, len(METRICS))
    is_usable_nm = np.isfinite(values_nm) & (values_nm >= 0)
    return values_nm if is_usable_nm.all() else np.where(is_usable_nm, values_nm, np.float32(np.nan))


def check_spec(spec: NodeSpec, where: str) -> None:
    """Refuse a node that is no usable machine. Raises InvalidCluster."""
    numbers = {
        "cpu": (spec.cpu, 0.001, 1e6),
        "memory_bytes": (spec.memory_bytes, 0, LARGEST_BYTES),
        "gpu": (spec.gpu, 0, 1e6),
        "gpu_memory_bytes": (spec.gpu_memory_bytes, 0, LARGEST_BYTES),
        "speed": (spec.speed, 1e-6, 1e6),
        "price_per_hour": (spec.price_per_hour, 0, 1e12),
        "bandwidth_bytes_per_s": (spec.bandwidth_bytes_per_s, 1, 1e15),
    }
    if not spec.node_id:
        raise InvalidCluster(where, "a node has no name", "name every node")
    for name, (value, least, most) in numbers.items():
        if not (math.isfinite(value) and least <= value <= most):
            raise InvalidCluster(
                f"{where}, node {spec.node_id}", f"{name} is {value}", f"give a number from {least:g} to {most:g}"
            )
