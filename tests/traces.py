"""Where the real traces lie: beside the checkout, never in it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest


def shared_data() -> Path | None:
    """The folder of traces, or None where this machine has none."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


def trace_path(*parts: str) -> Path:
    """A trace's path; skips the test where it is missing."""
    folder = shared_data()
    if folder is None or not folder.joinpath(*parts).exists():
        pytest.skip(f"needs the trace {'/'.join(parts)} in ../shared/data beside the checkout")
    return folder.joinpath(*parts)


def table_rows(*parts: str) -> list[dict[str, str]]:
    """The rows of a tab-separated table that comes with the traces; none where it is missing."""
    folder = shared_data()
    if folder is None or not folder.joinpath(*parts).exists():
        return []
    with folder.joinpath(*parts).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))
