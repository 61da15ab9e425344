"""Looking at processes from a test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

POLL_S = 0.05


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended: one that waits to be reaped has."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def comes_true(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether the condition holds at some moment of this time; returns at the first."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True
