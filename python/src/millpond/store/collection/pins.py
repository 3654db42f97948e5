"""Pins: while somebody outside of the query reads files of a Spark checkpoint, a pin keeps
collection from deleting them.

    millpond/pins/<name>.json   {"manifests": [keys], "changelogs": [keys], "expires_ms": 0}

A pin names only manifests and changelogs: an SST stays as long as a manifest names it. A pin
without `expires_ms` holds until somebody removes its file. A pin with `expires_ms` is ignored and
removed after that time, so that a killed process pins nothing for ever.

Source: docs/reference/format.md.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from millpond.errors import ErrorKind, FormatError, MillpondError, NotFoundError
from millpond.format import layout
from millpond.model.json_fields import JsonFields
from millpond.storage import ObjectInfo, Storage

log = logging.getLogger(__name__)

# A reader renews its pin after a third of this time. A reader that is silent for all of it is dead,
# or its clock is wrong by as much.
LEASE_MS = 15 * 60_000


class Pins:
    """What pins protect from expiry. Each is read once, until it changes: that of a query with many
    stores is large, and each of them asks.
    """

    def __init__(self) -> None:
        self._known: dict[ObjectInfo, tuple[frozenset[str], int | None]] = {}

    def read(self, storage: Storage, *, now_ms: int) -> frozenset[str]:
        """Return the keys that pins protect from expiry. Remove pins whose time is over.

        Args:
            now_ms: since the epoch.
        Returns: keys relative to the Spark checkpoint.
        Raises: FormatError: FORMAT_DAMAGED: a pin cannot be read; nobody knows what it protects.
        """
        found: dict[ObjectInfo, tuple[frozenset[str], int | None]] = {}
        over: list[str] = []
        for info in storage.list(layout.PINS_PREFIX):
            if not info.key.endswith(".json") or info.key.rpartition("/")[2].startswith("."):
                continue
            pin = self._known.get(info) or _read(storage, info.key)
            expires_ms = pin[1]
            if expires_ms is not None and expires_ms < now_ms:
                over.append(info.key)
            else:
                found[info] = pin
        self._known = found
        if over:
            storage.delete(over)
            log.info("removed pins whose time is over: %s", ", ".join(over))
        first, *others = [keys for keys, _ in found.values()] or [frozenset[str]()]
        return first.union(*others) if others else first


def pinned_by(storage: Storage, key: str) -> frozenset[str]:
    """Return the keys that one pin protects; none if its reader has just released it.

    Raises: FormatError: FORMAT_DAMAGED.
    """
    return _read(storage, key)[0]


def _read(storage: Storage, key: str) -> tuple[frozenset[str], int | None]:
    def fail(message: str) -> FormatError:
        return FormatError(
            f"cannot read the pin {key}: {message}; nothing is collected while it is there",
            kind=ErrorKind.FORMAT_DAMAGED,
        )

    try:
        pin = JsonFields(json.loads(storage.read(key)), fail)
    except NotFoundError:
        return frozenset(), None  # its reader has just released it
    except (ValueError, RecursionError) as e:
        raise fail("it is no JSON") from e
    named = frozenset(
        layout.check_relative(one)
        for one in (*pin.strings("manifests"), *pin.strings("changelogs"))
    )
    return named, pin.integer("expires_ms") if pin.has("expires_ms") else None


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
    """Pin the files of these keys while the block runs. Yields the key of the pin.

    A collection that read the pins just before may still delete one of the files. So the block must
    look whether they are there.

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
                # The next attempt may succeed; nothing is lost until the lease is over.
                log.warning("cannot renew %s: %s", key, e)

    write()
    thread = threading.Thread(target=renew, name="millpond-pin", daemon=True)
    thread.start()
    try:
        yield key
    finally:
        done.set()
        thread.join()
        try:
            storage.delete([key])
        except MillpondError as e:
            # What the block made is made. The pin ends by itself.
            log.warning("cannot remove %s, which ends with its lease: %s", key, e)
