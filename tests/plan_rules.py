"""What holds for every plan, checked without the code that makes plans; and random workflows to plan."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import strategies as st

from policy.marks import tolerates
from policy.plan import Plan
from schemas.records import Edge, Effect, NodeSpec, Task, WorkflowSubmitted
from tests.builders import GIB, a_node, a_workflow
from tests.strategies import ZONE, nodes, tasks

Case = tuple[WorkflowSubmitted, tuple[NodeSpec, ...]]

ROOMY = a_node("roomy", 16.0, 64 * GIB, gpu=2, gpu_memory_bytes=16 * GIB, labels={ZONE: "a"}, price_per_hour=3.0)
"""A node that may take any of the tasks."""


@st.composite
def cases(draw: st.DrawFn, most_tasks: int = 9, most_nodes: int = 4) -> Case:
    """A workflow, and nodes of many kinds that can run it."""
    made: list[Task] = []
    for number in range(draw(st.integers(1, most_tasks))):
        parents = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        amounts = st.sampled_from((0, 10**6, 3 * 10**9))
        edges = tuple(Edge(f"t{parent}", draw(amounts)) for parent in sorted(parents))
        made.append(draw(tasks(f"t{number}", edges)))
    others = draw(st.integers(0, most_nodes - 1))
    return a_workflow(*made), (ROOMY, *(draw(nodes(f"n{number}")) for number in range(others)))


def violations(workflow: WorkflowSubmitted, specs: Sequence[NodeSpec], plan: Plan) -> list[str]:
    """Every rule that the plan breaks, in words."""
    index = {task.task_id: at for at, task in enumerate(workflow.tasks)}
    found = []
    for at, task in enumerate(workflow.tasks):
        spec = specs[plan.node_t[at]]
        come_ms, start_ms, finish_ms = plan.come_ms_t[at], plan.start_ms_t[at], plan.finish_ms_t[at]
        remote = sum(edge.bytes for edge in task.parents if plan.node_t[index[edge.task_id]] != plan.node_t[at])
        if start_ms - come_ms != math.ceil(1000 * remote / spec.bandwidth_bytes_per_s):
            found.append(f"{task.task_id} waits {start_ms - come_ms} ms for {remote} bytes")
        if abs(finish_ms - start_ms - 1000 * task.runtime_s / spec.speed) > 1:
            found.append(f"{task.task_id} runs {finish_ms - start_ms} ms")
        if come_ms < max((plan.finish_ms_t[index[edge.task_id]] for edge in task.parents), default=0):
            found.append(f"{task.task_id} comes before a parent's end")
        if not _may_run(task, spec):
            found.append(f"{task.task_id} may not run on {spec.node_id}")
    return found + _crowded(workflow, specs, plan)


def _may_run(task: Task, spec: NodeSpec) -> bool:
    tolerated = all(
        taint.effect != Effect.NO_SCHEDULE or any(tolerates(toleration, taint) for toleration in task.tolerations)
        for taint in spec.taints
    )
    labelled = all(spec.labels.get(key) == value for key, value in task.node_selector.items())
    return tolerated and labelled and (task.gpu == 0 or spec.gpu_memory_bytes >= task.gpu_memory_bytes)


def _crowded(workflow: WorkflowSubmitted, specs: Sequence[NodeSpec], plan: Plan) -> list[str]:
    """Nodes whose tasks take more than there is, at the moments at which a task comes."""
    found = []
    for node, spec in enumerate(specs):
        held = [at for at, chosen in enumerate(plan.node_t) if chosen == node]
        for at_ms in {plan.come_ms_t[at] for at in held}:
            there = [workflow.tasks[at] for at in held if plan.come_ms_t[at] <= at_ms < plan.finish_ms_t[at]]
            if (
                sum(round(1000 * task.cpu) for task in there) > round(1000 * spec.cpu)
                or sum(task.memory_bytes for task in there) > spec.memory_bytes
                or sum(task.gpu for task in there) > spec.gpu
                or sum(task.gpu * task.gpu_memory_bytes for task in there) > spec.gpu * spec.gpu_memory_bytes
            ):
                found.append(f"{spec.node_id} is too full at {at_ms} ms")
    return found
