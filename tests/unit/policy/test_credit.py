"""What decisions were worth: by hand, whatever is repeated, and within the range of each term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.billing import CostSettings
from policy.constraints import Constraints
from policy.credit import NEW_WEIGHTS, STAGES, Credits
from policy.episode import POOL as EPISODE_POOL
from policy.episode import Episode, EpisodeSettings
from policy.heuristics import HEURISTICS
from policy.percentiles import ERROR
from policy.reward import RewardWeights
from policy.simulator import SimulatorSettings
from policy.state import State
from policy.trace import Trace
from policy.usual import LEAST_VALUES
from schemas.errors import InvalidConfiguration
from schemas.records import (
    METRICS,
    REWARD_TERMS,
    Control,
    Edge,
    EventKind,
    Outcome,
    Reward,
    Stage,
    WorkflowClass,
)
from tests.builders import (
    GIB,
    POOL,
    START_MS,
    a_lost_node,
    a_node,
    a_placement,
    a_ready,
    a_task,
    a_workflow,
    an_event,
    ms,
    some_metrics,
)
from tests.lives import Life
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

PRICE = 3.6
"""Per hour: 0.001 a second."""
NODES = (a_node("n0", price_per_hour=PRICE), a_node("n1", price_per_hour=PRICE))
LOAD = a_task("load", 10.0, cpu=4.0, memory_bytes=8 * GIB)
REPORT = a_task("report", 10.0, after=[Edge("load", GIB)])
STARTED, FINISHED, FAILED = EventKind.STARTED, EventKind.FINISHED, EventKind.FAILED


def some_credits(*records: object, weights: RewardWeights | None = None) -> tuple[Credits, list[Reward]]:
    credits = Credits(POOL, weights, CostSettings(storage_per_gib=0.01))
    return credits, folded(credits, some_metrics(*NODES), *records)


def folded(credits: Credits, *records: object) -> list[Reward]:
    return [reward for record in records for reward in credits.apply(record)]


def a_chain(workflow_id: str = "w0", at_s: float = 0.0, **fields: Any) -> list[object]:
    """`load` is ready."""
    submitted = a_workflow(LOAD, REPORT, workflow_id=workflow_id, at_s=at_s, **fields)
    return [submitted, a_ready(task_id="load", workflow_id=workflow_id, at_s=at_s)]


def a_run(task_id: str, node_id: str, placed_s: float, started_s: float, ended_s: float, **fields: Any) -> list[object]:
    kind = fields.pop("kind", FINISHED)
    return [
        a_placement(node_id, task_id=task_id, at_s=placed_s, **fields),
        an_event(STARTED, task_id=task_id, node_id=node_id, at_s=started_s, **fields),
        an_event(kind, task_id=task_id, node_id=node_id, at_s=ended_s, **fields),
    ]


def a_course(workflow_id: str = "w0", at_s: float = 0.0, takes_s: float = 24.0, **fields: Any) -> list[object]:
    """All of a chain, from its submission to its end."""
    half_s = at_s + takes_s / 2
    return [
        *a_chain(workflow_id, at_s, **fields),
        *a_run("load", "n0", at_s, at_s, half_s, workflow_id=workflow_id),
        a_ready(task_id="report", workflow_id=workflow_id, at_s=half_s),
        *a_run("report", "n1", half_s, half_s, at_s + takes_s, workflow_id=workflow_id),
    ]


def terms(reward: Reward) -> dict[str, float]:
    return dict(zip(REWARD_TERMS, reward.terms, strict=True))


def test_a_decision_is_told_at_once_with_what_is_expected_of_it():
    _, (told,) = some_credits(*a_chain(), a_placement("n0", task_id="load", at_s=2.0, expected_s=10.0))

    assert (told.stage, told.node_id, told.workflow_class) == (Stage.PLACED, "n0", WorkflowClass.ETL_BATCH)
    assert told.turnaround_s == 2.0 + 10.0 + 10.0  # waited, expected, and the report still to come
    assert told.costs == pytest.approx((0.01, 0.0, 0.01))
    # n0 has half its cpu and three quarters of its memory left; n1 is free
    unfragmented = ((0.5**2 + 0.75**2) / 2 + 1) / 2
    assert terms(told) == pytest.approx(
        {
            "makespan": 1.0,  # nothing is usual yet
            "cost_cpu": 0.5,
            "cost_gpu": 0.0,
            "cost_storage": 0.5,
            "sla": 1.0,
            "fragmentation": unfragmented,
            "balance": 0.0,  # half, where the mean is a quarter
            "pcie": 0.0,
        }
    )
    assert told.reward == pytest.approx(-0.4 - 0.3 + 0.2 - 0.1 * unfragmented + 0.0)


def test_when_the_attempt_ends_its_cost_and_its_start_are_measured():
    credits, _ = some_credits(*a_chain())

    told = folded(credits, *a_run("load", "n0", 2.0, 3.0, 13.0))[-1]

    assert (told.stage, told.end, told.wait_s, told.event_time_ms) == (Stage.ENDED, FINISHED, 3.0, ms(13.0))
    assert told.costs == pytest.approx((0.011, 0.0, 0.01))
    assert told.turnaround_s == 13.0 + 10.0


def test_when_the_workflow_is_over_every_decision_of_it_is_settled_with_its_makespan():
    _, told = some_credits(*a_course(takes_s=24.0))

    assert [(r.task_id, r.stage) for r in told] == [
        ("load", Stage.PLACED),
        ("load", Stage.ENDED),
        ("report", Stage.PLACED),
        ("load", Stage.SETTLED),
        ("report", Stage.SETTLED),
    ]
    assert [r.turnaround_s for r in told[-2:]] == [24.0, 24.0]
    assert [r.path_s for r in told] == [20.0] * 5


def test_what_is_usual_for_a_new_class_is_how_far_others_stretched_their_critical_path():
    credits, _ = some_credits(*a_course("first", takes_s=24.0))

    told = folded(credits, *a_course("second", at_s=100.0, takes_s=12.0, workflow_class=WorkflowClass.MIXED))[-1]

    assert told.turnaround_p95_s == pytest.approx(24.0, rel=ERROR)
    assert terms(told)["makespan"] == pytest.approx(0.5, rel=ERROR)
    assert told.usual_of == 1


def test_a_class_that_is_known_is_judged_by_itself_and_by_the_last_seven_days():
    credits, _ = some_credits(*[r for i in range(LEAST_VALUES) for r in a_course(f"w{i}", 100.0 * i, takes_s=40.0)])

    soon = folded(credits, *a_course("soon", 5_000.0, takes_s=20.0))[-1]
    week_s = 7 * 24 * 3600.0
    late = folded(credits, some_metrics(*NODES, at_s=week_s + 10_000), *a_course("late", week_s + 10_000))[-1]

    assert (terms(soon)["makespan"], soon.usual_of) == (pytest.approx(0.5, rel=ERROR), LEAST_VALUES)
    assert (late.turnaround_p95_s, late.usual_of) == (None, 0)


def test_a_task_that_starts_after_five_minutes_misses_the_sla():
    credits, _ = some_credits(*a_chain())

    placed, ended = folded(credits, *a_run("load", "n0", 299.0, 301.0, 320.0))

    assert [terms(r)["sla"] for r in (placed, ended)] == [1.0, 0.0]
    assert ended.wait_s == 301.0


def test_an_attempt_that_fails_pays_for_itself_and_the_next_one_is_a_decision_of_its_own():
    credits, _ = some_credits(*a_chain(), *a_run("load", "n0", 0.0, 0.0, 5.0, kind=FAILED))

    again = folded(
        credits,
        a_ready(task_id="load", attempt=1, at_s=5.0),
        *a_run("load", "n1", 400.0, 400.0, 410.0, attempt=1),
    )

    assert [(r.attempt, r.stage) for r in again] == [(1, Stage.PLACED), (1, Stage.ENDED)]
    assert terms(again[-1])["sla"] == 0.0  # 395 s after this attempt was ready
    assert again[-1].costs == pytest.approx((0.01, 0.0, 0.01))


def test_a_failed_attempt_hands_nothing_on():
    _, told = some_credits(*a_chain(), *a_run("load", "n0", 0.0, 0.0, 5.0, kind=FAILED))

    assert told[-1].costs == pytest.approx((0.005, 0.0, 0.0))
    assert told[-1].turnaround_s == 5.0 + 20.0  # all is still to do


def test_a_lost_node_ends_what_is_on_it():
    credits, _ = some_credits(*a_chain(), a_placement("n0", task_id="load", at_s=0.0))

    (told,) = folded(credits, a_lost_node("n0", at_s=7.0))

    assert (told.stage, told.end, told.wait_s) == (Stage.ENDED, EventKind.NODE_LOST, None)
    assert terms(told)["sla"] == 0.0
    assert told.costs == pytest.approx((0.007, 0.0, 0.0))


def test_a_workflow_that_can_never_finish_counts_as_much_as_one_can():
    credits, _ = some_credits(*a_course("usual"), *a_chain("stuck", 100.0))
    folded(credits, *a_run("load", "n0", 100.0, 100.0, 101.0, workflow_id="stuck"))

    told = folded(credits, a_placement(None, task_id="report", workflow_id="stuck", outcome=Outcome.REFUSED))

    assert [(r.task_id, r.stage, r.turnaround_s) for r in told] == [("load", Stage.SETTLED, None)]
    assert terms(told[0])["makespan"] == 1.0
    assert folded(credits, *a_course("next", 200.0))[-1].usual_of == 1


def test_a_gpu_task_is_worth_more_where_the_bus_is_free_once_that_has_a_weight():
    busy = np.full((1, len(METRICS)), 0.0)
    busy[0, METRICS.index("pcie_utilisation")] = 0.75
    node = a_node("n0", gpu=2, gpu_memory_bytes=GIB)
    credits = Credits(POOL, RewardWeights(pcie=0.2))
    folded(credits, some_metrics(node, values_nm=busy), a_workflow(a_task("t0", gpu=1)), a_ready())

    (told,) = folded(credits, a_placement("n0"))

    assert dict(zip(REWARD_TERMS, told.contributions, strict=True))["pcie"] == pytest.approx(0.2 * 0.25)
    assert told.stranded_gpu == 0.0  # such a task would still fit


def test_records_of_an_engine_of_the_users_own_have_no_end_and_are_never_settled():
    credits, _ = some_credits(a_ready(a_task("only"), workflow_id="open"))

    told = folded(credits, *a_run("only", "n0", 0.0, 0.0, 10.0, workflow_id="open"))

    assert [r.stage for r in told] == [Stage.PLACED, Stage.ENDED]


def test_new_weights_hold_for_the_decisions_after_them():
    credits, _ = some_credits(*a_chain(), a_placement("n0", task_id="load"))
    credits.apply(Control(POOL, START_MS, NEW_WEIGHTS, {"sla": "0.5", "cost": "0"}))

    told = folded(
        credits,
        an_event(FINISHED, task_id="load", at_s=10.0),
        a_ready(task_id="report", at_s=10.0),
        a_placement("n1", task_id="report", at_s=10.0),
    )

    assert [dict(zip(REWARD_TERMS, r.weights, strict=True))["sla"] for r in told] == [0.2, 0.5]
    assert told[1].weights[1:4] == (-0.0,) * 3
    credits.apply(Control(POOL, START_MS, NEW_WEIGHTS, {}))
    assert credits.weights == RewardWeights()


@pytest.mark.parametrize("arguments", [{"slo": "0.5"}, {"sla": "much"}, {"sla": "-1"}, {"sla": "nan"}])
def test_weights_that_are_none_change_nothing(arguments):
    credits, _ = some_credits()

    with pytest.raises(InvalidConfiguration, match=r"reward\.sl"):
        credits.apply(Control(POOL, START_MS, NEW_WEIGHTS, arguments))

    assert credits.weights == RewardWeights()


def test_weights_of_another_pool_and_other_commands_do_not_matter():
    credits, _ = some_credits()

    credits.apply(Control("other", START_MS, NEW_WEIGHTS, {"sla": "0.5"}))
    credits.apply(Control(POOL, START_MS, "pause", {"sla": "0.5"}))

    assert credits.weights == RewardWeights()


def test_what_was_recorded_before_is_no_news_and_counts_once():
    course = a_course("w0")
    _, told = some_credits(*course)
    again = Credits(POOL, None, CostSettings(storage_per_gib=0.01))
    for reward in told:
        again.remember(reward)

    news = folded(again, some_metrics(*NODES), *course)
    after = folded(again, *a_course("w1", 100.0))[-1]

    assert news == []
    assert after.usual_of == 1


class Logged(State):
    """A state that keeps what was folded into it."""

    def __init__(self) -> None:
        super().__init__(POOL)
        self.records: list[object] = []

    def apply(self, record: object) -> Any:
        due = super().apply(record)
        self.records.append(record)
        return due


def a_life(seed: int) -> list[object]:
    """The records of a life of a state: the usual course of things, and anything at any time."""
    state, constraints = Logged(), Constraints()
    for move in Life(seed).moves(40):
        move(state, constraints)
    return state.records


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_each_term_is_in_its_range_and_they_add_up(seed):
    told = folded(Credits(POOL), *a_life(seed))

    for reward in told:
        assert all(-1 <= term <= 1 for term in reward.terms)
        assert reward.reward == pytest.approx(sum(reward.contributions))
        assert reward.contributions == pytest.approx(
            [weight * term for weight, term in zip(reward.weights, reward.terms, strict=True)]
        )
        assert min(reward.costs) >= -1e-12


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_an_attempt_passes_each_stage_once_and_forwards(seed):
    stages: dict[tuple[str, str, int], list[int]] = {}
    for reward in folded(Credits(POOL), *a_life(seed)):
        key = (reward.workflow_id, reward.task_id, reward.attempt)
        stages.setdefault(key, []).append(STAGES.index(reward.stage))

    assert all(passed == sorted(set(passed)) for passed in stages.values())


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_records_that_come_twice_count_once(seed):
    life = a_life(seed)

    once = folded(Credits(POOL), *life)
    twice = folded(Credits(POOL), *[record for record in life for _ in range(2)])

    assert twice == once


def test_a_redelivered_past_counts_once():
    course = a_course("w0")
    credits, told = some_credits(*course)

    assert folded(credits, *course, *course) == []
    assert replace(folded(credits, *a_course("w1", 100.0))[-1], workflow_id="w0").usual_of == 1
    assert len(told) == 5


class Recorded(Trace):
    """A trace that keeps its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[object] = []

    def apply(self, record: object) -> None:
        super().apply(record)
        self.records.append(record)


def test_costs_are_what_the_simulated_cluster_bills_with_failures_and_lost_nodes():
    specs, chance = example_nodes(8), SimulatorSettings(failure_rate=0.1, node_losses_per_hour=10.0)
    start_ms = EpisodeSettings().start_ms
    work = random_workload(np.random.default_rng(3), specs, WorkloadSettings(workflows=8), EPISODE_POOL, start_ms)
    episode = Episode(specs, work, HEURISTICS["srcp"], EpisodeSettings(cluster=chance))
    episode.trace = Recorded()
    samples = replace(some_metrics(*specs), pool=EPISODE_POOL, event_time_ms=start_ms)

    records = episode.run().records
    told = folded(Credits(EPISODE_POOL), samples, *records)

    placed = [r for r in told if r.stage == Stage.PLACED]
    over = {(r.workflow_id, r.task_id, r.attempt): r for r in told if r.stage != Stage.PLACED}
    assert len(over) == len(placed) > 50
    assert {r.end for r in over.values()} >= {FINISHED, FAILED, EventKind.NODE_LOST}
    billed = float(episode._cluster._machines.cost_a.sum())
    assert sum(r.costs[0] + r.costs[1] for r in over.values()) == pytest.approx(billed, rel=1e-9)
