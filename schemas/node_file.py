"""Node files: the machines of a pool in YAML or JSON, or a node list of the Alibaba GPU trace of 2023; `.gz` of either.

    nodes:
      - name: cpu-a             # required; with a count, the names are cpu-a-0, cpu-a-1, …
        count: 4                # so many alike; default: one, of this very name
        cpu: 32                 # cores, required
        mem: 128                # or memory: 128Gi, 512GB; bare means GiB; required; or memory_bytes: 137438953472
        gpu: 4                  # devices; default 0
        gpu_memory: 16          # of each, like mem; or gpu_memory_bytes
        speed: 1.2              # a task of runtime r runs r / speed seconds; default 1
        price_per_hour: 1.60    # default 0
        bandwidth: 10Gbit       # or 1.25GB, per second; default 1Gbit
        labels: {topology.kubernetes.io/zone: a}
        taints: [{key: gpu, value: "yes", effect: no_schedule}]     # or prefer_no_schedule
        images: {registry/train:3: 4Gi}                             # those that the node already has

The CSV of the trace has the columns `TRACE_COLUMNS`; what it does not say follows from `GPU_MODELS`.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from schemas.checks import check_spec
from schemas.documents import parse, raising, read_text
from schemas.errors import InvalidCluster, InvalidInput
from schemas.fields import Fields, fields_of, suggestion
from schemas.quantities import (
    GIB,
    parse_bandwidth_bytes_per_s,
    parse_count,
    parse_cpu,
    parse_number,
    parse_size,
    shown,
)
from schemas.records import Effect, NodeSpec, Taint

EFFECTS = tuple(choice for choice in Effect if choice is not Effect.UNKNOWN)
FILE_KEYS = ("nodes",)
NODE_KEYS = (
    "name",
    "count",
    "cpu",
    "mem",
    "memory",
    "memory_bytes",
    "gpu",
    "gpu_memory",
    "gpu_memory_bytes",
    "speed",
    "price_per_hour",
    "bandwidth",
    "labels",
    "taints",
    "images",
)
MOST_ALIKE = 100_000
TRACE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
MODEL_LABEL = "gpu_model"
"""The label under which a node of the trace carries its GPU model."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What a node with GPUs of one model is taken to be."""

    memory_gib: int  # of one device
    speed: float
    price_per_hour: float  # of one device


# The trace names models, and says nothing else about them. Memory is what the makers sell under the name. Speeds and
# prices are our assumption, of the order that clouds ask: they make a cluster uneven in a plausible way, no more. G2
# and G3 are undisclosed; they are taken for a 24 GiB inference card and an 80 GiB training card, our assumption too.
GPU_MODELS: Mapping[str, GpuModel] = MappingProxyType(
    {
        "P100": GpuModel(memory_gib=16, speed=0.8, price_per_hour=0.60),
        "T4": GpuModel(memory_gib=16, speed=0.9, price_per_hour=0.35),
        "V100M16": GpuModel(memory_gib=16, speed=1.2, price_per_hour=1.40),
        "V100M32": GpuModel(memory_gib=32, speed=1.2, price_per_hour=1.80),
        "A10": GpuModel(memory_gib=24, speed=1.3, price_per_hour=0.90),
        "G2": GpuModel(memory_gib=24, speed=1.3, price_per_hour=0.90),
        "G3": GpuModel(memory_gib=80, speed=1.6, price_per_hour=2.60),
    }
)
PRICE_PER_CORE_HOUR = 0.030
PRICE_PER_GIB_HOUR = 0.004


def read_nodes(path: Path, *, limit: int | None = None, seed: int = 0) -> tuple[NodeSpec, ...]:
    """The nodes in a file, checked; of more than `limit` a random sample, in the file's order.

    The same seed takes the same sample. Raises InvalidCluster, and nothing else.
    """
    with raising(InvalidCluster):
        text = read_text(path)
    is_trace = path.name.lower().removesuffix(".gz").endswith(".csv")
    nodes = parse_trace_nodes(text, str(path)) if is_trace else parse_nodes(text, str(path))
    if limit is None or limit >= len(nodes):
        return nodes
    if limit < 1:
        raise InvalidCluster(str(path), f"cannot give {limit} nodes", "set a limit of 1 or more")
    return tuple(nodes[i] for i in sorted(random.Random(seed).sample(range(len(nodes)), limit)))


def parse_nodes(text: str, where: str) -> tuple[NodeSpec, ...]:
    """The nodes in the text of a YAML or JSON file, checked. `where` is the file's name. Raises InvalidCluster."""
    with raising(InvalidCluster):
        documents = parse(text, where)
        if len(documents) != 1:
            raise InvalidInput(where, f"holds {len(documents)} documents", "write all nodes into one")
        sections = fields_of(documents[0], where, FILE_KEYS).sections("nodes", NODE_KEYS)
        nodes = tuple(node for section in sections for node in _nodes(section))
    _check_nodes(nodes, where)
    return nodes


