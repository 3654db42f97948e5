"""What Millpond does with a storage, done once: which of it is possible, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from millpond.errors import MillpondError
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
