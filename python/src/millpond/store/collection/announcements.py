"""Sweeps announce what they are about to delete, so that no snapshot relies on it.

A sweep announces the SSTs that it condemned. Then it reads the manifests again, deletes what none
of them names, and withdraws the announcement. A publisher writes its manifest, then reads the
announcements. It takes the manifest back if the manifest names a condemned SST. One always sees the
other, however long either is held up: the sweep finds the manifest, or the publisher finds the
announcement. No clock takes part in this; the grace period only makes the case rare.

A killed sweep leaves its announcement behind. Nobody waits for it: publishers upload the condemned
SSTs again under other names. A later sweep withdraws the announcement once it is old by the
storage's clock. A sweep whose announcement was withdrawn deletes nothing any more.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

from millpond.errors import ErrorKind, MillpondError, NotFoundError
from millpond.format import layout
from millpond.format.sealed import seal, unseal
from millpond.storage import Storage

log = logging.getLogger(__name__)

# An announcement that is older than another one by this much belongs to a killed sweep.
ABANDONED_MS = 3_600_000
_KIND = "condemned"


def _prefix(operator: int) -> str:
    return f"{layout.MILLPOND_DIR}/gc/{operator}.{_KIND}-"


def announce(storage: Storage, operator: int, keys: Iterable[str]) -> str:
    """Announce that the SSTs `keys` are about to be deleted.

    Returns: the key of the announcement; the sweep withdraws it.
    """
    name = f"{_prefix(operator)}{uuid.uuid4().hex}.json"
    storage.put_bytes(name, seal(_KIND, {"required_features": [], "keys": sorted(keys)}))
    return name


def announced(storage: Storage, operator: int) -> frozenset[str]:
    """Return the keys of all SSTs of the operator that some sweep is about to delete.

    Raises: MillpondError: an announcement cannot be read; nobody knows what it condemns.
    """
    found: set[str] = set()
    for info in storage.list(_prefix(operator)):
        try:
            data = storage.read(info.key)
        except NotFoundError:
            continue  # withdrawn just now: its sweep deleted or spared what it condemned
        found.update(
            unseal(_KIND, data, name=info.key, damaged=ErrorKind.FORMAT_DAMAGED).strings("keys")
        )
    return frozenset(found)


def withdraw_abandoned(storage: Storage, operator: int, own: str) -> bool:
    """Remove the announcements of killed sweeps. A later sweep condemns anew what they left.

    Args:
        own: the caller's announcement, made after all of those.
    Returns: whether `own` is still there.
    """
    found = {info.key: info.modified_ms for info in storage.list(_prefix(operator))}
    made_ms = found.get(own)
    if made_ms is None:
        return False
    try:
        storage.delete(
            [key for key, modified_ms in found.items() if made_ms - modified_ms > ABANDONED_MS]
        )
    except MillpondError as e:
        log.warning("operator %d: cannot remove announcements of killed sweeps: %s", operator, e)
    return True
