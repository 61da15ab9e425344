"""CloudSim Plus comes to the makespans of headrace's simulator, and would show it if it did not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest

import policy.simulator
from headrace import EXIT_DIFFERENT, EXIT_REFUSED, cloudsim_jars
from policy.episode import POOL
from schemas.errors import HeadraceError, InvalidWorkflow
from schemas.records import Edge, Env, NodeSpec, Task, WorkflowClass, WorkflowSubmitted
from streams import maven
from tests.command_line import CommandLine
from trainer import second_opinion
from trainer.cloudsim import Luck, Plan, TaskKey, replay, start_java
from trainer.second_opinion import Workload, compare, judge, play, workloads

pytestmark = pytest.mark.cloudsim

GIB = 2**30
WORKLOADS = tuple(workloads(seed=0))
SMALL = WORKLOADS[0]
"""Four nodes, too few for its work."""


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    start_java(cloudsim_jars())


# The same workloads, the same placements.


def test_the_workloads_are_of_many_kinds() -> None:
    assert len(WORKLOADS) >= 20
    assert {w.policy for w in WORKLOADS} >= {"srcp", "kube_default"}
    assert len({len(w.specs) for w in WORKLOADS}) >= 4
    assert len({one.workflow_class for w in WORKLOADS for one in w.workflows}) >= 5


@pytest.mark.parametrize("workload", [pytest.param(w, id=f"{w.name}, {len(w.specs)} nodes") for w in WORKLOADS])
def test_makespans_agree(workload: Workload) -> None:
    comparison = compare(workload)

    assert comparison.agrees, comparison.line()


def test_chance_of_another_seed_agrees_as_well() -> None:
    comparison = compare(replace(SMALL, seed=SMALL.seed + 1))

    assert comparison.agrees, comparison.line()
    assert comparison.whole.ours_s != compare(SMALL).whole.ours_s


# What a simulator that is wrong would look like.


def test_runs_that_are_one_percent_longer_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = policy.simulator.chances

    def longer(settings, key):
        transfer, run, fails = right(settings, key)
        return transfer, 1.01 * run, fails

    monkeypatch.setattr(policy.simulator, "chances", longer)

    assert not compare(SMALL).agrees


def test_transfers_that_take_no_time_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy.simulator.SimulatedCluster, "_remote_bytes", lambda *_: 0.0)

    assert not compare(SMALL).agrees


def test_one_task_on_another_node_is_found_out() -> None:
    plan, ours = play(SMALL)
    speed = {spec.node_id: spec.speed for spec in plan.specs}
    last = max(ours, key=lambda key: ours[key].finish_s)
    old = next(node_id for node_id, keys in plan.turns.items() if last in keys)
    new = next(spec.node_id for spec in reversed(plan.specs) if spec.speed != speed[old])

    turns = {node_id: tuple(k for k in keys if k != last) for node_id, keys in plan.turns.items()}
    moved = replace(plan, turns={**turns, new: (*turns[new], last)})

    assert not judge(SMALL, ours, replay(moved)).agrees


def test_one_node_that_is_slower_is_found_out() -> None:
    plan, ours = play(SMALL)

    slower = replace(plan, specs=(*plan.specs[:-1], replace(plan.specs[-1], speed=0.9 * plan.specs[-1].speed)))

    assert not judge(SMALL, ours, replay(slower)).agrees


def test_nodes_with_more_room_are_found_out() -> None:
    plan, ours = play(SMALL)

    larger = replace(plan, specs=tuple(replace(s, cpu=4 * s.cpu, memory_bytes=4 * s.memory_bytes) for s in plan.specs))

    assert not judge(SMALL, ours, replay(larger)).agrees


# What CloudSim makes of a plan, by hand.


def node(name: str, speed: float = 1.0) -> NodeSpec:
    return NodeSpec(name, 4.0, 8 * GIB, 2, 8 * GIB, speed, 1.0, 100e6)


def task(name: str, *parents: Edge, runtime_s: float = 10.0, cpu: float = 1.0, **request: int) -> Task:
    return Task(name, runtime_s=runtime_s, cpu=cpu, parents=parents, **request)


def plan_of(tasks: list[Task], turns: Mapping[str, str], *specs: NodeSpec, luck: Luck | None = None) -> Plan:
    """One workflow `w`; `turns` has the names of each node's tasks, a letter each."""
    workflow = WorkflowSubmitted(POOL, "w", 1000, "w", WorkflowClass.MIXED, Env.DEV, tuple(tasks))
    keys: dict[str, tuple[TaskKey, ...]] = {name: tuple(("w", letter) for letter in row) for name, row in turns.items()}
    return Plan(specs, (workflow,), keys, {("w", t.task_id): luck or Luck(1.0, 1.0) for t in tasks})


