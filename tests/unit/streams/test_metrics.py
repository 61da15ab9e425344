"""The worker's metrics."""

from __future__ import annotations

from prometheus_client import generate_latest

from streams import metrics


def test_of_a_pool_that_went_to_another_worker_nothing_is_exported():
    for gauge in (metrics.PENDING, metrics.NODES, metrics.WINDOW_AGE):
        gauge.labels("gone").set(3)
    metrics.MODEL.labels("gone", "stable", "v").set(1)

    metrics.forget_pool("gone")
    metrics.forget_pool("never seen")

    assert b'pool="gone"' not in generate_latest()
