"""Child processes of ours: started, started again when they fail, ended with us."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

log = logging.getLogger("headrace.supervisor")

RESTART_AFTER_S = 0.2
LONGEST_PAUSE_S = 10.0
STEADY_S = 5.0
"""A child that lived this long is started again without a pause."""
POLL_S = 0.1


class Supervised:
    """One `headrace` subcommand as a child that is kept alive until it is stopped."""

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], log_file: Path | None
    ) -> None:
        self.name = name
        self.restarts = 0
        self._command = [sys.executable, "-m", "headrace", *arguments, "--parent", str(os.getpid())]
        self._environment = {**os.environ, **environment}
        self._log_file = log_file
        self._is_stopping = threading.Event()
        self._child = self._start()
        self._watcher = threading.Thread(target=self._watch, name=f"supervisor-{name}", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """Of the child that runs now."""
        return self._child.pid

    def stop(self, grace_s: float = 25.0) -> int:
        """End the child; returns its exit code."""
        self._is_stopping.set()
        self._watcher.join(2 * POLL_S + LONGEST_PAUSE_S)
        self._child.send_signal(signal.SIGTERM)
        try:
            return self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal is for the parent, which then ends its children in order.
        if self._log_file is None:
            return subprocess.Popen(self._command, env=self._environment, start_new_session=True)
        with self._log_file.open("ab") as output:
            return subprocess.Popen(
                self._command, env=self._environment, start_new_session=True, stdout=output, stderr=output
            )

    def _watch(self) -> None:
        pause_s = RESTART_AFTER_S
        started = time.monotonic()
        while not self._is_stopping.wait(POLL_S):
            code = self._child.poll()
            if code is None:
                continue
            pause_s = RESTART_AFTER_S if time.monotonic() - started > STEADY_S else min(2 * pause_s, LONGEST_PAUSE_S)
            log.error("child.ended", extra={"child": self.name, "code": code, "starts_again_in_s": pause_s})
            if self._is_stopping.wait(pause_s):
                return
            started = time.monotonic()
            self._child = self._start()
            self.restarts += 1


def end_with_parent(parent: int) -> None:
    """End this process, as SIGTERM would, when its parent is another than this one: it was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
