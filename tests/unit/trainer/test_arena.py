"""The compiled episodes place every attempt where the core places it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policy.actor import Actor, ActorSettings
from policy.decide import DecideSettings
from policy.episode import POOL, Episode, EpisodeSettings
from policy.features import ORDER_FEATURES
from policy.heuristics import HEURISTICS
from policy.observation import Policy
from policy.simulator import SimulatorSettings
from schemas.records import NodeSpec, WorkflowSubmitted
from trainer.arena import ORDERS, PAIRS, Rule
from trainer.export import Origin, exported
from trainer.residual import Residual
from trainer.rules import HEURISTIC_RULES, linear, rule_of
from trainer.scenarios import Course, course_of, run
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

ATTEMPTS = 12
TROUBLE = SimulatorSettings(
    failure_rate=0.05,
    runtime_noise=0.4,
    node_losses_per_hour=0.5,
    crowding=0.4,
    slow_spells_per_hour=0.5,
    latency_spikes_per_hour=4.0,
    spot_share=0.5,
    spot_interruptions_per_hour=2.0,
    spot_repair_s=60.0,
)
SETTINGS = EpisodeSettings(decide=DecideSettings(batch=1))


def in_order(workflow: WorkflowSubmitted) -> WorkflowSubmitted:
    """The same with ids that sort as they are numbered: of several attempts on a lost node, the ids decide."""

    def padded(name: str) -> str:
        return f"{name[0]}{int(name[1:]):03d}"

    tasks = [
        replace(
            task,
            task_id=padded(task.task_id),
            parents=tuple(replace(edge, task_id=padded(edge.task_id)) for edge in task.parents),
        )
        for task in workflow.tasks
    ]
    return replace(workflow, workflow_id=padded(workflow.workflow_id), tasks=tuple(tasks))


def work(seed: int, nodes: int) -> tuple[tuple[NodeSpec, ...], list[WorkflowSubmitted], EpisodeSettings]:
    rng = np.random.default_rng(seed)
    specs = example_nodes(nodes)
    workload = WorkloadSettings(workflows=25, load=1.0)
    workflows = [in_order(w) for w in random_workload(rng, specs, workload, POOL, SETTINGS.start_ms)]
    return specs, workflows, replace(SETTINGS, cluster=replace(TROUBLE, seed=seed))


def by_the_core(specs, workflows, settings: EpisodeSettings, policy: Policy) -> list[tuple[str, str, int, str]]:
    trace = Episode(specs, workflows, policy, settings).run()
    placed = [p for p in trace.placements.values() if p.node_id]
    return [(p.workflow_id, p.task_id, p.attempt, p.node_id or "") for p in placed]


def by_the_arena(course: Course, rule: Rule) -> list[tuple[str, str, int, str]]:
    played = run(course, rule, log=10_000)
    ids = [(w.workflow_id, task.task_id) for w in course.workflows for task in w.tasks]
    log = played.outcome.log_l3[: played.placements].tolist()
    return [(*ids[task], attempt, course.specs[node].node_id) for task, attempt, node in log]


@pytest.mark.parametrize("name", HEURISTICS)
def test_heuristics_place_the_same_whatever_goes_wrong(name):
    specs, workflows, settings = work(seed=1, nodes=12)
    course = course_of(specs, workflows, settings.cluster, settings.start_ms, drawn=ATTEMPTS)

    placed = by_the_arena(course, HEURISTIC_RULES[name])

    assert placed == by_the_core(specs, workflows, settings, HEURISTICS[name])
    assert max(attempt for _, _, attempt, _ in placed) > 0


def test_the_cluster_s_own_scheduler_places_the_same_where_it_looks_at_a_sample_of_the_nodes():
    specs, workflows, settings = work(seed=2, nodes=120)
    course = course_of(specs, workflows, settings.cluster, settings.start_ms, drawn=ATTEMPTS)

    placed = by_the_arena(course, HEURISTIC_RULES["kube_default"])

    assert placed == by_the_core(specs, workflows, settings, HEURISTICS["kube_default"])


@pytest.mark.parametrize(("seed", "temperature", "hidden"), [(3, 0.3, 0), (4, 0.0, 0), (5, 0.3, 6)])
def test_weights_place_as_the_actor_that_serves_them(seed, temperature, hidden):
    rng = np.random.default_rng(seed)
    weight_p, weight_k = 2 * rng.normal(size=PAIRS), rng.normal(size=ORDERS)
    order = dict(zip(ORDER_FEATURES, weight_k.tolist(), strict=True))
    policy = replace(Residual.linear(weight_p, weight_k, hidden, rng), mix_hp=rng.normal(size=(hidden, PAIRS)))
    weights = exported(policy.network(seed), Origin("test", seed, order=order))
    actor = Actor(weights, ActorSettings(device="cpu", temperature=temperature)).policy()
    specs, workflows, settings = work(seed, nodes=12)
    course = course_of(specs, workflows, settings.cluster, settings.start_ms, drawn=ATTEMPTS)

    placed = by_the_arena(course, rule_of(weights, temperature))

    assert placed == by_the_core(specs, workflows, settings, actor)


def test_every_workflow_ends_and_nothing_is_paid_twice():
    specs, workflows, settings = work(seed=5, nodes=6)
    course = course_of(specs, workflows, settings.cluster, settings.start_ms, np.random.default_rng(5))

    played = run(course, HEURISTIC_RULES["srpt"])

    measured = played.measured()
    assert np.isfinite(measured.turnaround_s_w).all()
    assert not played.machines.used_nr.any()
    ended_h = (played.outcome.finish_ms_w.max() - settings.start_ms) / 3_600_000
    assert 0 < measured.cost_w.sum() <= ended_h * sum(spec.price_per_hour for spec in specs)
    assert 0 < measured.sla_w.mean() <= 1


def test_no_task_fails_for_ever():
    specs, workflows, settings = work(seed=7, nodes=6)
    unlucky = replace(settings.cluster, failure_rate=0.8)
    course = course_of(specs, workflows, unlucky, settings.start_ms, np.random.default_rng(7))

    measured = run(course, HEURISTIC_RULES["srpt"]).measured()

    assert np.isfinite(measured.turnaround_s_w).all()


def test_a_course_can_be_played_again():
    specs, workflows, settings = work(seed=6, nodes=6)
    course = course_of(specs, workflows, settings.cluster, settings.start_ms, np.random.default_rng(6))
    rule = linear(np.arange(PAIRS), np.ones(ORDERS), 0.3)

    assert by_the_arena(course, rule) == by_the_arena(course, rule)
