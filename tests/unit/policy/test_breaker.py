"""The load-skew breaker: opens on skew that decisions can have made, closes when it is gone, and is remembered."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from policy.breaker import NO_BREAKER, Breaker, BreakerSettings
from policy.constraints import Constraints
from policy.decide import DecideSettings, Stamp, decide
from policy.heuristics import HEURISTICS
from policy.snapshot import dump, load
from policy.state import State, StateSettings
from policy.windows import STEP_MS
from schemas.errors import InvalidConfiguration
from schemas.records import METRICS
from tests.builders import MOST_BATCHES, a_placement, a_state, a_task, some_metrics, some_nodes, submit
from tests.whole_state import whole

NODES = 10
STEP_S = STEP_MS / 1000
SKEWED = [1.0] * 5 + [0.0] * 5  # standard deviation 0.5
MIXED = [0.85] * 5 + [0.15] * 5  # 0.35: between closing and opening
EVEN = [0.5] * NODES


def sample(state: State, cpu_n: list[float], step: int) -> None:
    values_nm = np.zeros((len(cpu_n), len(METRICS)))
    values_nm[:, 0] = cpu_n
    names = [f"n{i}" for i in range(len(cpu_n))]
    state.apply(some_metrics(*names, at_s=STEP_S * step, values_nm=values_nm))


def busy_state(busy: int = 5, settings: StateSettings | None = None) -> State:
    """A pool whose first nodes hold an attempt each."""
    state = a_state(*some_nodes(NODES), settings=settings)
    for at in range(busy):
        submit(state, workflow_id=f"held{at}")
        state.apply(a_placement(f"n{at}", workflow_id=f"held{at}"))
    return state


def skewed_state() -> State:
    state = busy_state()
    sample(state, SKEWED, 1)
    sample(state, SKEWED, 2)
    return state


def policies_of(state: State) -> list[str]:
    batches = decide(state, HEURISTICS["heft"], Constraints(), DecideSettings(), Stamp())
    return [name for b in islice(batches, MOST_BATCHES) for name in [b.evidence.policy] * len(b.placements)]


def test_when_it_opens_the_next_ten_tasks_take_the_nodes_in_turn_and_the_others_do_not() -> None:
    state = skewed_state()
    submit(state, *[a_task(f"t{i}") for i in range(12)], workflow_id="next")

    policies = policies_of(state)

    assert (state.breaker.is_open, state.breaker.openings) == (True, 1)
    assert policies == ["round_robin"] * 10 + ["heft"] * 2
    placed = [state.workflows["next"].tasks[i].node for i in range(10)]
    assert sorted(placed) == list(range(NODES))


def test_it_is_judged_by_a_whole_step_when_the_next_begins() -> None:
    state = busy_state()

    sample(state, SKEWED, 1)

    assert not state.breaker.is_open
    sample(state, EVEN, 2)
    assert state.breaker.is_open
    assert state.breaker.spread == 0.5


def test_it_does_not_flap_between_its_two_limits() -> None:
    state = skewed_state()

    for step in range(3, 10):
        sample(state, MIXED, step)

    assert (state.breaker.is_open, state.breaker.openings) == (True, 1)
    sample(state, EVEN, 10)
    sample(state, EVEN, 11)
    assert (state.breaker.is_open, state.breaker.turns) == (False, 0)
    sample(state, MIXED, 12)
    sample(state, MIXED, 13)
    assert not state.breaker.is_open


def test_skew_that_lasts_opens_it_again_after_five_minutes_and_asks_for_training_once_an_hour() -> None:
    state = skewed_state()
    asked_ms = state.breaker.asked_ms

    for step in range(3, 3 + 4 * 30):  # half an hour
        sample(state, SKEWED, step)

    assert state.breaker.openings == 7
    assert state.breaker.asked_ms == asked_ms is not None
    for step in range(123, 123 + 4 * 35):
        sample(state, SKEWED, step)
    assert state.breaker.asked_ms == asked_ms + 3600_000


@pytest.mark.parametrize("cpu_n", [[1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0] * 4 + [0.0] * 3, []])
def test_a_pool_of_few_nodes_or_none_does_not_open_it(cpu_n: list[float]) -> None:
    breaker = Breaker(BreakerSettings())

    breaker.judge(np.array(cpu_n), np.ones(len(cpu_n)), STEP_MS)

    assert not breaker.is_open


def test_load_of_others_and_idle_pools_do_not_open_it() -> None:
    foreign, idle = busy_state(busy=2), busy_state(busy=0)

    for step in (1, 2):
        sample(foreign, SKEWED, step)  # three of the five busy nodes hold nothing of ours
        sample(idle, [0.0] * NODES, step)

    assert not foreign.breaker.is_open
    assert foreign.breaker.spread == 0.5
    assert not idle.breaker.is_open


def test_nodes_that_say_nothing_of_their_cpu_do_not_count() -> None:
    breaker = Breaker(BreakerSettings(least_nodes=4))

    breaker.judge(np.array([np.nan, np.nan, 1.0, 0.0, 1.0]), np.ones(5), STEP_MS)

    assert (breaker.is_open, breaker.spread) == (False, 0.0)


def test_samples_folded_together_and_one_by_one_judge_alike() -> None:
    one_by_one, together = busy_state(), busy_state()
    records = []
    for step, cpu_n in enumerate([SKEWED, SKEWED, MIXED, EVEN, SKEWED, SKEWED], 1):
        values_nm = np.zeros((NODES, len(METRICS)))
        values_nm[:, 0] = cpu_n
        names = [f"n{i}" for i in range(NODES)]
        records += [
            some_metrics(*names[part], at_s=STEP_S * step, values_nm=values_nm[part])
            for part in (slice(0, 6), slice(6, NODES))  # two collectors
        ]

    for record in records:
        one_by_one.apply(record)
    together.apply_samples(records)

    assert together.breaker.to_plain() == one_by_one.breaker.to_plain()
    assert one_by_one.breaker.openings == 2


def test_a_snapshot_keeps_it() -> None:
    state = skewed_state()
    submit(state, *[a_task(f"t{i}") for i in range(4)], workflow_id="next")
    policies_of(state)

    found = load(dump(state), StateSettings())

    assert found.breaker.turns == 6
    assert whole(found) == whole(state)


def test_there_may_be_none() -> None:
    state = busy_state(settings=StateSettings(breaker=NO_BREAKER))

    sample(state, SKEWED, 1)
    sample(state, SKEWED, 2)

    assert not state.breaker.is_open


@pytest.mark.parametrize("wrong", [{"closes_below": 0.5}, {"tasks": -1}, {"least_nodes": 0}, {"again_s": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidConfiguration, match=r"state\.breaker"):
        BreakerSettings(**wrong)
