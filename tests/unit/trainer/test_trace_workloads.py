"""Samples of traces fit the pool, come in order, and offer the load that was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.dag import check_fits, check_workflow
from schemas.errors import InvalidConfiguration
from schemas.records import Edge, Env, NodeSpec, Task, WorkflowClass, WorkflowSubmitted
from tests.traces import trace_path
from trainer.suite import EVALUATION, Setup, trace_of, trace_rows
from trainer.trace_workloads import TraceSettings, fitted, trace_workload
from trainer.traces import Trace
from trainer.workloads import busy_s, example_nodes

GIB = 2**30
START_MS = 1_700_000_000_000


def settings_of(**fields) -> TraceSettings:
    return TraceSettings(folder=Path("traces"), source="pods", **fields)


@st.composite
def tasks(draw, task_id: str) -> Task:
    return Task(
        task_id,
        draw(st.floats(0.1, 5000)),
        draw(st.sampled_from([0.5, 1, 4, 33, 500])),
        draw(st.sampled_from([0, GIB, 300 * GIB, 5000 * GIB])),
        draw(st.sampled_from([0, 0, 1, 2, 8, 40])),
    )


@st.composite
def traces(draw) -> Trace:
    workflows = []
    for w in range(draw(st.integers(1, 12))):
        count = draw(st.integers(1, 6))
        of_workflow = [draw(tasks(f"t{i}")) for i in range(count)]
        chain = tuple(replace(t, parents=(Edge(f"t{i - 1}"),) if i else ()) for i, t in enumerate(of_workflow))
        at_ms = draw(st.integers(0, 10**9))
        workflows.append(WorkflowSubmitted("trace", f"w{w}", at_ms, "w", WorkflowClass.MIXED, Env.TEST, chain))
    return Trace(tuple(sorted(workflows, key=lambda w: w.event_time_ms)), draw(st.booleans()), {})


@given(traces(), st.integers(0, 9), st.floats(0.1, 3), st.integers(1, 20), st.integers(6, 40))
def test_a_sample_fits_the_pool_and_the_load(trace, seed, load, nodes, most_tasks):
    specs = example_nodes(nodes)
    settings = settings_of(tasks=most_tasks, largest=6, load=load)
    ready = fitted(trace, specs, settings)
    assume(ready.workflows)

    sample = trace_workload(np.random.default_rng(seed), specs, ready, settings, "p", START_MS)

    for workflow in sample:
        check_workflow(workflow, "sample")
        check_fits(workflow, specs, "sample")
    at_ms = [w.event_time_ms for w in sample]
    assert at_ms == sorted(at_ms)
    assert at_ms[0] > START_MS
    assert 0 < sum(len(w.tasks) for w in sample) <= most_tasks
    assert len({w.workflow_id for w in sample}) == len(sample)
    assert at_ms[-1] - START_MS <= 2 + 1000 * busy_s(sample, specs) / load


@given(traces(), st.integers(0, 9), st.floats(0.1, 3))
def test_recorded_arrivals_keep_their_rhythm_at_the_load_asked_for(trace, seed, load):
    specs = example_nodes(6)
    settings = settings_of(tasks=80, largest=6, longest_s=1e4, load=load)
    ready = fitted(replace(trace, has_arrivals=True), specs, settings)
    recorded_ms = np.array([w.event_time_ms for w in ready.workflows])
    assume(recorded_ms[-1] > recorded_ms[0])

    sample = trace_workload(np.random.default_rng(seed), specs, ready, settings, "p", START_MS)

    at_ms = np.array([w.event_time_ms for w in sample])
    passed_ms = at_ms[-1] - at_ms[0]
    assert len(sample) == len(ready.workflows)
    assert 1000 * busy_s(sample, specs) / load == pytest.approx(passed_ms, abs=2)
    share = (recorded_ms - recorded_ms[0]) / (recorded_ms[-1] - recorded_ms[0])
    assert (at_ms - at_ms[0]).tolist() == pytest.approx((share * passed_ms).tolist(), abs=2)


def a_trace(*sizes: int, arrivals: bool = False, **fields) -> Trace:
    """Workflows of so many tasks each, of 10 s, one core."""
    made = [tuple(replace(Task(f"t{i}", 10.0), **fields) for i in range(size)) for size in sizes]
    return Trace(
        tuple(
            WorkflowSubmitted("trace", f"w{i}", 1000 * i, "w", WorkflowClass.MIXED, Env.TEST, of_one)
            for i, of_one in enumerate(made)
        ),
        arrivals,
        {"said before": 1},
    )


def test_what_is_too_large_or_too_long_is_left_out_and_noted():
    trace = a_trace(2, 9)
    long = a_trace(1, runtime_s=100.0).workflows[0]
    settings = settings_of(tasks=10, largest=5, longest_s=60.0)

    ready = fitted(replace(trace, workflows=(*trace.workflows, long)), example_nodes(4), settings)

    assert [len(w.tasks) for w in ready.workflows] == [2]
    assert ready.notes == {
        "said before": 1,
        "workflows left out, as they have more than 5 tasks": 1,
        "workflows left out, as a task takes longer than 1 minutes": 1,
    }


def test_what_no_node_has_becomes_what_the_nearest_one_has():
    specs = (NodeSpec("plain", 64, 64 * GIB), NodeSpec("gpu", 16, 32 * GIB, 4))
    trace = a_trace(1, cpu=24.0, memory_bytes=GIB, gpu=2)

    ready = fitted(trace, specs, settings_of())

    (task,) = ready.workflows[0].tasks
    assert (task.cpu, task.memory_bytes, task.gpu) == (16, GIB, 2)
    assert sum(count for what, count in ready.notes.items() if "more than any node has" in what) == 1


def test_every_workflow_comes_before_any_comes_again():
    trace = a_trace(*[1] * 7)
    settings = settings_of(tasks=14, largest=5)

    sample = trace_workload(np.random.default_rng(3), example_nodes(4), trace, settings, "p", START_MS)

    first, second = ({w.workflow_id.split("-")[0] for w in half} for half in (sample[:7], sample[7:]))
    assert first == second == {f"w{i}" for i in range(7)}


def test_a_piece_of_a_trace_is_in_its_order_and_another_with_another_seed():
    trace = a_trace(*[1] * 100, arrivals=True)
    settings = settings_of(tasks=10, largest=5)

    pieces = [
        [
            int(w.workflow_id.split("-")[0][1:])
            for w in trace_workload(np.random.default_rng(seed), example_nodes(4), trace, settings, "p", START_MS)
        ]
        for seed in range(8)
    ]

    assert all(piece == list(range(piece[0], piece[0] + 10)) for piece in pieces)
    assert len({piece[0] for piece in pieces}) > 1


def test_a_trace_of_which_nothing_is_left_is_refused():
    with pytest.raises(InvalidConfiguration, match="no workflow of this size"):
        trace_workload(np.random.default_rng(0), example_nodes(2), a_trace(), settings_of(), "p", START_MS)


@pytest.mark.parametrize(
    "wrong", [{"source": "none"}, {"tasks": 5}, {"largest": 0}, {"load": 0}, {"longest_s": 0}, {"load": 100}]
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InvalidConfiguration, match="trace"):
        TraceSettings(**({"folder": Path("traces"), "source": "pods"} | wrong))


@pytest.mark.traces
@pytest.mark.parametrize("at", range(4))
def test_scenarios_of_the_real_traces_fit_their_nodes_and_load(at):
    setup: Setup = trace_rows(trace_path("wfinstances").parent)[at]

    course, again = setup.course(EVALUATION, 1), setup.course(EVALUATION, 1)

    for workflow in course.workflows:
        check_fits(workflow, course.specs, setup.name)
    at_ms = course.scenario.arrival_ms_w
    span_s = (at_ms[-1] - course.scenario.start_ms) / 1000
    assert at_ms.tolist() == again.scenario.arrival_ms_w.tolist() == sorted(at_ms.tolist())
    assert len(course.scenario.workflow_t) <= setup.workload.tasks
    assert busy_s(course.workflows, course.specs) / span_s == pytest.approx(setup.workload.load, rel=0.2)
    assert trace_of(setup).notes
