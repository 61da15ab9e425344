from __future__ import annotations

import gzip
import json
import math
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import workflow_file
from schemas.dag import check_fits, check_workflow, topological_order
from schemas.errors import InvalidWorkflow
from schemas.node_file import read_nodes
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
from schemas.workflow_file import parse_workflows, read_workflows
from tests.unit.schemas.mutations import damaged, damaged_text, outcome

GIB = 2**30
EXAMPLES = Path(__file__).parents[3] / "examples"
WORKFLOW_EXAMPLES = ("etl_pipeline", "ai_training", "microservice", "stream_processing", "mixed")

FULL = {
    "name": "full",
    "class": "ai_training",
    "env": "prod",
    "deadline": "1h30m",
    "tasks": [
        {"id": "a", "runtime": "2m", "cpu": "500m", "mem": 4, "priority": 10, "output": "2Gi"},
        {"id": "b", "runtime": 30, "needs": ["a"], "memory_bytes": 1024, "output": "1Mi"},
        {
            "id": "c",
            "runtime": 1.5,
            "needs": {"a": "500Mi", "b": 0},
            "gpu": 2,
            "gpu_memory": "16Gi",
            "critical": True,
            "image": "registry/train:3",
            "node_selector": {"zone": "a"},
            "tolerations": [{"key": "gpu", "value": "yes", "effect": "no_schedule"}, {}],
            "preferences": [{"weight": 50, "key": "zone", "values": ["a", "b"]}],
            "spread": [{"topology_key": "zone"}],
        },
    ],
}


def parsed(document, **keywords):
    text = document if isinstance(document, str) else json.dumps(document)
    return parse_workflows(text, "etl.yaml", **({"pool": "pool", "event_time_ms": 7} | keywords))


def with_task(**fields):
    return {"name": "wf", "tasks": [{"id": "a", "runtime": 1} | fields]}


def test_every_field_of_a_file_arrives_in_the_record():
    (workflow,) = parsed(FULL)

    assert workflow == WorkflowSubmitted(
        pool="pool",
        workflow_id="full",
        event_time_ms=7,
        name="full",
        workflow_class=WorkflowClass.AI_TRAINING,
        env=Env.PROD,
        deadline_s=5400.0,
        tasks=(
            Task("a", 120.0, cpu=0.5, memory_bytes=4 * GIB, priority=10),
            Task("b", 30.0, memory_bytes=1024, parents=(Edge("a", 2 * GIB),)),
            Task(
                "c",
                1.5,
                gpu=2,
                gpu_memory_bytes=16 * GIB,
                critical=True,
                parents=(Edge("a", 500 * 2**20), Edge("b", 0)),
                node_selector={"zone": "a"},
                tolerations=(Toleration("gpu", "yes", Effect.NO_SCHEDULE), Toleration()),
                preferences=(Preference(50, "zone", ("a", "b")),),
                spread=(Spread("zone", 1),),
                image="registry/train:3",
            ),
        ),
    )


def test_what_is_not_written_has_its_default():
    (workflow,) = parsed("name: wf\ntasks: [{id: a, runtime: 5}]")

    assert workflow == WorkflowSubmitted(
        "pool", "wf", 7, "wf", WorkflowClass.MIXED, Env.DEV, (Task("a", 5.0, cpu=1.0, memory_bytes=0),)
    )


def test_the_format_in_the_documentation_is_read():
    text = textwrap.dedent(workflow_file.__doc__.split("\n\n", 1)[1].rsplit("\n\n", 1)[0])

    (workflow,) = parsed(text)

    assert workflow.env is Env.PROD
    assert workflow.deadline_s == 7200.0
    assert [task.task_id for task in workflow.tasks] == ["raw_ingest", "training"]
    assert workflow.tasks[1].parents == (Edge("raw_ingest", 2 * GIB),)
    assert workflow.tasks[1].tolerations == (Toleration("gpu", "yes", Effect.NO_SCHEDULE),)


def test_the_documented_keys_are_the_known_keys():
    for key in (*workflow_file.WORKFLOW_KEYS, *workflow_file.TASK_KEYS):
        assert key in workflow_file.__doc__


