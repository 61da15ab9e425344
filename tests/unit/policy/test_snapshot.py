"""A state and the one that was loaded from its snapshot: whatever comes next, both answer the same."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy import state_columns
from policy.constraints import Constraints
from policy.decide import DecideSettings, Stamp, decide
from policy.heuristics import HEURISTICS
from policy.simulator import SimulatedCluster, SimulatorSettings
from policy.snapshot import FRAME, MAGIC, VERSION, dump, load
from policy.state import REUSE_AFTER_MS, State, StateSettings
from policy.state_columns import keep
from policy.windows import STEP_MS
from schemas.codec import Codec
from schemas.errors import StateLost
from schemas.records import EventKind, NodeMetrics, Outcome, Placement, TaskEvent, TaskReady, WorkflowSubmitted
from tests.builders import (
    POOL,
    START_MS,
    a_lost_node,
    a_node,
    a_placement,
    a_ready,
    a_state,
    a_task,
    a_workflow,
    an_event,
    some_metrics,
    some_nodes,
    submit,
)
from tests.lives import Life
from tests.whole_state import whole

GOLDEN = Path(__file__).with_name("snapshot-2.bin")
"""What version 2 wrote of `a_little_of_everything`."""
DEFAULT = StateSettings()
FORGETFUL = StateSettings(remembered_ids=2, max_attempts=4, max_rollbacks=1)
Answer = TypeVar("Answer")
RULES = ("node.cpu_utilisation is undefined or node.cpu_utilisation < 0.9",)


@given(
    st.integers(0, 2**32), st.sampled_from((0, 10, 40, 100)), st.integers(0, 25), st.sampled_from((DEFAULT, FORGETFUL))
)
@example(seed=1210, before=10, after=0, state_settings=FORGETFUL)  # a task is given up, and nobody knows it yet
@settings(max_examples=100, deadline=None)
def test_a_state_and_its_snapshot_answer_the_same_whatever_comes_next(seed, before, after, state_settings):
    life = Life(seed)
    state, constraints = State(POOL, state_settings), Constraints(RULES)
    for move in life.moves(before):
        move(state, constraints)

    loaded, constraints_of_loaded = load(dump(state), state_settings), Constraints(RULES)

    assert whole(loaded) == whole(state)
    for move in life.moves(after):
        assert move(loaded, constraints_of_loaded) == move(state, constraints)
    assert whole(loaded) == whole(state)


class Twins:
    """A simulated cluster of which a state decides; from some step on also the one loaded from its snapshot."""

    def __init__(self, seed: int, policy: str) -> None:
        trouble = SimulatorSettings(failure_rate=0.2, node_losses_per_hour=6.0, runtime_noise=1.0, seed=seed)
        nodes = [a_node(f"n{i}", cpu=4.0, speed=1.0 + i % 2) for i in range(6)]
        self.cluster = SimulatedCluster(POOL, nodes, trouble, START_MS)
        self.policy = HEURISTICS[policy]
        self.states = [State(POOL, StateSettings(max_rollbacks=1))]
        self.constraints = [Constraints()]
        self.arrivals = [
            a_workflow(
                *[a_task(f"t{t}", 20.0, after=[f"t{p}" for p in range(t) if (t + p + w) % 3 == 0]) for t in range(6)],
                workflow_id=f"w{w}",
                at_s=20.0 * w,
            )
            for w in range(12)
        ]

    @property
    def is_over(self) -> bool:
        return not self.arrivals and not self.states[0].workflows

    def split(self) -> None:
        self.states.append(load(dump(self.states[0]), self.states[0].settings))
        self.constraints.append(Constraints())

    def step(self) -> None:
        """One step of the window: what happened, a sample, what is submitted, a round."""
        now_ms = self.cluster.now_ms + STEP_MS
        self.take(self.cluster.advance(now_ms))
        self.fold(self.cluster.sample())
        for record in self.same([[*state.overdue(), *state.unstarted()] for state in self.states]):
            self.fold(record)
        while self.arrivals and self.arrivals[0].event_time_ms <= now_ms:
            workflow = self.arrivals.pop(0)
            self.cluster.learn(workflow)
            self.fold(workflow)
        self.decide()

    def decide(self) -> None:
        pairs = zip(self.states, self.constraints, strict=True)
        rounds = [decide(s, self.policy, c, DecideSettings(), Stamp()) for s, c in pairs]
        for batches in zip(*rounds, strict=True):
            for placement in self.same(batches).placements:
                self.take(self.cluster.place(placement))

    def take(self, events: Iterable[TaskEvent]) -> None:
        for event in events:
            self.fold(event)

    def fold(self, record: NodeMetrics | WorkflowSubmitted | TaskReady | TaskEvent) -> None:
        for ready in self.same([state.apply(record) for state in self.states]):
            self.fold(ready)

    def same(self, answers: Sequence[list[Answer]]) -> list[Answer]:
        assert all(answer == answers[0] for answer in answers)
        return answers[0]


@given(st.integers(0, 2**32), st.integers(0, 40), st.sampled_from(sorted(HEURISTICS)))
@settings(max_examples=10, deadline=None)
def test_workflows_on_a_cluster_in_trouble_take_the_same_course_after_loading(seed, steps, policy):
    twins = Twins(seed, policy)
    for _ in range(steps):
        twins.step()

    twins.split()

    while not twins.is_over:
        twins.step()
    original, loaded = twins.states
    assert whole(loaded) == whole(original)
    assert original.placed >= 72


def test_the_attempt_of_a_workflow_that_is_gone_holds_its_node_until_it_ends():
    state = a_state(a_node("n0"), a_node("n1"))
    submit(state)
    state.apply(a_placement("n0"))
    state.apply(a_placement("n1", attempt=1))
    state.apply(an_event(EventKind.FINISHED, attempt=1))
    assert not state.workflows

    loaded = load(dump(state), DEFAULT)

    assert loaded.ledger.reserved_rn[0].tolist() == [1000, 0]
    loaded.apply(an_event(EventKind.KILLED, attempt=0))
    assert loaded.ledger.reserved_rn[0].tolist() == [0, 0]


def test_room_that_was_made_before_the_snapshot_is_looked_at_after_it():
    state = a_state(a_node(cpu=1.0))
    submit(state, a_task("a"), a_task("b"))
    assert [p.outcome for p in decided(state)] == [Outcome.PLACED, Outcome.PENDING]
    (first,) = [task.task.task_id for task in state.running.values()]
    state.apply(an_event(EventKind.FINISHED, task_id=first))

    loaded = load(dump(state), DEFAULT)

    assert [p.outcome for p in decided(loaded)] == [Outcome.PLACED]


def test_what_was_said_to_wait_is_not_said_again():
    state = a_state(a_node(cpu=1.0))
    submit(state, a_task("a"), a_task("b"))
    decided(state)

    loaded = load(dump(state), DEFAULT)
    loaded.queue.unblock()

    assert decided(loaded) == []


def test_the_column_of_a_node_that_was_replaced_is_the_new_nodes():
    state = a_state(*some_nodes(16))
    dump(state)
    state.apply(a_lost_node("n3"))
    later_s = 2 * REUSE_AFTER_MS / 1000
    state.apply(some_metrics("n0", at_s=later_s))
    state.apply(some_metrics(a_node("new", cpu=3.0), at_s=later_s))

    loaded = load(dump(state), DEFAULT)

    assert loaded.nodes.index["new"] == 3
    assert "n3" not in loaded.nodes.index
    assert whole(loaded) == whole(state)


def test_a_workflow_that_comes_task_by_task_keeps_those_that_came_between_two_snapshots():
    state = a_state(a_node())
    state.apply(a_ready(a_task("a", cpu=2.0)))
    dump(state)
    state.apply(a_ready(a_task("b", cpu=3.0), excluded_nodes=("n7",)))

    loaded = load(dump(state), DEFAULT)

    assert [(t.task.task_id, t.task.cpu, t.excluded_nodes) for t in loaded.workflows["w0"].tasks] == [
        ("a", 2.0, ()),
        ("b", 3.0, ("n7",)),
    ]
    assert whole(loaded) == whole(state)


@pytest.mark.parametrize("name", ["plain", "ein Leerzeichen", "a\nb", "a\0b", "日本語", "\ufeff", '"\\'])
def test_ids_may_be_any_text(name):
    state = State(POOL + name)
    state.apply(some_metrics(a_node(name)))
    state.apply(a_ready(a_task(name), workflow_id=name, excluded_nodes=(name,)))
    state.apply(a_placement(name, workflow_id=name, task_id=name))
    state.finished[name] = None

    assert whole(load(dump(state), DEFAULT)) == whole(state)


def test_an_empty_state_is_loaded_as_one():
    state = State(POOL)

    assert whole(load(dump(state), DEFAULT)) == whole(state)


def test_other_settings_may_come_into_force_with_a_snapshot():
    loaded = load(dump(State(POOL)), FORGETFUL)

    assert loaded.settings == FORGETFUL


class CountingCodec(Codec):
    """Counts what it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded = 0

    def encode(self, record: object, topic: str) -> bytes:
        self.encoded += 1
        return super().encode(record, topic)


