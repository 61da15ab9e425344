"""Which class archive belongs to which jars, and what a JVM is told about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.class_archive import ClassArchive, class_archive


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    return ClassArchive(top=tmp_path / "top.jsa", base=tmp_path / "base.jsa")


def test_a_changed_jar_has_another_archive(tmp_path: Path) -> None:
    jar = tmp_path / "one.jar"
    jar.write_bytes(b"1")
    before = class_archive([jar], tmp_path)
    jar.write_bytes(b"22")

    after = class_archive([jar], tmp_path)

    assert before.top != after.top
    assert before.base != after.base


def test_the_same_jars_have_the_same_archive(tmp_path: Path) -> None:
    jar = tmp_path / "one.jar"
    jar.write_bytes(b"1")

    first, second = class_archive([jar], tmp_path), class_archive([jar], tmp_path)

    assert first == second


def test_without_any_archive_java_is_told_of_none(archive: ClassArchive) -> None:
    assert archive.use() == ()
    assert not archive.can_be_recorded


def test_the_first_broker_records_on_top_of_javas_own_classes(archive: ClassArchive) -> None:
    archive.base.touch()

    assert archive.can_be_recorded
    assert archive.record(Path("run.jsa")) == (
        f"-XX:SharedArchiveFile={archive.base}",
        "-XX:ArchiveClassesAtExit=run.jsa",
    )


def test_the_brokers_after_it_use_the_whole(archive: ClassArchive) -> None:
    archive.base.touch()
    archive.top.touch()

    assert not archive.can_be_recorded
    assert archive.use() == (f"-XX:SharedArchiveFile={archive.top}",)


def test_a_recording_without_its_base_is_not_used(archive: ClassArchive) -> None:
    archive.top.touch()

    assert archive.use() == ()
