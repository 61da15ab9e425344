"""Whether CloudSim Plus comes to the same makespans as headrace's simulator.

headrace plays a workload by a policy. Its nodes, workflows, placements, and the factors that chance had for each
attempt are handed to CloudSim Plus (`trainer.cloudsim`), which works out anew when everything runs. Compared are the
makespan of the whole workload and of each of its workflows: last finish minus first start.

Taken over from headrace, and so not tested by this: which node a task goes to, in which order a node takes its tasks,
and those factors. Left out, so that each task runs once: failures, lost nodes, slow spells, crowding, migrations.

Two makespans agree that differ by 0.01 % at most, or by 20 ms. headrace rounds each transfer up to a millisecond, and
each run to the nearest; CloudSim Plus rounds neither, and sees the end of a run up to 0.011 ms late. So each attempt
moves the times of all that wait for it by up to 1.5 ms, one way or the other: 10 ms is the most that 130 workloads came
to, of up to a hundred tasks in a row, and counts only in workflows of seconds. A wrong speed, transfer, order or
capacity moves makespans by per cents.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from policy.episode import POOL, Episode, EpisodeSettings
from policy.heuristics import heuristic
from policy.simulator import SimulatorSettings, chances
from policy.state import StateSettings
from policy.trace import Trace
from schemas.errors import HeadraceError
from schemas.node_file import read_nodes
from schemas.records import NodeSpec, WorkflowClass, WorkflowSubmitted
from schemas.workflow_file import read_workflows
from trainer.cloudsim import Luck, Plan, Ran, TaskKey, replay
from trainer.workloads import SHAPES, WorkloadSettings, example_nodes, random_workflow, random_workload

TOLERANCE = 1e-4
"""Relative difference of two makespans that agree."""
TOLERANCE_S = 0.02
"""Or this, where it is more."""

STATE = StateSettings(max_rollbacks=0, start_within_s=1e8)
"""Every task runs in its first attempt: CloudSim Plus has no second one."""
START_MS = EpisodeSettings().start_ms
GAP_MS = 20_000
"""Mean time between two arrivals of a workload of one class."""
POLICIES = ("srcp", "kube_default", "heft", "random")


@dataclass(frozen=True)
class Workload:
    """Work to compare on, and who places it."""

    name: str
    policy: str
    specs: tuple[NodeSpec, ...]
    workflows: tuple[WorkflowSubmitted, ...]
    seed: int
    """Of what attempts meet."""


@dataclass(frozen=True)
class Makespans:
    """Last finish minus first start of the same tasks in both simulators, seconds."""

    ours_s: float
    cloudsim_s: float

    @property
    def difference_s(self) -> float:
        return abs(self.cloudsim_s - self.ours_s)

    @property
    def difference(self) -> float:
        """Relative to ours."""
        return self.difference_s / self.ours_s

    @property
    def allowed_s(self) -> float:
        return max(TOLERANCE * self.ours_s, TOLERANCE_S)

    @property
    def agree(self) -> bool:
        return self.difference_s <= self.allowed_s


@dataclass(frozen=True)
class Comparison:
    """A workload in both simulators."""

    workload: Workload
    whole: Makespans
    of_workflows: tuple[Makespans, ...]

    @property
    def worst(self) -> Makespans:
        """The workflow that is nearest to the tolerance, or beyond it."""
        return max(self.of_workflows, key=lambda both: both.difference_s / both.allowed_s)

    @property
    def agrees(self) -> bool:
        return self.whole.agree and self.worst.agree

    def line(self) -> str:
        """A row under `HEADER`."""
        work, whole, worst = self.workload, self.whole, self.worst
        tasks = sum(len(workflow.tasks) for workflow in work.workflows)
        return (
            f"{work.name:26}{work.policy:14}{len(work.specs):5}{tasks:7}{whole.ours_s:12.3f}{whole.cloudsim_s:12.3f}"
            f"{whole.difference:13.6%}{1000 * worst.difference_s:13.2f}{worst.difference:12.5%}"
            f"{'' if self.agrees else '  differs'}"
        )


HEADER = (
    f"{'workload':26}{'placed by':14}{'nodes':>5}{'tasks':>7}{'headrace s':>12}{'CloudSim s':>12}{'difference':>13}"
    f"{'workflow ms':>13}{'relative':>12}"
)
"""Makespans of the workload, and the largest difference of a workflow's."""


