"""What a user sees of a download."""

from __future__ import annotations

import pytest

from streams.jars import Jar
from streams.maven import show


def test_without_a_terminal_one_line_announces_the_download(capsys: pytest.CaptureFixture[str]) -> None:
    jars = [Jar("org.example", name, "1.0", "0" * 64) for name in ("one", "two")]
    left = iter(jars)

    show(left, len(jars), "fetching two jars")

    assert list(left) == []
    assert capsys.readouterr().err == "headrace: fetching two jars\n"
