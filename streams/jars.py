"""Jars of Maven Central: a pinned list of them, and the folder of the user's cache that holds them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import InvalidConfiguration, NotFetched

ATTEMPTS = 3  # to fetch one jar
CONNECTIONS = 8  # at the same time
PRIVATE = "private-"  # begins the names of folders in the cache that one process works in
LINE = re.compile(r"(?P<sha256>[0-9a-f]{64})  (?P<group>[\w.-]+):(?P<artifact>[\w.-]+):(?P<version>[\w.-]+)")


@dataclass(frozen=True, slots=True)
class Jar:
    """One file of Maven Central, and what it must contain."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


Fetch = Callable[[Jar, Path], None]
"""Puts the jar at this path. OSError, RuntimeError: not to be had now, another attempt may succeed."""


def read_list(path: Path) -> tuple[Jar, ...]:
    """The jars of a list with lines `sha256  group:artifact:version`; InvalidConfiguration names a bad line."""
    jars = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = LINE.fullmatch(line)
        if match is None:
            raise InvalidConfiguration(
                f"{path}:{number}", f"no jar in {line!r}", "write sha256  group:artifact:version"
            )
        jars.append(Jar(**match.groupdict()))
    return tuple(jars)


def installed(wanted: Sequence[Jar], folder: Path, what: str) -> list[Path]:
    """The jars in the folder, which is filled first where it must be; NotFetched where it cannot.

    what  they make up, for the line or the bar that is shown while they come
    """
    try:
        if damaged_or_missing(wanted, folder):
            fill(wanted, folder, what)
    except OSError as error:
        raise NotFetched(
            f"the jars of {what} cannot be kept in {folder}: {error}; name another folder in HEADRACE_CACHE"
        ) from error
    return [folder / jar.file_name for jar in wanted]


def fill(wanted: Sequence[Jar], folder: Path, what: str) -> None:
    """Fetches the jars that the folder lacks."""
    # Not at the top: what fetches takes 0.9 s to import, and is needed once on a machine.
    from streams import maven

    with exclusive(folder):
        missing = damaged_or_missing(wanted, folder)
        if missing:  # what another process did not bring while this one waited
            shown = f"fetching {what} (once): {len(missing)} jars"
            maven.show(install(missing, folder, maven.fetch), len(missing), shown)


def damaged_or_missing(jars: Sequence[Jar], folder: Path) -> list[Jar]:
    """The jars that the folder lacks, or holds with another content than the list says."""
    with ThreadPoolExecutor() as pool:
        intact = pool.map(lambda jar: has_digest(folder / jar.file_name, jar.sha256), jars)
        return [jar for jar, is_intact in zip(jars, intact, strict=True) if not is_intact]


def has_digest(path: Path, sha256: str) -> bool:
    """Whether there is such a file, with this content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def install(jars: Sequence[Jar], folder: Path, fetch: Fetch) -> Iterator[Jar]:
    """Fetches the jars into the folder, each as a whole or not at all; yields each when it is there.

    NotFetched: a jar cannot be fetched, or has another content than the list says.
    """
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        installs = [pool.submit(install_one, jar, folder, fetch) for jar in jars]
        try:
            for done in as_completed(installs):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def install_one(jar: Jar, folder: Path, fetch: Fetch) -> Jar:
    """Fetches one jar, checks it, and only then gives it its name in the folder."""
    problem = ""
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix=PRIVATE, dir=folder) as private:
            part = Path(private) / jar.file_name
            try:
                fetch(jar, part)
            except (OSError, RuntimeError) as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if has_digest(part, jar.sha256):
                os.replace(part, folder / jar.file_name)
                return jar
            problem = f"what came is not the file pinned by SHA-256 {jar.sha256}"
    raise NotFetched(
        f"{jar.coordinates} cannot be fetched from Maven Central ({problem}). It is needed once, in {folder}: "
        "connect this machine to the network"
    )


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One process at a time fills the folder; another one waits, and then finds what the first brought."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for abandoned in folder.glob(f"{PRIVATE}*"):  # by a process that was killed
            shutil.rmtree(abandoned)
        yield
