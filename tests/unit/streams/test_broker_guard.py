"""The guard with a Python script in the place of the JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from streams import broker_guard
from tests.processes import comes_true, is_running

OBEDIENT = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(143)); print('up', flush=True); time.sleep(60)"
)
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
SOON_S = 10.0


class Guarded:
    """A guard, and the child that it runs."""

    def __init__(self, script: str, *options: str, grace_s: float = SOON_S) -> None:
        command = [sys.executable, broker_guard.__file__, "--grace-s", str(grace_s), *options]
        command += ["--", sys.executable, "-c", script]
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.guard.stdout is not None
        assert self.guard.stderr is not None
        self.pid = int(self.guard.stdout.readline())
        assert self.guard.stderr.readline() == b"up\n"

    def close(self) -> None:
        self.guard.kill()
        self.guard.communicate()
        if is_running(self.pid):
            os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def guarded() -> Iterator[type[Guarded]]:
    with ExitStack() as stack:

        class Closed(Guarded):
            def __init__(self, script: str, *options: str, grace_s: float = SOON_S) -> None:
                super().__init__(script, *options, grace_s=grace_s)
                stack.callback(self.close)

        yield Closed


def test_a_byte_in_the_pipe_ends_the_child(guarded: type[Guarded]) -> None:
    running = guarded(OBEDIENT)

    running.guard.communicate(b"stop", timeout=SOON_S)

    assert not is_running(running.pid)


def test_the_end_of_the_pipe_ends_the_child(guarded: type[Guarded]) -> None:
    running = guarded(OBEDIENT)

    running.guard.communicate(timeout=SOON_S)

    assert not is_running(running.pid)


def test_a_child_that_does_not_follow_is_killed(guarded: type[Guarded]) -> None:
    running = guarded(STUBBORN, grace_s=0.1)

    running.guard.communicate(b"stop", timeout=SOON_S)

    assert not is_running(running.pid)


def test_a_guard_that_is_terminated_ends_the_child(guarded: type[Guarded]) -> None:
    running = guarded(OBEDIENT)

    running.guard.terminate()
    running.guard.wait(SOON_S)

    assert not is_running(running.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child with its parent")
def test_a_guard_that_is_killed_takes_the_child_with_it(guarded: type[Guarded]) -> None:
    running = guarded(STUBBORN)

    running.guard.kill()

    assert comes_true(lambda: not is_running(running.pid), within_s=SOON_S)


def test_the_guard_ends_with_the_child(guarded: type[Guarded]) -> None:
    running = guarded(OBEDIENT)

    os.kill(running.pid, signal.SIGKILL)

    assert running.guard.wait(SOON_S) is not None


def test_a_fork_of_the_owner_that_holds_the_pipe_does_not_keep_the_child_alive() -> None:
    owner = subprocess.run(
        [sys.executable, "-c", FORKING_OWNER, sys.executable, broker_guard.__file__, OBEDIENT],
        stdout=subprocess.PIPE,
        timeout=SOON_S,
    )
    child_pid, fork_pid = map(int, owner.stdout.split())

    try:
        assert is_running(fork_pid)
        assert comes_true(lambda: not is_running(child_pid), within_s=SOON_S)
    finally:
        os.kill(fork_pid, signal.SIGKILL)


FORKING_OWNER = """
import os, subprocess, sys, time
python, guard, script = sys.argv[1:]
command = [python, guard, "--grace-s", "10", "--", python, "-c", script]
running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
child_pid = int(running.stdout.readline())
running.stderr.readline()
fork_pid = os.fork()
if fork_pid == 0:
    os.close(1)
    time.sleep(60)
print(child_pid, fork_pid, flush=True)
os._exit(0)
"""


def test_the_folder_of_this_run_is_removed(guarded: type[Guarded], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "records").write_text("gone soon")
    running = guarded(OBEDIENT, "--remove", str(folder))

    running.guard.communicate(timeout=SOON_S)

    assert not folder.exists()


def test_a_complete_recording_is_kept(guarded: type[Guarded], tmp_path: Path) -> None:
    recording, archive = tmp_path / "recording", tmp_path / "archive"
    recording.write_text("classes")
    running = guarded(OBEDIENT, "--recording", str(recording), "--archive", str(archive))

    running.guard.communicate(b"stop", timeout=SOON_S)

    assert archive.read_text() == "classes"
    assert not recording.exists()


def test_the_recording_of_a_killed_child_is_not_kept(guarded: type[Guarded], tmp_path: Path) -> None:
    recording, archive = tmp_path / "recording", tmp_path / "archive"
    recording.write_text("cla")
    running = guarded(STUBBORN, "--recording", str(recording), "--archive", str(archive), grace_s=0.1)

    running.guard.communicate(b"stop", timeout=SOON_S)

    assert not archive.exists()
