"""Who owns the state at storage.uri: `millpond/owner.json` beside it names one Spark checkpoint.

    <storage.uri>/<query id>/millpond/owner.json    {"checkpoint": "file:/data/checkpoint"}, sealed

Only the owner may change the state. A copy of a Spark checkpoint has the query's id and
`millpond/storage.json` too. So it would write into the same folder. Only its own location tells it
apart. Spark tells the driver and every executor that location in the same words.
"""

from __future__ import annotations

import time

from millpond._version import __version__
from millpond.errors import ConflictError, ErrorKind, error
from millpond.format import layout
from millpond.format.sealed import seal, unseal
from millpond.storage.base import Storage, read_if_there
from millpond.storage.place import read_place
from millpond.storage.same_place import canonical, is_same
from millpond.storage.split import SplitStorage

_KIND = "owner"


def read_owner(state: Storage) -> str | None:
    """Return the URI of the Spark checkpoint that owns the state; None: nobody has claimed it yet.

    Raises: FormatError: FORMAT_DAMAGED. UnsupportedError: FORMAT_TOO_NEW.
    """
    data = read_if_there(state, layout.OWNER_KEY)
    if data is None:
        return None
    return unseal(_KIND, data, name=layout.OWNER_KEY, damaged=ErrorKind.FORMAT_DAMAGED).string(
        "checkpoint"
    )


def owner_record(root: str) -> bytes:
    """Return `millpond/owner.json` of the state of the Spark checkpoint at `root`."""
    body = {
        "checkpoint": canonical(root),
        "required_features": [],
        "created_by": f"millpond {__version__}",
        "created_ms": time.time_ns() // 1_000_000,
    }
    return seal(_KIND, body)


def check_owner(storage: Storage, root: str) -> bool:
    """Return whether the Spark checkpoint at `root` owns the state in `storage`; False: nobody.

    If the Spark checkpoint holds the state itself, it is the owner.

    Raises:
        InvalidInputError: STATE_OWNED: another Spark checkpoint owns it.
        FormatError, UnsupportedError: as `read_owner`.
    """
    if not isinstance(storage, SplitStorage):
        return True
    owner = read_owner(storage.state)
    if owner is None:
        return False
    if not is_same(owner, root):
        raise error(
            ErrorKind.STATE_OWNED,
            f"the state at {read_place(storage.spark) or storage.state!r} belongs to {owner}, not"
            f" to {canonical(root)}",
        )
    return True


def claim(storage: Storage, root: str) -> None:
    """Make the Spark checkpoint at `root` the owner of the state in `storage`.

    Callers do this before they change the state.

    Raises:
        InvalidInputError: STATE_OWNED: another Spark checkpoint owns it.
        FormatError, UnsupportedError: as `read_owner`.
    """
    if check_owner(storage, root):
        return
    try:
        storage.put_bytes(layout.OWNER_KEY, owner_record(root), if_absent=True)
    except ConflictError:
        check_owner(storage, root)  # another executor, or another Spark checkpoint, was first