def times(plan: Plan) -> dict[str, tuple[float, float]]:
    return {key[1]: (round(ran.start_s, 3), round(ran.finish_s, 3)) for key, ran in replay(plan).items()}


def test_what_has_room_side_by_side_runs_at_full_speed() -> None:
    tasks = [task("a", cpu=2), task("b", cpu=1.5, runtime_s=5), task("c", cpu=0.5)]

    ran = times(plan_of(tasks, {"n": "abc"}, node("n", speed=2.0)))

    assert ran == {"a": (0, 5), "b": (0, 2.5), "c": (0, 5)}


@pytest.mark.parametrize(
    "request_",
    [{"cpu": 2.5}, {"memory_bytes": 5 * GIB}, {"gpu": 2}, {"gpu": 1, "gpu_memory_bytes": 9 * GIB}],
    ids=["cpu", "memory", "gpu", "gpu memory"],
)
def test_what_has_no_room_waits(request_: dict[str, int]) -> None:
    tasks = [task(name, **request_) for name in "ab"]

    ran = times(plan_of(tasks, {"n": "ab"}, node("n")))

    assert ran == {"a": (0, 10), "b": (10, 20)}


def test_a_node_takes_its_tasks_in_turn() -> None:
    tasks = [task("a", cpu=3), task("b", cpu=2), task("c", cpu=1)]

    ran = times(plan_of(tasks, {"n": "abc"}, node("n")))

    assert ran == {"a": (0, 10), "b": (10, 20), "c": (10, 20)}


def test_inputs_of_another_node_come_through_the_link_while_room_is_held() -> None:
    tasks = [task("a"), task("b", Edge("a", 10**9), cpu=4), task("c", cpu=4), task("d", Edge("a", 10**9))]

    ran = times(plan_of(tasks, {"m": "ad", "n": "bc"}, node("m"), node("n"), luck=Luck(transfer=2.0, run=0.5)))

    assert ran == {"a": (0, 5), "b": (25, 30), "c": (30, 35), "d": (5, 10)}


def test_turns_that_no_node_can_keep_are_refused() -> None:
    tasks = [task("a"), task("b", Edge("a", 0))]

    with pytest.raises(HeadraceError, match="0 of 2 tasks"):
        replay(plan_of(tasks, {"n": "ba"}, node("n")))


def test_a_task_without_cpu_is_refused() -> None:
    with pytest.raises(InvalidWorkflow, match=r"w/a: takes no cpu"):
        replay(plan_of([task("a", cpu=0.0)], {"n": "a"}, node("n")))


# The command.


@pytest.fixture
def two_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_opinion, "workloads", lambda seed: WORKLOADS[:2])


def test_the_command_shows_a_line_for_each_workload(two_workloads: None, command: CommandLine) -> None:
    ended = command("second-opinion")

    head, *lines, end = ended.output.splitlines()
    assert ended.code == 0
    assert head.split()[-1] == "relative"
    assert [line.split()[:4] for line in lines] == [
        [w.name, w.policy, str(len(w.specs)), str(sum(len(one.tasks) for one in w.workflows))] for w in WORKLOADS[:2]
    ]
    assert end.startswith("2 workloads, 0 beyond the tolerance; largest difference 0.000")


def test_beyond_the_tolerance_the_command_fails(
    two_workloads: None, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_opinion, "TOLERANCE", 0.0)
    monkeypatch.setattr(second_opinion, "TOLERANCE_S", 1e-9)

    ended = command("second-opinion")

    assert ended.code == EXIT_DIFFERENT
    assert "2 workloads, 2 beyond the tolerance" in ended.output
    assert ended.output.count("differs") == 2


def test_without_the_extra_the_command_names_it(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trainer.cloudsim")
    monkeypatch.setitem(sys.modules, "jpype", None)

    ended = command("second-opinion")

    assert ended.code == EXIT_REFUSED
    assert "install headrace[cloudsim]" in ended.errors


def test_without_network_the_first_run_says_what_is_missing(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    def fetch(*_: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(maven, "fetch", fetch)

    ended = command("second-opinion")

    assert ended.code == EXIT_REFUSED
    assert "cannot be fetched from Maven Central (OSError: network is unreachable)" in ended.errors
    assert "connect this machine to the network" in ended.errors