def test_a_snapshot_encodes_only_records_that_are_new_since_the_last_one(monkeypatch):
    codec = CountingCodec()
    monkeypatch.setattr(state_columns, "codec", codec)
    state = a_little_of_everything()

    counts = []
    new_nodes = some_metrics(a_node("n0", cpu=1.0), a_node("n1"), at_s=40)
    for change in (None, a_workflow(workflow_id="new"), new_nodes, None):
        if change is not None:
            state.apply(change)
        codec.encoded = 0
        dump(state)
        counts.append(codec.encoded)

    assert counts == [3 + 2 + 2, 1, 2, 0]  # nodes, submitted workflows, tasks of the open one


def test_a_loaded_state_has_nothing_to_encode_for_its_own_snapshot(monkeypatch):
    payload = dump(a_little_of_everything())
    loaded = load(payload, DEFAULT)
    codec = CountingCodec()
    monkeypatch.setattr(state_columns, "codec", codec)

    assert dump(loaded) == payload
    assert codec.encoded == 0


@pytest.mark.parametrize("payload", [b"", b"{}", b"\xc3\x01" + bytes(40), MAGIC, MAGIC[:-1] + bytes(40)])
def test_bytes_that_are_no_snapshot_are_refused(payload):
    with pytest.raises(StateLost, match=r"snapshot: \d+ bytes starting .* are none; take an earlier one"):
        load(payload, DEFAULT)


