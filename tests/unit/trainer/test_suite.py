"""The rows of the suites: the same scenarios for the same seeds, with traces where they are given."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from schemas.errors import InvalidConfiguration
from schemas.records import WorkflowClass
from tests.unit.trainer.trace_folder import write_traces
from trainer.scenarios import CLASSES
from trainer.suite import EVALUATION, HEADLINE, LARGE, STANDARD, SUITES, TRACE_NAMES, rows_of, trace_of, trace_rows


def test_the_scenarios_that_the_published_figures_are_of_have_not_changed():
    s = STANDARD[0].course(EVALUATION, 0).scenario
    parts = (s.arrival_ms_w, s.first_w, s.class_w, s.request_tr[:, [0, 2]], s.runtime_t, s.parent_e)

    digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()

    assert digest[:16] == "226a0a08c98c062e"


def test_traces_add_rows_to_the_standard_suite_only(tmp_path):
    assert rows_of("standard", None) == STANDARD
    assert [row.name for row in rows_of("standard", tmp_path)] == [*(row.name for row in STANDARD), *TRACE_NAMES]
    assert [row.name for row in rows_of("traces", tmp_path)] == list(TRACE_NAMES)
    assert rows_of("quick", tmp_path) == STANDARD[:2]


def test_a_suite_of_traces_without_traces_is_refused():
    with pytest.raises(InvalidConfiguration, match="--traces DIR"):
        rows_of("traces", None)


def test_names_of_rows_are_used_once(tmp_path):
    for suite in SUITES:
        names = [row.name for row in rows_of(suite, tmp_path)]
        assert len(set(names)) == len(names)


def test_large_rows_up_to_a_thousand_nodes_have_as_much_work_a_node():
    assert {row.workload.workflows / row.nodes for row in LARGE[:3]} == {2}
    assert [row.nodes for row in LARGE] == [64, 256, 1000, 5000]


def test_the_headline_is_of_a_hundred_etl_workflows():
    course = HEADLINE[0].course(EVALUATION, 0)

    assert course.scenario.class_w.tolist() == [CLASSES.index(WorkflowClass.ETL_BATCH)] * 100


@pytest.mark.parametrize("at", range(4))
def test_a_row_of_a_small_folder_of_traces_makes_the_same_scenario_of_the_same_seed(tmp_path, at):
    setup = trace_rows(write_traces(tmp_path / "traces"))[at]

    first, second, other = (setup.course(EVALUATION, seed).scenario for seed in (1, 1, 2))

    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first.run_chance_tk, other.run_chance_tk)
    assert trace_of(setup).workflows


def test_the_pods_run_on_the_nodes_of_their_trace(tmp_path):
    setup = trace_rows(write_traces(tmp_path / "traces"))[3]

    assert [spec.node_id for spec in setup.specs()] == ["n0", "n1", "n2"]
