"""The pinned list of jars, and the cache that is filled from it with a fetcher of the test's own."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import BrokerError, InvalidConfiguration, NotFetched
from streams.jars import (
    ATTEMPTS,
    Fetch,
    Jar,
    damaged_or_missing,
    exclusive,
    install,
    installed,
    read_list,
)
from streams.kafka_install import LIST, installed_kafka, jar_folder, kafka_version

CONTENT = {"one": b"the first jar", "two": b"the second jar"}
DIGEST = "0123456789abcdef" * 4


def jar(name: str) -> Jar:
    return Jar("org.example", name, "1.0", hashlib.sha256(CONTENT[name]).hexdigest())


def serving(content: dict[str, bytes]) -> tuple[Fetch, list[str]]:
    """A fetcher that hands out this content, and the names that it was asked for."""
    asked = []

    def fetch(wanted: Jar, path: Path) -> None:
        asked.append(wanted.artifact)
        path.write_bytes(content[wanted.artifact])

    return fetch, asked


def failing(first: int, then: Callable[[Jar, Path], None]) -> Fetch:
    """A fetcher whose first calls find no network."""
    calls = iter(range(first))

    def fetch(wanted: Jar, path: Path) -> None:
        if next(calls, None) is not None:
            path.write_bytes(b"half a")
            raise OSError("network is unreachable")
        then(wanted, path)

    return fetch


def fill(jars: list[Jar], folder: Path, fetch: Fetch) -> None:
    for _ in install(damaged_or_missing(jars, folder), folder, fetch):
        pass


def test_the_shipped_list_holds_the_93_jars_of_kafka_4_4() -> None:
    jars = read_list(LIST)

    assert len(jars) == len({one.file_name for one in jars}) == 93
    assert kafka_version(jars) == "4.4.0"


def test_the_shipped_list_lets_the_broker_log() -> None:
    names = {one.artifact for one in read_list(LIST)}

    assert {"log4j-slf4j-impl", "log4j-core", "slf4j-api"} <= names


def test_a_line_becomes_a_jar(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"{DIGEST}  org.scala-lang:scala-library:2.13.18\n")

    (found,) = read_list(path)

    assert found == Jar("org.scala-lang", "scala-library", "2.13.18", DIGEST)
    assert found.file_name == "scala-library-2.13.18.jar"


@pytest.mark.parametrize(
    "line", ["", "org.example:one:1.0", f"{DIGEST} org.example:one:1.0", f"{DIGEST[1:]}  a:b:1", f"{DIGEST}  a/b:c:1"]
)
def test_a_bad_line_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"{DIGEST}  a:b:1\n{line}\n")

    with pytest.raises(InvalidConfiguration, match=r"list\.txt:2"):
        read_list(path)


def test_an_empty_cache_is_filled(tmp_path: Path) -> None:
    fetch, asked = serving(CONTENT)

    fill([jar("one"), jar("two")], tmp_path, fetch)

    assert sorted(asked) == ["one", "two"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "one-1.0.jar": CONTENT["one"],
        "two-1.0.jar": CONTENT["two"],
    }


def test_a_full_cache_fetches_nothing(tmp_path: Path) -> None:
    fill([jar("one"), jar("two")], tmp_path, serving(CONTENT)[0])
    fetch, asked = serving(CONTENT)

    fill([jar("one"), jar("two")], tmp_path, fetch)

    assert asked == []


def test_a_corrupted_jar_is_fetched_again(tmp_path: Path) -> None:
    fill([jar("one"), jar("two")], tmp_path, serving(CONTENT)[0])
    (tmp_path / "two-1.0.jar").write_bytes(b"the second jaR")
    fetch, asked = serving(CONTENT)

    fill([jar("one"), jar("two")], tmp_path, fetch)

    assert asked == ["two"]
    assert (tmp_path / "two-1.0.jar").read_bytes() == CONTENT["two"]


def test_a_jar_with_the_wrong_content_never_gets_into_the_cache(tmp_path: Path) -> None:
    fetch, asked = serving({"one": b"something else"})

    with pytest.raises(NotFetched, match="not the file pinned by SHA-256"):
        fill([jar("one")], tmp_path, fetch)

    assert asked == ["one"] * ATTEMPTS
    assert list(tmp_path.iterdir()) == []


def test_a_fetch_that_fails_once_is_repeated(tmp_path: Path) -> None:
    fetch = failing(1, then=serving(CONTENT)[0])

    fill([jar("one")], tmp_path, fetch)

    assert [path.name for path in tmp_path.iterdir()] == ["one-1.0.jar"]


def test_no_network_names_the_jar_and_the_way_around(tmp_path: Path) -> None:
    fetch = failing(ATTEMPTS, then=serving(CONTENT)[0])

    with pytest.raises(NotFetched) as caught:
        fill([jar("one")], tmp_path, fetch)

    assert "org.example:one:1.0" in str(caught.value)
    assert "network is unreachable" in str(caught.value)
    assert "connect this machine to the network" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_one_at_a_time_fills_the_cache(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with exclusive(tmp_path):
            order.append("second in")

    with exclusive(tmp_path):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.2)
        order.append("first out")
    waiting.join()

    assert order == ["first out", "second in"]


def test_what_a_killed_process_left_half_fetched_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "private-abc").mkdir()
    (tmp_path / "private-abc" / "one-1.0.jar").write_bytes(b"half a")

    with exclusive(tmp_path):
        left = [path.name for path in tmp_path.iterdir()]

    assert left == ["lock"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(NotFetched, match="HEADRACE_CACHE"):
        installed([jar("one")], tmp_path / "file" / "jars", "one jar")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HEADRACE_CACHE": "/var/cache/headrace", "XDG_CACHE_HOME": "/xdg"}, "/var/cache/headrace/kafka-4.4.0"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/headrace/kafka-4.4.0"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/one/.cache/headrace/kafka-4.4.0"),
        ({}, "/home/one/.cache/headrace/kafka-4.4.0"),
    ],
)
def test_the_cache_is_the_users(environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/one")

    folder = jar_folder("4.4.0", environ)

    assert folder == Path(expected)


def test_a_broker_without_its_jars_names_the_way_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))

    with pytest.raises(BrokerError, match="HEADRACE_KAFKA__BOOTSTRAP_SERVERS"):
        installed_kafka(256)
