from __future__ import annotations

import gzip
import json
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import node_file
from schemas.checks import check_spec
from schemas.errors import InvalidCluster
from schemas.node_file import GPU_MODELS, parse_nodes, parse_trace_nodes, read_nodes
from schemas.records import Effect, NodeSpec, Taint
from tests.traces import trace_path
from tests.unit.schemas.mutations import damaged, damaged_text, outcome

GIB = 2**30
EXAMPLES = Path(__file__).parents[3] / "examples"

FULL = {
    "nodes": [
        {
            "name": "gpu",
            "count": 2,
            "cpu": "32",
            "mem": 128,
            "gpu": 4,
            "gpu_memory": "16Gi",
            "speed": 1.2,
            "price_per_hour": 3.5,
            "bandwidth": "10Gbit",
            "labels": {"zone": "a"},
            "taints": [{"key": "gpu"}, {"key": "old", "value": "very", "effect": "prefer_no_schedule"}],
            "images": {"registry/train:3": "4Gi"},
        },
        {"name": "plain", "cpu": 0.5, "memory_bytes": 1024},
    ]
}

TRACE = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\nn1,96000,393216,8,G2\nn2,16000,122880,2,P100\n"


def parsed(document):
    return parse_nodes(document if isinstance(document, str) else json.dumps(document), "nodes.yaml")


def with_node(**fields):
    return {"nodes": [{"name": "n", "cpu": 4, "mem": 8} | fields]}


def test_every_field_of_a_file_arrives_in_the_record():
    gpu = NodeSpec(
        "gpu-0",
        cpu=32.0,
        memory_bytes=128 * GIB,
        gpu=4,
        gpu_memory_bytes=16 * GIB,
        speed=1.2,
        price_per_hour=3.5,
        bandwidth_bytes_per_s=1.25e9,
        labels={"zone": "a"},
        taints=(Taint("gpu"), Taint("old", "very", Effect.PREFER_NO_SCHEDULE)),
        images={"registry/train:3": 4 * GIB},
    )

    assert parsed(FULL) == (gpu, replace(gpu, node_id="gpu-1"), NodeSpec("plain", cpu=0.5, memory_bytes=1024))


def test_the_format_in_the_documentation_is_read():
    nodes = parsed(textwrap.dedent(node_file.__doc__.split("\n\n", 1)[1].rsplit("\n\n", 1)[0]))

    assert [node.node_id for node in nodes] == ["cpu-a-0", "cpu-a-1", "cpu-a-2", "cpu-a-3"]
    assert nodes[0].taints == (Taint("gpu", "yes", Effect.NO_SCHEDULE),)
    assert nodes[0].images == {"registry/train:3": 4 * GIB}
    assert all(key in node_file.__doc__ for key in node_file.NODE_KEYS)


