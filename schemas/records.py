"""One frozen dataclass for every Avro record.

SI units throughout: seconds, bytes, cores. `_ms` fields are event times in Unix milliseconds (UTC). An optional field
is None when unknown, never 0. The field order is the one of the `.avsc` file, and a test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

METRICS = (
    "cpu_utilisation",  # share of the cores in use, 0 to 1
    "memory_utilisation",  # share of the memory in use, 0 to 1
    "disk_utilisation",  # share of the time the disks are busy, 0 to 1
    "network_bytes_per_s",  # received and sent
    "gpu_memory_utilisation",  # share of the GPU memory in use, 0 to 1
    "failure_rate",  # share of the recent attempts that failed, 0 to 1
    "pcie_utilisation",  # share of the PCIe bandwidth in use, 0 to 1
    "network_latency_p99_s",  # seconds
)
"""The columns of a node sample, in the order of `NodeMetrics.values`."""


class WorkflowClass(StrEnum):
    """What kind of work a workflow is."""

    UNKNOWN = "unknown"
    ETL_BATCH = "etl_batch"
    AI_TRAINING = "ai_training"
    MICROSERVICE = "microservice"
    STREAM_PROCESSING = "stream_processing"
    MIXED = "mixed"


class Env(StrEnum):
    """Where a record comes from. Only `prod` is ever learnt from."""

    UNKNOWN = "unknown"
    PROD = "prod"
    TEST = "test"
    DEV = "dev"


class Outcome(StrEnum):
    """What a placement says."""

    UNKNOWN = "unknown"
    PLACED = "placed"  # on `node_id`
    PENDING = "pending"  # no node has room now: it waits, and is decided again
    REFUSED = "refused"  # no node could ever take it
    OWNER = "owner"  # no placement: a worker took the partition over; its offset is the new epoch


class EventKind(StrEnum):
    """What happened to an attempt, or to a node."""

    UNKNOWN = "unknown"
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"  # ended by the executor because a later attempt was placed
    REJECTED = "rejected"  # the executor could not take the attempt where it was placed
    NODE_LOST = "node_lost"  # of a node, not of an attempt: everything on it is gone


class Stage(StrEnum):
    """How much of a decision's reward is measured; what is not is expected."""

    UNKNOWN = "unknown"
    PLACED = "placed"  # nothing but the pool as the decision left it
    ENDED = "ended"  # cost and start of the attempt
    SETTLED = "settled"  # all: the workflow is over


REWARD_TERMS = ("makespan", "cost_cpu", "cost_gpu", "cost_storage", "sla", "fragmentation", "balance", "pcie")
"""The terms of a decision's reward, in the order of the columns of `Reward`."""


class Effect(StrEnum):
    """What a taint does to a task that does not tolerate it."""

    UNKNOWN = "unknown"
    NO_SCHEDULE = "no_schedule"
    PREFER_NO_SCHEDULE = "prefer_no_schedule"


@dataclass(frozen=True, slots=True)
class Taint:
    """A mark of a node that keeps tasks away."""

    key: str
    value: str = ""
    effect: Effect = Effect.NO_SCHEDULE


@dataclass(frozen=True, slots=True)
class Toleration:
    """A task's leave to run on tainted nodes. An empty key tolerates every key; a value of None every value."""

    key: str = ""
    value: str | None = None
    effect: Effect = Effect.UNKNOWN  # unknown: every effect


@dataclass(frozen=True, slots=True)
class Preference:
    """A wish, of this weight (1 to 100), for nodes whose label `key` has one of `values`."""

    weight: int
    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """A wish that the running tasks of one workflow lie apart: at most `max_skew` more under one value of the label."""

    topology_key: str
    max_skew: int = 1


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One machine: what it has, before anything runs on it."""

    node_id: str
    cpu: float  # cores
    memory_bytes: int
    gpu: int = 0  # devices
    gpu_memory_bytes: int = 0  # of one device
    speed: float = 1.0  # a task of runtime r runs r / speed seconds
    price_per_hour: float = 0.0
    bandwidth_bytes_per_s: float = 125e6  # of the node's network link
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    images: Mapping[str, int] = field(default_factory=dict)  # image name -> bytes, those that the node has


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Samples of one or many nodes of a pool, taken at one time."""

    pool: str
    event_time_ms: int
    source: str  # the collector that sent it
    nodes: tuple[str, ...]
    values: (
        bytes  # float32, little endian, [len(nodes), len(METRICS)], by row; NaN: not measured. In JSON: a list of rows
    )
    specs: tuple[NodeSpec, ...] = ()  # of nodes that are new or changed; repeated now and then


