"""A pool's state as bytes, and back: whatever is applied next, both answer the same.

    b"headrace-state"  version, 2 bytes  CRC-32 of the rest, 4 bytes  npz container of policy.state_columns

The numbers of the frame are big-endian.
"""

from __future__ import annotations

import gc
import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from policy.state import State, StateSettings
from policy.state_columns import from_columns, to_columns
from schemas.errors import StateLost

MAGIC = b"headrace-state"
VERSION = 2
"""Grows with every change of what the container holds."""
FRAME = struct.Struct(f">{len(MAGIC)}sHI")


def dump(state: State) -> bytes:
    """The state's snapshot. What is dear to encode is kept with the state: the next snapshot takes far less time."""
    container = io.BytesIO()
    np.savez(container, allow_pickle=False, **to_columns(state))
    body = container.getbuffer()
    return b"".join((FRAME.pack(MAGIC, VERSION, zlib.crc32(body)), body))


def load(payload: bytes, settings: StateSettings) -> State:
    """The state whose snapshot this is, to go on under these settings.

    Raises StateLost: no snapshot, damaged, or of a version that this headrace does not read.
    """
    body = _unframed(payload)
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as container:
            columns = {name: container[name] for name in container.files}
        with _without_collector():
            return from_columns(columns, settings)
    except Exception as error:  # numpy and fastavro raise whatever the bytes make them stumble over
        raise StateLost(
            f"snapshot: its content cannot be used ({type(error).__name__}: {error}); "
            "start the headrace that wrote it, or take an earlier snapshot"
        ) from error


@contextmanager
def _without_collector() -> Iterator[None]:
    """Nothing that is built here is garbage: looking for some takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _unframed(payload: bytes) -> memoryview:
    """The container in the payload. Raises StateLost."""
    if not payload.startswith(MAGIC) or len(payload) < FRAME.size:
        raise StateLost(f"snapshot: {len(payload)} bytes starting {payload[:8]!r} are none; take an earlier one")
    _, version, checksum = FRAME.unpack_from(payload)
    if version != VERSION:
        raise StateLost(
            f"snapshot: it is of version {version}, and this headrace reads version {VERSION}; "
            "start the headrace that wrote it, or take an earlier snapshot"
        )
    body = memoryview(payload)[FRAME.size :]
    if zlib.crc32(body) != checksum:
        raise StateLost(f"snapshot: damaged, the checksum of its {len(body)} bytes differs; take an earlier one")
    return body
