"""Pins: files of a Spark checkpoint that collection leaves alone, while somebody outside of the query reads them.

    millpond/pins/<name>.json   {"manifests": [keys], "changelogs": [keys], "expires_ms": 0}

Only manifests and changelogs need naming: an SST stays as long as a manifest names it. A pin without `expires_ms` holds until its
file is removed; one with it is ignored, and removed, once that time is over, so that what a killed process pinned does not stay
for ever. Source: docs/reference/format.md.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from millpond import layout
from millpond.errors import ErrorKind, FormatError, MillpondError, NotFoundError
from millpond.storage import Storage

log = logging.getLogger(__name__)

# Renewed when a third of it is over: whoever is not heard of for that long is dead, or its clock is wrong by as much.
LEASE_MS = 15 * 60_000


def read_pins(storage: Storage, *, now_ms: int) -> frozenset[str]:
    """Return the keys, relative to the Spark checkpoint, that pins protect from expiry. Removes pins whose time is over.

    Args:
        now_ms: since the epoch.
    Raises: FormatError: FORMAT_DAMAGED: a pin that cannot be read; then nobody knows what it protects.
    """
    pinned: set[str] = set()
    over: list[str] = []
    for info in storage.list(layout.PINS_PREFIX):
        if not info.key.endswith(".json") or info.key.rpartition("/")[2].startswith("."):
            continue
        keys, expires_ms = _read(storage, info.key)
        if expires_ms is not None and expires_ms < now_ms:
            over.append(info.key)
        else:
            pinned |= keys
    if over:
        storage.delete(over)
        log.info("pins removed whose time is over: %s", ", ".join(over))
    return frozenset(pinned)


def pinned_by(storage: Storage, key: str) -> frozenset[str]:
    """Return the keys that one pin protects; nothing if it was just released. Raises: FormatError: FORMAT_DAMAGED."""
    return _read(storage, key)[0]


def _read(storage: Storage, key: str) -> tuple[frozenset[str], int | None]:
    try:
        pin = json.loads(storage.read(key))
        named = frozenset(
            layout.check_relative(str(k))
            for k in (*pin.get("manifests", ()), *pin.get("changelogs", ()))
        )
        expires_ms = pin.get("expires_ms")
    except NotFoundError:
        return frozenset(), None  # just released
    except (ValueError, AttributeError, TypeError) as e:
        raise FormatError(
            f"{key} is no pin that this version can read: nothing is collected",
            kind=ErrorKind.FORMAT_DAMAGED,
        ) from e
    return named, expires_ms if isinstance(expires_ms, int) else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def pinned(
    storage: Storage,
    *,
    manifests: Iterable[str],
    changelogs: Iterable[str],
    lease_ms: int = LEASE_MS,
) -> Iterator[str]:
    """Pin the files of the keys while the block runs. Yields the key of the pin.

    A collection that had read the pins just before may still delete one of them: look whether they are there inside the block.

    Raises: UnavailableError: storage.
    """
    key = layout.pin_key(f"reader-{uuid.uuid4().hex}")
    body = {"manifests": sorted(manifests), "changelogs": sorted(changelogs)}

    def write() -> None:
        storage.put_bytes(key, json.dumps({**body, "expires_ms": _now_ms() + lease_ms}).encode())

    done = threading.Event()

    def renew() -> None:
        while not done.wait(lease_ms / 3000):
            try:
                write()
            except MillpondError as e:
                log.warning(
                    "cannot renew %s: %s", key, e
                )  # the next attempt may; until the lease is over nothing is lost

    write()
    thread = threading.Thread(target=renew, name="millpond-pin", daemon=True)
    thread.start()
    try:
        yield key
    finally:
        done.set()
        thread.join()
        storage.delete([key])