def test_the_caller_may_give_the_id_and_the_environment():
    (workflow,) = parsed(FULL, workflow_id="run-7", env=Env.TEST)

    assert (workflow.workflow_id, workflow.name, workflow.env) == ("run-7", "full", Env.TEST)


def test_a_file_may_hold_several_workflows():
    text = "name: one\ntasks: [{id: a, runtime: 5}]\n---\nname: two\ntasks: [{id: a, runtime: 6}]\n"

    assert [w.workflow_id for w in parsed(text)] == ["one", "two"]
    assert [w.workflow_id for w in parsed(text, workflow_id="run")] == ["run-one", "run-two"]


def test_two_workflows_of_one_name_are_refused():
    text = "name: one\ntasks: [{id: a, runtime: 5}]\n---\nname: one\ntasks: [{id: a, runtime: 6}]\n"

    with pytest.raises(InvalidWorkflow, match=r"etl.yaml: document 2: is the second workflow 'one'"):
        parsed(text)


def test_yaml_json_and_their_gzipped_files_are_read_alike(tmp_path):
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(FULL))
    (tmp_path / "w.json").write_text(json.dumps(FULL))
    (tmp_path / "w.yaml.gz").write_bytes(gzip.compress(yaml.safe_dump(FULL).encode()))
    (tmp_path / "w.json.gz").write_bytes(gzip.compress(json.dumps(FULL).encode()))

    read = [read_workflows(tmp_path / name, pool="pool", event_time_ms=7) for name in sorted(tmp_path.iterdir())]

    assert read == [parsed(FULL)] * 4


