"""Workflow files: our own YAML or JSON format, or a recorded execution in WfFormat; `.gz` of either.

    name: etl_pipeline          # required
    class: etl_batch            # or ai_training, microservice, stream_processing, mixed (the default)
    env: prod                   # or test, dev (the default): only what is marked prod is ever learnt from
    deadline: 2h                # from the submission; default: none
    tasks:
      - id: raw_ingest          # required, as is the runtime
        runtime: 120s           # predicted, on a node of speed 1; a bare number means seconds
        cpu: 2                  # cores, or 500m; default 1
        mem: 4                  # or memory: 4Gi, 512Mi, 8GB; a bare number means GiB; default 0. Or memory_bytes: 512
        priority: 10            # 0 (the default) to 10, 10 first
        output: 2Gi             # handed to each child whose `needs` says nothing else; default 0
      - id: training
        runtime: 1h30m
        needs: [raw_ingest]     # or {raw_ingest: 500Mi}
        gpu: 2                  # whole devices
        gpu_memory: 16          # of each, like mem. Or gpu_memory_bytes
        critical: true
        image: registry/train:3
        node_selector: {zone: a}
        tolerations: [{key: gpu, value: "yes", effect: no_schedule}]    # no key: every key; no effect: every effect
        preferences: [{weight: 50, key: zone, values: [a, b]}]
        spread: [{topology_key: zone, max_skew: 1}]

A YAML file may hold several workflows, separated by `---`, with names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from schemas.dag import check_workflow
from schemas.documents import parse, raising, read_text
from schemas.errors import InvalidInput, InvalidWorkflow
from schemas.fields import Fields, fields_of
from schemas.quantities import parse_count, parse_cpu, parse_duration_s, parse_size, shown
from schemas.records import (
    Edge,
    Effect,
    Env,
    Preference,
    Spread,
    Task,
    Toleration,
    WorkflowClass,
    WorkflowSubmitted,
)
from schemas.wfformat import is_wfformat, read_name, read_tasks

CLASSES = tuple(choice for choice in WorkflowClass if choice is not WorkflowClass.UNKNOWN)
ENVS = tuple(choice for choice in Env if choice is not Env.UNKNOWN)
EFFECTS = tuple(choice for choice in Effect if choice is not Effect.UNKNOWN)

WORKFLOW_KEYS = ("name", "class", "env", "deadline", "tasks")
TASK_KEYS = (
    "id",
    "runtime",
    "needs",
    "cpu",
    "mem",
    "memory",
    "memory_bytes",
    "gpu",
    "gpu_memory",
    "gpu_memory_bytes",
    "priority",
    "critical",
    "output",
    "image",
    "node_selector",
    "tolerations",
    "preferences",
    "spread",
)


def read_workflows(
    path: Path, *, pool: str, event_time_ms: int, env: Env | None = None, workflow_id: str | None = None
) -> list[WorkflowSubmitted]:
    """The workflows in a file, checked; the rest is as in `parse_workflows`."""
    with raising(InvalidWorkflow):
        text = read_text(path)
    return parse_workflows(text, str(path), pool=pool, event_time_ms=event_time_ms, env=env, workflow_id=workflow_id)


def parse_workflows(
    text: str, where: str, *, pool: str, event_time_ms: int, env: Env | None = None, workflow_id: str | None = None
) -> list[WorkflowSubmitted]:
    """The workflows in the text of a file, checked. `where` is the file's name, for messages.

    `env` overrides what the file says. A workflow's id is `workflow_id`, followed by `-` and the workflow's name where
    the file has several; without `workflow_id` it is the name. Raises InvalidWorkflow, and nothing else.
    """
    with raising(InvalidWorkflow):
        documents = parse(text, where)
        several = len(documents) > 1
        workflows: dict[str, WorkflowSubmitted] = {}
        for number, document in enumerate(documents, 1):
            place = f"{where}: document {number}" if several else where
            workflow = _workflow(document, place, pool, event_time_ms)
            if workflow.name in workflows:
                raise InvalidInput(place, f"is the second workflow {shown(workflow.name)}", "give each its own name")
            if workflow_id is not None:
                own_id = f"{workflow_id}-{workflow.name}" if several else workflow_id
                workflow = replace(workflow, workflow_id=own_id)
            workflow = replace(workflow, env=env or workflow.env)
            check_workflow(workflow, place)
            workflows[workflow.name] = workflow
        if not workflows:
            raise InvalidInput(where, "holds no workflow", "give it a name and tasks")
        return list(workflows.values())


def _workflow(document: object, where: str, pool: str, event_time_ms: int) -> WorkflowSubmitted:
    """The workflow, its id still being its name."""
    if is_wfformat(document):
        # No recording says what kind of work it was, or that its numbers are of production.
        name, tasks = read_name(document, where), read_tasks(document, where)
        return WorkflowSubmitted(pool, name, event_time_ms, name, WorkflowClass.MIXED, Env.DEV, tasks)
    workflow = fields_of(document, where, WORKFLOW_KEYS)
    name = workflow.text("name")
    return WorkflowSubmitted(
        pool=pool,
        workflow_id=name,
        event_time_ms=event_time_ms,
        name=name,
        workflow_class=workflow.choice("class", CLASSES, WorkflowClass.MIXED),
        env=workflow.choice("env", ENVS, Env.DEV),
        tasks=_tasks(workflow),
        deadline_s=workflow.amount("deadline", parse_duration_s) if "deadline" in workflow else None,
    )


def _tasks(workflow: Fields) -> tuple[Task, ...]:
    tasks = [_named(task) for task in workflow.sections("tasks", TASK_KEYS)]
    output_bytes = {task.text("id"): task.amount("output", parse_size, 0) for task in tasks}
    return tuple(_task(task, output_bytes) for task in tasks)


def _named(task: Fields) -> Fields:
    """The same fields, in a place that has the task's id instead of its number."""
    place, _, _ = task.where.rpartition(": ")
    return Fields(f"{place}: task {shown(task.text('id'))}", task.values)


