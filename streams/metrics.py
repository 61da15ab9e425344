"""Every Prometheus metric of a worker."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, Info, start_http_server

from schemas.errors import InvalidConfiguration

LATENCY_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

DECISION_SECONDS = Histogram(
    "headrace_decision_seconds",
    "Time of one batch of decisions by stage: fold (records into the state), decide (features, policy, arbiter), "
    "publish (encoding and handing over).",
    ["stage"],
    buckets=LATENCY_BUCKETS,
)
READY_SECONDS = Histogram(
    "headrace_ready_to_placement_seconds",
    "Time from a task-ready record's arrival in Kafka to its placement being handed over.",
    buckets=LATENCY_BUCKETS,
)
FOLD_SECONDS, DECIDE_SECONDS, PUBLISH_SECONDS = (DECISION_SECONDS.labels(s) for s in ("fold", "decide", "publish"))
PLACEMENTS = Counter(
    "headrace_placements_total",
    "Decisions by outcome (placed, pending, refused) and by who decided (policy: actor, or a heuristic's name).",
    ["outcome", "policy"],
)
REJECTIONS = Counter(
    "headrace_rejected_nodes_total",
    "Nodes that could not take a task, by reason, counted when a task is said to wait or refused.",
    ["reason"],
)
FALLBACKS = Counter(
    "headrace_fallbacks_total",
    "Batches that the fallback heuristic decided, by reason (error: the policy raised; slow: it took too long).",
    ["reason"],
)
PENDING = Gauge("headrace_pending_tasks", "Attempts that wait for room, by pool.", ["pool"])
RUNNING = Gauge("headrace_running_attempts", "Attempts that hold a reservation, by pool.", ["pool"])
WORKFLOWS = Gauge("headrace_live_workflows", "Workflows that are not finished, by pool.", ["pool"])
NODES = Gauge("headrace_nodes", "Nodes that are there and report, by pool.", ["pool"])
WINDOW_AGE = Gauge(
    "headrace_window_age_seconds", "Wall-clock time since the pool's last node sample arrived, by pool.", ["pool"]
)
RECORDS = Counter("headrace_records_total", "Records folded into the state, by topic.", ["topic"])
SAMPLES = Counter("headrace_node_samples_total", "Node samples folded into the windows.")
DEAD_LETTERS = Counter(
    "headrace_dead_letters_total",
    "Records that could not be used, by topic and reason (undecodable, unknown_format, unknown_schema, no_registry, "
    "invalid_json, time, shape, workflow, node, key, internal).",
    ["topic", "reason"],
)
ROLLBACKS = Counter("headrace_rollbacks_total", "Attempts that ran far longer than expected and are migrated.")
LAG = Gauge("headrace_consumer_lag_records", "Records of the topic that this worker has not folded yet.", ["topic"])
LOOP_LAG = Gauge("headrace_loop_lag_seconds", "How late the event loop ran its last tick.")
SNAPSHOT_BYTES = Gauge("headrace_snapshot_bytes", "Size of the newest snapshot, by partition.", ["partition"])
RESTORE_SECONDS = Histogram(
    "headrace_restore_seconds", "Time to take over a partition.", buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60)
)
REWARDS = Counter("headrace_rewards_total", "Rewards recorded, by stage (placed, ended, settled).", ["stage"])
REWARD_MEAN = Gauge(
    "headrace_reward_mean",
    "Mean contribution over the last settled decisions, by term (reward: all of them together).",
    ["term"],
)
ACTOR = Info("headrace_actor", "The policy in use: name, version, and the provider that runs it (CUDA or CPU).")
MODEL = Gauge(
    "headrace_model_info",
    "1 for the weights that decide for a pool, by role (stable, canary) and version.",
    ["pool", "role", "version"],
)
CANARY_SHARE = Gauge("headrace_canary_share", "Share of the eligible workflows that the canary decides for.", ["pool"])
CANARY_STAGE = Gauge(
    "headrace_canary_stage", "Stage of a pool's canary, 1 for the first; 0: there is none that runs.", ["pool"]
)
CANARY_EVIDENCE = Gauge(
    "headrace_canary_evidence_ratio",
    "Evidence against the canary over what is enough to drive it back, by guard (latency, success, turnaround, cost).",
    ["guard"],
)
CANARIES_ENDED = Counter(
    "headrace_canaries_ended_total", "Canaries that ended, by how (driven back, stopped, promoted).", ["phase"]
)
SWAPS = Counter(
    "headrace_model_swaps_total",
    "New weights by what became of them: swapped, refused (they must not decide), postponed (too little memory).",
    ["outcome"],
)
SWAP_SECONDS = Histogram(
    "headrace_model_swap_seconds",
    "Time from a choice being read to its weights deciding: loading, checks, warm-up, encoding of the nodes.",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
BREAKER_OPEN = Gauge("headrace_breaker_open", "1 while a pool's load-skew breaker is open.", ["pool"])
BREAKER_OPENINGS = Counter("headrace_breaker_openings_total", "Times that a load-skew breaker opened.")
CPU_SPREAD = Gauge(
    "headrace_node_cpu_spread", "Standard deviation of the nodes' CPU utilisation; 0 in pools of few nodes.", ["pool"]
)


def forget_pool(pool: str) -> None:
    """Export nothing of a pool that belongs to another worker now."""
    for gauge in (PENDING, RUNNING, WORKFLOWS, NODES, WINDOW_AGE):
        gauge.remove(pool)
    for gauge in (MODEL, CANARY_SHARE, BREAKER_OPEN, CPU_SPREAD):
        gauge.remove_by_labels({"pool": pool})


def serve(port: int, host: str) -> None:
    """Serve /metrics of a process that is no worker. Raises InvalidConfiguration."""
    try:
        start_http_server(port, host)
    except OSError as error:
        raise InvalidConfiguration("--metrics-port", f"{port}: {error.strerror}", "choose another port") from error
