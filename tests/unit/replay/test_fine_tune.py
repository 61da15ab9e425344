"""Fine-tuning from a history without a broker: what is learnt from, what is not, and what is kept."""

from __future__ import annotations

import copy
import itertools
import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.history import MemorySource, record_history
from policy.actor import load_actor
from policy.constraints import Constraints
from policy.credit import Credits
from policy.decide import DecideSettings
from policy.heuristics import HEURISTICS
from policy.network import ActorCritic
from policy.observation import Policy
from policy.simulator import SimulatorSettings
from policy.state import StateSettings
from policy.weight_set import read_weights, shipped_weights
from replay.fidelity import Verifier
from replay.fine_tune import ON_LOG, Deployment, Kind, Report, RunSettings, Verdict, run
from replay.fine_tune_loop import DAY_S, HOUR_S, Loop, Schedule, ScheduleSettings
from replay.lessons import Outcome, Reader, Seen, is_held_out, newest, outcomes, together, worth
from replay.logged import from_source
from replay.player import Player, Range
from replay.quality import QualitySettings, examine
from schemas.codec import Codec
from schemas.errors import BrokerError
from schemas.records import Env, EventKind, Placement, TaskEvent
from schemas.records import Outcome as Said
from schemas.topics import (
    DECISIONS,
    NODE_METRICS,
    PLACEMENTS,
    TASK_EVENTS,
    TASK_READY,
    WORKFLOW_SUBMITTED,
    partition_of,
)
from trainer.export import restored
from trainer.fine_tune import FineTuneSettings, Lessons, Tuned, fine_tune, log_probs
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

POOL = "default"
NUMBER = partition_of(POOL, 4)
SPECS = example_nodes(8)
START_MS = 1_700_000_000_000
LATER_MS = 6 * 3_600_000
TROUBLE = SimulatorSettings(failure_rate=0.03, slow_spells_per_hour=2.0, runtime_noise=0.35, crowding=0.4)
TUNING = FineTuneSettings(steps=30, batch=256)
DEPLOYMENT = Deployment(pool=POOL, number=NUMBER)


def work(workflows: int, seed: int = 3, prefix: str = "w", env: Env = Env.PROD, at_ms: int = START_MS):
    made = random_workload(
        np.random.default_rng(seed), SPECS, WorkloadSettings(workflows=workflows, tasks=(3, 7)), POOL, at_ms
    )
    return [replace(one, workflow_id=f"{prefix}{at}", env=env) for at, one in enumerate(made)]


def poison(source: MemorySource, number: int, at_ms: int) -> None:
    """What other people and broken programs write into the topics."""
    if (at_ms - START_MS) // 15_000 % 20:
        return
    for topic in (WORKFLOW_SUBMITTED, NODE_METRICS, TASK_READY, TASK_EVENTS, PLACEMENTS, DECISIONS):
        source.put_bytes(topic, number, b"\xc3\x01 broken", at_ms)
    key = (POOL, f"test-{at_ms}", "t0", 0)
    source.put(PLACEMENTS, number, Placement(*key, at_ms, Said.PLACED, SPECS[0].node_id, epoch=0), at_ms)
    for kind, runtime_s in ((EventKind.STARTED, None), (EventKind.FINISHED, -5.0)):
        event = TaskEvent(*key, SPECS[0].node_id, at_ms, kind, Env.TEST, runtime_s)
        source.put(TASK_EVENTS, number, event, at_ms)
    event = TaskEvent(POOL, "w3", "t-of-a-test", 0, SPECS[0].node_id, at_ms, EventKind.FAILED, Env.TEST)
    source.put(TASK_EVENTS, number, event, at_ms)


def actor() -> Policy:
    return load_actor(device="cpu").policy()


@pytest.fixture(scope="module")
def clean() -> MemorySource:
    return record_history(SPECS, work(45), actor(), pool=POOL, simulator=TROUBLE)


@pytest.fixture(scope="module")
def network() -> ActorCritic:
    return restored(shipped_weights())


def ended(source: MemorySource) -> dict[tuple[str, str, int], Outcome]:
    def records():
        return from_source(source, Codec(), NUMBER)

    return outcomes(examine(records()).clean(records()), Credits(POOL), NUMBER, 4)


def seen_in(source: MemorySource, network: ActorCritic, found: dict) -> list[Seen]:
    player = Player(source, Codec(), NUMBER, StateSettings())
    return list(Reader(network, Constraints(()), POOL, found.__contains__).read(player, Range()))


@pytest.fixture(scope="module")
def learnt(clean: MemorySource, network: ActorCritic) -> tuple[list[Seen], dict, Lessons]:
    found = ended(clean)
    seen = seen_in(clean, network, found)
    return seen, found, together(seen, found, 0.5)


def settings(out: Path, **changes) -> RunSettings:
    usual = {
        "tuning": TUNING,
        "scenarios": 2,
        "processes": 1,
        "least_decisions": 50,
        "least_workflows": 4,
        "quality": QualitySettings(most_broken=1.0, most_duplicates=1.0),
    }
    return RunSettings(out=out, **{**usual, **changes})


