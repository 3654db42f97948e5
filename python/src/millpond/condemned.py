"""What a sweep is about to delete, told to those who publish snapshots meanwhile.

A sweep announces the SSTs that it condemned, looks once more whether a manifest names them, deletes the rest, and withdraws the
announcement. Who publishes a manifest reads the announcements afterwards, and takes the manifest back if it names one of theirs.
Whoever of the two comes second sees the other, however long either is held up in between: either the sweep finds the manifest, or
the publisher the announcement. Times and clocks play no part in this; the grace period only makes it rare.

A sweep that was killed leaves its announcement behind. Nobody waits for it: a publisher uploads once more what is condemned, under
another name. A later sweep withdraws it when it is old by the storage's clock; a sweep whose announcement was withdrawn deletes
nothing any more.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

from millpond import layout
from millpond.errors import ErrorKind, MillpondError, NotFoundError
from millpond.sealed import seal, unseal
from millpond.storage import Storage

log = logging.getLogger(__name__)

# An announcement that is so much older than another one is of an agent that was killed in its sweep.
ABANDONED_MS = 3_600_000
_KIND = "condemned"


def _prefix(operator: int) -> str:
    return f"{layout.MILLPOND_DIR}/gc/{operator}.{_KIND}-"


def announce(storage: Storage, operator: int, keys: Iterable[str]) -> str:
    """Make it known that the SSTs `keys` are about to be deleted. Return the key of the announcement, to be withdrawn."""
    name = f"{_prefix(operator)}{uuid.uuid4().hex}.json"
    storage.put_bytes(name, seal(_KIND, {"required_features": [], "keys": sorted(keys)}))
    return name


def announced(storage: Storage, operator: int) -> frozenset[str]:
    """Return the keys of all SSTs of the operator that some sweep is about to delete.

    Raises: MillpondError: one announcement cannot be read; then nobody knows what it condemns.
    """
    found: set[str] = set()
    for info in storage.list(_prefix(operator)):
        try:
            data = storage.read(info.key)
        except NotFoundError:
            continue  # just withdrawn: what it condemned is gone, or was spared
        found.update(
            unseal(_KIND, data, name=info.key, damaged=ErrorKind.FORMAT_DAMAGED).strings("keys")
        )
    return frozenset(found)


def withdraw_abandoned(storage: Storage, operator: int, own: str) -> bool:
    """Remove what killed sweeps left. What they condemned and did not delete is condemned again by a later one.

    Return whether the announcement `own`, which was made after all of them, is still there.
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
