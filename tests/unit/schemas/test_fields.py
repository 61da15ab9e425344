from __future__ import annotations

import pytest

from schemas.errors import InvalidInput
from schemas.fields import fields_of, suggestion
from schemas.quantities import parse_count
from schemas.records import Effect


def test_an_unknown_key_is_answered_with_the_nearest_known_one():
    with pytest.raises(InvalidInput, match=r"a.yaml: does not know the key 'runtme'; did you mean 'runtime'\?"):
        fields_of({"runtme": 1}, "a.yaml", ("id", "runtime"))


def test_an_unknown_key_like_no_other_is_answered_with_all_known_ones():
    with pytest.raises(InvalidInput, match="does not know the key 'zzz'; it may be id, runtime"):
        fields_of({"zzz": 1}, "a.yaml", ("id", "runtime"))


@pytest.mark.parametrize(("text", "near"), [("production", "prod"), ("de", "dev"), ("tets", "test")])
def test_a_text_that_goes_on_or_stops_early_is_recognised(text, near):
    assert suggestion(text, ("prod", "test", "dev")) == f"did you mean '{near}'?"


@pytest.mark.parametrize("value", [None, 1, "x", [], [{}]])
def test_what_is_no_mapping_is_refused(value):
    with pytest.raises(InvalidInput, match=r"a.yaml: must be a mapping, not"):
        fields_of(value, "a.yaml")


@pytest.mark.parametrize("key", [1, None, True, 1.5])
def test_a_key_that_is_no_text_is_refused(key):
    with pytest.raises(InvalidInput, match="which is no text; write it in quotes"):
        fields_of({key: 1}, "a.yaml")


def test_a_missing_field_is_named_unless_it_has_a_default():
    fields = fields_of({}, "a.yaml")

    assert fields.amount("gpu", parse_count, 0) == 0
    with pytest.raises(InvalidInput, match=r"a.yaml: has no 'gpu'; add 'gpu:'"):
        fields.amount("gpu", parse_count)


@pytest.mark.parametrize(
    ("value", "read", "problem"),
    [
        (1, lambda f: f.text("k"), "a.yaml: k: must be a text, not 1; write it in quotes"),
        (None, lambda f: f.text("k", "default"), "a.yaml: k: must be a text, not nothing"),
        ("yes", lambda f: f.flag("k", False), "a.yaml: k: must be true or false, not 'yes'"),
        (0, lambda f: f.flag("k", False), "a.yaml: k: must be true or false, not 0"),
        ("a", lambda f: f.texts("k"), "a.yaml: k: must be a list, not 'a'"),
        ({"a": 1}, lambda f: f.texts("k"), "a.yaml: k: must be a list, not a mapping"),
        (["a", 2], lambda f: f.texts("k"), r"a.yaml: k\[1\]: must be a text, not 2"),
        ([1], lambda f: f.sections("k", ("a",)), r"a.yaml: k\[0\]: must be a mapping, not 1"),
        ([], lambda f: f.labels("k"), "a.yaml: k: must be a mapping, not a list"),
        ({"a": True}, lambda f: f.labels("k"), "a.yaml: k: a: must be a text, not true"),
        (
            "NoSchedule",
            lambda f: f.choice("k", tuple(Effect), Effect.UNKNOWN),
            "a.yaml: k: does not know 'NoSchedule'; did you mean 'no_schedule'?",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_in_its_place(value, read, problem):
    with pytest.raises(InvalidInput, match=problem):
        read(fields_of({"k": value}, "a.yaml"))


def test_memory_stands_under_one_of_several_keys():
    assert fields_of({"mem": 2}, "a").memory_bytes("mem", "memory_bytes") == 2 * 2**30
    assert fields_of({"memory_bytes": 2}, "a").memory_bytes("mem", "memory_bytes") == 2
    assert fields_of({"memory": "2Ki"}, "a").memory_bytes("mem", "memory", "memory_bytes") == 2048
    assert fields_of({}, "a").memory_bytes("mem", "memory_bytes") == 0
    with pytest.raises(InvalidInput, match="has both 'mem' and 'memory_bytes'; keep one of them"):
        fields_of({"mem": 2, "memory_bytes": 2}, "a").memory_bytes("mem", "memory_bytes")