def test_a_file_that_cannot_be_read_is_an_invalid_workflow(tmp_path):
    (tmp_path / "broken.yaml.gz").write_bytes(b"no gzip")
    for path in (tmp_path / "missing.yaml", tmp_path, tmp_path / "broken.yaml.gz"):
        with pytest.raises(InvalidWorkflow, match=str(path)):
            read_workflows(path, pool="pool", event_time_ms=0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "etl.yaml: holds no workflow"),
        ("# only a comment\n---\n", "etl.yaml: holds no workflow"),
        ("name: [", "etl.yaml: is no valid YAML"),
        ("just text", "etl.yaml: must be a mapping, not 'just text'"),
        ("- name: x", "etl.yaml: must be a mapping, not a list"),
        ("tasks: []", "etl.yaml: has no 'name'; add 'name:'"),
        ("name: ''\ntasks: [{id: a, runtime: 1}]", "etl.yaml: the workflow_id is empty"),
        ("name: 5\ntasks: []", "etl.yaml: name: must be a text, not 5; write it in quotes"),
        ("name: wf", "etl.yaml: the workflow has no tasks"),
        ("name: wf\ntasks: {a: {}}", "etl.yaml: tasks: must be a list, not a mapping"),
        ("name: wf\ntasks:", "etl.yaml: tasks: must be a list, not nothing"),
        ("name: wf\ntask: []", "etl.yaml: does not know the key 'task'; did you mean 'tasks'?"),
        ("name: wf\nname: wf", "the key 'name' stands twice"),
        ("name: wf\nclass: etl\ntasks: []", "etl.yaml: class: does not know 'etl'; did you mean 'etl_batch'?"),
        ("name: wf\nclass: unknown\ntasks: []", "etl.yaml: class: does not know 'unknown'"),
        ("name: wf\nenv: production\ntasks: []", "etl.yaml: env: does not know 'production'; did you mean 'prod'?"),
        ("name: wf\ndeadline: soon\ntasks: []", "etl.yaml: deadline: must be a duration such as"),
        ("name: wf\ndeadline: 0\ntasks: [{id: a, runtime: 1}]", "etl.yaml: the deadline of 0 s is not above 0"),
        ("name: wf\ntasks: [{id: a, runtime: 1, <<: {}}]", "does not know the key '<<'"),
    ],
)
def test_a_broken_file_is_refused_with_place_and_reason(text, problem):
    with pytest.raises(InvalidWorkflow) as caught:
        parsed(text)

    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"id": 7}, "tasks[0]: id: must be a text, not 7; write it in quotes"),
        ({"runtime": "fast"}, "task 'a': runtime: must be a duration"),
        ({"runtime": 0}, "task 'a': the runtime of 0 s is not above 0"),
        ({"runtime": -5}, "task 'a': runtime: must be a number of 0 or more, not -5"),
        ({"cpu": "many"}, "task 'a': cpu: must be cores such as 2, 0.5 or 500m, not 'many'"),
        ({"mem": "4 gigs"}, "task 'a': mem: does not know the unit 'gigs'"),
        ({"mem": 1, "memory_bytes": 5}, "task 'a': has both 'mem' and 'memory_bytes'"),
        ({"mem": 1, "memory": 5}, "task 'a': has both 'mem' and 'memory'; keep one of them"),
        ({"gpu": 0.5}, "task 'a': gpu: must be a whole number"),
        ({"gpu_memory": 4}, "task 'a': asks for gpu memory, but for no gpu; add 'gpu: 1'"),
        ({"priority": 11}, "task 'a': priority is 11; it must be from 0 to 10"),
        ({"critical": "yes"}, "task 'a': critical: must be true or false, not 'yes'"),
        ({"output": 500}, "task 'a': output: needs a unit"),
        ({"needs": "b"}, "task 'a': needs: must be a list, not 'b'"),
        ({"needs": ["b"]}, "task 'a': its parent 'b' is no task of this workflow"),
        ({"needs": ["a"]}, "task 'a': is its own parent"),
        ({"needs": {"a": 5}}, "task 'a': needs: a: needs a unit"),
        ({"needs": [1]}, "task 'a': needs[0]: must be a text, not 1"),
        ({"node_selector": ["zone"]}, "task 'a': node_selector: must be a mapping"),
        ({"node_selector": {"gpu": True}}, "task 'a': node_selector: gpu: must be a text, not true"),
        (
            {"tolerations": [{"effect": "NoSchedule"}]},
            "effect: does not know 'NoSchedule'; did you mean 'no_schedule'?",
        ),
        ({"tolerations": [{"operator": "Exists"}]}, "task 'a': tolerations[0]: does not know the key 'operator'"),
        ({"preferences": [{"key": "zone", "values": []}]}, "task 'a': preferences[0]: has no 'weight'"),
        ({"preferences": [{"weight": 500, "key": "z", "values": []}]}, "task 'a': a preference has the weight 500"),
        ({"spread": [{"max_skew": 1}]}, "task 'a': spread[0]: has no 'topology_key'"),
        ({"runtimes": 5}, "tasks[0]: does not know the key 'runtimes'; did you mean 'runtime'?"),
    ],
)
def test_a_broken_task_is_refused_with_its_place_and_reason(fields, problem):
    with pytest.raises(InvalidWorkflow) as caught:
        parsed(with_task(**fields))

    assert str(caught.value).startswith("etl.yaml: ")
    assert problem in str(caught.value)


def test_a_cycle_in_a_file_is_refused():
    text = "name: wf\ntasks: [{id: a, runtime: 1, needs: [b]}, {id: b, runtime: 1, needs: [a]}]"

    with pytest.raises(InvalidWorkflow, match=r"etl.yaml: tasks wait for each other: 'b' -> 'a' -> 'b'"):
        parsed(text)


@st.composite
def documents(draw):
    """A workflow file as a mapping, valid, with names in any order."""
    tasks = []
    for i in range(draw(st.integers(1, 12))):
        parents = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        tasks.append(
            {
                "id": f"t{i}",
                "runtime": draw(st.floats(0.001, 1e6)),
                "cpu": draw(st.integers(0, 64_000)) / 1000,
                "memory_bytes": draw(st.integers(0, 2**50)),
                "priority": draw(st.integers(0, 10)),
                "needs": {f"t{parent}": f"{draw(st.integers(0, 2**30))}Ki" for parent in sorted(parents)},
            }
        )
    return {"name": "wf", "tasks": draw(st.permutations(tasks))}


@settings(deadline=None)
@given(documents())
def test_a_written_file_is_read_back_number_by_number(document):
    (workflow,) = parsed(yaml.safe_dump(document))

    for task, written in zip(workflow.tasks, document["tasks"], strict=True):
        assert task.task_id == written["id"]
        assert task.runtime_s == written["runtime"]
        assert task.cpu == pytest.approx(written["cpu"], abs=1e-9)
        assert task.memory_bytes == written["memory_bytes"]
        assert task.priority == written["priority"]
        assert {e.task_id: e.bytes for e in task.parents} == {
            parent: int(size.removesuffix("Ki")) * 1024 for parent, size in written["needs"].items()
        }


