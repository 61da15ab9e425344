"""What must hold for a submitted workflow, whether it comes from a file or from a topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from schemas.errors import InvalidWorkflow
from schemas.quantities import GIB, MOST_BYTES, shown
from schemas.records import NodeSpec, Task, WorkflowSubmitted

MOST_SECONDS = 3.2e9
"""A hundred years: what is longer is a mistake, and would not fit an event time."""
MOST_UNITS = 1_000_000
"""Of cores or devices; what is more is a mistake, and would not fit the ledger's integers."""
MOST_ID_CHARS = 253
HIGHEST_PRIORITY = 10

Amounts = tuple[int, int, int, int]
"""Thousandths of a core, bytes of memory, gpus, bytes of memory of each gpu."""


def check_workflow(workflow: WorkflowSubmitted, where: str) -> None:
    """Raises InvalidWorkflow, which names `where` (a file or an event) and the task, unless the workflow can be run."""
    for name, text in (("pool", workflow.pool), ("workflow_id", workflow.workflow_id)):
        _check_id(text, name, where)
    if workflow.deadline_s is not None:
        _check_seconds(workflow.deadline_s, "deadline", where)
    if not workflow.tasks:
        raise InvalidWorkflow(where, "the workflow has no tasks", "give it at least one")
    index_of = _index(workflow.tasks, where)
    for task in workflow.tasks:
        place = _place(where, task)
        _check_requests(task, place)
        _check_wishes(task, place)
        _check_edges(task, index_of, place)
    topological_order(workflow.tasks, where)


def check_task(task: Task, where: str) -> None:
    """Raises InvalidWorkflow unless this task, whose parents need not be known, can be run."""
    _check_id(task.task_id, "task_id", where)
    place = _place(where, task)
    _check_requests(task, place)
    _check_wishes(task, place)


def topological_order(tasks: Sequence[Task], where: str = "workflow") -> list[int]:
    """Indices of the tasks, parents before children, else in the order given.

    Ids must be unique and parents known. Raises InvalidWorkflow, which names the tasks of a cycle, where there is one.
    """
    index_of = {task.task_id: i for i, task in enumerate(tasks)}
    parents = [[index_of[edge.task_id] for edge in task.parents] for task in tasks]
    children: list[list[int]] = [[] for _ in tasks]
    for child, its_parents in enumerate(parents):
        for parent in its_parents:
            children[parent].append(child)
    unordered_parents = [len(its_parents) for its_parents in parents]
    ready = deque(i for i, count in enumerate(unordered_parents) if count == 0)
    order = []
    while ready:
        order.append(parent := ready.popleft())
        for child in children[parent]:
            unordered_parents[child] -= 1
            if unordered_parents[child] == 0:
                ready.append(child)
    if len(order) < len(tasks):
        cycle = [tasks[i].task_id for i in _cycle(parents, set(range(len(tasks))).difference(order))]
        raise InvalidWorkflow(where, f"tasks wait for each other: {_chain(cycle)}", "remove one of these dependencies")
    return order


def check_fits(workflow: WorkflowSubmitted, nodes: Sequence[NodeSpec], where: str) -> None:
    """Raises InvalidWorkflow where some task asks for more than any node has when it is empty."""
    capacities = {_capacity(node) for node in nodes}
    fitting: set[Amounts] = set()
    for task in workflow.tasks:
        asked = _request(task)
        if asked not in fitting and not any(_fits(asked, capacity) for capacity in capacities):
            raise InvalidWorkflow(
                _place(where, task),
                f"asks for {_written(asked)}, which none of {len(nodes)} nodes has{_nearest(asked, nodes)}",
                "ask for less, or add a larger node",
            )
        fitting.add(asked)


def _place(where: str, task: Task) -> str:
    return f"{where}: task {shown(task.task_id)}"


def _check_id(text: str, name: str, where: str) -> None:
    if not text:
        raise InvalidWorkflow(where, f"the {name} is empty", f"give it a {name}")
    if len(text) > MOST_ID_CHARS or not text.isprintable():
        problem = f"the {name} {shown(text)} has more than {MOST_ID_CHARS} or unprintable characters"
        raise InvalidWorkflow(where, problem, "use a short, plain name")


def _check_seconds(value_s: float, name: str, where: str) -> None:
    if not 0 < value_s <= MOST_SECONDS:
        problem = f"the {name} of {value_s:g} s is not above 0 and at most {MOST_SECONDS:g} s"
        raise InvalidWorkflow(where, problem, "correct it")


