"""`headrace` as if from a terminal, but in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

import headrace


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    output: str
    errors: str


class CommandLine:
    """Calls headrace with these arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            headrace.main()
        captured = self._capsys.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, captured.err)
