"""The simulated cluster in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from policy.simulator import SimulatorSettings
from schemas.codec import Codec
from schemas.records import NodeSpec
from schemas.topics import TopicSettings
from streams.cluster import Cluster, ClusterSettings
from streams.kafka import KafkaSettings

TIME_SCALE = 300.0
END_S = 30.0


@contextmanager
def running_cluster(
    kafka: KafkaSettings,
    topics: TopicSettings,
    specs: Sequence[NodeSpec],
    pool: str = "default",
    simulator: SimulatorSettings | None = None,
    time_scale: float = TIME_SCALE,
) -> Iterator[Cluster]:
    """A cluster that lives as long as the block. Raises what ended it early."""
    settings = ClusterSettings(time_scale=time_scale, simulator=simulator or SimulatorSettings())
    cluster = Cluster(pool, specs, settings, kafka, topics, Codec())
    problems: list[BaseException] = []

    def run() -> None:
        try:
            cluster.run()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, name=f"cluster-{pool}")
    thread.start()
    try:
        yield cluster
    finally:
        cluster.stop()
        thread.join(END_S)
        if problems:  # whatever else went wrong, this comes first
            raise problems[0]
    assert not thread.is_alive(), f"the cluster does not end within {END_S:g} s"
