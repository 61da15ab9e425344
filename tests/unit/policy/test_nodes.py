"""The columns of the node table."""

from __future__ import annotations

import numpy as np

from policy.marks import marks
from policy.nodes import NEVER_MS, NodeTable
from schemas.records import Effect, Taint
from tests.builders import GIB, START_MS, a_node, some_nodes


def test_a_column_keeps_its_place_while_the_table_grows():
    table = NodeTable()

    for i, spec in enumerate(some_nodes(40)):
        table.put(a_node(spec.node_id, cpu=i + 1.0, speed=i + 0.5))

    assert table.capacity_rn[0].tolist() == [1000 * (i + 1) for i in range(40)]
    assert table.speed_n.tolist() == [i + 0.5 for i in range(40)]
    assert [table.index[f"n{i}"] for i in range(40)] == list(range(40))
    assert table.seen_ms_n.tolist() == [NEVER_MS] * 40


def test_a_changed_specification_replaces_the_old_one():
    table = NodeTable()
    at = table.put(a_node(cpu=4.0, gpu=1, gpu_memory_bytes=GIB))

    table.put(a_node(cpu=2.5, gpu=2, gpu_memory_bytes=3 * GIB, price_per_hour=1.5, bandwidth_bytes_per_s=1e6))

    assert table.capacity_rn[:, at].tolist() == [2500, 32 * GIB, 2, 6 * GIB]
    assert (table.device_memory_n[at], table.price_n[at], table.bandwidth_n[at]) == (3 * GIB, 1.5, 1e6)


def test_an_unchanged_specification_changes_nothing():
    table = NodeTable()
    table.put(a_node())
    version = table.version

    table.put(a_node())

    assert table.version == version


def test_a_lost_node_is_back_with_a_sample_taken_later():
    table = NodeTable()
    columns = np.array([table.put(a_node())])
    table.lose(0, START_MS)

    table.see(columns, START_MS)
    is_back_at_once = bool(table.is_present_n[0])
    table.see(columns, START_MS + 1)

    assert not is_back_at_once
    assert table.is_present_n.tolist() == [True]


def test_a_repeated_loss_does_not_take_a_node_away_that_came_back():
    table = NodeTable()
    columns = np.array([table.put(a_node())])
    table.lose(0, START_MS)
    table.see(columns, START_MS + 1)

    is_news = table.lose(0, START_MS)

    assert not is_news
    assert table.is_present_n.tolist() == [True]


def test_a_sample_out_of_order_does_not_make_a_node_older():
    table = NodeTable()
    columns = np.array([table.put(a_node())])
    table.see(columns, START_MS + 5)

    table.see(columns, START_MS)

    assert table.seen_ms_n.tolist() == [START_MS + 5]


def test_a_new_node_takes_over_the_column_of_a_lost_one():
    table = NodeTable()
    for spec in some_nodes(2):
        table.put(spec)
    table.lose(0, START_MS)

    at = table.put(a_node("new", cpu=3.0), reusable=0)

    assert at == 0
    assert table.index == {"n1": 1, "new": 0}
    assert (table.is_present_n[0], table.seen_ms_n[0], table.capacity_rn[0, 0]) == (True, NEVER_MS, 3000)


def test_marks_are_gathered_again_when_a_node_changes():
    soft, hard = Taint("a", "", Effect.PREFER_NO_SCHEDULE), Taint("b", "", Effect.NO_SCHEDULE)
    table = NodeTable()
    table.put(a_node("n0", labels={"zone": "a"}, taints=(soft, hard), images={"app:1": 5}))
    first = table.derived(marks)
    table.put(a_node("n1", labels={"zone": "a"}))

    second = table.derived(marks)

    assert first.labelled("zone", "a").tolist() == [0]
    assert second.labelled("zone", "a").tolist() == [0, 1]
    assert second.labelled("zone", "b").tolist() == []
    assert [columns.tolist() for columns in second.images["app:1"]] == [[0], [5]]
    assert list(second.soft_taints) == [soft]
    assert table.derived(marks) is second