def _task(task: Fields, output_bytes: Mapping[str, int]) -> Task:
    gpu = task.amount("gpu", parse_count, 0)
    gpu_memory_bytes = task.memory_bytes("gpu_memory", "gpu_memory_bytes")
    if gpu_memory_bytes and not gpu:
        raise InvalidInput(task.where, "asks for gpu memory, but for no gpu", "add 'gpu: 1'")
    return Task(
        task_id=task.text("id"),
        runtime_s=task.amount("runtime", parse_duration_s),
        cpu=task.amount("cpu", parse_cpu, 1.0),
        memory_bytes=task.memory_bytes("mem", "memory", "memory_bytes"),
        gpu=gpu,
        gpu_memory_bytes=gpu_memory_bytes,
        priority=task.amount("priority", parse_count, 0),
        critical=task.flag("critical", False),
        parents=_parents(task, output_bytes),
        node_selector=task.labels("node_selector"),
        tolerations=tuple(_toleration(item) for item in task.sections("tolerations", ("key", "value", "effect"))),
        preferences=tuple(_preference(item) for item in task.sections("preferences", ("weight", "key", "values"))),
        spread=tuple(_spread(item) for item in task.sections("spread", ("topology_key", "max_skew"))),
        image=task.text("image", ""),
    )


def _parents(task: Fields, output_bytes: Mapping[str, int]) -> tuple[Edge, ...]:
    """Parents with the bytes they hand on; what is wrong with them is left to `check_workflow`."""
    needs = task.values.get("needs")
    if isinstance(needs, Mapping):
        sized = task.section("needs")
        return tuple(Edge(parent, sized.amount(parent, parse_size)) for parent in sized.values)
    return tuple(Edge(parent, output_bytes.get(parent, 0)) for parent in task.texts("needs"))


def _toleration(item: Fields) -> Toleration:
    return Toleration(
        key=item.text("key", ""),
        value=item.text("value") if "value" in item else None,
        effect=item.choice("effect", EFFECTS, Effect.UNKNOWN) if "effect" in item else Effect.UNKNOWN,
    )


def _preference(item: Fields) -> Preference:
    return Preference(item.amount("weight", parse_count), item.text("key"), item.texts("values"))


def _spread(item: Fields) -> Spread:
    return Spread(item.text("topology_key"), item.amount("max_skew", parse_count, 1))