def test_yaml_json_and_their_gzipped_files_are_read_alike(tmp_path):
    (tmp_path / "n.yaml").write_text(yaml.safe_dump(FULL))
    (tmp_path / "n.json").write_text(json.dumps(FULL))
    (tmp_path / "n.yaml.gz").write_bytes(gzip.compress(yaml.safe_dump(FULL).encode()))

    assert [read_nodes(path) for path in sorted(tmp_path.iterdir())] == [parsed(FULL)] * 3


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("", "nodes.yaml: holds 0 documents; write all nodes into one"),
        ("nodes: []\n---\nnodes: []", "nodes.yaml: holds 2 documents"),
        ("nodes: [", "nodes.yaml: is no valid YAML"),
        ("- name: a", "nodes.yaml: must be a mapping, not a list"),
        ("{}", "nodes.yaml: has no nodes"),
        ("nodes: []", "nodes.yaml: has no nodes; give it at least one"),
        ("node: []", "nodes.yaml: does not know the key 'node'; did you mean 'nodes'?"),
        ("nodes: [{cpu: 4, mem: 8}]", "nodes.yaml: nodes[0]: has no 'name'"),
        ("nodes: [{name: a, mem: 8}]", "nodes.yaml: nodes[0] ('a'): has no 'cpu'"),
        ("nodes: [{name: a, cpu: 4}]", "nodes.yaml, node 'a': has no memory; add 'mem:'"),
        ("nodes: [{name: a, cpu: 4, mem: 8}, {name: a, cpu: 4, mem: 8}]", "nodes.yaml: has several nodes 'a'"),
        ("nodes: [{name: a, cpu: 4, mem: 8, count: 2}, {name: a-1, cpu: 4, mem: 8}]", "has several nodes 'a-1'"),
        ("nodes: [{name: a, name: b}]", "the key 'name' stands twice"),
    ],
)
def test_a_broken_file_is_refused_with_place_and_reason(document, problem):
    with pytest.raises(InvalidCluster) as caught:
        parsed(document)

    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "nodes.yaml: a node has no name"),
        ({"name": 3}, "nodes[0]: name: must be a text, not 3"),
        ({"cpu": 0}, "nodes.yaml, node n: cpu is 0.0; give a number from 0.001"),
        ({"cpu": -1}, "nodes[0] ('n'): cpu: must be a number of 0 or more, not -1"),
        ({"cpu": 10**9}, "nodes.yaml, node n: cpu is 1000000000.0"),
        ({"mem": 0}, "nodes.yaml, node 'n': has no memory"),
        ({"mem": "lots"}, "nodes[0] ('n'): mem: must be a size"),
        ({"gpu": 1.5}, "nodes[0] ('n'): gpu: must be a whole number"),
        ({"gpu_memory": 16}, "nodes[0] ('n'): has gpu memory, but no gpu"),
        ({"speed": 0}, "nodes.yaml, node n: speed is 0.0; give a number from 1e-06"),
        ({"speed": "fast"}, "nodes[0] ('n'): speed: must be a number, not 'fast'"),
        ({"price_per_hour": -1}, "nodes[0] ('n'): price_per_hour: must be a number of 0 or more"),
        ({"bandwidth": 10}, "nodes[0] ('n'): bandwidth: needs a unit; write a rate such as 10Gbit"),
        ({"bandwidth": 0}, "nodes.yaml, node n: bandwidth_bytes_per_s is 0.0"),
        ({"labels": {"zone": 1}}, "nodes[0] ('n'): labels: zone: must be a text, not 1"),
        ({"taints": [{"value": "x"}]}, "nodes[0] ('n'): taints[0]: has no 'key'"),
        ({"taints": [{"key": "x", "effect": "NoExecute"}]}, "taints[0]: effect: does not know 'NoExecute'"),
        ({"images": {"x": 5}}, "nodes[0] ('n'): images: x: needs a unit"),
        ({"count": 0}, "nodes[0]: count: is 0; it must be from 1 to"),
        ({"cpus": 4}, "nodes[0]: does not know the key 'cpus'; did you mean 'cpu'?"),
    ],
)
def test_a_broken_node_is_refused_with_its_place_and_reason(fields, problem):
    with pytest.raises(InvalidCluster) as caught:
        parsed(with_node(**fields))

    assert problem in str(caught.value)


