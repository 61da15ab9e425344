"""The actor with the weights that headrace ships: it scores, caches what it may, and refuses what it must."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings

from policy import sessions
from policy.actor import Actor, ActorSettings, load_actor
from policy.encodings import node_inputs
from policy.heuristics import heuristic
from policy.observation import Observation
from policy.sessions import CPU, CUDA, Session
from policy.weight_set import Golden, WeightSet, shipped_weights, write_weights
from schemas.errors import InvalidConfiguration, UnusableWeights
from schemas.records import METRICS, EventKind
from tests.builders import (
    a_node,
    a_placement,
    a_ready,
    a_state,
    a_task,
    an_event,
    an_observation,
    decided,
    some_metrics,
    some_nodes,
    submit,
)
from tests.strategies import pools

WEIGHTS = shipped_weights()
ON_CPU = ActorSettings(device="cpu")


@pytest.fixture(scope="module")
def actor() -> Actor:
    return Actor(WEIGHTS, ON_CPU)


class Counted:
    """Counts the runs of an actor's sessions, in place."""

    def __init__(self, actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = dict.fromkeys(actor._sessions, 0)
        real = Session.run

        def run(session, inputs):
            self.runs[session.part] += 1
            return real(session, inputs)

        monkeypatch.setattr(Session, "run", run)


@given(pool=pools())
@settings(max_examples=40, deadline=None)
def test_scores_have_one_row_a_task_and_are_finite(actor, pool):
    seen = an_observation(pool.state())
    if not seen.tasks:
        return

    logits_bn = actor.score(seen)

    assert logits_bn.shape == seen.mask_bn.shape
    assert logits_bn.dtype == np.float32
    assert np.isfinite(logits_bn).all()


@given(pool=pools())
@settings(max_examples=20, deadline=None)
def test_the_order_of_the_nodes_means_nothing(actor, pool):
    order = list(reversed(range(len(pool.nodes))))
    one, other = an_observation(pool.state()), an_observation(pool.state(order))
    if not one.tasks:
        return

    there_bn, back_bn = actor.score(one), actor.score(other)

    assert back_bn[:, ::-1] == pytest.approx(there_bn, rel=1e-3, abs=1e-3)


def test_a_task_is_scored_the_same_alone_and_in_a_batch(actor):
    state = a_state(*some_nodes(5), a_node("n5", speed=2.0))
    submit(state, a_task("a"), a_task("b", 99.0), a_task("c", cpu=4.0))
    seen = an_observation(state)

    together_bn = actor.score(seen)

    for row in range(3):
        one = Observation(state, seen.tasks[row : row + 1], [0], seen.mask_bn[row : row + 1], seen.free_rn)
        assert actor.score(one)[0] == pytest.approx(together_bn[row], abs=1e-4)


def test_a_much_faster_node_wins(actor):
    state = a_state(*some_nodes(3), a_node("fast", speed=4.0))
    submit(state, a_task(runtime_s=100.0))

    placements = decided(state, replace(actor.policy(), temperature=0.0))

    assert [p.node_id for p in placements] == ["fast"]
    assert placements[0].policy == "actor"
    assert placements[0].model_version == WEIGHTS.manifest.version


def test_a_soft_wish_decides_between_equal_nodes(actor):
    from schemas.records import Preference

    state = a_state(a_node("n0"), a_node("n1", labels={"disk": "ssd"}), a_node("n2"))
    submit(state, a_task(preferences=(Preference(100, "disk", ("ssd",)),)))

    placements = decided(state, replace(actor.policy(), temperature=0.0))

    assert [p.node_id for p in placements] == ["n1"]


def test_nodes_are_encoded_once_until_their_window_or_specification_changes(actor, monkeypatch):
    counted = Counted(actor, monkeypatch)
    state = a_state(*some_nodes(3))
    submit(state, a_task())

    actor.score(an_observation(state))
    actor.score(an_observation(state))
    assert counted.runs["node"] == 1

    state.apply(some_metrics("n0", at_s=15.0))
    actor.score(an_observation(state))
    assert counted.runs["node"] == 2

    state.apply(some_metrics(a_node("n1", cpu=16.0), at_s=15.0))
    actor.score(an_observation(state))
    assert counted.runs["node"] == 3


def test_a_dag_is_encoded_once_and_several_new_ones_in_one_run(actor, monkeypatch):
    counted = Counted(actor, monkeypatch)
    state = a_state(*some_nodes(3))
    submit(state, a_task("a"), a_task("b", after=["a"]))
    submit(state, a_task("c"), workflow_id="w1")

    actor.score(an_observation(state))
    actor.score(an_observation(state))

    assert counted.runs["dag"] == 1


def test_dags_encoded_together_score_as_each_alone():
    state = a_state(*some_nodes(4))
    submit(state, a_task("a"), a_task("b", 50.0, after=["a"]), workflow_id="w0")
    submit(state, a_task("c", 9.0), a_task("d", after=["c"]), a_task("e", after=["c"]), workflow_id="w1")
    seen = an_observation(state)
    together, alone = Actor(WEIGHTS, ON_CPU), Actor(WEIGHTS, ON_CPU)

    for row in range(2):
        alone.score(Observation(state, seen.tasks[row : row + 1], [0], seen.mask_bn[row : row + 1], seen.free_rn))

    assert together.score(seen) == pytest.approx(alone.score(seen), abs=1e-4)


def test_the_tasks_of_an_open_workflow_are_scored_as_they_come(actor):
    state = a_state(*some_nodes(3))
    state.apply(a_ready(a_task("a"), workflow_id="open"))
    assert actor.score(an_observation(state)).shape == (1, 3)

    state.apply(a_ready(a_task("b", after=["a"]), task_id="b", workflow_id="open"))

    assert actor.score(an_observation(state)).shape == (2, 3)


def test_what_is_kept_of_finished_workflows_does_not_grow(actor):
    state = a_state(*some_nodes(2))
    for at in range(400):
        submit(state, a_task(), workflow_id=f"w{at}")
        actor.score(an_observation(state))
        state.apply(a_placement(workflow_id=f"w{at}"))
        state.apply(an_event(EventKind.FINISHED, workflow_id=f"w{at}"))

    assert not state.workflows
    assert len(actor._memory(state).dags) <= 64


def test_a_pool_that_is_gone_is_forgotten():
    actor = Actor(WEIGHTS, ON_CPU)
    state = a_state(a_node())
    submit(state, a_task())
    actor.score(an_observation(state))
    assert len(actor._memories) == 1

    del state
    gc.collect()

    assert len(actor._memories) == 0


def test_nodes_encoded_in_slices_are_the_same_as_at_once():
    rng = np.random.default_rng(0)
    state = a_state(*(a_node(f"n{i}", cpu=float(rng.integers(1, 64))) for i in range(10)))
    state.apply(some_metrics(*(f"n{i}" for i in range(10)), at_s=15.0, values_nm=rng.random((10, len(METRICS)))))
    whole, sliced = (Actor(WEIGHTS, replace(ON_CPU, slice_nodes=size)) for size in (10, 3))
    inputs = node_inputs(state)

    one, other = whole.encode(inputs), sliced.encode(inputs)

    assert other.key_kn == pytest.approx(one.key_kn, abs=1e-5)
    assert other.bias_n == pytest.approx(one.bias_n, abs=1e-5)
    assert other.pool_h == pytest.approx(one.pool_h, abs=1e-5)


def test_an_empty_pool_can_be_encoded(actor):
    encoding = actor.encode(node_inputs(a_state()))

    assert encoding.bias_n.shape == (0,)
    assert np.isfinite(encoding.pool_h).all()


def test_beside_the_decisions_the_nodes_stay_as_they_were_encoded(monkeypatch):
    monkeypatch.setattr("policy.actor.INLINE_NODES", 0)
    actor = Actor(WEIGHTS, replace(ON_CPU, synchronous=False))
    counted = Counted(actor, monkeypatch)
    state = a_state(*some_nodes(3))
    submit(state, a_task())
    before_bn = actor.score(an_observation(state))
    state.apply(some_metrics("n0", "n1", "n2", at_s=15.0, values_nm=np.ones((3, len(METRICS)))))

    assert actor.is_behind(state)
    assert actor.score(an_observation(state)).tolist() == before_bn.tolist()
    assert counted.runs["node"] == 1

    encoding = actor.encode(node_inputs(state))
    actor.use(state, encoding)
    assert not actor.is_behind(state)
    fresh_bn = Actor(WEIGHTS, ON_CPU).score(an_observation(state))
    assert actor.score(an_observation(state)) == pytest.approx(fresh_bn, abs=1e-5)


def test_a_node_newer_than_the_encoding_counts_as_an_average_one():
    actor = Actor(WEIGHTS, replace(ON_CPU, synchronous=False))
    state = a_state(*some_nodes(3))
    submit(state, a_task())
    actor.score(an_observation(state))

    state.apply(some_metrics(a_node("n3")))
    logits_n = actor.score(an_observation(state))[0]

    assert logits_n[3] == pytest.approx(logits_n[:3].mean(), abs=1e-4)


def test_nodes_are_encoded_in_another_thread_while_decisions_are_made(actor):
    state = a_state(*some_nodes(600))
    submit(state, a_task())
    inputs, found = node_inputs(state), []
    expected = actor.encode(inputs)
    thread = threading.Thread(target=lambda: found.extend(actor.encode(inputs) for _ in range(5)))

    thread.start()
    while thread.is_alive():
        actor.score(an_observation(state))
    thread.join()

    assert all(np.array_equal(e.key_kn, expected.key_kn) for e in found)
    assert len(found) == 5


def test_pools_do_not_mix(actor):
    one, other = a_state(*some_nodes(2)), a_state(a_node("x", speed=2.0), a_node("y"), a_node("z"))
    for state in (one, other):
        submit(state, a_task("a"), a_task("b", after=["a"]))
    alone_bn = Actor(WEIGHTS, ON_CPU).score(an_observation(other))

    actor.score(an_observation(one))

    assert actor.score(an_observation(other)).tolist() == alone_bn.tolist()


def test_a_score_that_is_not_finite_is_an_error(monkeypatch):
    actor = Actor(WEIGHTS, ON_CPU)
    state = a_state(*some_nodes(2))
    submit(state, a_task())
    real = Session.run

    def run(session, inputs):
        outputs = real(session, inputs)
        if session.part == "head":
            outputs[0][0, 1] = np.nan
        return outputs

    monkeypatch.setattr(Session, "run", run)

    with pytest.raises(UnusableWeights, match="a score is not finite"):
        actor.score(an_observation(state))


def test_weights_that_do_not_answer_what_they_did_are_refused():
    golden = WEIGHTS.manifest.golden["head"]
    wrong = Golden(golden.inputs, {name: array + 0.01 for name, array in golden.outputs.items()})
    manifest = replace(WEIGHTS.manifest, golden={**WEIGHTS.manifest.golden, "head": wrong})

    with pytest.raises(UnusableWeights, match=r"head.onnx: logits_bn differs by"):
        Actor(WeightSet(manifest, WEIGHTS.files), ON_CPU)


def test_bytes_that_are_no_onnx_are_refused():
    files = {**WEIGHTS.files, "dag.onnx": b"not a graph"}

    with pytest.raises(UnusableWeights, match=r"dag.onnx: ONNX Runtime cannot load it"):
        Actor(WeightSet(WEIGHTS.manifest, files), ON_CPU)


def test_a_part_of_other_inputs_is_refused():
    files = {**WEIGHTS.files, "dag.onnx": WEIGHTS.files["head.onnx"]}

    with pytest.raises(UnusableWeights, match=r"dag.onnx: makes logits_bn of context_bc, .*, not embedding_th"):
        Actor(WeightSet(WEIGHTS.manifest, files), ON_CPU)


def test_where_there_is_no_cuda_auto_takes_the_cpu_and_says_so(monkeypatch):
    monkeypatch.setattr(sessions, "has_cuda", lambda: False)

    assert Actor(WEIGHTS, ActorSettings(device="auto")).provider == CPU


@pytest.mark.skipif(sessions.has_cuda(), reason="needs a machine without a CUDA device")
def test_cuda_that_quietly_becomes_the_cpu_is_refused():
    with pytest.raises(UnusableWeights, match="was to run on cuda, but ONNX Runtime gave CPUExecutionProvider"):
        Actor(WEIGHTS, ActorSettings(device="cuda"))


@pytest.mark.skipif(not sessions.has_cuda(), reason="needs a CUDA device")
def test_on_cuda_the_scores_are_those_of_the_cpu(actor):
    on_cuda = Actor(WEIGHTS, ActorSettings(device="cuda"))
    state = a_state(*some_nodes(20))
    submit(state, a_task("a"), a_task("b", after=["a"]), a_task("c"))

    assert on_cuda.provider == CUDA
    assert on_cuda.score(an_observation(state)) == pytest.approx(actor.score(an_observation(state)), abs=1e-3)


def test_a_session_runs_on_one_thread_that_does_not_spin(actor):
    options = actor._sessions["head"].onnx.get_session_options()

    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"device": "tpu"}, "device"), ({"temperature": -0.1}, "temperature"), ({"slice_nodes": 0}, "slice_nodes")],
)
def test_settings_out_of_range_are_refused(fields, named):
    with pytest.raises(InvalidConfiguration, match=f"actor.{named}"):
        ActorSettings(**fields)


