"""The attempts that wait for a placement, as columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from policy.ledger import AttemptKey
from policy.resources import RESOURCES
from policy.workflows import TaskState
from schemas.records import Task

FIRST_ROOM = 64
MOST_KINDS = 1000
"""With more, they are counted anew when nothing waits."""

Kind = tuple[object, ...]


class ReadyQueue:
    """Attempts that are ready, one row each; rows move, keys do not.

    A row is blocked when no node had room for it at the last look; it is looked at again when room for it was made.
    """

    def __init__(self) -> None:
        self._tasks: list[TaskState] = []
        self._attempts: list[int] = []
        self._row: dict[AttemptKey, int] = {}
        self._request_pr = np.zeros((FIRST_ROOM, len(RESOURCES)), np.int64)
        self._key_pk = np.zeros((FIRST_ROOM, 5))
        self._is_blocked_p = np.zeros(FIRST_ROOM, bool)
        self._kind_p = np.zeros(FIRST_ROOM, np.int64)
        self._kinds: list[Task] = []
        self._kind_index: dict[Kind, int] = {}
        self.arrivals = 0
        """Attempts that ever arrived."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._row

    @property
    def waiting(self) -> int:
        """How many rows no node has room for."""
        return int(self._is_blocked_p[: len(self)].sum())

    def push(self, task: TaskState, attempt: int) -> None:
        """A new attempt waits. A repeat has no effect."""
        key = attempt_key(task, attempt)
        if key in self._row:
            return
        row = len(self._tasks)
        if row == len(self._is_blocked_p):
            self._request_pr = np.pad(self._request_pr, ((0, row), (0, 0)))
            self._key_pk = np.pad(self._key_pk, ((0, row), (0, 0)))
            self._is_blocked_p = np.pad(self._is_blocked_p, (0, row))
            self._kind_p = np.pad(self._kind_p, (0, row))
        self._kind_p[row] = self._kind_of(task.task)
        self._row[key] = row
        self._tasks.append(task)
        self._attempts.append(attempt)
        self._request_pr[row] = task.request
        self._key_pk[row] = (task.task.priority, task.task.critical, self.arrivals, task.rank_s, task.task.runtime_s)
        self._is_blocked_p[row] = False
        self.arrivals += 1

    def drop(self, key: AttemptKey) -> bool:
        """The attempt waits no more; returns whether it did."""
        row = self._row.pop(key, None)
        if row is None:
            return False
        last = len(self._tasks) - 1
        if row != last:
            self._tasks[row], self._attempts[row] = self._tasks[last], self._attempts[last]
            for column in (self._request_pr, self._key_pk, self._is_blocked_p, self._kind_p):
                column[row] = column[last]
            self._row[attempt_key(self._tasks[row], self._attempts[row])] = row
        self._tasks.pop()
        self._attempts.pop()
        return True

    def block(self, key: AttemptKey) -> bool:
        """No node has room for the attempt now; returns whether that is news."""
        row = self._row[key]
        is_news = not self._is_blocked_p[row]
        self._is_blocked_p[row] = True
        return bool(is_news)

    def unblock(self, free_rk: np.ndarray | None = None, allowed_sk: np.ndarray | None = None) -> None:
        """Look again at the attempts that some of these nodes may take; without nodes, at all.

        free_rk    [R, K]  int64, what is left on the nodes
        allowed_sk [S, K]  bool, whether the node takes tasks of each of `kinds`; None: it does
        """
        count = len(self)
        if free_rk is None:
            self._is_blocked_p[:count] = False
            return
        blocked = np.flatnonzero(self._is_blocked_p[:count])
        for column, free_r in enumerate(free_rk.T):
            if not len(blocked):
                return
            fits = (self._request_pr[blocked] <= free_r).all(axis=1)
            if allowed_sk is not None:
                fits &= allowed_sk[self._kind_p[blocked], column]
            self._is_blocked_p[blocked[fits]] = False
            blocked = blocked[~fits]

    @property
    def kinds(self) -> list[Task]:
        """A task of each kind that waits or has waited: alike in what they ask of a node's specification."""
        return self._kinds

    def _kind_of(self, task: Task) -> int:
        if not self._tasks and len(self._kinds) > MOST_KINDS:
            self._kinds, self._kind_index = [], {}
        kind = kind_of(task)
        at = self._kind_index.get(kind)
        if at is None:
            at = self._kind_index[kind] = len(self._kinds)
            self._kinds.append(task)
        return at

    def rows(self) -> Rows:
        """All of them, as they lie."""
        return Rows(self, np.arange(len(self)))

    def restore(self, rows: Iterable[tuple[TaskState, int]], arrival_p: np.ndarray, is_blocked_p: np.ndarray) -> None:
        """Take in rows as they lay in another queue: tasks with their attempts, [P] order of arrival, [P] bool."""
        for task, attempt in rows:
            self.push(task, attempt)
        self._key_pk[: len(self), 2] = arrival_p
        self._is_blocked_p[: len(self)] = is_blocked_p

    def candidates(self) -> Rows:
        """The attempts that are not blocked."""
        return Rows(self, np.flatnonzero(~self._is_blocked_p[: len(self)]))


