"""The Kubernetes policy against the recorded choices of the real scheduler, and each plugin by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from policy.kube import kube_default, most_allocated, plugin_scores, sample
from policy.observation import Observation
from schemas.records import Effect, EventKind, NodeSpec, Outcome, Preference, Spread, Taint, Task, Toleration
from tests.builders import (
    GIB,
    a_node,
    a_placement,
    a_ready,
    a_state,
    a_task,
    an_event,
    an_observation,
    some_nodes,
    submit,
)
from tests.traces import trace_path

ZONE = "topology.kubernetes.io/zone"
GOLDEN = ("golden-placements.json", "golden-placements-mixed.json")

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.traces
@pytest.mark.parametrize("file_name", GOLDEN)
def test_every_plugin_scores_every_node_as_the_real_scheduler_did(file_name):
    golden = read_golden(file_name)

    for step, seen in play(golden, [step["choice"] for step in golden["steps"]]):
        feasible = [] if seen is None else named(seen, seen.mask_bn[0].nonzero()[0])
        assert feasible == sorted(step["feasible"]), step["pod"]
        if "scores" in step:
            scores = {
                name: by_node(seen, scores_n) for name, scores_n in plugin_scores(seen, 0, seen.mask_bn[0]).items()
            }
            real = {name: scores for name, scores in step["scores"].items() if name != "DynamicResources"}
            assert scores == real, step["pod"]


@pytest.mark.traces
@pytest.mark.parametrize("file_name", GOLDEN)
def test_the_totals_and_the_best_nodes_are_those_of_the_real_scheduler(file_name):
    golden = read_golden(file_name)

    for step, seen in play(golden, [step["choice"] for step in golden["steps"]]):
        assert best_nodes(seen) == sorted(step["top"]), step["pod"]
        if "total" in step:
            assert by_node(seen, kube_default(seen)[0]) == step["total"], step["pod"]


@pytest.mark.traces
@pytest.mark.parametrize("file_name", GOLDEN)
def test_every_choice_of_the_real_schedulers_further_plays_is_one_of_our_best(file_name):
    golden = read_golden(file_name)

    for choices in golden["repeats"]:
        played = zip(play(golden, choices), choices, strict=True)
        for (step, seen), choice in played:
            assert choice in best_nodes(seen) if choice else seen is None, step["pod"]


def test_each_golden_file_covers_what_our_tasks_can_express():
    steps = [step for file_name in GOLDEN for step in read_golden(file_name)["steps"]]

    assert len(steps) == 500
    assert sum("PodTopologySpread" in step.get("scores", {}) for step in steps) > 50


def test_least_allocated_counts_an_assumed_use_for_tasks_that_ask_for_nothing():
    state = a_state(a_node(cpu=1.0, memory_bytes=1000 * 2**20))
    submit(state, a_task("placed", cpu=0.0, memory_bytes=0), a_task("next", cpu=0.0, memory_bytes=0))
    state.apply(a_placement(task_id="placed"))

    scores = scores_of(an_observation(state))

    assert scores["NodeResourcesFit"] == [(80 + 60) // 2]  # 2 x 0.1 of 1 core, 2 x 200 of 1000 MiB
    assert "NodeResourcesBalancedAllocation" not in scores


def test_balance_is_better_where_the_task_brings_cpu_and_memory_closer_together():
    state = a_state(a_node("cpu-heavy", 10.0, 10 * GIB), a_node("even", 10.0, 10 * GIB))
    submit(state, a_task("before", cpu=4.0, memory_bytes=0), a_task("next", cpu=0.0, memory_bytes=4 * GIB))
    state.apply(a_placement("cpu-heavy", task_id="before"))

    scores = scores_of(an_observation(state))

    assert scores["NodeResourcesBalancedAllocation"] == [50 + (50 + 100 - 80) // 2, 50 + (50 + 80 - 100) // 2]


def test_a_soft_taint_counts_unless_it_is_tolerated():
    soft = Taint("spot", "true", Effect.PREFER_NO_SCHEDULE)
    nodes = (a_node("n0"), a_node("n1", taints=(soft,)), a_node("n2", taints=(soft, Taint("old", "", soft.effect))))

    strict = scores_of(observed(a_task(), *nodes))
    tolerant = scores_of(observed(a_task(tolerations=(Toleration("spot", "true"),)), *nodes))

    assert strict["TaintToleration"] == [3 * 100, 3 * 50, 0]
    assert tolerant["TaintToleration"] == [3 * 100, 3 * 100, 0]


def test_preferences_are_scaled_to_the_best_node():
    nodes = (a_node("n0", labels={"disk": "ssd"}), a_node("n1", labels={"disk": "hdd", "gen": "2"}), a_node("n2"))
    wishes = (Preference(30, "disk", ("ssd", "nvme")), Preference(10, "gen", ("2",)))

    scores = scores_of(observed(a_task(preferences=wishes), *nodes))

    assert scores["NodeAffinity"] == [2 * 100, 2 * 33, 0]


def test_an_image_counts_by_its_size_and_by_the_share_of_nodes_that_have_it():
    nodes = (a_node("n0", images={"app:latest": 1000 * 2**20}), a_node("n1"))

    scores = scores_of(observed(a_task(image="app"), *nodes))

    assert scores["ImageLocality"] == [100 * (500 - 23) // (1000 - 23), 0]


def test_an_image_of_less_than_23_mib_does_not_count():
    nodes = (a_node("n0", images={"small:1": 23 * 2**20, "app:1": 52 * 2**20}),)

    assert scores_of(observed(a_task(image="small:1"), *nodes))["ImageLocality"] == [0]
    assert scores_of(observed(a_task(image="app:1"), *nodes))["ImageLocality"] == [100 * (52 - 23) // (1000 - 23)]


def test_attempts_of_a_workflow_spread_over_zones():
    nodes = [a_node(f"n{i}", labels={ZONE: zone}) for i, zone in enumerate(("a", "a", "b"))] + [a_node("nowhere")]
    state = a_state(*nodes)
    spread = (Spread(ZONE),)
    submit(state, a_task("t0", spread=spread), a_task("t1", spread=spread), a_task("t2", spread=spread))
    state.apply(a_placement("n0", task_id="t0"))
    state.apply(a_placement("n2", task_id="t1"))
    submit(state, a_task("other", spread=spread), workflow_id="w1")
    state.apply(a_placement("n1", task_id="other", workflow_id="w1"))

    even = scores_of(an_observation(state))
    state.apply(an_event(EventKind.FINISHED, task_id="t1", node_id="n2"))
    uneven = scores_of(an_observation(state))

    assert even["PodTopologySpread"] == [200, 200, 200, 0]
    assert uneven["PodTopologySpread"] == [0, 0, 200, 0]


def test_most_allocated_prefers_the_fuller_node():
    state = a_state(a_node("n0", 10.0, 10 * GIB), a_node("n1", 10.0, 10 * GIB))
    submit(state, a_task("before", cpu=3.0, memory_bytes=2 * GIB), a_task("next", cpu=1.0, memory_bytes=GIB))
    state.apply(a_placement("n1", task_id="before"))

    scores_bn = most_allocated(an_observation(state))

    assert scores_bn.tolist() == [[(10 + 10) // 2, (40 + 30) // 2]]


@pytest.mark.parametrize(
    ("nodes", "scored"), [(99, 99), (100, 100), (101, 100), (1000, 420), (5000, 500), (10_000, 500)]
)
def test_of_many_nodes_only_a_part_is_scored(nodes, scored):
    assert sample(np.ones(nodes, bool), nodes, cycle=3).sum() == scored


def test_the_part_that_is_scored_goes_round():
    mask_n = np.ones(1000, bool)
    mask_n[::7] = False

    scored_cn = np.array([sample(mask_n, 1000, cycle) for cycle in range(3)])

    assert (scored_cn.sum(axis=1) == 420).all()
    assert (scored_cn.any(axis=0) == mask_n).all()


def test_nodes_beyond_the_sample_are_never_chosen():
    seen = observed(a_task(), *some_nodes(150))

    scores_n = kube_default(seen)[0]

    assert (scores_n >= 0).sum() == 100
    assert (scores_n[scores_n < 0] < scores_n[scores_n >= 0].min()).all()


def observed(task: Task, *nodes: NodeSpec) -> Observation:
    state = a_state(*nodes)
    submit(state, task)
    return an_observation(state)


def scores_of(seen: Observation) -> dict[str, list[int]]:
    return {name: scores_n.tolist() for name, scores_n in plugin_scores(seen, 0, seen.mask_bn[0]).items()}


def read_golden(file_name: str) -> dict[str, Any]:
    return json.loads(trace_path("kube", file_name).read_text(encoding="utf-8"))


def play(
    golden: Mapping[str, Any], choices: Sequence[str | None]
) -> Iterator[tuple[Mapping[str, Any], Observation | None]]:
    """Each step with what our policy sees of it, None where no node is feasible; then the choice takes effect."""
    state = a_state(*[node_of(node) for node in golden["nodes"]])
    workflow_of = {}
    for step, choice in zip(golden["steps"], choices, strict=True):
        for pod in step.get("release_before", ()):
            state.apply(an_event(EventKind.FINISHED, task_id=pod, workflow_id=workflow_of[pod]))
        workflow_id = workflow_of[step["pod"]] = step.get("labels", {}).get("wf", "basic")
        state.apply(a_ready(task_of(step), workflow_id=workflow_id))
        seen = an_observation(state)
        yield step, seen if len(seen.tasks) else None
        outcome = Outcome.PLACED if choice else Outcome.REFUSED
        state.apply(a_placement(choice, task_id=step["pod"], workflow_id=workflow_id, outcome=outcome))


def node_of(node: Mapping[str, Any]) -> NodeSpec:
    effects = {"PreferNoSchedule": Effect.PREFER_NO_SCHEDULE, "NoSchedule": Effect.NO_SCHEDULE}
    return NodeSpec(
        node["name"],
        node["cpu_milli"] / 1000,
        node["memory_bytes"],
        gpu=node["gpu"],
        labels=node.get("labels", {}),
        taints=tuple(Taint(t["key"], t["value"], effects[t["effect"]]) for t in node.get("taints", ())),
        images=node.get("images", {}),
    )


def task_of(step: Mapping[str, Any]) -> Task:
    """The pod as a task. Every pod spreads over those with its own `wf` label only: the attempts of one workflow."""
    for spread in step.get("spread_schedule_anyway", ()):
        assert spread["match_labels"] == step["labels"]
    effects = {"PreferNoSchedule": Effect.PREFER_NO_SCHEDULE, "NoSchedule": Effect.NO_SCHEDULE}
    return Task(
        step["pod"],
        1.0,
        cpu=step["cpu_milli"] / 1000,
        memory_bytes=step["memory_bytes"],
        gpu=step["gpu"],
        image=step["image"],
        node_selector=step.get("node_selector", {}),
        tolerations=tuple(
            Toleration(t["key"], t.get("value"), effects[t["effect"]]) for t in step.get("tolerations", ())
        ),
        preferences=tuple(
            Preference(p["weight"], p["key"], tuple(p["in"])) for p in step.get("preferred_node_affinity", ())
        ),
        spread=tuple(Spread(s["topology_key"], s["max_skew"]) for s in step.get("spread_schedule_anyway", ())),
    )


def named(seen: Observation, columns: Sequence[int]) -> list[str]:
    return sorted(seen.state.nodes.specs[n].node_id for n in columns)


def by_node(seen: Observation, scores_n: np.ndarray) -> dict[str, int]:
    return {seen.state.nodes.specs[n].node_id: int(scores_n[n]) for n in seen.mask_bn[0].nonzero()[0]}


def best_nodes(seen: Observation | None) -> list[str]:
    if seen is None:
        return []
    scores_n = np.where(seen.mask_bn[0], kube_default(seen)[0], -np.inf)
    return named(seen, (scores_n == scores_n.max()).nonzero()[0])