def tried(source: MemorySource, out: Path, learn=fine_tune, **changes):
    return run(source, Codec(), Range(), shipped_weights(), DEPLOYMENT, settings(out, **changes), learn=learn)


def test_the_parent_would_have_chosen_as_it_did(learnt, network):
    seen, found, lessons = learnt

    assert 150 < len(seen) <= len(found)  # the breaker placed the rest
    assert log_probs(network, lessons) == pytest.approx(lessons.log_prob_b, abs=1e-4)


def test_attempts_that_were_migrated_or_failed_are_worth_less(learnt):
    seen, found, lessons = learnt
    is_negative_b = np.array([found[one.key].is_negative for one in seen])
    ends = {found[one.key].reward.end for one in seen}

    mild = together(seen, found, 0.0)

    assert {EventKind.KILLED, EventKind.FAILED} <= ends
    assert (mild.reward_b - lessons.reward_b)[is_negative_b] == pytest.approx(0.5)
    assert (mild.reward_b == lessons.reward_b)[~is_negative_b].all()


def test_a_decision_is_worth_less_the_longer_its_workflow_waits_for_it(learnt):
    seen, found, _ = learnt
    one = next(found[s.key] for s in seen if not found[s.key].is_negative and found[s.key].reward.turnaround_p95_s)

    usual_s = one.reward.turnaround_p95_s
    soon, late = replace(one, ran_s=0.1 * usual_s), replace(one, ran_s=0.3 * usual_s)

    assert worth(soon, 1.0, 0.5) - worth(late, 1.0, 0.5) == pytest.approx(0.4 * 0.2)
    assert worth(soon, 0.0, 0.5) == worth(late, 0.0, 0.5)


def test_a_log_poisoned_with_tests_and_broken_records_ends_with_the_same_weights(clean, network):
    tests = work(8, seed=9, prefix="test-", env=Env.TEST, at_ms=START_MS + LATER_MS)
    poisoned = record_history(SPECS, [*work(45), *tests], actor(), pool=POOL, simulator=TROUBLE, between=poison)

    lessons = []
    for source in (clean, poisoned):
        found = ended(source)
        lessons.append(together(seen_in(source, network, found), found, 0.5))
    of_clean, of_poisoned = (fine_tune(network, one, TUNING).network.state_dict() for one in lessons)

    low, high = poisoned.bounds(DECISIONS, NUMBER)
    assert high - low > clean.bounds(DECISIONS, NUMBER)[1] + 10
    assert lessons[0].digest == lessons[1].digest
    assert all(torch.equal(of_clean[name], of_poisoned[name]) for name in of_clean)


def test_a_workflow_that_was_submitted_as_prod_and_as_test_is_out(clean):
    source = copy.deepcopy(clean)
    at_ms = START_MS + LATER_MS
    source.put(WORKFLOW_SUBMITTED, NUMBER, replace(work(45)[7], env=Env.TEST), at_ms)

    before, after = ended(clean), ended(source)

    assert {key[0] for key in before} - {key[0] for key in after} == {"w7"}


def test_what_a_heuristic_decided_is_not_learnt_from(network):
    source = record_history(SPECS, work(5), HEURISTICS["heft"], pool=POOL)
    found = ended(source)
    reader = Reader(network, Constraints(()), POOL, found.__contains__)

    seen = list(reader.read(Player(source, Codec(), NUMBER, StateSettings()), Range()))

    assert not seen
    assert reader.skipped["decided by another policy"] > 0


def test_of_more_than_fits_the_newest_stay(learnt):
    seen, _, _ = learnt

    assert newest(iter(seen), 10 * seen[0].bytes) == seen[-10:]
    assert newest(iter(seen), 10**12) == seen


def test_the_share_held_out_is_as_asked():
    held = [is_held_out(f"w{at}", 0.25) for at in range(4000)]

    assert np.mean(held) == pytest.approx(0.25, abs=0.03)


def test_accepted_weights_serve_and_say_what_they_learnt_from(clean, tmp_path):
    report, weights = tried(clean, tmp_path)

    assert report.verdict == Verdict.ACCEPTED, report.in_words()
    kept = read_weights(tmp_path / weights.manifest.version)
    manifest = kept.manifest
    assert manifest.parent == shipped_weights().manifest.version
    assert manifest.version != manifest.parent
    assert manifest.learned_from[f"decisions/{NUMBER}"] == [0, clean.bounds(DECISIONS, NUMBER)[1]]
    assert manifest.data == report.data != ""
    assert ON_LOG in manifest.evaluation
    assert "fine-tune --from @0" in manifest.command
    serving = load_actor(tmp_path / manifest.version, device="cpu").policy()
    served = record_history(SPECS, work(4), serving, pool=POOL)
    again = Verifier(serving, Constraints(()), DecideSettings())
    assert again.verify(Player(served, Codec(), NUMBER, StateSettings()), Range()).is_exact
    told = json.loads((tmp_path / f"{manifest.version}.accepted.json").read_text())
    assert told["decisions"] == report.decisions > 100


