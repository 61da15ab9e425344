"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

POLL_S = 0.05
WITHIN_S = 60.0


def eventually(look: Callable[[], Found], what: str, within_s: float = WITHIN_S) -> Found:
    """The first answer of `look` that is true. Fails when there is none in this time, with the last answer."""
    deadline_s = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"{what}: not within {within_s:g} s, but {found!r}"
        time.sleep(POLL_S)
    return found
