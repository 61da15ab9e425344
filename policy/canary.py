"""Which workflows a canary's weights decide for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from policy.arbiter import draw
from policy.observation import Policy
from policy.workflows import Workflow
from schemas.records import Task, WorkflowClass

CLASSES = tuple(WorkflowClass)


@dataclass(frozen=True)
class Canary:
    """A policy that decides for a share of the eligible workflows, beside the stable one."""

    policy: Policy
    share: float
    """0 to 1."""
    classes: frozenset[WorkflowClass]

    def takes(self, workflow: Workflow) -> bool:
        """Whether this policy decides for the workflow's tasks."""
        is_covered = is_within(workflow.workflow_id, self.share)
        return is_covered and is_eligible(workflow.workflow_class, (task.task for task in workflow.tasks), self.classes)


def is_within(workflow_id: str, share: float) -> bool:
    """Whether a share covers the workflow: a larger share covers all that a smaller one does."""
    return draw(workflow_id, "", 0) < share


def is_eligible(workflow_class: WorkflowClass, tasks: Iterable[Task], classes: frozenset[WorkflowClass]) -> bool:
    """Whether a canary may decide for a workflow of these tasks: of a class of these, and nothing in it critical."""
    return workflow_class in classes and not any(task.critical for task in tasks)
