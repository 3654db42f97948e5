"""Sweeps announce what they are about to delete, so that no snapshot relies on it.

A sweep announces the SSTs that it condemned. Then it reads the manifests again, deletes what none
of them names, and withdraws the announcement. A publisher writes its manifest, then reads the
announcements. It takes the manifest back if the manifest names a condemned SST. One always sees the
other, however long either is held up: the sweep finds the manifest, or the publisher finds the
announcement. No clock takes part in this; the grace period only makes the case rare.

An erasure of a key announces itself likewise, before it lists what it deletes. An executor that has
not noticed the end of its query may still publish a snapshot of an erased version. It takes that
back, or the erasure finds it.

A killed sweep leaves its announcement behind. Nobody waits for it: publishers upload the condemned
SSTs again under other names. A later sweep withdraws the announcement once it is old by the
storage's clock. A sweep whose announcement was withdrawn deletes nothing any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from millpond.errors import ErrorKind, MillpondError, NotFoundError
from millpond.format import layout
from millpond.format.sealed import seal, unseal
from millpond.storage import Storage

log = logging.getLogger(__name__)

# An announcement that is older than another one by this much belongs to a killed sweep.
ABANDONED_MS = 3_600_000
# No executor publishes a snapshot that long after its query ended.
ERASED_MS = 24 * ABANDONED_MS
_KIND, _ERASED = "condemned", "erased"


@dataclass(frozen=True, slots=True)
class Announced:
    """What publishers of one operator must know.

    condemned: keys of SSTs that some sweep is about to delete. erased_version: a key was erased
    from all versions up to this one; 0: from none.
    """

    condemned: frozenset[str]
    erased_version: int


def _kind(key: str) -> str | None:
    """Return the kind of an announcement; None: the object is none."""
    kind = layout.parse_gc_announcement(key)
    return kind if kind in (_KIND, _ERASED) else None


def announce(storage: Storage, operator: int, keys: Iterable[str]) -> str:
    """Announce that the SSTs `keys` are about to be deleted.

    Returns: the key of the announcement; the sweep withdraws it.
    """
    name = layout.new_gc_announcement_key(operator, _KIND)
    storage.put_bytes(name, seal(_KIND, {"required_features": [], "keys": sorted(keys)}))
    return name


def announce_erasure(storage: Storage, operator: int, version: int) -> None:
    """Announce that a key is being erased from all versions up to `version`."""
    name = layout.new_gc_announcement_key(operator, _ERASED)
    storage.put_bytes(name, seal(_ERASED, {"required_features": [], "version": version}))


def erasures(storage: Storage) -> frozenset[str]:
    """Return the keys of what erasures have announced, of all operators."""
    return erasures_among(info.key for info in storage.list(layout.GC_PREFIX))


def erasures_among(keys: Iterable[str]) -> frozenset[str]:
    """Return those of `keys` that erasures have announced."""
    return frozenset(key for key in keys if _kind(key) == _ERASED)


def announced(storage: Storage, operator: int) -> Announced:
    """Return what sweeps and erasures of the operator have announced.

    Raises: MillpondError: an announcement cannot be read; nobody knows what it says.
    """
    found: set[str] = set()
    erased = 0
    for info in storage.list(layout.gc_announcements_prefix(operator)):
        kind = _kind(info.key)
        if kind is None:
            continue
        try:
            data = storage.read(info.key)
        except NotFoundError:
            continue  # withdrawn just now: its sweep deleted or spared what it condemned
        fields = unseal(kind, data, name=info.key, damaged=ErrorKind.FORMAT_DAMAGED)
        if kind == _KIND:
            found.update(fields.strings("keys"))
        else:
            erased = max(erased, fields.integer("version"))
    return Announced(frozenset(found), erased)


def withdraw_abandoned(storage: Storage, operator: int, own: str) -> int | None:
    """Remove the announcements of killed sweeps, and of erasures that nobody need know any more.
    A later sweep condemns anew what killed ones left.

    Args:
        own: the caller's announcement, made after all of those.
    Returns: when `own` was made, by the storage's clock (ms since the epoch); None: it is gone.
    """
    found = {
        info.key: info.modified_ms
        for info in storage.list(layout.gc_announcements_prefix(operator))
        if _kind(info.key) is not None
    }
    made_ms = found.get(own)
    if made_ms is None:
        return None
    try:
        storage.delete(
            [
                key
                for key, modified_ms in found.items()
                if made_ms - modified_ms > (ABANDONED_MS if _kind(key) == _KIND else ERASED_MS)
            ]
        )
    except MillpondError as e:
        log.warning("operator %d: cannot remove announcements of killed sweeps: %s", operator, e)
    return made_ms