def parse_trace_nodes(text: str, where: str) -> tuple[NodeSpec, ...]:
    """The nodes in a CSV with the columns of `TRACE_COLUMNS`, checked. `where` is the file's name.

    Speed, price and GPU memory follow from the model by `GPU_MODELS`. Raises InvalidCluster.
    """
    rows = csv.DictReader(io.StringIO(text))
    with raising(InvalidCluster):
        try:
            missing = [column for column in TRACE_COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise InvalidInput(
                    where, f"has no column {', '.join(missing)}", "give a node list of the Alibaba trace"
                )
            nodes = tuple(_trace_node(row, f"{where}: line {rows.line_num}") for row in rows)
        except csv.Error as error:
            raise InvalidInput(where, f"is no valid CSV after line {rows.line_num} ({error})") from error
    _check_nodes(nodes, where)
    return nodes


def _check_nodes(nodes: Sequence[NodeSpec], where: str) -> None:
    """Raises InvalidCluster unless there are nodes, each usable and with a name of its own."""
    if not nodes:
        raise InvalidCluster(where, "has no nodes", "give it at least one")
    seen: set[str] = set()
    for node in nodes:
        check_spec(node, where)
        if not node.memory_bytes:
            raise InvalidCluster(f"{where}, node {shown(node.node_id)}", "has no memory", "add 'mem:'")
        if node.node_id in seen:
            raise InvalidCluster(where, f"has several nodes {shown(node.node_id)}", "give each node a name of its own")
        seen.add(node.node_id)


def _nodes(section: Fields) -> list[NodeSpec]:
    name = section.text("name")
    node = _node(Fields(f"{section.where} ({shown(name)})", section.values), name)
    if "count" not in section:
        return [node]
    count = section.amount("count", parse_count)
    if not 1 <= count <= MOST_ALIKE:
        raise InvalidInput(section.place("count"), f"is {count}", f"it must be from 1 to {MOST_ALIKE}")
    return [replace(node, node_id=f"{name}-{i}") for i in range(count)]


def _node(section: Fields, name: str) -> NodeSpec:
    gpu = section.amount("gpu", parse_count, 0)
    gpu_memory_bytes = section.memory_bytes("gpu_memory", "gpu_memory_bytes")
    if gpu_memory_bytes and not gpu:
        raise InvalidInput(section.where, "has gpu memory, but no gpu", "add 'gpu: 1'")
    images = section.section("images")
    return NodeSpec(
        node_id=name,
        cpu=section.amount("cpu", parse_cpu),
        memory_bytes=section.memory_bytes("mem", "memory", "memory_bytes"),
        gpu=gpu,
        gpu_memory_bytes=gpu_memory_bytes,
        speed=section.amount("speed", parse_number, 1.0),
        price_per_hour=section.amount("price_per_hour", parse_number, 0.0),
        bandwidth_bytes_per_s=section.amount("bandwidth", parse_bandwidth_bytes_per_s, 125e6),
        labels=section.labels("labels"),
        taints=tuple(_taint(item) for item in section.sections("taints", ("key", "value", "effect"))),
        images={image: images.amount(image, parse_size) for image in images.values},
    )


def _taint(item: Fields) -> Taint:
    return Taint(item.text("key"), item.text("value", ""), item.choice("effect", EFFECTS, Effect.NO_SCHEDULE))


def _trace_node(row: Mapping[str, str | None], where: str) -> NodeSpec:
    cpu = _whole(row, "cpu_milli", where) / 1000
    memory_gib = _whole(row, "memory_mib", where) / 1024
    gpu = _whole(row, "gpu", where)
    name = row["model"] or ""
    if bool(gpu) != bool(name) or (name and name not in GPU_MODELS):
        problem = f"has {gpu} gpu of the model {shown(name)}"
        raise InvalidInput(where, problem, suggestion(name, GPU_MODELS))
    model = GPU_MODELS[name] if name else GpuModel(memory_gib=0, speed=1.0, price_per_hour=0.0)
    price_per_hour = cpu * PRICE_PER_CORE_HOUR + memory_gib * PRICE_PER_GIB_HOUR + gpu * model.price_per_hour
    return NodeSpec(
        node_id=row["sn"] or "",
        cpu=cpu,
        memory_bytes=int(memory_gib * GIB),
        gpu=gpu,
        gpu_memory_bytes=model.memory_gib * GIB,
        speed=model.speed,
        price_per_hour=round(price_per_hour, 4),
        labels={MODEL_LABEL: name} if name else {},
    )


def _whole(row: Mapping[str, str | None], column: str, where: str) -> int:
    text = row[column] or ""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidInput(where, f"{column} must be a whole number, not {shown(text)}")
    return int(text)
