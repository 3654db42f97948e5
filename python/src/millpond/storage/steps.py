"""Tries a storage: what Millpond can do with it, how long that takes, whether a query may start,
what time it is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnsupportedError,
)
from millpond.format.layout import new_probe_key
from millpond.storage.base import Storage


@dataclass(frozen=True, slots=True)
class Step:
    """One operation that Millpond tried on a storage."""

    name: str
    ms: float
    error: MillpondError | None  # None: it works


def run_steps(storage: Storage) -> list[Step]:
    """Try each operation once, in Millpond's order, until one fails. The last ones clean up."""
    key = "state/0/0/1.changelog"
    body = bytes(range(256)) * 4
    todo: list[tuple[str, Callable[[], object]]] = [
        ("look", lambda: list(storage.list(""))),
        ("write", lambda: storage.put_bytes(key, body)),
        ("create once", lambda: _create_once(storage, "millpond/format.json", body)),
        ("read", lambda: storage.read(key)),
        ("read a range", lambda: storage.read_range(key, 10, 100)),
        ("stat", lambda: storage.stat(key)),
        ("delete", lambda: storage.delete([key, "millpond/format.json"])),
    ]
    steps: list[Step] = []
    for name, call in todo:
        started = time.monotonic()
        error: MillpondError | None = None
        try:
            call()
        except MillpondError as e:
            error = e
        steps.append(Step(name, (time.monotonic() - started) * 1000, error))
        if error is not None:
            break
    return steps


def _create_once(storage: Storage, key: str, body: bytes) -> None:
    storage.put_bytes(key, body, if_absent=True)
    try:
        storage.put_bytes(key, body + b"again", if_absent=True)
    except ConflictError:
        return
    raise UnsupportedError(
        f"{key} was there, and the storage created it again: two writers would both believe that"
        " they are the first. A server of S3 that does so ignores If-None-Match",
        kind=ErrorKind.STORAGE_UNSUPPORTED,
        hint="For S3 set the option storage.s3.conditionalPut to false; else use another storage.",
    )


def probe(storage: Storage) -> None:
    """Try in three requests what every query needs: read an absent object, write it, delete it.

    It lists nothing, because to list a large bucket takes time. The read tries the right to list
    too: without it S3 does not say that an object is absent.

    Raises: MillpondError: the request that fails, with the right that is missing.
    """
    key = new_probe_key()
    try:
        storage.read(key)
    except NotFoundError:
        pass
    else:
        raise InvalidInputError(
            f"{storage!r}: the server has an answer for {key}, which nobody wrote: it is no S3"
            " server",
            kind=ErrorKind.STORAGE_MISCONFIGURED,
            hint="Check the option storage.s3.endpoint: another service answers there.",
        )
    storage.put_bytes(key, b"may be deleted: a query tried whether it may write here")
    storage.delete([key])


def time_ms(storage: Storage) -> int | None:
    """Return what time it is by the storage's clock, in ms since the epoch; None: somebody deleted
    the file that was to tell it.

    In three requests: write a file, look when it was written, delete it.

    Raises: UnavailableError: the storage fails.
    """
    key = new_probe_key()
    storage.put_bytes(key, b"may be deleted: somebody asked what time it is here")
    try:
        told_ms = storage.stat(key).modified_ms
    except NotFoundError:
        return None
    storage.delete([key])
    return told_ms
