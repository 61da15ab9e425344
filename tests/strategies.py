"""Random pools for properties: nodes of many kinds, some busy, and tasks that wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

from policy.state import State
from schemas.records import Edge, Effect, EventKind, NodeSpec, Preference, Spread, Taint, Task, Toleration
from tests.builders import GIB, a_placement, a_state, an_event, submit

ZONE = "zone"
SOFT = Taint("spot", "true", Effect.PREFER_NO_SCHEDULE)
HARD = Taint("gpu", "", Effect.NO_SCHEDULE)


@dataclass(frozen=True)
class Pool:
    """Nodes; tasks of one workflow, the first of which is done on a node; where some others were placed."""

    nodes: tuple[NodeSpec, ...]
    tasks: tuple[Task, ...]
    done_on: int
    placed_on: tuple[int, ...]

    def state(self, order: Sequence[int] | None = None) -> State:
        """The pool's state, its nodes in this order."""
        state = a_state(*[self.nodes[i] for i in order or range(len(self.nodes))])
        submit(state, *self.tasks)
        parent = self.tasks[0].task_id
        state.apply(a_placement(self.nodes[self.done_on].node_id, task_id=parent))
        for ready in state.apply(an_event(EventKind.FINISHED, task_id=parent)):
            state.apply(ready)
        for task, node in zip(self.tasks[1:], self.placed_on, strict=False):
            state.apply(a_placement(self.nodes[node].node_id, task_id=task.task_id))
        return state


@cache
def nodes(name: str) -> st.SearchStrategy[NodeSpec]:
    """A node of any kind."""
    return st.builds(
        NodeSpec,
        st.just(name),
        st.sampled_from((4.0, 7.5, 16.0)),
        st.sampled_from((8 * GIB, 64 * GIB)),
        gpu=st.sampled_from((0, 0, 2)),
        gpu_memory_bytes=st.just(16 * GIB),
        speed=st.sampled_from((0.5, 1.0, 2.0)),
        price_per_hour=st.sampled_from((0.0, 0.3, 2.5)),
        bandwidth_bytes_per_s=st.sampled_from((1e6, 125e6)),
        labels=st.sampled_from(({}, {ZONE: "a"}, {ZONE: "b"})),
        taints=st.sampled_from(((), (SOFT,), (HARD,))),
        images=st.sampled_from(({}, {"app:1": 500 * 2**20})),
    )


@cache
def tasks(name: str, parents: tuple[Edge, ...] = ()) -> st.SearchStrategy[Task]:
    """A task of any kind."""
    return st.builds(
        Task,
        st.just(name),
        st.sampled_from((0.5, 10.0, 3600.0)),
        cpu=st.sampled_from((0.0, 0.1, 1.0, 6.0)),
        memory_bytes=st.sampled_from((0, GIB, 20 * GIB)),
        gpu=st.sampled_from((0, 0, 0, 1)),
        priority=st.integers(0, 2),
        critical=st.booleans(),
        parents=st.just(parents),
        node_selector=st.sampled_from(({}, {}, {ZONE: "a"})),
        tolerations=st.sampled_from(((), (Toleration("gpu"),), (Toleration(),))),
        preferences=st.sampled_from(((), (Preference(10, ZONE, ("a", "b")), Preference(5, ZONE, ("b",))))),
        spread=st.sampled_from(((), (Spread(ZONE),), (Spread(ZONE, 2), Spread("kubernetes.io/hostname")))),
        image=st.sampled_from(("", "app:1")),
    )


@st.composite
def pools(draw: st.DrawFn, most_nodes: int = 6, most_tasks: int = 8) -> Pool:
    """A pool in the middle of its work."""
    count = draw(st.integers(1, most_nodes))
    machines = tuple(draw(nodes(f"n{i}")) for i in range(count))
    edges = (Edge("parent", draw(st.sampled_from((0, 10**6, 10**9)))),)
    children = tuple(draw(tasks(f"t{i}", edges)) for i in range(draw(st.integers(1, most_tasks))))
    columns = st.integers(0, count - 1)
    placed_on = draw(st.lists(columns, max_size=len(children) // 2))
    return Pool(machines, (Task("parent", 1.0), *children), draw(columns), tuple(placed_on))
