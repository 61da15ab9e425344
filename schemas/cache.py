"""Where headrace keeps what it can make or fetch again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path:
    """$HEADRACE_CACHE, else a folder in the user's cache directory."""
    if chosen := environ.get("HEADRACE_CACHE"):
        return Path(chosen).expanduser().resolve()
    user_cache = Path(environ.get("XDG_CACHE_HOME", ""))
    if not user_cache.is_absolute():  # as the XDG specification has it
        user_cache = Path("~/.cache").expanduser()
    return user_cache / "headrace"