def worse(parent: ActorCritic, lessons: Lessons, tuning: FineTuneSettings, is_time_up) -> Tuned:
    """Learns the opposite."""
    tuned = fine_tune(parent, lessons, tuning, is_time_up)
    with torch.no_grad():
        tuned.network.head.weight.bias *= -1
    return tuned


def test_a_candidate_that_is_worse_is_dropped_with_its_report(clean, tmp_path):
    report, weights = tried(clean, tmp_path, worse)

    assert weights is None
    assert report.verdict == Verdict.DROPPED
    assert "worse than what they were trained from" in report.why
    (kept,) = tmp_path.iterdir()
    assert kept.name == f"{report.candidate}.dropped.json"
    assert json.loads(kept.read_text())["learned_from"][f"task-events/{NUMBER}"][1] > 0


def test_too_little_makes_nothing(clean, tmp_path):
    report, weights = tried(clean, tmp_path, least_decisions=10**6)

    assert (report.verdict, weights) == (Verdict.TOO_LITTLE, None)


def test_reading_ends_in_time_and_says_how_far_it_came(clean, tmp_path):
    ticks = itertools.count()
    budget = settings(tmp_path, budget_s=100.0)

    report, _ = run(clean, Codec(), Range(), shipped_weights(), DEPLOYMENT, budget, clock=lambda: float(next(ticks)))

    assert report.is_cut_short
    assert 0 < report.decisions + report.held_out < 40
    assert report.learned_from[f"decisions/{NUMBER}"][1] < clean.bounds(DECISIONS, NUMBER)[1]


def test_an_emergency_learns_from_skewed_decisions_alone(clean, learnt, tmp_path):
    seen, _, _ = learnt
    skew = float(np.median([one.skew for one in seen]))

    report, _ = tried(clean, tmp_path, kind=Kind.EMERGENCY, skewed_above=skew, least_decisions=10**6)
    usual, _ = tried(clean, tmp_path, least_decisions=10**6)

    assert 0 < report.decisions < 0.7 * usual.decisions


def test_a_log_that_cannot_be_trusted_is_refused(clean, tmp_path):
    report, weights = tried(clean, tmp_path, quality=QualitySettings(least_attempts=10**6))

    assert (report.verdict, weights) == (Verdict.TOO_DIRTY, None)
    assert "usable attempts" in report.why


class TestWhatIsDue:
    def schedule(self) -> Schedule:
        return Schedule(ScheduleSettings(every_s=HOUR_S, night_s=2 * HOUR_S), began_s=10 * DAY_S + 3 * HOUR_S)

    def test_the_hour(self):
        schedule = self.schedule()
        began_s = schedule.began_s

        assert schedule.due(began_s + 10, is_called=False) is None
        assert schedule.due(began_s + HOUR_S, is_called=False) == Kind.USUAL
        schedule.begins(Kind.USUAL, began_s + HOUR_S)
        assert schedule.due(began_s + HOUR_S + 10, is_called=False) is None

    def test_the_night_once_in_place_of_the_hour(self):
        schedule = self.schedule()
        night_s = 11 * DAY_S + 2 * HOUR_S

        assert schedule.due(night_s - 1, is_called=False) == Kind.USUAL
        assert schedule.due(night_s + 1, is_called=False) == Kind.NIGHTLY
        schedule.begins(Kind.NIGHTLY, night_s + 1)
        assert schedule.due(night_s + 60, is_called=False) is None
        assert schedule.due(night_s + DAY_S + 1, is_called=False) == Kind.NIGHTLY

    def test_a_call_before_all_else(self):
        assert self.schedule().due(0.0, is_called=True) == Kind.EMERGENCY


class CallsOf:
    """Calls at these turns; the last one ends the loop."""

    def __init__(self, turns: list[bool], stop: threading.Event) -> None:
        self.turns = turns
        self.stop = stop

    def waiting(self, timeout_s: float, now_ms: int) -> bool:
        answer = self.turns.pop(0)
        if not self.turns:
            self.stop.set()
        return answer


def test_the_loop_publishes_what_is_accepted_and_outlives_what_fails():
    stop, asked, published = threading.Event(), [], []
    answers = iter([BrokerError("gone"), (a_report(Verdict.DROPPED), None), (a_report(Verdict.ACCEPTED), "weights")])

    def answer(kind: Kind, wanted: Range):
        asked.append((kind, wanted.until_ms - wanted.since_ms))
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    calls = CallsOf([True, False, True, True], stop)
    schedule = Schedule(ScheduleSettings(night_s=None), began_s=0.0)
    Loop(schedule, calls, answer, published.append, stop, clock=lambda: 100.0).run()

    assert asked == [(Kind.EMERGENCY, 3_600_000)] * 3
    assert published == ["weights"]


def a_report(verdict: Verdict) -> Report:
    return Report(kind=Kind.USUAL, verdict=verdict, why="", parent="p")
