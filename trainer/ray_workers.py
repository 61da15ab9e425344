"""Work on every machine of a Ray cluster.

Each piece of work is a task of Ray's, which runs it again elsewhere when its machine is lost, and gives work to
machines that come. Everything crosses as pickled bytes: arrays that Ray itself hands over are read-only, which compiled
code takes for another type.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray looks when it is imported
import ray
from ray.exceptions import RayError, RayTaskError

from schemas.errors import HeadraceError, InvalidConfiguration, RayUnavailable

LOCAL = "local"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PATIENCE_S = 5.0
"""To connect, and again for a first answer: Ray itself would take minutes to give up."""
RETRIES = 5
"""Of a piece of work whose machine or process was lost."""
OBJECT_STORE_BYTES = 200 * 2**20
"""Of a Ray of our own."""
HTTP2_BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HTTP2_SETTINGS = 4
"""The kind of frame with which whoever speaks gRPC answers. Source: RFC 9113, 3.4 and 4.1."""
PACKAGES = ("schemas", "policy", "trainer")

Answer = TypeVar("Answer")


class RayWorkers:
    """The processors of a Ray cluster, as `trainer.workers.Workers`. This process stays connected until it ends."""

    def __init__(self, address: str, processes: int | None, state: tuple[Any, ...]) -> None:
        connect(address, processes)
        self._address = address
        self._state = ray.put(pickle.dumps(state))
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES, scheduling_strategy="SPREAD")(_work_there)

    def map(self, work: Callable[..., Answer], items: Iterable[Any]) -> Iterator[Answer]:
        """See `Workers`. Raises RayUnavailable, and what the work raises."""
        # In a list, Ray leaves the reference what it is: a process that has the state does not read it again.
        submit = partial(self._task.remote, sources_digest(), [self._state])
        pending = [submit(pickle.dumps((work, item))) for item in items]
        return map(self._answer, pending)

    def _answer(self, pending: ray.ObjectRef) -> Any:
        try:
            return pickle.loads(ray.get(pending))
        except RayTaskError as error:
            if isinstance(error.cause, HeadraceError):
                raise error.cause from None
            raise
        except RayError as error:
            raise RayUnavailable(
                f"Ray at {self._address}: lost work {RETRIES + 1} times: {error}; "
                "look at its machines with 'ray status', then start the command again"
            ) from error


def connect(address: str, processes: int | None) -> None:
    """Have this process connected to the Ray cluster there; `local`: one of its own, on loopback.

    Raises InvalidConfiguration where this is no address, RayUnavailable where no usable Ray is.
    """
    if ray.is_initialized():
        return
    quiet = {"log_to_driver": False, "configure_logging": False}
    if address == LOCAL:
        ray.init(
            LOCAL,
            num_cpus=processes or len(os.sched_getaffinity(0)),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            **quiet,
        )
        return
    require_grpc(address)
    try:
        ray.init(address, **quiet)
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:  # Ray raises all of these
        raise RayUnavailable(
            f"Ray at {address}: {error}; this machine must be one of the cluster ('ray start --address {address}'), "
            "with the same Ray, Python and token"
        ) from error
    if ray.cluster_resources().get("CPU", 0) < 1:
        ray.shutdown()
        raise RayUnavailable(f"Ray at {address}: has no processor for work; add a machine with 'ray start'")


def require_grpc(address: str) -> None:
    """Raises InvalidConfiguration where this is no address, RayUnavailable unless somebody who may be Ray answers."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InvalidConfiguration(
            "--ray", f"'{address}' is no address", "give HOST:PORT, as 'ray start --head' prints it, or local"
        )
    if host in LOOPBACK:
        host = ray.util.get_node_ip_address()  # Ray takes it for this machine's address as well
    try:
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
            connection.sendall(HTTP2_BEGIN)
            answer = connection.recv(9)
        problem = "" if answer[3:4] == bytes((HTTP2_SETTINGS,)) else "who answers there is not Ray"
    except OSError as error:
        problem = f"no answer from {host}:{port}: {error}"
    if problem:
        raise RayUnavailable(
            f"Ray at {address}: {problem}; start one with 'ray start --head', and give the HOST:PORT that it prints"
        )


@cache
def sources_digest() -> str:
    """Of this headrace's code: the same code comes to the same figures."""
    top = Path(__file__).parents[1]
    paths = sorted(path for package in PACKAGES for path in (top / package).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _work_there(digest: str, held: list[ray.ObjectRef], what: bytes) -> bytes:
    """The pickled answer, in a process of the cluster."""
    if digest != sources_digest():
        raise RayUnavailable(
            f"Ray's machine {ray.util.get_node_ip_address()}: has another headrace; install the same on every machine"
        )
    work, item = pickle.loads(what)
    return pickle.dumps(work(*_state(held[0]), item))


@lru_cache(maxsize=1)
def _state(held: ray.ObjectRef) -> tuple[Any, ...]:
    state: tuple[Any, ...] = pickle.loads(ray.get(held))
    return state