def test_an_actor_is_loaded_from_a_folder_or_from_what_is_shipped(tmp_path):
    write_weights(WEIGHTS, tmp_path / "weights")

    given, shipped = load_actor(tmp_path / "weights", device="cpu"), load_actor(device="cpu", temperature=0.7)

    assert given.version == shipped.version == WEIGHTS.manifest.version
    assert shipped.policy().temperature == 0.7


def test_deciding_needs_no_torch():
    code = (
        "import sys; from policy.actor import load_actor; load_actor(device='cpu');"
        "print(sorted({'torch', 'torch_geometric', 'numba', 'onnx'} & set(sys.modules)))"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_deciding_by_heuristic_needs_no_onnxruntime():
    code = "import sys; import policy.decide, policy.heuristics, policy.features; print('onnxruntime' in sys.modules)"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "False"


def test_an_actor_that_was_cloned_places_nearly_as_its_teacher(actor):
    rng = np.random.default_rng(5)
    nodes = [a_node(f"n{i}", speed=float(rng.uniform(0.5, 2)), cpu=float(rng.integers(4, 32))) for i in range(12)]
    state = a_state(*nodes)
    for at in range(30):
        submit(state, a_task("a", float(rng.uniform(5, 500))), workflow_id=f"w{at}")
    seen = an_observation(state)

    best_b = np.where(seen.mask_bn, actor.score(seen), -np.inf).argmax(axis=1)
    teachers_b = np.where(seen.mask_bn, heuristic("heft").score(seen), -np.inf).argmax(axis=1)

    finish_bn = seen.finish_bn
    rows = np.arange(len(best_b))
    assert finish_bn[rows, best_b].sum() <= 1.1 * finish_bn[rows, teachers_b].sum()


def test_the_provider_is_one_of_onnx_runtimes(actor):
    assert actor.provider in onnxruntime.get_available_providers()


def test_only_the_nodes_of_a_large_pool_wait_for_somebody_to_encode_them(monkeypatch):
    monkeypatch.setattr("policy.actor.INLINE_NODES", 2)
    actor = load_actor(synchronous=False, device="cpu")
    small, large = a_state(*some_nodes(2)), a_state(*some_nodes(3))
    for state in (small, large):
        submit(state, a_task("t0"))
        actor.score(an_observation(state))
        state.apply(some_metrics(*state.nodes.specs, at_s=60.0))

    waits = actor.waits_for_encoding(small), actor.waits_for_encoding(large)
    actor.use(large, actor.encode(node_inputs(large)))

    assert waits == (False, True)
    assert not actor.waits_for_encoding(large)
