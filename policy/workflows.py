"""The live workflows of a pool: which tasks wait, are due, are placed, are done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum

from policy.resources import Request, request
from schemas.records import Env, Task, TaskReady, WorkflowClass, WorkflowSubmitted

NONE = -1


class Status(IntEnum):
    """Where a task stands. An attempt of a task that is RUNNING can be READY beside it: its migration."""

    WAITING = 0  # for parents
    DUE = 1  # its next attempt is to be announced in task-ready
    READY = 2  # announced: it waits for its placement
    PLACED = 3  # a node is chosen
    RUNNING = 4
    DONE = 5
    REFUSED = 6  # no node could ever take it, or it failed too often


class TaskState:
    """One task of a live workflow."""

    __slots__ = (
        "attempt",
        "children",
        "ended_attempt",
        "excluded_nodes",
        "expected_s",
        "kept_row",
        "missing_parents",
        "node",
        "pending_attempt",
        "placed_ms",
        "ran_on",
        "rank_s",
        "ready_attempt",
        "ready_ms",
        "request",
        "rollbacks",
        "started_ms",
        "status",
        "task",
        "workflow",
    )

    def __init__(self, workflow: Workflow, task: Task) -> None:
        self.workflow = workflow
        self.task = task
        self.request: Request = request(task)
        self.status = Status.WAITING
        self.children: list[int] = []
        self.missing_parents = len(task.parents)
        self.rank_s = task.runtime_s
        """Upward rank: the longest way to the workflow's end, run times only, on nodes of speed 1."""
        self.attempt = NONE
        """The newest attempt that was placed."""
        self.ready_attempt = NONE
        """The newest attempt that was announced."""
        self.pending_attempt = NONE
        """The newest attempt that was said to wait for room."""
        self.ended_attempt = NONE
        """The newest attempt that ended without finishing the task."""
        self.node = NONE
        """Where `attempt` was placed."""
        self.ran_on = NONE
        """Where the task finished."""
        self.ready_ms = 0
        """Event time at which the first attempt became ready."""
        self.placed_ms = 0
        """Event time at which `attempt` was placed."""
        self.started_ms: int | None = None
        """Event time at which `attempt` started."""
        self.expected_s: float | None = None
        """What `attempt` was expected to take on its node."""
        self.rollbacks = 0
        self.excluded_nodes: tuple[str, ...] = ()
        self.kept_row: bytes | None = None
        """Its row in a snapshot (`policy.state_columns`), once it is over: nothing in it changes any more."""

    @property
    def is_over(self) -> bool:
        return self.status >= Status.DONE


class Workflow:
    """One live workflow. `open`: its tasks come one by one, from an engine of the user's own."""

    __slots__ = (
        "encoded",
        "env",
        "index",
        "is_open",
        "over",
        "path_s",
        "record",
        "refused",
        "submitted_ms",
        "tasks",
        "work_s",
        "workflow_class",
        "workflow_id",
    )

    def __init__(
        self,
        workflow_id: str,
        workflow_class: WorkflowClass,
        env: Env,
        submitted_ms: int,
        record: WorkflowSubmitted | None,
    ) -> None:
        self.workflow_id = workflow_id
        self.workflow_class = workflow_class
        self.env = env
        self.submitted_ms = submitted_ms
        self.record = record
        self.is_open = record is None
        self.tasks: list[TaskState] = []
        self.index: dict[str, int] = {}
        self.over = 0
        """Tasks that are done or refused."""
        self.refused = 0
        self.work_s = 0.0
        """Run time left: the sum over the tasks that are not over."""
        self.path_s = 0.0
        """Remaining critical path: the largest upward rank of the tasks that are not over."""
        self.encoded: list[bytes] = []
        """The records that tell its tasks, encoded: `policy.state_columns` does it once, and keeps them here."""

    def get(self, task_id: str) -> TaskState | None:
        """The task of this id."""
        at = self.index.get(task_id)
        return None if at is None else self.tasks[at]

    @property
    def is_complete(self) -> bool:
        return self.over == len(self.tasks)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing of it can run any more, since tasks were refused."""
        return all(t.is_over or t.status == Status.WAITING for t in self.tasks)

    def add(self, task: Task) -> TaskState:
        """Take in one more task."""
        state = TaskState(self, task)
        self.index[task.task_id] = len(self.tasks)
        self.tasks.append(state)
        self.work_s += task.runtime_s
        self.path_s = max(self.path_s, state.rank_s)
        return state

    def end(self, task: TaskState, status: Status) -> Iterator[TaskState]:
        """The task is over; yields the children that thereby become due."""
        task.status = status
        self.over += 1
        self.work_s -= task.task.runtime_s
        if task.rank_s >= self.path_s:
            self.path_s = max((t.rank_s for t in self.tasks if not t.is_over), default=0.0)
        if status != Status.DONE:
            self.refused += 1
            return
        for child in task.children:
            state = self.tasks[child]
            state.missing_parents -= 1
            if state.missing_parents == 0 and state.status == Status.WAITING:
                yield state


def from_record(record: WorkflowSubmitted, submitted_ms: int) -> Workflow:
    """The live form of a workflow that has been checked (`schemas.dag.check_workflow`)."""
    workflow = Workflow(record.workflow_id, record.workflow_class, record.env, submitted_ms, record)
    for task in record.tasks:
        workflow.add(task)
    for at, state in enumerate(workflow.tasks):
        for edge in state.task.parents:
            workflow.tasks[workflow.index[edge.task_id]].children.append(at)
    rank_upwards(workflow.tasks)
    workflow.path_s = max((t.rank_s for t in workflow.tasks), default=0.0)
    return workflow


def from_ready(ready: TaskReady) -> Workflow:
    """An open workflow, known by a first task that its owner's engine announced."""
    return Workflow(ready.workflow_id, ready.workflow_class, ready.env, ready.event_time_ms, None)


def rank_upwards(tasks: list[TaskState]) -> None:
    """Set each task's upward rank: its run time + the largest rank of its children.

    Source: Topcuoglu, Hariri, Wu 2002, doi 10.1109/71.993206, without the communication term, which depends on nodes.
    """
    open_children = [len(t.children) for t in tasks]
    index = {t.task.task_id: i for i, t in enumerate(tasks)}
    leaves = [i for i, n in enumerate(open_children) if n == 0]
    while leaves:
        at = leaves.pop()
        state = tasks[at]
        state.rank_s = state.task.runtime_s + max((tasks[c].rank_s for c in state.children), default=0.0)
        for edge in state.task.parents:
            parent = index[edge.task_id]
            open_children[parent] -= 1
            if open_children[parent] == 0:
                leaves.append(parent)


def roots(workflow: Workflow) -> Iterable[TaskState]:
    """The tasks without parents."""
    return (t for t in workflow.tasks if t.missing_parents == 0)
