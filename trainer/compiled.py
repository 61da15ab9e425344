"""How training compiles: numba, with a cache that knows all of our sources.

numba's own cache looks at the file of the compiled function only; a change in what that one calls would go unseen.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import types
from numba.experimental import structref
from numba.extending import register_jitable

from policy import physics
from schemas.cache import cache_folder

Compilable = TypeVar("Compilable", bound=Callable[..., Any])


SOURCES = (
    "policy/physics.py",
    "policy/decide.py",
    "policy/features.py",
    "policy/pair_features.py",
    "policy/reward.py",
    "policy/state.py",
    "policy/windows.py",
    "trainer/arena.py",
)
"""Files that hold compiled functions, or constants of theirs."""


def _digest() -> str:
    top = Path(__file__).parents[1]
    return hashlib.sha256(b"".join((top / name).read_bytes() for name in SOURCES)).hexdigest()[:16]


numba.config.CACHE_DIR = str(cache_folder(os.environ) / "compiled" / _digest())
for _function in physics.COMPILABLE:
    register_jitable(_function)


def compiled(function: Compilable) -> Compilable:
    """The function, compiled when it is first called."""
    made: Compilable = numba.njit(cache=True, error_model="numpy", nogil=True)(function)
    return made


def by_reference(tuple_class: Any, module: str) -> Any:
    """In compiled code, `by_reference(T, __name__)(*t)` is the named tuple `t`, its arrays the same, but one pointer.

    A named tuple itself is handed on array by array, with every call.
    """
    name = f"{tuple_class.__name__}Reference"
    reference = type(name, (types.StructRef,), {"__module__": module})
    vars(sys.modules[module])[name] = structref.register(reference)  # where the cache finds it again
    maker = type(f"{tuple_class.__name__}Maker", (), {})
    structref.define_constructor(maker, reference, tuple_class._fields)
    structref.define_attributes(reference)
    return maker
