"""The data directory of the embedded broker: who owns it, and what lies in it.

headrace-broker     marks the directory as ours; says which Kafka wrote it; locked while a broker runs on it
kafka/              Kafka's own: the records of all topics
server.properties   written anew at each start
broker.log          Kafka's log (broker.log.1, .2: its older parts; broker-previous.log: the start before)
broker.out          what Java printed
temporary/          native libraries that Java unpacks
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import IO

from schemas.errors import BrokerError

MARKER = "headrace-broker"
RECORDS = "kafka"
UNFORMATTED = "kafka.part"  # becomes `RECORDS` when Kafka has formatted it
PROPERTIES = "server.properties"
LOG = "broker.log"
PREVIOUS_LOG = "broker-previous.log"
OUTPUT = "broker.out"
TEMPORARY = "temporary"

NODE_ID = 1
LOCK_WAIT_S = 5.0  # a broker whose owner was killed is still shutting down
LOCK_POLL_S = 0.1
MIB = 2**20


def claim(directory: Path, version: str) -> IO[str]:
    """Takes the directory for a broker of this version of Kafka; it is free again when the file and its copies close.

    BrokerError: a broker runs on it, a newer Kafka wrote it, it holds other files, or it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        marker = directory / MARKER
        if not marker.exists() and any(directory.iterdir()):
            raise BrokerError(
                f"{directory} holds files, but no broker's: give the embedded Kafka a directory of its own"
            )
        lock = marker.open("a+", encoding="utf-8")
        try:
            lock_or_raise(lock, directory)
            check_version(lock, directory, version)
            shutil.rmtree(directory / TEMPORARY, ignore_errors=True)
            (directory / TEMPORARY).mkdir()
        except BaseException:
            lock.close()
            raise
        return lock
    except OSError as error:
        raise BrokerError(f"the embedded Kafka cannot use {directory}: {error}; name another data directory") from error


def lock_or_raise(lock: IO[str], directory: Path) -> None:
    """Locks the marker, or raises BrokerError when another broker keeps it locked."""
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise BrokerError(
                    f"another embedded Kafka is running on {directory}: stop it, or name another data directory"
                ) from None
        time.sleep(LOCK_POLL_S)


def check_version(marker: IO[str], directory: Path, version: str) -> None:
    """Writes the version into the marker, unless a newer Kafka has written the directory: then BrokerError."""
    marker.seek(0)
    written = marker.read().strip() or version
    if release(written) > release(version):
        raise BrokerError(
            f"{directory} was written by Kafka {written}, which {version} cannot read: "
            "use the headrace that wrote it, or name another data directory"
        )
    marker.truncate(0)
    marker.write(version + "\n")
    marker.flush()


def release(version: str) -> tuple[int, ...]:
    """(4, 4) of "4.4.0": bug-fix releases read each other's files."""
    try:
        return tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        raise BrokerError(f"{version!r} in the file {MARKER} is no version of Kafka: name another directory") from None


def is_formatted(directory: Path) -> bool:
    """Whether Kafka's own directory is ready for a broker."""
    return (directory / RECORDS).exists()


def keep_previous_log(directory: Path) -> None:
    """Moves the log of the start before aside, so that a log tells of one start."""
    if (directory / LOG).exists():
        os.replace(directory / LOG, directory / PREVIOUS_LOG)


def write_properties(directory: Path, records: str, client_port: int, controller_port: int) -> None:
    """Writes Kafka's settings for a start on these ports, with its own directory of this name.

    The name is relative, and the JVM runs in the data directory: no path needs the escapes of this file format.
    """
    settings = server_properties(records, client_port, controller_port)
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    (directory / PROPERTIES).write_text(lines, encoding="ascii")


def server_properties(records: str, client_port: int, controller_port: int) -> dict[str, object]:
    """Kafka's settings: one node that is broker and controller, on the loopback interface, small."""
    client, controller = f"127.0.0.1:{client_port}", f"127.0.0.1:{controller_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": NODE_ID,
        "listeners": f"CLIENTS://{client},CONTROLLER://{controller}",
        "advertised.listeners": f"CLIENTS://{client}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": controller,
        "log.dirs": records,
        # Topics come from the catalogue only.
        "auto.create.topics.enable": "false",
        # Weights of a model travel in one record.
        "message.max.bytes": 16 * MIB,
        "replica.fetch.max.bytes": 16 * MIB,
        # Kafka's internal topics: one node can hold one replica.
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        # A worker starts at once, and a test may lose one quickly.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        # After a kill, the broker is refused by its own controller until its old session is over.
        "broker.heartbeat.interval.ms": 500,
        "broker.session.timeout.ms": 3000,
        # The sizes of a laptop: the cleaner's default buffer alone is half the heap.
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 2,
        "log.cleaner.dedupe.buffer.size": 16 * MIB,
        "log.segment.bytes": 64 * MIB,
        "log.index.size.max.bytes": MIB,
    }


def telling_lines(directory: Path, count: int = 20) -> str:
    """The last lines of the log that say what went wrong; the last of all where none does."""
    lines = []
    for name in (OUTPUT, LOG):
        if (directory / name).exists():
            lines += (directory / name).read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in lines if " INFO " not in line and not line.lstrip().startswith(("at ", "WARNING:"))]
    return "\n".join((telling or lines)[-count:])
