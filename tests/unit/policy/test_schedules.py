"""Whatever goes wrong on the simulated cluster, and whoever decides: the schedule breaks no rule of the judge's."""

from __future__ import annotations

import io
import json
import runpy
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.decide import DecideSettings
from policy.episode import POOL, Episode, EpisodeSettings
from policy.heuristics import HEURISTICS
from policy.simulator import SimulatorSettings
from policy.trace import cluster_object
from tests.traces import trace_path
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

# No more trouble than work gets through: an attempt that is given up leaves a workflow that never ends.
troubles = st.builds(
    SimulatorSettings,
    seed=st.integers(0, 1000),
    runtime_noise=st.floats(0, 1),
    transfer_noise=st.floats(0, 1),
    failure_rate=st.floats(0, 0.1),
    node_losses_per_hour=st.sampled_from([0.0, 0.5]),
    slow_spells_per_hour=st.sampled_from([0.0, 2.0]),
    crowding=st.floats(0, 2),
    latency_spikes_per_hour=st.sampled_from([0.0, 20.0]),
    spot_share=st.sampled_from([0.0, 0.5, 1.0]),
    spot_interruptions_per_hour=st.sampled_from([0.0, 0.5]),
)


def episode(cluster: SimulatorSettings, policy: str, nodes: int, load: float, batch: int) -> Episode:
    known = EpisodeSettings(cluster=cluster, decide=DecideSettings(batch=batch))
    rng = np.random.default_rng(cluster.seed)
    workload = WorkloadSettings(workflows=6, tasks=(1, 12), load=load)
    specs = example_nodes(nodes)
    played = Episode(specs, random_workload(rng, specs, workload, POOL, known.start_ms), HEURISTICS[policy], known)
    played.run()
    return played


def judged(checker: Path, rows: list[dict[str, object]], cluster: dict[str, object], folder: Path) -> tuple[int, str]:
    """Exit code and complaints of the judge."""
    trace, nodes = folder / "trace.jsonl", folder / "cluster.json"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    nodes.write_text(json.dumps(cluster))
    said = io.StringIO()
    with (
        patch("sys.argv", [str(checker), str(trace), str(nodes)]),
        redirect_stdout(io.StringIO()),
        redirect_stderr(said),
        pytest.raises(SystemExit) as end,
    ):
        runpy.run_path(str(checker), run_name="__main__")
    return int(end.value.code or 0), said.getvalue()


@pytest.mark.traces
@settings(deadline=None, max_examples=40)
@given(
    cluster=troubles,
    policy=st.sampled_from(sorted(HEURISTICS)),
    nodes=st.integers(5, 12),
    load=st.sampled_from([0.5, 1.0, 3.0]),
    batch=st.sampled_from([1, 64]),
)
def test_the_judge_finds_nothing(tmp_path_factory, cluster, policy, nodes, load, batch):
    checker = trace_path("..", "tools", "check_schedule.py")

    played = episode(cluster, policy, nodes, load, batch)

    trace = played.trace
    assert len(trace.finished) + len(trace.refused) == len(trace.tasks)
    rows = [row for row in trace.rows() if row["workflow_id"] not in {key[0] for key in trace.refused}]
    code, complaints = judged(checker, rows, cluster_object(example_nodes(nodes)), tmp_path_factory.mktemp("judged"))
    assert (code, complaints) == (0, "")


@pytest.mark.traces
def test_the_judge_finds_what_is_wrong(tmp_path):
    checker = trace_path("..", "tools", "check_schedule.py")
    specs = example_nodes(6)
    rows = list(episode(SimulatorSettings(seed=1), "srpt", 6, 1.0, 1).trace.rows())

    early = [dict(row, start_time=0.0) if row["parents"] else row for row in rows]
    small = cluster_object(tuple(replace(spec, cpu=0.5) for spec in specs))

    assert judged(checker, early, cluster_object(specs), tmp_path)[0] == 1
    assert judged(checker, rows, small, tmp_path)[0] == 1
