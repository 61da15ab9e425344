"""Maven Central as the source of jars.

Apart from the list and its cache, because jgo takes longer to import than a warm broker's digests take to check.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from jgo.maven import MavenContext
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from streams.jars import Jar

SILENCE_S = 20  # without a byte, then the attempt has failed


def fetch(jar: Jar, path: Path) -> None:
    """Puts the jar at this path; OSError or RuntimeError where Maven Central does not hand it out."""
    # A repository of its own for each attempt: jgo writes in place, so a shared one could keep half a file.
    with tempfile.TemporaryDirectory(dir=path.parent) as repository:
        context = MavenContext(repo_cache=Path(repository), timeout=SILENCE_S)
        fetched = context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
        os.replace(fetched, path)


def show(arrivals: Iterable[Jar], count: int, what: str) -> None:
    """Draws the arrivals as a bar where standard error is a terminal, else prints one line before the first."""
    if not sys.stderr.isatty():
        print(f"headrace: {what}", file=sys.stderr, flush=True)
        for _ in arrivals:
            pass
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(what, total=count)
        for _ in arrivals:
            progress.advance(bar)