def test_a_snapshot_of_an_unknown_version_is_refused():
    body = dump(State(POOL))[FRAME.size :]
    newer = FRAME.pack(MAGIC, VERSION + 1, zlib.crc32(body)) + body

    with pytest.raises(StateLost, match=f"of version {VERSION + 1}, and this headrace reads version {VERSION}"):
        load(newer, DEFAULT)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_snapshot_with_a_byte_changed_or_its_end_missing_is_refused(data):
    payload = bytearray(SNAPSHOT)
    at = data.draw(st.integers(0, len(payload) - 1))
    if data.draw(st.booleans()):
        del payload[at:]
    else:
        payload[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises(StateLost, match="snapshot: "):
        load(bytes(payload), DEFAULT)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_container_that_was_changed_before_its_checksum_was_taken_is_refused_or_harmless(data):
    body = bytearray(SNAPSHOT[FRAME.size :])
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    payload = FRAME.pack(MAGIC, VERSION, zlib.crc32(body)) + body

    try:
        loaded = load(payload, DEFAULT)
    except StateLost:
        return

    assert whole(loaded) == WHOLE


def test_a_snapshot_without_one_of_its_columns_is_refused():
    columns = read_columns(SNAPSHOT)
    assert len(columns) > 40

    for name in columns:
        with pytest.raises(StateLost, match="its content cannot be used"):
            load(framed({other: column for other, column in columns.items() if other != name}), DEFAULT)


def test_a_snapshot_with_a_record_of_an_unknown_schema_is_refused():
    columns = read_columns(SNAPSHOT)
    columns["node.records"][2:10] = 0

    with pytest.raises(StateLost, match=r"unknown schema 0{16}.*start the headrace that wrote it"):
        load(framed(columns), DEFAULT)


def test_objects_of_python_are_never_loaded():
    columns = read_columns(SNAPSHOT) | {"texts": np.array([print], object)}
    container = io.BytesIO()
    np.savez(container, allow_pickle=True, **columns)
    body = container.getvalue()

    with pytest.raises(StateLost, match="its content cannot be used"):
        load(FRAME.pack(MAGIC, VERSION, zlib.crc32(body)) + body, DEFAULT)


def test_what_version_2_wrote_can_still_be_read():
    assert VERSION == 2, "record what the new version writes beside this file"

    loaded = load(GOLDEN.read_bytes(), DEFAULT)

    assert whole(loaded) == WHOLE


def a_little_of_everything() -> State:
    """Three nodes, two submitted workflows and an open one, with tasks in every status."""
    state = a_state(a_node("n0", labels={"zone": "a"}), a_node("n1", speed=2.0), a_node("n2", cpu=2.0, gpu=1))
    submit(state, a_task("a"), a_task("b", after=("a",)), a_task("c", after=("a", "b")), a_task("d"), workflow_id="w0")
    state.apply(a_placement("n1", workflow_id="w0", task_id="a"))
    state.apply(an_event(EventKind.FINISHED, workflow_id="w0", task_id="a", at_s=9))
    state.apply(a_placement("n0", workflow_id="w0", task_id="d", expected_s=None))
    state.apply(an_event(EventKind.STARTED, workflow_id="w0", task_id="d", at_s=10))
    submit(state, a_task("a"), a_task("b", 5.5, cpu=100.0), a_task("c", after=("b",)), workflow_id="w1", at_s=11)
    state.apply(a_placement("n2", workflow_id="w1", task_id="a", expected_s=12.5, at_s=12))
    state.apply(a_placement(None, workflow_id="w1", task_id="b", outcome=Outcome.REFUSED, at_s=13))
    state.apply(a_ready(a_task("x", gpu=1), workflow_id="open", at_s=14, excluded_nodes=("n2",)))
    state.apply(a_ready(a_task("y"), workflow_id="open", at_s=15))
    submit(state, workflow_id="w2", at_s=16)
    state.apply(a_placement("n1", workflow_id="w2", at_s=17))
    state.apply(a_placement("n1", workflow_id="w2", attempt=1, at_s=18))
    state.apply(an_event(EventKind.FINISHED, workflow_id="w2", attempt=1, at_s=19))
    state.apply(a_lost_node("n2", at_s=20))
    state.apply(some_metrics("n0", "n1", at_s=31))
    return state


def decided(state: State) -> list[Placement]:
    """The placements of one round."""
    batches = decide(state, HEURISTICS["heft"], Constraints(), DecideSettings(), Stamp())
    return [placement for batch in batches for placement in batch.placements]


def read_columns(payload: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(payload[FRAME.size :])) as container:
        return {name: container[name] for name in container.files}


def framed(columns: dict[str, np.ndarray]) -> bytes:
    container = io.BytesIO()
    np.savez(container, **columns)
    body = container.getvalue()
    return FRAME.pack(MAGIC, VERSION, zlib.crc32(body)) + body


SNAPSHOT = dump(a_little_of_everything())
WHOLE = whole(a_little_of_everything())


@pytest.mark.parametrize("is_open", [False, True])
def test_records_kept_as_they_came_make_the_same_state(is_open):
    record = a_ready(a_task()) if is_open else a_workflow(a_task("a"), a_task("b", after=["a"]))
    payload = Codec().encode(record, "topic")
    state = a_state(a_node())
    state.apply(record)

    keep(state, record, payload)
    loaded = load(dump(state), StateSettings())

    (workflow,) = state.workflows.values()
    assert len(workflow.encoded) == 1
    assert whole(loaded) == whole(state)
