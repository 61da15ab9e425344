"""The catalogue of topics: name, record, partitions, retention."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import records
from schemas.errors import InvalidConfiguration

DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. Every key is the pool, unless `key` says otherwise."""

    name: str
    record: type
    retention_ms: int | None
    """None: compacted instead of deleted."""
    is_partitioned_by_pool: bool = True
    """Whether its partitions are those of the pools; other topics have one partition."""
    config: tuple[tuple[str, str], ...] = ()
    """Further settings of the topic, in Kafka's own names."""

    def settings(self) -> dict[str, str]:
        """The topic's settings in Kafka's own names."""
        if self.retention_ms is None:
            return {"cleanup.policy": "compact", **dict(self.config)}
        return {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms), **dict(self.config)}


LARGE = (("max.message.bytes", str(8 * 1024 * 1024)),)

WORKFLOW_SUBMITTED = Topic("workflow-submitted", records.WorkflowSubmitted, 7 * DAY_MS, config=LARGE)
NODE_METRICS = Topic("node-metrics", records.NodeMetrics, DAY_MS)
TASK_READY = Topic("task-ready", records.TaskReady, 7 * DAY_MS)
PLACEMENTS = Topic("placements", records.Placement, 7 * DAY_MS)
TASK_EVENTS = Topic("task-events", records.TaskEvent, 30 * DAY_MS)
DECISIONS = Topic("decisions", records.DecisionBatch, 30 * DAY_MS)
REWARDS = Topic("rewards", records.Reward, 30 * DAY_MS)
SHADOW_PLACEMENTS = Topic("shadow-placements", records.Placement, 7 * DAY_MS)
"""What a candidate would have decided. Nobody obeys it."""
MODELS = Topic("models", records.Model, None, is_partitioned_by_pool=False, config=LARGE)
CONTROL = Topic("control", records.Control, None, is_partitioned_by_pool=False)
DEAD_LETTERS = Topic("dead-letters", records.DeadLetter, 30 * DAY_MS, is_partitioned_by_pool=False, config=LARGE)
SNAPSHOTS = Topic(
    "snapshots",
    records.SnapshotPart,
    -1,
    config=(("retention.bytes", str(256 * 1024**2)), ("segment.bytes", str(32 * 1024**2))),
)
"""Saved state of each partition, written by its owner. Old ones go by size, so that the newest always stays."""

CATALOGUE = (
    WORKFLOW_SUBMITTED,
    NODE_METRICS,
    TASK_READY,
    PLACEMENTS,
    TASK_EVENTS,
    DECISIONS,
    MODELS,
    CONTROL,
    DEAD_LETTERS,
    SNAPSHOTS,
    REWARDS,
    SHADOW_PLACEMENTS,
)

STATE_INPUTS = (WORKFLOW_SUBMITTED, NODE_METRICS, TASK_EVENTS, TASK_READY)
"""What a partition's state is folded from, besides the placements; the order of `Placement.as_of`."""


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """How the topics are named and laid out."""

    prefix: str = "headrace."
    """Put before every topic's name."""
    partitions: int = 4
    """Partitions of the topics keyed by pool: the largest number of workers that can share the work."""
    replication_factor: int = 1
    """Copies of each partition; -1 takes the broker's default."""

    def __post_init__(self) -> None:
        if not self.prefix:
            raise InvalidConfiguration("topics.prefix", "is empty", "give a prefix such as 'headrace.'")
        if self.partitions < 1:
            raise InvalidConfiguration("topics.partitions", f"{self.partitions} is below 1", "give at least one")
        if self.replication_factor < 1 and self.replication_factor != -1:
            raise InvalidConfiguration(
                "topics.replication_factor", f"{self.replication_factor} copies", "give 1 or more, or -1"
            )

    def full_name(self, topic: Topic) -> str:
        """The topic's name on the broker."""
        return self.prefix + topic.name

    def partition_count(self, topic: Topic) -> int:
        """How many partitions the topic has."""
        return self.partitions if topic.is_partitioned_by_pool else 1


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key, as Kafka's Java client and librdkafka's `murmur2_random` choose it.

    Raises InvalidConfiguration for an empty key, which those clients would scatter at random.
    """
    if not key:
        raise InvalidConfiguration("pool", "is empty", "name the pool: it is the key of every record")
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """Austin Appleby's MurmurHash2, 32 bits, with the seed that Kafka uses."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(key)) & mask
    whole = len(key) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    tail = key[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
