"""Plans as the records of a run in which all goes by the plan, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from policy.episode import POOL, Episode, EpisodeSettings
from policy.observation import Policy
from policy.plan import Plan, build
from policy.plan_problem import Problem
from policy.simulator import SimulatorSettings
from policy.trace import Trace
from schemas.errors import InvalidConfiguration
from schemas.records import EventKind, NodeSpec, Outcome, Placement, TaskEvent, TaskReady, WorkflowSubmitted

QUIET = SimulatorSettings(runtime_noise=0, transfer_noise=0)
"""All goes by the prediction."""


def trace_of(workflow: WorkflowSubmitted, specs: Sequence[NodeSpec], plan: Plan, name: str) -> Trace:
    """What a run by the plan leaves behind, in times from the submission; `name` is who made the plan."""
    trace = Trace()
    trace.apply(workflow)
    for record in _records(workflow, specs, plan, name):
        trace.apply(record)
    return trace


def _records(
    workflow: WorkflowSubmitted, specs: Sequence[NodeSpec], plan: Plan, name: str
) -> Iterator[TaskReady | Placement | TaskEvent]:
    index = {task.task_id: at for at, task in enumerate(workflow.tasks)}
    for at, task in enumerate(workflow.tasks):
        come_ms, start_ms, finish_ms = plan.come_ms_t[at], plan.start_ms_t[at], plan.finish_ms_t[at]
        ready_ms = max((plan.finish_ms_t[index[edge.task_id]] for edge in task.parents), default=0)
        key, node_id = (workflow.workflow_id, task.task_id, 0), specs[plan.node_t[at]].node_id
        yield TaskReady(workflow.pool, *key, ready_ms)
        yield Placement(workflow.pool, *key, come_ms, Outcome.PLACED, node_id, policy=name)
        transfer_s = (start_ms - come_ms) / 1000
        yield TaskEvent(workflow.pool, *key, node_id, start_ms, EventKind.STARTED, workflow.env, transfer_s=transfer_s)
        runtime_s = (finish_ms - start_ms) / 1000
        yield TaskEvent(workflow.pool, *key, node_id, finish_ms, EventKind.FINISHED, workflow.env, runtime_s)


def decided_plan(workflow: WorkflowSubmitted, specs: Sequence[NodeSpec], problem: Problem, policy: Policy) -> Plan:
    """What becomes of the workflow where the policy decides task by task, as it does live, and all goes as predicted.

    Raises InvalidConfiguration where the policy does not place every task.
    """
    settings = EpisodeSettings(cluster=QUIET)
    submitted = replace(workflow, pool=POOL, event_time_ms=settings.start_ms + 1)
    trace = Episode(specs, [submitted], policy, settings).run()
    if trace.open_tasks:
        raise InvalidConfiguration("policy", f"'{policy.name}' left {trace.open_tasks} tasks unplaced", "take another")
    column = {spec.node_id: at for at, spec in enumerate(specs)}
    index = {task.task_id: at for at, task in enumerate(workflow.tasks)}
    ended = sorted((a for a in trace.attempts() if a.end == "finished"), key=lambda a: (a.reserved_s, a.finish_s))
    node_t = {index[attempt.task_id]: column[attempt.node_id] for attempt in ended}
    return build(problem, list(node_t), [node_t[task] for task in range(problem.tasks)])
