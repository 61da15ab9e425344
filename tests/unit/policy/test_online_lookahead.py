"""A second look at decisions: it switches to what is surely better, and to nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.decide import DecideSettings
from policy.episode import POOL, Episode, EpisodeSettings
from policy.heuristics import HEURISTICS
from policy.observation import Observation, Policy
from policy.online_lookahead import FEWEST_SAMPLES, RolloutSettings, with_lookahead
from policy.simulator import SimulatorSettings
from schemas.errors import InvalidConfiguration
from schemas.records import EventKind
from tests.builders import a_node, a_placement, a_state, a_task, an_event, an_observation, decided, some_nodes, submit
from tests.dump import dump
from tests.strategies import pools
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

SETTINGS = RolloutSettings(samples=12)


def prefers_last(seen: Observation) -> np.ndarray:
    return np.tile(np.arange(seen.mask_bn.shape[1], dtype=np.float32), (len(seen.tasks), 1))


LAST = Policy("last", prefers_last, lambda rows: -rows.arrival_p)


def looking(policy: Policy = LAST, **changes: float) -> Policy:
    return with_lookahead(policy, replace(SETTINGS, **changes))


def fast_and_slow():
    """A state in which the last node is five times as slow, and a task waits."""
    state = a_state(a_node("fast"), a_node("slow", speed=0.2))
    submit(state, a_task("t0", 60.0))
    return state


def test_a_node_that_is_surely_better_is_taken_instead():
    assert [p.node_id for p in decided(fast_and_slow(), LAST)] == ["slow"]

    (placement,) = decided(fast_and_slow(), looking())

    assert placement.node_id == "fast"
    assert placement.policy == "last+lookahead/12"


def test_a_switch_holds_whatever_is_drawn_from_the_softmax():
    policy = looking(replace(LAST, temperature=0.3))

    (placement,) = decided(fast_and_slow(), policy)

    assert placement.node_id == "fast"
    assert placement.log_prob == pytest.approx(0.0, abs=1e-9)


def test_nodes_that_are_alike_leave_the_choice_as_it_is():
    state = a_state(*some_nodes(4))
    submit(state, a_task("t0", 60.0))
    seen = an_observation(state)

    np.testing.assert_array_equal(looking().score(seen), LAST.score(seen))


@pytest.mark.parametrize("count", [0, FEWEST_SAMPLES - 1])
def test_without_enough_samples_nothing_is_switched(count):
    seen = an_observation(fast_and_slow())

    np.testing.assert_array_equal(looking(samples=count).score(seen), LAST.score(seen))


def test_the_fewest_samples_are_enough():
    assert looking(samples=FEWEST_SAMPLES).score(an_observation(fast_and_slow()))[0].argmax() == 0


def test_a_gain_must_exceed_its_error():
    seen = an_observation(fast_and_slow())

    np.testing.assert_array_equal(looking(sure=1e6).score(seen), LAST.score(seen))


def test_a_cheaper_node_is_worth_waiting_a_little_longer_for():
    state = a_state(a_node("cheap", price_per_hour=1.0), a_node("dear", price_per_hour=10.0, speed=1.05))
    submit(state, a_task("t0", 60.0))

    assert [p.node_id for p in decided(state, looking())] == ["cheap"]


def test_room_that_the_rest_of_the_workflow_needs_is_left_to_it():
    nodes = [a_node("small", cpu=1.0), a_node("large", cpu=4.0)]
    state = a_state(*nodes)
    first = a_task("short", 30.0, cpu=1.0)
    wide = a_task("wide", 300.0, cpu=4.0)
    submit(state, first, workflow_id="w0")
    submit(state, wide, workflow_id="w1")

    placed = {p.task_id: p.node_id for p in decided(state, looking())}

    assert placed == {"short": "small", "wide": "large"}


def test_an_older_attempt_of_the_task_brings_its_children_nothing():
    state = a_state(a_node("fast"), a_node("slow", speed=0.2))
    submit(state, a_task("t0", 60.0), a_task("t1", 10.0, after=["t0"]))
    state.apply(a_placement("slow", expected_s=1.0))
    state.apply(an_event(EventKind.STARTED, node_id="slow"))
    state.apply(an_event(EventKind.FAILED, node_id="slow", at_s=30.0))
    for ready in state.due():
        state.apply(ready)

    assert [(p.attempt, p.node_id) for p in decided(state, looking())] == [(1, "fast")]


@given(pool=pools(), policy=st.sampled_from(["srcp", "kube_default", "random"]))
@settings(max_examples=25, deadline=None)
def test_whatever_the_pool_it_is_a_policy_like_any_other(pool, policy):
    state = pool.state()
    seen = an_observation(state)
    before, mask_bn, free_rn = dump(state), seen.mask_bn.copy(), seen.free_rn.copy()
    looks = looking(HEURISTICS[policy], samples=4, placements=20)

    first_bn, second_bn = looks.score(seen), looks.score(seen)

    assert first_bn.shape == seen.mask_bn.shape
    assert np.isfinite(first_bn[seen.mask_bn]).all()
    np.testing.assert_array_equal(first_bn, second_bn)
    assert dump(state) == before
    np.testing.assert_array_equal(seen.mask_bn, mask_bn)
    np.testing.assert_array_equal(seen.free_rn, free_rn)


def test_an_episode_with_trouble_is_the_same_again_and_every_task_ends():
    cluster = SimulatorSettings(
        runtime_noise=0.4, failure_rate=0.05, node_losses_per_hour=0.5, spot_share=0.5, spot_interruptions_per_hour=1.0
    )
    known = EpisodeSettings(cluster=cluster, decide=DecideSettings(batch=1))
    specs = example_nodes(6)
    work = random_workload(
        np.random.default_rng(1), specs, WorkloadSettings(workflows=4, tasks=(2, 10), load=1.0), POOL, known.start_ms
    )

    def nodes(policy: Policy) -> dict[tuple[str, str, int], str | None]:
        trace = Episode(specs, work, policy, known).run()
        assert trace.open_tasks == 0
        return {key: placement.node_id for key, placement in trace.placements.items()}

    looks = looking(HEURISTICS["heft"], samples=6)
    assert nodes(looks) == nodes(looks)
    assert nodes(looks) != nodes(HEURISTICS["heft"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("candidates", 1), ("samples", -1), ("runtime_noise", float("nan")), ("placements", -1), ("sure", float("inf"))],
)
def test_a_setting_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(InvalidConfiguration, match=rf"lookahead\.{name}"):
        RolloutSettings(**{name: value})
