"""What must hold for the nodes of a pool, whether they come from a file or from a topic."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.errors import InvalidCluster
from schemas.quantities import MOST_BYTES, shown
from schemas.records import NodeSpec

MOST_UNITS = 1_000_000
"""Of cores or devices; what is more is a mistake, and would not fit the ledger's integers."""
MOST_RATE = 1e15
"""Of any other number; far above what a machine can be."""


def check_nodes(nodes: Iterable[NodeSpec], where: str) -> None:
    """Raises InvalidCluster, which names `where` and the node, unless all can run something and have different ids."""
    seen: set[str] = set()
    for node in nodes:
        check_node(node, where)
        if node.node_id in seen:
            raise InvalidCluster(where, f"has several nodes {shown(node.node_id)}", "give each node a name of its own")
        seen.add(node.node_id)
    if not seen:
        raise InvalidCluster(where, "has no nodes", "give it at least one")


def check_node(node: NodeSpec, where: str) -> None:
    """Raises InvalidCluster, which names `where` and the node, unless the node can run something."""
    if not node.node_id or not node.node_id.isprintable():
        raise InvalidCluster(where, f"has a node of the name {shown(node.node_id)}", "give it a plain name")
    place = f"{where}: node {shown(node.node_id)}"
    for name, value, most in (
        ("cpu", node.cpu, MOST_UNITS),
        ("memory", node.memory_bytes, MOST_BYTES),
        ("speed", node.speed, MOST_RATE),
        ("bandwidth", node.bandwidth_bytes_per_s, MOST_RATE),
    ):
        if not 0 < value <= most:
            raise InvalidCluster(place, f"{name} is {value:g}", f"it must be above 0, and at most {most:g}")
    for name, value, most in (
        ("gpu", node.gpu, MOST_UNITS),
        ("gpu_memory", node.gpu_memory_bytes, MOST_BYTES),
        ("price_per_hour", node.price_per_hour, MOST_RATE),
        *((f"image {shown(image)}", size, MOST_BYTES) for image, size in node.images.items()),
    ):
        if not 0 <= value <= most:
            raise InvalidCluster(place, f"{name} is {value:g}", f"it must be from 0 to {most:g}")
