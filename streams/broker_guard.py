"""Child process that runs the broker's JVM, and ends it when the process that wanted the broker is gone.

`streams.broker` runs this file as a script, so it imports nothing but the standard library. A pipe is its standard
input: a byte in it, or its end, means stop. The owner's death is the end of the pipe; where a fork of the owner still
holds the pipe open, the changed parent process shows it. Should the guard itself be killed, Linux kills the JVM.

It prints the JVM's process id; what the JVM prints goes to the guard's standard error.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

POLL_S = 0.2
PR_SET_PDEATHSIG = 1  # of prctl(2)
ENDED_BY_SIGTERM = 128 + signal.SIGTERM  # how a JVM that shut down in order exits
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def main() -> None:
    """Starts the JVM, waits for a reason to end it, ends it, and tidies up."""
    owner_pid = os.getppid()
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    jvm = start(options.command)
    try:
        print(jvm.pid, flush=True)
        watch(jvm, owner_pid)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end(jvm, options.grace_s)
        tidy_up(options, jvm.returncode)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grace-s", type=float, required=True, help="from SIGTERM to SIGKILL")
    parser.add_argument("--recording", type=Path, help="class archive that the JVM writes when it ends")
    parser.add_argument("--archive", type=Path, help="where a complete recording goes")
    parser.add_argument("--remove", type=Path, help="folder to delete in the end")
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Runs the JVM as a child that does not outlive the guard.

    The signal at a parent's death comes when the parent's *thread* ends: this process has only the one.
    """
    guard_pid = os.getpid()

    def die_with_the_guard() -> None:
        if LIBC is not None:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard_pid:
                os._exit(1)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        close_fds=False,  # the lock on the data directory, which the guard inherited, lives as long as the JVM
        preexec_fn=die_with_the_guard,
    )


def watch(jvm: subprocess.Popen[bytes], owner_pid: int) -> None:
    """Returns when the JVM has ended, or should."""
    while jvm.poll() is None and os.getppid() == owner_pid:
        if select.select([sys.stdin], [], [], POLL_S)[0]:
            return


def end(jvm: subprocess.Popen[bytes], grace_s: float) -> None:
    """Asks the JVM to shut down, and kills it if it does not in time."""
    jvm.terminate()
    try:
        jvm.wait(grace_s)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def tidy_up(options: argparse.Namespace, jvm_returncode: int) -> None:
    """Keeps the recorded class archive if the JVM could complete it, and deletes what was only for this run."""
    try:
        if options.recording and options.recording.exists() and jvm_returncode == ENDED_BY_SIGTERM:
            keep(options.recording, options.archive)
    except OSError as error:
        print(f"no class archive kept: {error}", file=sys.stderr)
    finally:
        if options.remove:
            shutil.rmtree(options.remove, ignore_errors=True)


def keep(recording: Path, archive: Path) -> None:
    """Moves the recording to its place, perhaps on another file system, where it appears as a whole."""
    part = archive.with_name(f"{archive.name}.{os.getpid()}")
    try:
        shutil.move(recording, part)
        os.replace(part, archive)
    finally:
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
