"""What becomes of a recorded state: the workflows that live in it, played to their end on a simulated cluster.

Two courses from one state differ only in what was placed first and in who decides after it: an attempt that both make
has the same luck in both, since chance is a hash of its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from policy import snapshot
from policy.decide import DecideSettings
from policy.episode import Episode, EpisodeSettings
from policy.observation import Policy
from policy.simulator import SimulatedCluster, SimulatorSettings
from policy.state import State, StateSettings
from policy.workflows import NONE, Status, TaskState, Workflow
from schemas.records import Env, EventKind, Outcome, Placement, Task, TaskEvent, WorkflowSubmitted

SHORTEST_S = 0.001


@dataclass(frozen=True, kw_only=True)
class ContinuationSettings:
    """How a recorded state is played on."""

    simulator: SimulatorSettings = field(default_factory=SimulatorSettings)
    """What goes unlike the plan; `headrace gap --write` fits it to the cluster."""
    state: StateSettings = field(default_factory=StateSettings)
    decide: DecideSettings = field(default_factory=DecideSettings)
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """How it went: of each workflow the time from the state to its end, seconds (inf: it never ended); the cost."""

    finish_s: Mapping[str, float]
    cost: float

    @property
    def makespan_s(self) -> float:
        """Mean over the workflows."""
        return float(np.mean(list(self.finish_s.values()) or [0.0]))


def course(
    saved: bytes,
    first: Sequence[Placement],
    policy: Policy,
    arrivals: Sequence[WorkflowSubmitted],
    settings: ContinuationSettings,
    seed: int,
) -> Course:
    """Play a state on.

    saved     a snapshot of the state (`policy.snapshot.dump`)
    first     what is placed at once; then `policy` decides
    arrivals  workflows that come later
    Raises StateLost.
    """
    state = snapshot.load(saved, settings.state)
    start_ms = state.now_ms
    specs = [spec for spec, is_up in zip(state.nodes.specs, state.nodes.is_present_n, strict=True) if is_up]
    cluster = SimulatedCluster(state.pool, specs, replace(settings.simulator, seed=seed), start_ms)
    live = list(state.workflows.values())
    for workflow in live:
        _teach(cluster, state, workflow, settings.simulator.runtime_noise)
    _drop_superseded(state)
    episode = Episode.resumed(
        state,
        cluster,
        [workflow for workflow in arrivals if workflow.workflow_id not in state.workflows],
        policy,
        EpisodeSettings(
            cluster=cluster.settings,
            state=settings.state,
            decide=settings.decide,
            rules=settings.rules,
            start_ms=start_ms,
        ),
    )
    episode.place(_running(state))
    for ready in state.due():
        state.apply(ready)
    episode.place(first)
    trace = episode.run()
    ids = [workflow.workflow_id for workflow in live] + [workflow.workflow_id for workflow in arrivals]
    is_over = {workflow_id: workflow_id not in state.workflows for workflow_id in ids}
    finish_ms = dict.fromkeys(ids, start_ms)
    for (workflow_id, _, _), event in trace.ended.items():
        finish_ms[workflow_id] = max(finish_ms.get(workflow_id, start_ms), event.event_time_ms)
    came_ms = {workflow.workflow_id: workflow.event_time_ms for workflow in arrivals}
    return Course(
        {
            workflow_id: (finish_ms[workflow_id] - came_ms.get(workflow_id, start_ms)) / 1000
            if is_over[workflow_id]
            else math.inf
            for workflow_id in ids
        },
        cluster.cost,
    )


def _teach(cluster: SimulatedCluster, state: State, workflow: Workflow, noise: float) -> None:
    """What the cluster must know of a live workflow: what its tasks have left to do, and where they are done."""
    tasks = tuple(_left(state, task, noise) for task in workflow.tasks)
    cluster.learn(
        WorkflowSubmitted(
            state.pool, workflow.workflow_id, state.now_ms, "", workflow.workflow_class, workflow.env, tasks
        )
    )
    for task in workflow.tasks:
        if task.ran_on != NONE:
            node_id = state.nodes.specs[task.ran_on].node_id
            cluster.finished_before(workflow.workflow_id, task.task.task_id, node_id)


def _left(state: State, task: TaskState, noise: float) -> Task:
    """The task, as far as its running attempt has left it."""
    if task.status != Status.RUNNING or task.started_ms is None or task.node == NONE:
        return task.task
    speed = state.nodes.specs[task.node].speed
    ran_s = max(0.0, (state.now_ms - task.started_ms) / 1000)
    left_s = expected_rest(task.task.runtime_s / speed, ran_s, noise)
    return replace(task.task, runtime_s=max(SHORTEST_S, left_s * speed), parents=())


def expected_rest(mean_s: float, ran_s: float, noise: float) -> float:
    """What a log-normal time of this mean has left on average, after so much of it, seconds.

    noise  standard deviation of its logarithm
    """
    if ran_s <= 0 or mean_s <= 0:
        return mean_s
    if noise <= 0:
        return max(0.0, mean_s - ran_s)
    z = (math.log(ran_s / mean_s) + noise**2 / 2) / noise
    survives = 0.5 * math.erfc(z / math.sqrt(2))
    if survives < 1e-12:  # far beyond: as long again as the tail is steep there
        return ran_s * noise / max(z, 1.0)
    return mean_s * 0.5 * math.erfc((z - noise) / math.sqrt(2)) / survives - ran_s


def _drop_superseded(state: State) -> None:
    """Of a task that is being migrated, the old attempt is as good as killed."""
    for key, task in list(state.running.items()):
        if key[2] != task.attempt and task.node != NONE:
            node_id = state.nodes.specs[task.node].node_id
            state.apply(TaskEvent(state.pool, *key, node_id, state.now_ms, EventKind.KILLED, Env.UNKNOWN))


def _running(state: State) -> Iterable[Placement]:
    """Placements that the cluster must have obeyed before."""
    held = sorted(key for key, task in state.running.items() if key[2] == task.attempt)
    for key in held:
        task = state.running[key]
        node_id = state.nodes.specs[task.node].node_id
        yield Placement(state.pool, *key, state.now_ms, Outcome.PLACED, node_id, expected_s=task.expected_s)
