"""What Millpond does with a storage, done once: which of it is possible, how long it takes, and whether a query may start on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from millpond.errors import ErrorKind, InvalidInputError, MillpondError, NotFoundError
from millpond.layout import new_probe_key
from millpond.storage.base import Storage


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that Millpond does with a storage. `error` None: it can be done here."""

    name: str
    ms: float
    error: MillpondError | None


def run_steps(storage: Storage) -> list[Step]:
    """Do once what Millpond does, in its order, until something fails; remove it again."""
    key = "state/0/0/1.changelog"
    body = bytes(range(256)) * 4
    todo: list[tuple[str, Callable[[], object]]] = [
        ("look", lambda: list(storage.list(""))),
        ("write", lambda: storage.put_bytes(key, body)),
        ("create once", lambda: storage.put_bytes("millpond/format.json", body, if_absent=True)),
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


def probe(storage: Storage) -> None:
    """Look for an object that is not there, write it, delete it: what a query cannot do without, in three requests.

    No listing: that of a large bucket takes time, and S3 says that an object is absent only to those who may list.

    Raises: MillpondError: what fails, with the right that is missing.
    """
    key = new_probe_key()
    try:
        storage.read(key)
    except NotFoundError:
        pass
    else:
        raise InvalidInputError(
            f"{storage!r}: there is an answer for {key}, which was never written: no S3 server is there",
            kind=ErrorKind.STORAGE_MISCONFIGURED,
            hint="Check the option storage.s3.endpoint: another service answers there.",
        )
    storage.put_bytes(key, b"may be deleted: a query tried whether it may write here")
    storage.delete([key])
