"""Logged workflows played again in the simulator: whether waits and turnaround come out as they did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policy.episode import POOL, Episode, EpisodeSettings
from policy.observation import Policy
from policy.trace import Trace
from policy.windows import STEP_MS
from schemas.dag import check_workflow
from schemas.errors import InvalidInput
from schemas.records import EventKind, WorkflowSubmitted
from trainer.run_log import RunLog

MOST_TASKS = 1000
"""The first workflows with so many tasks together are played again."""


def to_play(log: RunLog) -> list[WorkflowSubmitted]:
    """The log's first workflows of which every task is known, at the time when they came.

    One that began before the log, so that it lacks the start of a first task, is left out.
    """
    started = {key[:2] for key in log.trace.started}
    known = sorted(log.workflows.values(), key=lambda w: log.trace.submitted_s.get(w.workflow_id, np.inf))
    chosen: list[WorkflowSubmitted] = []
    tasks = 0
    for workflow in known:
        at_s = log.trace.submitted_s.get(workflow.workflow_id)
        if at_s is None or tasks + len(workflow.tasks) > MOST_TASKS:
            break
        if any((workflow.workflow_id, task.task_id) not in started for task in workflow.tasks if not task.parents):
            log.remarks["workflows that began before the log, not played again"] += 1
            continue
        moved = replace(workflow, pool=POOL, event_time_ms=round(1000 * at_s))
        try:
            check_workflow(moved, f"workflow {workflow.workflow_id}")
        except InvalidInput:
            log.remarks["workflows with unknown tasks, not played again"] += 1
            continue
        chosen.append(moved)
        tasks += len(workflow.tasks)
    return chosen


def play_again(log: RunLog, workflows: list[WorkflowSubmitted], policy: Policy, settings: EpisodeSettings) -> Trace:
    """These workflows, under this policy, on the log's nodes."""
    start_ms = workflows[0].event_time_ms // STEP_MS * STEP_MS - STEP_MS
    return Episode(tuple(log.specs.values()), workflows, policy, replace(settings, start_ms=start_ms)).run()


def waits_s(trace: Trace, workflows: list[WorkflowSubmitted]) -> np.ndarray:
    """From ready to reserved of these workflows' first attempts."""
    ids = {workflow.workflow_id for workflow in workflows}
    found = [a for a in trace.attempts() if a.attempt == 0 and a.workflow_id in ids]
    return np.array([max(0.0, a.reserved_s - a.ready_s) for a in found])


def turnarounds_s(trace: Trace, workflows: list[WorkflowSubmitted]) -> np.ndarray:
    """From submission to the last finish of those of these workflows that are over."""
    finish_ms = {key[:2]: e.event_time_ms for key, e in trace.ended.items() if e.kind == EventKind.FINISHED}
    found = []
    for workflow in workflows:
        ends = [finish_ms.get((workflow.workflow_id, task.task_id)) for task in workflow.tasks]
        if None not in ends and workflow.workflow_id in trace.submitted_s:
            found.append(max(e for e in ends if e is not None) / 1000 - trace.submitted_s[workflow.workflow_id])
    return np.array(found)
