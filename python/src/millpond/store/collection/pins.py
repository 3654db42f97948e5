"""Pins: while somebody outside of the query reads files of a Spark checkpoint, a pin keeps
collection from deleting them.

    millpond/pins/<name>.json   {"manifests": [keys], "changelogs": [keys], "expires_ms": 0,
                                 "lease_ms": 0}

A pin names only manifests and changelogs: an SST stays as long as a manifest names it. A pin
without `expires_ms` holds until somebody removes its file. Others end, so that a killed process
pins nothing for ever: a pin is over, ignored and removed, once its file was not written anew for
`lease_ms`, by the storage's clock. No other one ends it: a host's may be wrong. A pin of an earlier
version has no `lease_ms`: it is over after `expires_ms` by the clock of whoever collects.

Source: docs/reference/format.md.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from millpond.errors import ErrorKind, FormatError, MillpondError, NotFoundError
from millpond.format import layout
from millpond.model.json_fields import JsonFields
from millpond.storage import ObjectInfo, Storage
from millpond.storage.steps import time_ms

log = logging.getLogger(__name__)

# A reader renews its pin after a third of this time. A reader that is silent for all of it is dead.
LEASE_MS = 15 * 60_000


@dataclass(frozen=True, slots=True)
class _Pin:
    """What a pin says.

    keys: of files that stay. expires_ms: by the reader's clock; None: it holds until it is removed.
    lease_ms: None: an earlier version wrote it.
    """

    keys: frozenset[str]
    expires_ms: int | None = None
    lease_ms: int | None = None

    def is_over(self, info: ObjectInfo, now_ms: int, storage_ms: Callable[[], int | None]) -> bool:
        """Whether its time is over.

        Args:
            info: its file.
            now_ms: by this host's clock.
            storage_ms: asks for the storage's time, which costs requests: only if this host's clock
                says that the pin may be over.
        """
        if self.expires_ms is None:
            return False
        if self.lease_ms is not None:
            ends_ms = info.modified_ms + self.lease_ms
            if min(ends_ms, self.expires_ms) >= now_ms:
                return False
            told_ms = storage_ms()
            if told_ms is not None:
                return ends_ms < told_ms
        return self.expires_ms < now_ms


class Pins:
    """What pins protect from expiry. Each is read once, until it changes: that of a query with many
    stores is large, and each of them asks.
    """

    def __init__(self) -> None:
        self._known: dict[ObjectInfo, _Pin] = {}

    def read(self, storage: Storage, *, now_ms: int) -> frozenset[str]:
        """Return the keys that pins protect from expiry. Remove pins whose time is over.

        Args:
            now_ms: since the epoch, by this host's clock.
        Returns: keys relative to the Spark checkpoint.
        Raises: FormatError: FORMAT_DAMAGED: a pin cannot be read; nobody knows what it protects.
            UnavailableError: storage.
        """
        found: dict[ObjectInfo, _Pin] = {}
        over: list[str] = []
        storage_ms = cache(lambda: time_ms(storage))
        for info in storage.list(layout.PINS_PREFIX):
            if not info.key.endswith(".json") or info.key.rpartition("/")[2].startswith("."):
                continue
            pin = self._known.get(info) or _read(storage, info.key)
            if pin.is_over(info, now_ms, storage_ms):
                over.append(info.key)
            else:
                found[info] = pin
        self._known = found
        if over:
            storage.delete(over)
            log.info("removed pins whose time is over: %s", ", ".join(over))
        first, *others = [pin.keys for pin in found.values()] or [frozenset[str]()]
        return first.union(*others) if others else first


def pinned_by(storage: Storage, key: str) -> frozenset[str]:
    """Return the keys that one pin protects; none if its reader has just released it.

    Raises: FormatError: FORMAT_DAMAGED.
    """
    return _read(storage, key).keys


def _read(storage: Storage, key: str) -> _Pin:
    def fail(message: str) -> FormatError:
        return FormatError(
            f"cannot read the pin {key}: {message}; nothing is collected while it is there",
            kind=ErrorKind.FORMAT_DAMAGED,
        )

    try:
        pin = JsonFields(json.loads(storage.read(key)), fail)
    except NotFoundError:
        return _Pin(frozenset())  # its reader has just released it
    except (ValueError, RecursionError) as e:
        raise fail("it is no JSON") from e
    named = frozenset(
        layout.check_relative(one)
        for one in (*pin.strings("manifests"), *pin.strings("changelogs"))
    )
    expires_ms, lease_ms = (
        pin.integer(name) if pin.has(name) else None for name in ("expires_ms", "lease_ms")
    )
    return _Pin(named, expires_ms, lease_ms)


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
        times = {"expires_ms": _now_ms() + lease_ms, "lease_ms": lease_ms}
        storage.put_bytes(key, json.dumps({**body, **times}).encode())

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
