"""A history is played again, weighed and played on, without a broker."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.history import MemorySource, record_history
from policy import snapshot
from policy.constraints import Constraints
from policy.credit import Credits
from policy.decide import DecideSettings
from policy.heuristics import HEURISTICS
from policy.observation import Policy
from policy.simulator import SimulatorSettings
from policy.state import StateSettings
from replay.arrivals import Arrivals
from replay.continuation import ContinuationSettings, course, expected_rest
from replay.estimates import Weighed, estimates
from replay.fidelity import Verifier
from replay.player import Player, Range
from replay.shadow import Report, Shadow, ShadowSettings
from replay.span import span_of
from schemas.codec import Codec
from schemas.errors import InvalidInput
from schemas.records import DecisionBatch
from schemas.topics import DECISIONS, PLACEMENTS, TASK_EVENTS, partition_of
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

POOL = "default"
NUMBER = partition_of(POOL, 4)
SPECS = example_nodes(8)
START_MS = 1_700_000_000_000
TROUBLE = SimulatorSettings(failure_rate=0.05, node_losses_per_hour=0.2, crowding=0.5)


def history(workflows: int = 25, policy: str = "heft", seed: int = 3) -> MemorySource:
    work = random_workload(
        np.random.default_rng(seed), SPECS, WorkloadSettings(workflows=workflows, tasks=(3, 9)), POOL, START_MS
    )
    return record_history(SPECS, work, HEURISTICS[policy], pool=POOL, simulator=TROUBLE)


@pytest.fixture(scope="module")
def source() -> MemorySource:
    return history()


def player(source: MemorySource) -> Player:
    return Player(source, Codec(), NUMBER, StateSettings())


def verifier(policy: str, settings: DecideSettings | None = None) -> Verifier:
    return Verifier(HEURISTICS[policy], Constraints(()), settings or DecideSettings())


def shadowed(source: MemorySource, candidate: Policy, plays: type[Player] | type[Arrivals] = Player) -> Report:
    shadow = Shadow(
        candidate,
        HEURISTICS.__getitem__,
        Constraints(()),
        ShadowSettings(every_s=600.0, lucks=2),
        ContinuationSettings(simulator=TROUBLE),
        Credits(POOL),
    )
    played = plays(source, Codec(), NUMBER, StateSettings())
    choices = [choice for batch in shadow.watch(played, Range()) for choice in batch]
    assert len(choices) == shadow.report.decisions - shadow.report.impossible > 0
    return shadow.report


def test_every_decision_is_made_again(source: MemorySource) -> None:
    found = verifier("heft").verify(player(source), Range())

    assert found.is_exact
    assert found.decisions > 100


def test_other_settings_are_told_apart_at_the_first_decision(source: MemorySource) -> None:
    found = verifier("heft", DecideSettings(candidates=3)).verify(player(source), Range())

    assert [difference.field for difference in found.differences] == ["width"]
    assert found.skipped > 50
    assert found.batches == 0


def test_a_record_that_was_changed_afterwards_is_found() -> None:
    source = history(6)
    spoiled = MemorySource(source.topics)
    for topic in (*player(source)._bounds,):
        for at, stored in enumerate(source.read(topic, NUMBER, *source.bounds(topic, NUMBER))):
            payload, codec = stored.value() or b"", Codec()
            if topic is TASK_EVENTS and at == 4:
                event = codec.decode(payload, topic.record)
                payload = codec.encode(replace(event, event_time_ms=event.event_time_ms + 60_000), "")
            spoiled.put_bytes(topic, NUMBER, payload, stored.timestamp()[1])

    assert not verifier("heft").verify(player(spoiled), Range()).is_exact


def test_a_candidate_that_is_the_incumbent_differs_in_nothing(source: MemorySource) -> None:
    report = shadowed(source, HEURISTICS["heft"])

    assert report.agreed == report.decisions
    assert set(report.policies) == {"heft"}  # and not the breaker's round robin, though it was open for a while
    assert [(pair.makespan, pair.cost) for pair in report.pairs] == [(0.0, 0.0)] * len(report.pairs)
    assert len(report.pairs) > 3
    assert {weighed.weight for weighed in report.weighed} == {1.0}


def test_a_worse_candidate_is_seen_to_be_worse(source: MemorySource) -> None:
    report = shadowed(source, HEURISTICS["random"])

    assert report.agreed < report.decisions / 2
    assert np.mean([pair.makespan for pair in report.pairs]) > 0.05


def test_a_scheduler_without_evidence_is_shadowed_too(source: MemorySource) -> None:
    bare = MemorySource(source.topics)
    for topic in player(source)._bounds:
        for stored in source.read(topic, NUMBER, *source.bounds(topic, NUMBER)) if topic is not DECISIONS else ():
            bare.put_bytes(topic, NUMBER, stored.value() or b"", stored.timestamp()[1])

    report = shadowed(bare, HEURISTICS["heft"], Arrivals)

    assert report.decisions == shadowed(source, HEURISTICS["heft"]).decisions
    assert report.agreed > 0.9 * report.decisions  # the order of records of one millisecond is not known
    assert len(report.pairs) > 3


def test_a_state_is_played_on_to_the_end_of_all_its_workflows(source: MemorySource) -> None:
    pools = (moment.partition.pools for moment in player(source).play(Range()) if moment.made)
    state = next(states[POOL] for states in pools if len(states[POOL].running) > 3)
    saved, live = snapshot.dump(state), set(state.workflows)

    once, again = (course(saved, [], HEURISTICS["heft"], [], ContinuationSettings(), seed=1) for _ in range(2))

    assert set(once.finish_s) == live
    assert once == again
    assert all(0 < seconds < math.inf for seconds in once.finish_s.values())
    assert once.cost > 0
    assert course(saved, [], HEURISTICS["heft"], [], ContinuationSettings(), seed=2) != once


def test_what_is_left_of_a_run_is_what_simulated_runs_have_left() -> None:
    times_s = 100 * np.exp(0.4 * np.random.default_rng(0).standard_normal(200_000) - 0.08)

    for ran_s in (0.0, 50.0, 150.0):
        left_s = (times_s[times_s > ran_s] - ran_s).mean()
        assert expected_rest(100.0, ran_s, 0.4) == pytest.approx(left_s, rel=0.02)
    assert expected_rest(100.0, 1e6, 0.4) > 0
    assert expected_rest(100.0, 30.0, 0.0) == 70.0


def logged(rng: np.random.Generator, flows: int, gain: float) -> list[Weighed]:
    """Two nodes; the decider takes either, the candidate the second, which is worth `gain` more."""
    found = []
    for flow in range(flows):
        luck = rng.normal()
        for _ in range(4):
            second = rng.random() < 0.5
            reward = luck + rng.normal() + gain * second
            features = (np.array([1.0, 0.0]), np.array([0.0, 1.0]))
            found.append(Weighed(f"w{flow}", 2.0 * second, reward, features[int(second)], features[1]))
    return found


def test_estimates_from_a_log_cover_what_is_true() -> None:
    rng, gain = np.random.default_rng(5), 0.6
    found = [estimates(logged(rng, 120, gain)) for _ in range(60)]

    for name in ("importance", "doubly_robust"):
        of_all = [getattr(each, name) for each in found if each is not None]
        assert np.mean([each.mean for each in of_all]) == pytest.approx(gain / 2, abs=0.05)
        assert np.mean([each.low <= gain / 2 <= each.high for each in of_all]) > 0.85
    assert estimates(logged(rng, 5, gain)) is None


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, Range()),
        ("2h", None, Range(since_ms=START_MS - 7_200_000)),
        ("2023-11-14T00:00", "2023-11-14T12:00+00:00", Range(1_699_920_000_000, 1_699_963_200_000)),
    ],
)
def test_times_are_written_in_several_ways(source: MemorySource, since, until, expected: Range) -> None:
    assert span_of(since, until, source, NUMBER, START_MS) == expected


def test_an_offset_stands_for_the_time_at_which_it_arrived(source: MemorySource) -> None:
    (stored,) = source.read(DECISIONS, NUMBER, 7, 8)

    assert span_of("@7", None, source, NUMBER, 0).since_ms == stored.timestamp()[1]


@pytest.mark.parametrize(
    ("since", "until", "problem"),
    [("soon", None, "'soon' is no time"), ("@99999999", None, "is no offset of decisions"), ("1h", "2h", "is before")],
)
def test_what_is_no_time_is_refused(source: MemorySource, since, until, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        span_of(since, until, source, NUMBER, START_MS)


def without(source: MemorySource, dropped: set[int], end: int) -> MemorySource:
    """The same history with fewer records of decisions: none from `end` on, and not those."""
    cut = MemorySource(source.topics)
    for topic in player(source)._bounds:
        for at, stored in enumerate(source.read(topic, NUMBER, *source.bounds(topic, NUMBER))):
            if topic is not DECISIONS or (at < end and at not in dropped):
                cut.put_bytes(topic, NUMBER, stored.value() or b"", stored.timestamp()[1])
    return cut


def test_evidence_that_died_with_its_owner_is_no_difference_and_other_missing_evidence_is(source: MemorySource) -> None:
    stored = source.read(DECISIONS, NUMBER, *source.bounds(DECISIONS, NUMBER))
    batches = [Codec().decode(each.value() or b"", DecisionBatch) for each in stored]
    last = max(at for at, batch in enumerate(batches) if batch.workflow_ids and not batch.steps)

    died = verifier("heft").verify(player(without(source, set(), last)), Range())
    lost = verifier("heft").verify(player(without(source, {last}, len(batches))), Range())

    assert died.is_exact
    assert died.unpublished > 0
    assert [difference.offset for difference in lost.differences] == [-1]


def test_placements_that_died_with_their_owner_are_counted_and_no_difference(source: MemorySource) -> None:
    cut = MemorySource(source.topics)
    for topic in player(source)._bounds:
        _, end = source.bounds(topic, NUMBER)
        for stored in source.read(topic, NUMBER, 0, end - 2 * (topic is PLACEMENTS)):
            cut.put_bytes(topic, NUMBER, stored.value() or b"", stored.timestamp()[1])

    found = verifier("heft").verify(player(cut), Range())

    assert found.is_exact
    assert found.unpublished == 2
    assert found.placements + 2 == verifier("heft").verify(player(source), Range()).placements
