"""What the guards of a canary are told of a pool's records."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from policy.canary_watch import CanaryWatch
from policy.sequential import Guardrails
from schemas.records import EventKind, Outcome, Placement, Reward, Stage, WorkflowClass
from tests.builders import POOL, a_node, a_placement, a_ready, a_task, a_workflow, an_event, some_metrics

ALL = frozenset(WorkflowClass)


class Told(Guardrails):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Any, ...]] = []

    def observe_decision(self, is_canary: bool, latency_s: float) -> None:
        self.heard.append(("decision", is_canary, latency_s))

    def observe_attempt(self, is_canary: bool, succeeded: bool) -> None:
        self.heard.append(("attempt", is_canary, succeeded))

    def observe_workflow(self, is_canary: bool, slowdown: float, cost_ratio: float) -> None:
        self.heard.append(("workflow", is_canary, slowdown, cost_ratio))


def a_watch(classes: frozenset[WorkflowClass] = ALL) -> tuple[CanaryWatch, list[tuple[Any, ...]]]:
    told = Told()
    return CanaryWatch("new", classes, told), told.heard


def decided(version: str, policy: str = "actor", **fields: Any) -> Placement:
    return replace(a_placement(**fields), policy=policy, model_version=version)


def see(watch: CanaryWatch, *records: tuple[object, int], is_new: bool = True, is_since: bool = True) -> None:
    for record, at_ms in records:
        watch.see(record, at_ms, is_new, is_since)


def a_reward(workflow_id: str = "w0", turnaround_s: float | None = 20.0, cost: float = 2.0) -> Reward:
    return Reward(
        POOL,
        workflow_id,
        "t0",
        0,
        0,
        Stage.SETTLED,
        0,
        "n0",
        WorkflowClass.ETL_BATCH,
        0.0,
        (),
        (),
        (),
        (cost, 0.0, 0.0),
        turnaround_s=turnaround_s,
        path_s=10.0,
    )


def test_a_decision_takes_from_its_ready_record_to_its_placement_and_a_batch_counts_once() -> None:
    watch, heard = a_watch()
    for name in ("a", "b", "c"):
        see(watch, (a_workflow(workflow_id=name), 1000), (a_ready(workflow_id=name), 1000 if name != "b" else 1004))

    see(watch, (decided("new", workflow_id="a"), 1010), (decided("new", workflow_id="b"), 1010))
    see(watch, (decided("old", workflow_id="c"), 1013))
    watch.end_batch()

    assert heard == [("decision", True, 0.01), ("decision", False, 0.013)]
    assert (watch.take_decisions(), watch.take_decisions()) == (2, 0)


def test_an_actor_that_looks_ahead_is_one() -> None:
    watch, heard = a_watch()

    see(watch, (a_workflow(), 0), (decided("new", "actor+lookahead"), 1), (an_event(EventKind.FINISHED), 2))

    assert heard == [("attempt", True, True)]
    assert watch.take_odd() is None


def test_a_wait_for_room_is_not_the_time_of_a_decision() -> None:
    watch, heard = a_watch()
    see(watch, (a_workflow(), 1000), (a_ready(), 1000))

    see(watch, (decided("new", node_id=None, outcome=Outcome.PENDING), 1005), (decided("new"), 60_000))
    watch.end_batch()

    assert heard == []


def test_attempts_that_end_succeed_or_not_and_migrations_and_lost_nodes_say_nothing() -> None:
    watch, heard = a_watch()
    ends = (EventKind.FINISHED, EventKind.FAILED, EventKind.REJECTED, EventKind.KILLED, EventKind.NODE_LOST)
    for at, kind in enumerate(ends):
        see(watch, (a_workflow(workflow_id=f"w{at}"), 0), (decided("new", workflow_id=f"w{at}"), 1))
        see(watch, (an_event(kind, workflow_id=f"w{at}"), 2))

    assert heard == [("attempt", True, True), ("attempt", True, False), ("attempt", True, False)]


def test_a_workflow_counts_for_who_decided_all_of_it_and_against_what_was_usual_before() -> None:
    watch, heard = a_watch()
    see(watch, (some_metrics(a_node(speed=2.0)), 0))
    for name, versions in (("a", ["old"]), ("b", ["new"]), ("mixed", ["old", "new"]), ("stood-in", ["new", ""])):
        see(watch, (a_workflow(workflow_id=name), 0))
        for attempt, version in enumerate(versions):
            policy = "actor" if version else "srcp"
            see(watch, (decided(version, policy, workflow_id=name, attempt=attempt), 1))
        watch.settled([a_reward(name, cost=4.0 if name == "b" else 2.0)], True)

    (first, second) = heard
    assert first[:3] == ("workflow", False, 4.0)  # twice its lower bound on a node of speed 2 is 5 s
    assert math.isnan(first[3])
    assert second[:3] == ("workflow", True, 4.0)
    assert second[3] == pytest.approx(2.0)


def test_who_is_not_eligible_is_in_neither_group() -> None:
    watch, heard = a_watch(frozenset({WorkflowClass.MIXED}))
    see(watch, (a_workflow(workflow_id="other"), 0), (a_ready(workflow_id="other"), 0))
    critical = a_workflow(a_task(critical=True), workflow_id="critical", workflow_class=WorkflowClass.MIXED)
    see(watch, (critical, 0), (a_ready(workflow_id="critical"), 0))

    for name in ("other", "critical"):
        see(watch, (decided("old", workflow_id=name), 1), (an_event(EventKind.FINISHED, workflow_id=name), 2))
        watch.settled([a_reward(name)], True)
    watch.end_batch()

    assert heard == []


def test_what_was_counted_before_builds_the_state_and_is_not_counted_again() -> None:
    watch, heard = a_watch()
    see(watch, (a_workflow(), 0), (a_ready(), 0), (decided("new"), 1), is_new=False)

    see(watch, (an_event(EventKind.FINISHED), 2))
    watch.settled([a_reward()], True)
    watch.end_batch()

    assert [kind for kind, *_ in heard] == ["attempt", "workflow"]


def test_what_was_decided_before_the_canary_began_does_not_count() -> None:
    watch, heard = a_watch()
    see(watch, (a_workflow(), 0), (decided("old"), 1), is_new=False, is_since=False)

    see(watch, (an_event(EventKind.FINISHED), 2), (decided("new", task_id="t1"), 3))
    watch.settled([a_reward()], True)

    assert heard == []


@pytest.mark.parametrize(("policy", "what"), [("round_robin", "breaker was open"), ("srcp", "srcp stood in")])
def test_a_stand_in_is_odd(policy: str, what: str) -> None:
    watch, _ = a_watch()

    see(watch, (a_workflow(), 0), (decided("", policy), 1))

    assert what in (watch.take_odd() or "")
    assert watch.take_odd() is None


def test_what_is_kept_goes_on() -> None:
    watch = CanaryWatch("new", ALL, Guardrails())
    for at in range(6):
        name, version = f"w{at}", ("old", "new")[at % 2]
        see(watch, (a_workflow(workflow_id=name), 0), (a_ready(workflow_id=name), 0))
        see(watch, (decided(version, workflow_id=name), 5), (an_event(EventKind.FINISHED, workflow_id=name), 9))
        watch.settled([a_reward(name, cost=1.0 + at)], True)
        watch.end_batch()

    found = CanaryWatch.from_plain(watch.to_plain(), "new", ALL)

    assert found.to_plain() == watch.to_plain()
    assert found.guards.success.groups.canary.count == 3