def _index(tasks: Sequence[Task], where: str) -> dict[str, int]:
    index_of: dict[str, int] = {}
    for i, task in enumerate(tasks):
        _check_id(task.task_id, "task_id", f"{where}: task number {i + 1}")
        if task.task_id in index_of:
            problem = f"is both number {index_of[task.task_id] + 1} and number {i + 1}"
            raise InvalidWorkflow(_place(where, task), problem, "give each task an id of its own")
        index_of[task.task_id] = i
    return index_of


def _check_requests(task: Task, place: str) -> None:
    _check_seconds(task.runtime_s, "runtime", place)
    for name, value, most in (
        ("cpu", task.cpu, MOST_UNITS),
        ("memory", task.memory_bytes, MOST_BYTES),
        ("gpu", task.gpu, MOST_UNITS),
        ("gpu_memory", task.gpu_memory_bytes, MOST_BYTES),
        ("priority", task.priority, HIGHEST_PRIORITY),
    ):
        if not 0 <= value <= most:
            raise InvalidWorkflow(place, f"{name} is {value:g}", f"it must be from 0 to {most:g}")


def _check_wishes(task: Task, place: str) -> None:
    for preference in task.preferences:
        if not 1 <= preference.weight <= 100:
            raise InvalidWorkflow(place, f"a preference has the weight {preference.weight}", "weights go from 1 to 100")
    for spread in task.spread:
        if spread.max_skew < 1:
            raise InvalidWorkflow(place, f"a spread has max_skew {spread.max_skew}", "it must be 1 or more")


def _check_edges(task: Task, index_of: dict[str, int], place: str) -> None:
    seen: set[str] = set()
    for edge in task.parents:
        parent = shown(edge.task_id)
        if edge.task_id == task.task_id:
            raise InvalidWorkflow(place, "is its own parent", "remove that dependency")
        if edge.task_id not in index_of:
            raise InvalidWorkflow(place, f"its parent {parent} is no task of this workflow", "correct the parent's id")
        if edge.task_id in seen:
            raise InvalidWorkflow(place, f"names its parent {parent} twice", "name it once, with all its bytes")
        if not 0 <= edge.bytes <= MOST_BYTES:
            raise InvalidWorkflow(place, f"its parent {parent} hands on {edge.bytes} bytes", "give 0 to 1 EiB")
        seen.add(edge.task_id)


def _cycle(parents: Sequence[Sequence[int]], unordered: set[int]) -> list[int]:
    """The tasks of one cycle, parents first. Every unordered task has an unordered parent: going up must repeat."""
    path: list[int] = []
    position: dict[int, int] = {}
    at = min(unordered)
    while at not in position:
        position[at] = len(path)
        path.append(at)
        at = next(parent for parent in parents[at] if parent in unordered)
    return path[position[at] :][::-1]


def _chain(cycle: Sequence[str]) -> str:
    """`'a' -> 'b' -> 'a'`, without the middle of a long cycle."""
    names = [shown(task_id) for task_id in (*cycle, cycle[0])]
    if len(names) > 8:
        names = [*names[:4], f"({len(cycle) - 6} more)", *names[-3:]]
    return " -> ".join(names)


def _request(task: Task) -> Amounts:
    return round(task.cpu * 1000), task.memory_bytes, task.gpu, task.gpu_memory_bytes


def _capacity(node: NodeSpec) -> Amounts:
    return round(node.cpu * 1000), node.memory_bytes, node.gpu, node.gpu_memory_bytes


def _fits(asked: Amounts, capacity: Amounts) -> bool:
    return all(amount <= has for amount, has in zip(asked, capacity, strict=True))


def _nearest(asked: Amounts, nodes: Sequence[NodeSpec]) -> str:
    """The node that has the most of what is asked, for a message."""
    if not nodes:
        return ""
    best = max(nodes, key=lambda node: _shares(asked, _capacity(node)))
    return f"; the largest for it, {shown(best.node_id)}, has {_written(_capacity(best))}"


def _shares(asked: Amounts, capacity: Amounts) -> tuple[int, float]:
    """How many of the requests the capacity covers, then how much of all of them."""
    shares = [min(1.0, has / amount) if amount else 1.0 for amount, has in zip(asked, capacity, strict=True)]
    return sum(share == 1.0 for share in shares), sum(shares)


def _written(amounts: Iterable[int]) -> str:
    millicores, memory_bytes, gpu, gpu_memory_bytes = amounts
    text = f"{millicores / 1000:g} cpu, {memory_bytes / GIB:.6g} GiB memory"
    return text + (f", {gpu} gpu of {gpu_memory_bytes / GIB:.6g} GiB" if gpu or gpu_memory_bytes else "")