def refused_or_sound(text):
    """Reads the text; whatever is not refused must pass the checks, in numbers that are finite."""
    found = outcome(lambda: parsed(text))

    if isinstance(found, Exception):
        assert type(found) is InvalidWorkflow
        assert "etl.yaml" in found.where
        assert len(str(found)) < 1000
    else:
        for workflow in found:
            check_workflow(workflow, "again")
            assert all(math.isfinite(task.runtime_s) for task in workflow.tasks)


@settings(max_examples=300, deadline=None)
@given(damaged(FULL))
def test_a_damaged_document_is_refused_or_sound(document):
    refused_or_sound(yaml.safe_dump(document, allow_unicode=False))
    refused_or_sound(json.dumps(document))


@settings(max_examples=300, deadline=None)
@given(damaged_text((EXAMPLES / "ai_training.yaml").read_text(encoding="utf-8")[:1500]))
def test_a_damaged_text_is_refused_or_sound(text):
    refused_or_sound(text)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_sound(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "w.yaml"
    path.write_bytes(content)

    with pytest.raises(InvalidWorkflow):
        read_workflows(path, pool="pool", event_time_ms=0)


@pytest.mark.parametrize("name", WORKFLOW_EXAMPLES)
def test_the_examples_run_on_the_example_nodes(name):
    nodes = read_nodes(EXAMPLES / "nodes.yaml")

    (workflow,) = read_workflows(EXAMPLES / f"{name}.yaml", pool="pool", event_time_ms=0)

    check_fits(workflow, nodes, name)
    for task in workflow.tasks:
        assert any(may_run(task, node) for node in nodes), task.task_id
    assert critical_path_s(workflow.tasks) < workflow.deadline_s


def may_run(task, node):
    tolerated = {(toleration.key, toleration.value) for toleration in task.tolerations}
    barred = any(t.effect is Effect.NO_SCHEDULE and (t.key, t.value) not in tolerated for t in node.taints)
    return (
        not barred
        and task.cpu <= node.cpu
        and task.memory_bytes <= node.memory_bytes
        and task.gpu <= node.gpu
        and task.gpu_memory_bytes <= node.gpu_memory_bytes
        and task.node_selector.items() <= node.labels.items()
    )


def critical_path_s(tasks):
    end_s = {}
    for i in topological_order(tasks):
        start_s = max((end_s[edge.task_id] for edge in tasks[i].parents), default=0.0)
        end_s[tasks[i].task_id] = start_s + tasks[i].runtime_s
    return max(end_s.values())


def test_the_examples_are_of_every_class_and_of_some_size():
    workflows = [read_workflows(EXAMPLES / f"{n}.yaml", pool="p", event_time_ms=0)[0] for n in WORKFLOW_EXAMPLES]

    assert {workflow.workflow_class for workflow in workflows} == set(workflow_file.CLASSES)
    assert all(4 <= len(workflow.tasks) <= 20 for workflow in workflows)
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} >= {*WORKFLOW_EXAMPLES, "nodes"}


def test_the_etl_example_has_the_numbers_of_the_source_design():
    (workflow,) = read_workflows(EXAMPLES / "etl_pipeline.yaml", pool="p", event_time_ms=0)

    rows = [(t.task_id, t.runtime_s, t.cpu, t.memory_bytes // GIB, t.gpu, t.priority) for t in workflow.tasks]
    assert rows == [
        ("raw_ingest", 120.0, 2.0, 4, 0, 10),
        ("cleaning", 180.0, 4.0, 8, 0, 8),
        ("feature_engineering", 420.0, 8.0, 16, 1, 5),
        ("model_training", 3600.0, 16.0, 32, 2, 1),
    ]
    assert [tuple(edge.task_id for edge in task.parents) for task in workflow.tasks] == [
        (),
        ("raw_ingest",),
        ("cleaning",),
        ("feature_engineering",),
    ]
