"""Work is shared out in order, and its state is handed over once."""

from __future__ import annotations

import os
import pickle
import sys

import numpy as np
import pytest

from schemas.errors import InvalidConfiguration
from trainer.rules import HEURISTIC_RULES
from trainer.scenarios import run
from trainer.suite import TRAINING, Setup
from trainer.workers import start_workers
from trainer.workloads import WorkloadSettings


class Counted:
    """A state that knows how often it was pickled, in this process."""

    pickled = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[type[Counted], tuple[int]]:
        Counted.pickled += 1
        return Counted, (self.number,)


def product(state: Counted, item: int) -> tuple[int, int]:
    return state.number * item, os.getpid()


@pytest.mark.parametrize("processes", [1, 2])
def test_workers_answer_in_order_and_have_the_state_without_a_copy_of_it(processes):
    Counted.pickled = 0

    with start_workers(processes, state=(Counted(3),)) as workers:
        answers = list(workers.map(product, range(4)))

    assert [answer for answer, _ in answers] == [0, 3, 6, 9]
    assert ({pid for _, pid in answers} == {os.getpid()}) == (processes == 1)
    assert Counted.pickled == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_without_a_state_the_work_gets_the_item_alone(processes):
    with start_workers(processes) as workers:
        assert list(workers.map(abs, [-1, 2, -3])) == [1, 2, 3]


def test_ray_that_is_not_installed_is_said_to_be(monkeypatch):
    monkeypatch.delitem(sys.modules, "trainer.ray_workers", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(InvalidConfiguration, match=r"install headrace\[ray\]"), start_workers(ray="local"):
        pass


def test_a_course_that_was_pickled_is_the_same_course():
    setup = Setup(name="small", nodes=4, workload=WorkloadSettings(workflows=4, tasks=(2, 4), load=0.5))
    course = setup.course(TRAINING, 0)
    graph_tf = course.graphs.graph_tf

    again = pickle.loads(pickle.dumps(course))

    assert all(np.array_equal(a, b) for a, b in zip(course.scenario, again.scenario, strict=True))
    assert all(array.flags.writeable for array in again.scenario if isinstance(array, np.ndarray))
    assert np.array_equal(again.graphs.graph_tf, graph_tf)
    outcomes = [run(one, HEURISTIC_RULES["heft"]).outcome.finish_ms_w.tolist() for one in (course, again)]
    assert outcomes[0] == outcomes[1]
