from __future__ import annotations

import gzip
import json
import math

import pytest

from schemas.documents import MOST_BYTES_OF_TEXT, parse, read_text
from schemas.errors import InvalidInput


def test_a_gzipped_file_is_read_like_a_plain_one(tmp_path):
    (tmp_path / "a.yaml").write_text("name: ä\n", encoding="utf-8")
    (tmp_path / "a.yaml.gz").write_bytes(gzip.compress("name: ä\n".encode()))

    assert read_text(tmp_path / "a.yaml") == read_text(tmp_path / "a.yaml.gz") == "name: ä\n"


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfname: a")

    assert read_text(tmp_path / "a.yaml") == "name: a"


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path):
    good = gzip.compress(b"name: a\n" * 1000)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "plain.gz").write_bytes(b"name: a\n")
    (tmp_path / "cut.gz").write_bytes(good[:-12])
    (tmp_path / "broken.gz").write_bytes(good[:15] + b"\xff\xff\xff" + good[18:])
    (tmp_path / "latin.yaml").write_bytes("name: ä\n".encode("latin-1"))

    for name, problem in {
        "missing.yaml": "there is no such file",
        "folder.yaml": "cannot be read",
        "plain.gz": "cannot be read",
        "cut.gz": "cannot be read",
        "broken.gz": "cannot be read",
        "latin.yaml": "is no text in UTF-8",
        "nul\0.yaml": "cannot be read",
    }.items():
        with pytest.raises(InvalidInput, match=problem) as caught:
            read_text(tmp_path / name)
        assert caught.value.where == str(tmp_path / name)


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("schemas.documents.MOST_BYTES_OF_TEXT", 1000)
    (tmp_path / "bomb.yaml.gz").write_bytes(gzip.compress(b" " * 1001))

    with pytest.raises(InvalidInput, match="is larger than"):
        read_text(tmp_path / "bomb.yaml.gz")
    assert MOST_BYTES_OF_TEXT > 1000


def test_scalars_have_the_types_that_people_expect():
    text = "[yes, no, on, 1:30, 010, 2026-01-01, 1_000, 0x10, 1e3, 1.5, .5, -7, .inf, true, null, ~, '12']"

    texts, numbers = ["yes", "no", "on", "1:30", "010", "2026-01-01", "1_000", "0x10"], [1e3, 1.5, 0.5, -7, math.inf]
    assert parse(text, "a.yaml") == [[*texts, *numbers, True, None, None, "12"]]


def test_several_documents_are_several_values_without_the_empty_ones():
    assert parse("a: 1\n---\n---\nb: 2\n---\n", "a.yaml") == [{"a": 1}, {"b": 2}]
    assert parse("# nothing\n", "a.yaml") == []


def test_json_and_yaml_that_looks_like_json_are_both_read():
    assert parse(json.dumps({"a": [1, "x"]}), "a.json") == [{"a": [1, "x"]}]
    assert parse("{a: [1, x]}", "a.yaml") == [{"a": [1, "x"]}]


@pytest.mark.parametrize(
    "text",
    ["a: 1\nb: 2\na: 3\n", "x: {a: 1, a: 2}", "a: 1\n'a': 2\n", '{"a": 1, "a": 2}', '{"x": [{"a": 1, "a": 1}]}'],
)
def test_a_key_that_stands_twice_is_refused(text):
    with pytest.raises(InvalidInput, match="the key 'a' stands twice in one mapping"):
        parse(text, "a.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "a: b: c",
        "\tx: 1",
        "a: *unknown",
        "a: !!python/object/apply:os.system [ls]",
        "a: !!timestamp x",
        "a: !!set {b}",
        "a: !!int x",
        "a: !!int ''",
        "a: !!float x",
        "a: !!bool x",
        "a: !!map x",
        "a: !!map [x, y]",
        "a: !!seq x",
        "a: !!merge x\nb: !unknown 1",
        "? [a]\n: 1",
        "&a ? *a\n: 1",
        "a: \0",
        "9" * 5000,
        "[" * 5000,
        "- " * 5000 + "x",
        "{a: " * 5000,
        "\ud800",
    ],
)
def test_what_is_no_yaml_is_refused_with_the_file_name(text):
    with pytest.raises(InvalidInput, match=r"^a.yaml: is no valid YAML: .") as caught:
        parse(text, "a.yaml")

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", '{"a": 1,}', "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "{a: 1}"])
def test_what_is_no_json_is_refused_in_a_json_file(text):
    with pytest.raises(InvalidInput, match=r"^a.json.gz: is no valid JSON: "):
        parse(text, "a.json.gz")


def test_a_syntax_error_is_placed_by_line_and_column():
    with pytest.raises(InvalidInput, match=r"\(line 3, column \d+\)"):
        parse("a: 1\nb: [1, 2\nc: 3\n", "a.yaml")


def test_merge_keys_are_plain_keys():
    assert parse("a: &a {x: 1}\nb: {<<: *a}\n", "a.yaml") == [{"a": {"x": 1}, "b": {"<<": {"x": 1}}}]


def test_a_tower_of_aliases_costs_nothing():
    levels = "\n".join(f"- &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 40))

    (document,) = parse(f"- &l0 [x]\n{levels}\n", "a.yaml")

    assert len(document) == 40
