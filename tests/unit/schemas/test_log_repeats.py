"""Libraries that repeat themselves fill no log."""

from __future__ import annotations

import logging

from schemas.logs import QUIET_S, Repeats


def a_line(name: str = "aiokafka.conn", message: str = "connection %s lost", at_s: float = 0.0) -> logging.LogRecord:
    record = logging.LogRecord(name, logging.ERROR, "", 0, message, (1,), None)
    record.created = at_s
    return record


def test_a_line_of_a_library_passes_once_in_a_while() -> None:
    repeats = Repeats()

    passed = [repeats.filter(a_line(at_s=at_s)) for at_s in (0.0, 0.1, QUIET_S - 0.1, QUIET_S, QUIET_S + 0.1)]

    assert passed == [True, False, False, True, False]


def test_other_lines_of_the_library_pass_meanwhile() -> None:
    repeats = Repeats()
    repeats.filter(a_line())

    assert repeats.filter(a_line(message="connection %s found"))


def test_headraces_own_lines_all_pass() -> None:
    repeats = Repeats()

    assert all(repeats.filter(a_line(name="headrace.agents")) for _ in range(3))


def test_what_passed_long_ago_is_forgotten() -> None:
    repeats = Repeats()

    for number in range(5000):
        repeats.filter(a_line(message=f"line {number}"))

    assert len(repeats._passed_s) <= 1000