@dataclass(frozen=True, slots=True)
class Edge:
    """A task's dependency on a parent, which hands on this many bytes."""

    task_id: str  # the parent
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One vertex of a workflow."""

    task_id: str
    runtime_s: float  # predicted, on a node of speed 1
    cpu: float = 1.0  # cores
    memory_bytes: int = 0
    gpu: int = 0  # whole devices
    gpu_memory_bytes: int = 0  # of each device
    priority: int = 0  # 0 to 10, 10 first
    critical: bool = False
    parents: tuple[Edge, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)  # labels that a node must have
    tolerations: tuple[Toleration, ...] = ()
    preferences: tuple[Preference, ...] = ()
    spread: tuple[Spread, ...] = ()
    image: str = ""


@dataclass(frozen=True, slots=True)
class WorkflowSubmitted:
    """A DAG of tasks, submitted together."""

    pool: str
    workflow_id: str
    event_time_ms: int
    name: str
    workflow_class: WorkflowClass
    env: Env
    tasks: tuple[Task, ...]
    deadline_s: float | None = None  # from the submission


@dataclass(frozen=True, slots=True)
class TaskReady:
    """An attempt that may be placed: its task's parents are done.

    `task` is None where the workflow was submitted to headrace; an engine of the user's own sends it along.
    """

    pool: str
    workflow_id: str
    task_id: str
    attempt: int  # 0 for the first try
    event_time_ms: int
    task: Task | None = None
    workflow_class: WorkflowClass = WorkflowClass.UNKNOWN
    env: Env = Env.UNKNOWN
    excluded_nodes: tuple[str, ...] = ()  # where this attempt must not run


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision about one attempt. Of several for one attempt, the first of the highest epoch is in effect."""

    pool: str
    workflow_id: str
    task_id: str
    attempt: int
    event_time_ms: int
    outcome: Outcome
    node_id: str | None = None
    reason: str | None = None  # why not, counted: "0/16 nodes: 12 too little gpu, 4 stale"
    expected_s: float | None = None  # transfers and run time on that node
    log_prob: float | None = None  # of this choice, after the mask and the temperature
    policy: str = ""
    model_version: str = ""
    epoch: int = -1  # offset of the owner record under which it was decided
    as_of: tuple[int, ...] = ()  # next offset of each topic of topics.STATE_INPUTS that the decision had not seen


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """What happened to an attempt, or (`node_lost`: empty ids) to a node."""

    pool: str
    workflow_id: str
    task_id: str
    attempt: int
    node_id: str
    event_time_ms: int
    kind: EventKind
    env: Env = Env.UNKNOWN
    runtime_s: float | None = None  # measured, of an attempt that ended
    transfer_s: float | None = None  # measured, before the start
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionBatch:
    """The evidence of one batch of decisions, and what is needed to make them again: what one takes, the next lacks.

    Columns with an entry for each task, in the order in which they were decided; `schemas.decisions` has them as rows.
    """

    pool: str
    event_time_ms: int
    policy: str
    model_version: str
    epoch: int
    as_of: tuple[int, ...]
    temperature: float
    workflow_ids: tuple[str, ...]
    task_ids: tuple[str, ...]
    attempts: tuple[int, ...]
    draws: tuple[float, ...]  # the numbers in [0, 1) that chose among the probabilities
    node_ids: tuple[str, ...]  # chosen; empty: none, the task waits or is refused
    feasible: tuple[int, ...]  # nodes that could take the task, before the batch
    width: int  # entries of the next three columns for each task
    candidates: tuple[str, ...]  # the nodes that were looked at first, best first; empty: there were fewer
    scores: tuple[float, ...]  # theirs
    probabilities: tuple[float, ...]  # theirs, when it was the task's turn
    rejections: tuple[Mapping[str, int], ...] = ()  # reason -> nodes; no entries at all where every task found nodes
    steps: tuple[int, ...] = ()  # how inputs were folded since the partition's last batch: schemas.steps reads them


@dataclass(frozen=True, slots=True)
class Model:
    """A set of weights of the actor."""

    version: str
    channel: str  # stable, canary, shadow
    parent: str | None
    event_time_ms: int
    digest: str  # SHA-256 of the files
    manifest: str  # JSON
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Control:
    """An operator's command, or a setting changed while running."""

    pool: str
    event_time_ms: int
    command: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What could not be decoded, or was refused."""

    topic: str
    partition: int
    offset: int
    event_time_ms: int
    reason: str  # of a closed set
    problem: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A piece of a partition's saved state, or (part -1) the index that says which pieces are in force."""

    slot: int
    part: int
    parts: int
    event_time_ms: int
    digest: str  # SHA-256 of the whole
    offsets: Mapping[str, int]  # topic -> the first offset that the state has not seen
    payload: bytes


@dataclass(frozen=True, slots=True)
class Reward:
    """What one decision was worth. Of several for one attempt, the one of the latest stage is in effect."""

    pool: str
    workflow_id: str
    task_id: str
    attempt: int
    event_time_ms: int  # when the stage was reached
    stage: Stage
    decided_ms: int  # event time of the placement
    node_id: str
    workflow_class: WorkflowClass
    reward: float  # the sum of the contributions
    terms: tuple[float, ...]  # -1 to 1 each, in the order of REWARD_TERMS
    weights: tuple[float, ...]  # theirs, with their signs, as they were when it was decided
    contributions: tuple[float, ...]  # weight * term
    costs: tuple[float, ...]  # of the attempt: cpu, gpu, storage; in the currency of the nodes' prices
    turnaround_s: float | None = None  # of the workflow; None: it can never finish
    path_s: float = 0.0  # of the workflow: its critical path of predicted run times
    turnaround_p95_s: float | None = None  # what is usual for its class and path; None: nothing is known yet
    costs_p95: tuple[float, ...] = ()  # the same for the costs
    usual_of: int = 0  # workflows that finished in the last 7 days, on which `turnaround_p95_s` rests
    wait_s: float | None = None  # from ready to started, at first to placed; None: it never started
    stranded_gpu: float | None = None  # share of the free GPUs that no waiting or typical task can use
    end: EventKind = EventKind.UNKNOWN  # how the attempt ended
    policy: str = ""
    model_version: str = ""
