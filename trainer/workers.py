"""Who shares out independent work: processes of this machine, or those of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

from schemas.errors import InvalidConfiguration

Answer = TypeVar("Answer")


class Workers(Protocol):
    """Those who work. What all of their work needs, its state, is handed over to each of them once."""

    def map(self, work: Callable[..., Answer], items: Iterable[Any]) -> Iterator[Answer]:
        """`work(*state, item)` of each item, in the order of the items."""


@contextmanager
def start_workers(
    processes: int | None = None, ray: str | None = None, state: tuple[Any, ...] = ()
) -> Iterator[Workers]:
    """Workers until the end of the block: on Ray where its address is given, else on this machine.

    processes  of this machine; None: one for each processor
    Raises InvalidConfiguration and RayUnavailable.
    """
    if ray is None:
        with local_processes(processes or len(os.sched_getaffinity(0)), state) as workers:
            yield workers
        return
    try:
        from trainer.ray_workers import RayWorkers
    except ImportError as error:
        raise InvalidConfiguration("--ray", f"needs more packages: {error}", "install headrace[ray]") from error
    yield RayWorkers(ray, processes, state)


@contextmanager
def local_processes(count: int, state: tuple[Any, ...]) -> Iterator[Workers]:
    """So many processes of this machine. One: this process."""
    if count == 1:
        yield ThisProcess(state)
        return
    pool = ProcessPoolExecutor(count, get_context("fork"), initializer=_take, initargs=(state,))
    try:
        yield Processes(pool)
    finally:
        pool.shutdown(cancel_futures=True)


class ThisProcess:
    """Works itself."""

    def __init__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def map(self, work: Callable[..., Answer], items: Iterable[Any]) -> Iterator[Answer]:
        """See `Workers`."""
        return map(partial(work, *self._state), items)


class Processes:
    """A pool of processes, forked: they have the state without a copy."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def map(self, work: Callable[..., Answer], items: Iterable[Any]) -> Iterator[Answer]:
        """See `Workers`."""
        return self._pool.map(partial(_with_state, work), items)


_STATE: list[Any] = []
"""Of a process of a pool, which has one pool all its life."""


def _take(state: tuple[Any, ...]) -> None:
    _STATE[:] = state


def _with_state(work: Callable[..., Answer], item: Any) -> Answer:
    return work(*_STATE, item)
