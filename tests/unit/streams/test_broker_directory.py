"""Who may use a data directory, and what is said when it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import BrokerError
from streams import broker_directory
from streams.broker_directory import claim, telling_lines, write_properties


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_directory, "LOCK_WAIT_S", 0.0)


def test_a_new_directory_is_claimed_and_marked(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "kafka"

    with claim(directory, "4.4.0"):
        pass

    assert (directory / "headrace-broker").read_text() == "4.4.0\n"


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with claim(tmp_path, "4.4.0"), pytest.raises(BrokerError, match="another embedded Kafka is running"):
        claim(tmp_path, "4.4.0")


def test_a_directory_is_free_again_after_use(tmp_path: Path) -> None:
    with claim(tmp_path, "4.4.0"):
        pass

    with claim(tmp_path, "4.4.0") as lock:
        assert not lock.closed


def test_a_directory_of_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(BrokerError, match="a directory of its own"):
        claim(tmp_path, "4.4.0")

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(("written", "ours"), [("4.3.1", "4.4.0"), ("4.4.2", "4.4.0"), ("4.4.0", "5.0.0")])
def test_the_directory_of_an_older_kafka_is_taken_over(tmp_path: Path, written: str, ours: str) -> None:
    claim(tmp_path, written).close()

    claim(tmp_path, ours).close()

    assert (tmp_path / "headrace-broker").read_text() == f"{ours}\n"


@pytest.mark.parametrize("written", ["4.5.0", "5.0.0", "4.10.0"])
def test_the_directory_of_a_newer_kafka_is_refused(tmp_path: Path, written: str) -> None:
    claim(tmp_path, written).close()

    with pytest.raises(BrokerError, match=f"written by Kafka {written}"):
        claim(tmp_path, "4.4.0")

    assert (tmp_path / "headrace-broker").read_text() == f"{written}\n"


def test_a_marker_that_names_no_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "headrace-broker").write_text("four\n")

    with pytest.raises(BrokerError, match="'four'"):
        claim(tmp_path, "4.4.0")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kafka"
    path.write_text("")

    with pytest.raises(BrokerError, match=r"cannot use .*kafka"):
        claim(path, "4.4.0")


def test_the_broker_listens_on_the_loopback_interface_only(tmp_path: Path) -> None:
    write_properties(tmp_path, "kafka", client_port=20001, controller_port=20002)

    lines = dict(line.split("=", 1) for line in (tmp_path / "server.properties").read_text().splitlines())
    hosts = {listener.split("://")[1] for listener in lines["listeners"].split(",")}
    assert hosts == {"127.0.0.1:20001", "127.0.0.1:20002"}


def test_the_lines_that_tell_are_those_of_the_failure(tmp_path: Path) -> None:
    (tmp_path / "broker.log").write_text(
        "2026-01-01 INFO starting (kafka)\n"
        "2026-01-01 ERROR out of luck (kafka)\n"
        "java.lang.RuntimeException: the dice\n"
        "\tat kafka.Kafka.main(Kafka.java)\n"
        "2026-01-01 INFO shutting down (kafka)\n"
    )

    told = telling_lines(tmp_path)

    assert told == "2026-01-01 ERROR out of luck (kafka)\njava.lang.RuntimeException: the dice"


def test_where_no_line_tells_the_last_ones_are_given(tmp_path: Path) -> None:
    (tmp_path / "broker.out").write_text("".join(f"2026-01-01 INFO step {step} (kafka)\n" for step in range(5)))

    told = telling_lines(tmp_path, count=2)

    assert told == "2026-01-01 INFO step 3 (kafka)\n2026-01-01 INFO step 4 (kafka)"