def test_the_trace_gives_cores_bytes_and_what_we_assume_of_the_model():
    plain, eight, two = parse_trace_nodes(TRACE, "list.csv")

    assert (plain.node_id, plain.cpu, plain.memory_bytes, plain.gpu, plain.speed) == ("n0", 32.0, 256 * GIB, 0, 1.0)
    assert plain.price_per_hour == pytest.approx(32 * 0.030 + 256 * 0.004)
    assert plain.labels == {}
    assert (eight.gpu, eight.gpu_memory_bytes, eight.speed) == (8, 24 * GIB, GPU_MODELS["G2"].speed)
    assert eight.price_per_hour == pytest.approx(96 * 0.030 + 384 * 0.004 + 8 * GPU_MODELS["G2"].price_per_hour)
    assert two.labels == {"gpu_model": "P100"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "list.csv: has no column sn, cpu_milli, memory_mib, gpu, model"),
        ("sn,cpu_milli\n", "list.csv: has no column memory_mib, gpu, model"),
        (TRACE.splitlines()[0], "list.csv: has no nodes"),
        (TRACE.replace("32000", "x"), "list.csv: line 2: cpu_milli must be a whole number, not 'x'"),
        (TRACE.replace("32000", "-1"), "list.csv: line 2: cpu_milli must be a whole number, not '-1'"),
        (TRACE.replace("32000", "0"), "list.csv, node n0: cpu is 0.0"),
        (TRACE.replace("393216", ""), "list.csv: line 3: memory_mib must be a whole number, not ''"),
        (TRACE.replace("8,G2", "8,"), "list.csv: line 3: has 8 gpu of the model ''"),
        (TRACE.replace("8,G2", "0,G2"), "list.csv: line 3: has 0 gpu of the model 'G2'"),
        (TRACE.replace("P100", "P10"), "list.csv: line 4: has 2 gpu of the model 'P10'; did you mean 'P100'?"),
        (TRACE.replace("n2", "n1"), "list.csv: has several nodes 'n1'"),
        (TRACE + "n3,1000\n", "list.csv: line 5: memory_mib must be a whole number"),
        (TRACE.replace("n2", "x" * 200_000), "list.csv: is no valid CSV after line 3"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(text, problem):
    with pytest.raises(InvalidCluster) as caught:
        parse_trace_nodes(text, "list.csv")

    assert problem in str(caught.value)


def test_a_limit_takes_a_sample_that_the_seed_decides(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump(with_node(count=50)))
    everything = read_nodes(path)

    sample = read_nodes(path, limit=10, seed=3)

    assert sample == read_nodes(path, limit=10, seed=3)
    assert sample != read_nodes(path, limit=10, seed=4)
    assert list(sample) == [node for node in everything if node in sample]
    assert len(sample) == 10
    assert read_nodes(path, limit=50) == read_nodes(path, limit=99) == everything
    with pytest.raises(InvalidCluster, match="cannot give 0 nodes"):
        read_nodes(path, limit=0)


def test_a_file_that_cannot_be_read_is_an_invalid_cluster(tmp_path):
    for path in (tmp_path / "missing.yaml", tmp_path / "missing.csv", tmp_path):
        with pytest.raises(InvalidCluster, match=str(path)):
            read_nodes(path)


def test_the_example_cluster_is_small_and_uneven():
    nodes = read_nodes(EXAMPLES / "nodes.yaml")

    assert 8 <= len(nodes) <= 16
    assert {node.gpu for node in nodes} == {0, 2, 4, 8}
    assert (min(node.speed for node in nodes), max(node.speed for node in nodes)) == (0.8, 1.6)
    assert all(node.price_per_hour > 0 for node in nodes)
    assert len({node.labels["topology.kubernetes.io/zone"] for node in nodes}) == 3


def refused_or_sound(read, text):
    found = outcome(lambda: read(text, "nodes.yaml"))

    if isinstance(found, Exception):
        assert type(found) is InvalidCluster
        assert "nodes.yaml" in found.where
    else:
        assert len({node.node_id for node in found}) == len(found) > 0
        for node in found:
            check_spec(node, "again")


@settings(max_examples=200, deadline=None)
@given(damaged(FULL))
def test_a_damaged_document_is_refused_or_sound(document):
    refused_or_sound(parse_nodes, yaml.safe_dump(document))


@settings(max_examples=200, deadline=None)
@given(damaged_text((EXAMPLES / "nodes.yaml").read_text(encoding="utf-8")[:600]))
def test_a_damaged_text_is_refused_or_sound(text):
    refused_or_sound(parse_nodes, text)


@settings(max_examples=200, deadline=None)
@given(damaged_text(TRACE))
def test_a_damaged_trace_is_refused_or_sound(text):
    refused_or_sound(parse_trace_nodes, text)


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 64), st.integers(0, 8))
def test_alike_nodes_differ_in_their_names_alone(count, cpu, gpu):
    nodes = parsed(with_node(count=count, cpu=cpu, gpu=gpu))

    assert len({node.node_id for node in nodes}) == count
    assert {replace(node, node_id="").cpu for node in nodes} == {float(cpu)}
    assert all(replace(node, node_id="n-0") == nodes[0] for node in nodes)


@pytest.mark.traces
def test_the_whole_alibaba_cluster_is_read():
    nodes = read_nodes(trace_path("alibaba-gpu-2023", "openb_node_list_all_node.csv"))

    assert len(nodes) == 1523
    assert Counter(node.labels.get("gpu_model") for node in nodes) == {
        None: 310,
        "G2": 549,
        "T4": 404,
        "P100": 134,
        "V100M16": 55,
        "G3": 39,
        "V100M32": 30,
        "A10": 2,
    }
    assert sum(node.gpu for node in nodes) == 6212
    assert (min(node.cpu for node in nodes), max(node.cpu for node in nodes)) == (8.0, 128.0)
    assert (min(n.memory_bytes for n in nodes), max(n.memory_bytes for n in nodes)) == (32 * GIB, 1024 * GIB)


@pytest.mark.traces
def test_a_sample_of_the_alibaba_gpu_nodes_is_read():
    nodes = read_nodes(trace_path("alibaba-gpu-2023", "openb_node_list_gpu_node.csv"), limit=32, seed=1)

    assert len(nodes) == 32
    assert all(node.gpu > 0 for node in nodes)
