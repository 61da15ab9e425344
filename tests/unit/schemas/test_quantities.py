from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import InvalidInput
from schemas.quantities import (
    BYTES_OF_UNIT,
    SECONDS_OF_UNIT,
    parse_bandwidth_bytes_per_s,
    parse_bytes,
    parse_count,
    parse_cpu,
    parse_duration_s,
    parse_memory,
    parse_number,
    parse_size,
    shown,
)
from tests.unit.schemas.mutations import outcome

PARSERS = (
    parse_number,
    parse_count,
    parse_cpu,
    parse_memory,
    parse_bytes,
    parse_size,
    parse_bandwidth_bytes_per_s,
    parse_duration_s,
)


@pytest.mark.parametrize(
    ("written", "cores"),
    [(2, 2.0), ("2", 2.0), ("500m", 0.5), (0.25, 0.25), ("1.5", 1.5), ("1e1", 10.0), (" 4 ", 4.0), (0, 0.0)],
)
def test_cpu_is_read_in_cores(written, cores):
    assert parse_cpu(written, "cpu") == cores


@pytest.mark.parametrize(
    ("written", "cores"), [(1.23456, 1.235), ("0.4m", 0.001), (1e-9, 0.001), ("0m", 0.0), (2.0004, 2.0)]
)
def test_cpu_is_rounded_to_thousandths_but_never_to_nothing(written, cores):
    assert parse_cpu(written, "cpu") == cores


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        (4, 4 * 2**30),
        ("4", 4 * 2**30),
        (0.5, 2**29),
        ("4Gi", 4 * 2**30),
        ("4GiB", 4 * 2**30),
        ("512Mi", 512 * 2**20),
        ("8GB", 8 * 10**9),
        ("8G", 8 * 10**9),
        ("1.5Ki", 1536),
        ("2 TB", 2 * 10**12),
        (0, 0),
    ],
)
def test_memory_without_a_unit_is_gibibytes(written, size_bytes):
    assert parse_memory(written, "mem") == size_bytes


def test_bytes_without_a_unit_are_bytes():
    assert parse_bytes(4294967296, "memory_bytes") == 4294967296
    assert parse_bytes("512Mi", "memory_bytes") == 512 * 2**20


def test_a_size_without_a_unit_is_refused_unless_it_is_nothing():
    assert parse_size(0, "output") == 0
    with pytest.raises(InvalidInput, match="output: needs a unit; write a size such as 4Gi"):
        parse_size(5, "output")


@pytest.mark.parametrize(
    ("written", "bytes_per_s"),
    [("10Gbit", 1.25e9), ("10Gbit/s", 1.25e9), ("125MB", 125e6), ("125MB/s", 125e6), ("1Gi", 2.0**30), (0, 0.0)],
)
def test_bandwidth_is_read_in_bytes_per_second(written, bytes_per_s):
    assert parse_bandwidth_bytes_per_s(written, "bandwidth") == bytes_per_s


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("2h", 7200.0),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("1h 30min", 5400.0),
        ("1.5h", 5400.0),
        ("1d2h3m4s", 93784.0),
        ("250ms", 0.25),
        ("1s500ms", 1.5),
        (90, 90.0),
        ("90", 90.0),
        ("1e3", 1000.0),
        (0.5, 0.5),
    ],
)
def test_durations_are_read_in_seconds(written, seconds):
    assert parse_duration_s(written, "runtime") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "nonsense", ["1:30", "30m1h", "1h1h", "1h30", "h", "5 weeks", "1m1min", "-5s", "1h-5m", "", "s5"]
)
def test_what_is_no_duration_is_refused(nonsense):
    with pytest.raises(InvalidInput, match="runtime: must be a duration such as 90s, 2h or 1h30m"):
        parse_duration_s(nonsense, "runtime")


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "bad",
    [float("nan"), float("inf"), float("-inf"), -1, -0.001, "-1", "nan", "inf", "Infinity", ".nan", "", "x", "1 2"],
)
def test_nan_infinite_negative_and_nonsense_are_refused_by_every_parser(parse, bad):
    with pytest.raises(InvalidInput, match=r"^file: task 'a': field: ") as caught:
        parse(bad, "file: task 'a': field")

    assert caught.value.where == "file: task 'a': field"


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("bad", [None, True, False, [], [1], {}, {"a": 1}, b"4Gi", 10**400, "9" * 400, "1e999"])
def test_values_of_another_type_and_monstrous_numbers_are_refused_by_every_parser(parse, bad):
    with pytest.raises(InvalidInput, match=r"^field: ") as caught:
        parse(bad, "field")

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("unit", ["gb", "gi", "m", "KI", "mib", "bit", "Zi"])
def test_an_unknown_unit_of_bytes_is_named(unit):
    with pytest.raises(InvalidInput, match=f"mem: does not know the unit '{unit}'; write a size such as 4Gi"):
        parse_memory(f"4{unit}", "mem")


def test_more_bytes_than_any_machine_has_are_refused():
    with pytest.raises(InvalidInput, match="is more than 1 EiB; check the unit"):
        parse_memory("4Ei", "mem")


def test_a_count_must_be_whole():
    assert parse_count(2.0, "gpu") == 2
    with pytest.raises(InvalidInput, match=r"gpu: must be a whole number, not 0.5"):
        parse_count(0.5, "gpu")


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(BYTES_OF_UNIT)))
def test_a_whole_number_of_any_unit_is_exactly_as_many_bytes(number, unit):
    size_bytes = number * BYTES_OF_UNIT[unit]
    if size_bytes > 2**60:
        with pytest.raises(InvalidInput):
            parse_size(f"{number}{unit}", "output")
    else:
        assert parse_size(f"{number}{unit}", "output") == pytest.approx(size_bytes, rel=1e-15)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["d", "h", "m", "s", "ms"]), st.integers(0, 1000), min_size=1))
def test_a_duration_is_the_sum_of_its_parts(parts):
    order = [unit for unit in SECONDS_OF_UNIT if unit in parts]
    text = "".join(f"{parts[unit]}{unit}" for unit in order)

    assert parse_duration_s(text, "runtime") == pytest.approx(
        sum(parts[unit] * SECONDS_OF_UNIT[unit] for unit in order)
    )


@settings(deadline=None)
@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers())))
def test_a_parser_gives_a_number_of_zero_or_more_or_names_the_field(value):
    for parse in PARSERS:
        found = outcome(partial(parse, value, "the field"))

        if isinstance(found, Exception):
            assert found.where == "the field"
        else:
            assert 0 <= found < float("inf")


@settings(deadline=None)
@given(st.one_of(st.integers(), st.floats(), st.text(), st.lists(st.text()), st.none()))
def test_a_message_shows_any_value_in_one_short_line(value):
    text = shown(value)

    assert "\n" not in text
    assert len(text) < 300