class Rows:
    """Some rows of the queue, as the columns by which policies order them; all [P]."""

    def __init__(self, queue: ReadyQueue, rows_p: np.ndarray) -> None:
        self._queue = queue
        self._rows_p = rows_p

    def __len__(self) -> int:
        return len(self._rows_p)

    @property
    def tasks(self) -> list[TaskState]:
        """The tasks whose attempts wait."""
        return [self._queue._tasks[row] for row in self._rows_p.tolist()]

    @property
    def attempts(self) -> list[int]:
        """The numbers of the attempts."""
        return [self._queue._attempts[row] for row in self._rows_p.tolist()]

    @property
    def is_blocked_p(self) -> np.ndarray:
        """Whether no node had room at the last look."""
        return self._queue._is_blocked_p[self._rows_p]

    @property
    def rank_p(self) -> np.ndarray:
        """Upward rank, seconds."""
        return self._queue._key_pk[self._rows_p, 3]

    @property
    def runtime_p(self) -> np.ndarray:
        """Predicted run time at speed 1, seconds."""
        return self._queue._key_pk[self._rows_p, 4]

    @property
    def arrival_p(self) -> np.ndarray:
        """Order of arrival in the queue."""
        return self._queue._key_pk[self._rows_p, 2]

    @property
    def work_p(self) -> np.ndarray:
        """Run time left in the task's workflow, seconds."""
        tasks = self._queue._tasks
        return np.array([tasks[row].workflow.work_s for row in self._rows_p.tolist()])

    @property
    def path_p(self) -> np.ndarray:
        """Critical path left in the task's workflow, seconds."""
        tasks = self._queue._tasks
        return np.array([tasks[row].workflow.path_s for row in self._rows_p.tolist()])

    def first(self, count: int, urgency_p: np.ndarray) -> list[tuple[TaskState, int]]:
        """The first `count` of them: by priority, critical, urgency (largest first), arrival; with their attempts."""
        keys = self._queue._key_pk[self._rows_p]
        order = np.lexsort((keys[:, 2], -urgency_p, -keys[:, 1], -keys[:, 0]))[:count]
        return [(self._queue._tasks[row], self._queue._attempts[row]) for row in self._rows_p[order].tolist()]


def attempt_key(task: TaskState, attempt: int) -> AttemptKey:
    """The attempt's key in ledger and queue."""
    return (task.workflow.workflow_id, task.task.task_id, attempt)


def kind_of(task: Task) -> Kind:
    """What the task asks of a node's specification, besides amounts."""
    return (
        tuple(sorted(task.node_selector.items())),
        task.tolerations,
        (task.gpu_memory_bytes if task.gpu else None),
    )