def workloads(seed: int) -> Iterator[Workload]:
    """Work of each class and of all of them, in short supply and in plenty; then the examples."""
    rng = np.random.default_rng(seed)
    turns = itertools.cycle(POLICIES)

    def made(name: str, specs: tuple[NodeSpec, ...], workflows: Iterable[WorkflowSubmitted]) -> Workload:
        return Workload(name, next(turns), specs, tuple(workflows), int(rng.integers(2**31)))

    for nodes in (4, 12):
        for kind in SHAPES:
            yield made(str(kind), example_nodes(nodes), _of_one_class(rng, kind))
    for nodes in (6, 16, 32):
        for load in (0.5, 0.8, 1.5, 3.0):
            specs = example_nodes(nodes)
            workload = WorkloadSettings(workflows=nodes, tasks=(5, 25), load=load)
            yield made(f"all classes, load {load:g}", specs, random_workload(rng, specs, workload, POOL, START_MS))
    for _ in POLICIES:
        yield made("examples", *_examples())


def _of_one_class(rng: np.random.Generator, kind: WorkflowClass) -> Iterator[WorkflowSubmitted]:
    arrivals_ms = START_MS + 1 + np.cumsum(rng.exponential(GAP_MS, 8)).astype(np.int64)
    for at, arrival_ms in enumerate(arrivals_ms.tolist()):
        yield random_workflow(rng, kind, int(rng.integers(5, 20)), f"w{at}", POOL, arrival_ms)


def _examples() -> tuple[tuple[NodeSpec, ...], list[WorkflowSubmitted]]:
    folder = Path(str(files("headrace_examples")))
    specs = read_nodes(folder / "nodes.yaml")
    paths = sorted(path for path in folder.glob("*.yaml") if path.name != "nodes.yaml")
    return specs, [w for path in paths for w in read_workflows(path, pool=POOL, event_time_ms=START_MS + 1)]


def play(workload: Workload) -> tuple[Plan, dict[TaskKey, Ran]]:
    """headrace's simulator places and runs the workload: what was decided, and when each task ran."""
    settings = EpisodeSettings(cluster=SimulatorSettings(seed=workload.seed), state=STATE)
    trace = Episode(workload.specs, workload.workflows, heuristic(workload.policy), settings).run()
    first_s = min(w.event_time_ms for w in workload.workflows) / 1000
    ran = {
        (a.workflow_id, a.task_id): Ran(a.start_s - first_s, a.finish_s - first_s)
        for a in trace.attempts()
        if a.finish_s is not None
    }
    if trace.open_tasks or trace.refused or any(attempt > 0 for _, _, attempt in trace.started):
        raise HeadraceError(f"{workload.name}: not every task ran, and once; the workload does not fit its nodes")
    return _plan(workload, trace, settings.cluster), ran


def _plan(workload: Workload, trace: Trace, cluster: SimulatorSettings) -> Plan:
    turns: dict[str, list[TaskKey]] = {spec.node_id: [] for spec in workload.specs}
    luck = {}
    for key, placement in trace.placements.items():  # as they were decided
        turns[placement.node_id or ""].append(key[:2])
        transfer, run, _ = chances(cluster, key)
        luck[key[:2]] = Luck(transfer, run)
    return Plan(workload.specs, workload.workflows, {node: tuple(keys) for node, keys in turns.items()}, luck)


def compare(workload: Workload) -> Comparison:
    """The workload in both simulators; `trainer.cloudsim.start_java` comes first."""
    plan, ours = play(workload)
    return judge(workload, ours, replay(plan))


def judge(workload: Workload, ours: Mapping[TaskKey, Ran], theirs: Mapping[TaskKey, Ran]) -> Comparison:
    """Both schedules of the workload side by side."""

    def makespans(keys: Collection[TaskKey]) -> Makespans:
        return Makespans(makespan_s([ours[key] for key in keys]), makespan_s([theirs[key] for key in keys]))

    of_workflows = (makespans([(w.workflow_id, task.task_id) for task in w.tasks]) for w in workload.workflows)
    return Comparison(workload, makespans(ours.keys()), tuple(of_workflows))


def makespan_s(ran: Sequence[Ran]) -> float:
    """Last finish minus first start."""
    return max(r.finish_s for r in ran) - min(r.start_s for r in ran)
