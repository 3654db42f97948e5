"""`delete`: deletes a savepoint, or finishes a deletion that was killed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError, NotFoundError
from millpond.format import layout
from millpond.operations.output.atomic_target import remove_directory
from millpond.query.index import SavepointIndex, decode_index, no_savepoint
from millpond.spark.heartbeats import refuse_running
from millpond.storage import LocalStorage, Storage, open_storage, root_of
from millpond.storage.given import takes_options


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReport:
    """What `delete` deleted, or would.

    `to_json` is the contract of `millpond savepoint delete --json`.
    """

    savepoint: str
    index: SavepointIndex  # what it held
    dry_run: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return self.index.size_bytes

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"savepoint": self.savepoint, "size_bytes": self.size_bytes, "dry_run": self.dry_run}


@takes_options
def delete(
    savepoint: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    options: Mapping[str, object] | None = None,
) -> DeleteReport:
    """Delete a savepoint, and return what it held.

    Neither the Spark checkpoint that it was made of nor one restored from it needs it. If an
    earlier call was killed, this one finishes what that one began.

    Args:
        savepoint: path or URI of the savepoint.
        dry_run: delete nothing.
        options: of the storage, by name.
    Raises:
        InvalidInputError: NOT_A_SAVEPOINT; INVALID_ARGUMENT: the directory holds files that are
            none of the savepoint's.
        ConflictError: COMMAND_RUNNING: a key is being erased from it.
        FormatError, UnsupportedError: as `show`. UnavailableError: storage.
    """
    root = root_of(savepoint)
    storage = open_storage(root)
    index, record = _what_it_holds(storage, root)
    mine = {*index.files, layout.SAVEPOINT_KEY, layout.CLAIM_KEY, layout.DELETED_KEY}
    there = [info.key for info in storage.list("")]
    # By erasures. With the mark of one there is no way here, so their journals are of no use.
    left = [
        key
        for key in there
        if key.startswith(layout.RUNNING_COMMANDS_PREFIX) or key == layout.ERASE_JOURNAL_KEY
    ]
    others = [key for key in there if key not in mine and key not in left]
    if others:
        raise InvalidInputError(
            f"{root} holds {len(others)} files that are none of the savepoint's,"
            f" {others[0]} is one: nothing is deleted",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Move them elsewhere, then delete the savepoint again.",
        )
    if not dry_run:
        if left:
            refuse_running(storage, root)
        if isinstance(storage, LocalStorage):
            remove_directory(storage.root)
        else:
            # Nothing is renamed here. Without the index there is no savepoint; the record has what
            # the next call needs, if this one is killed.
            storage.put_bytes(layout.DELETED_KEY, record)
            storage.delete([layout.SAVEPOINT_KEY])
            storage.delete([*index.files, layout.CLAIM_KEY, *left])
            storage.delete([layout.DELETED_KEY])
    return DeleteReport(savepoint=root, index=index, dry_run=dry_run)


def _what_it_holds(storage: Storage, root: str) -> tuple[SavepointIndex, bytes]:
    """Return the index of the savepoint, or of one whose deletion was killed, and its bytes.

    Raises: as `read_index`.
    """
    for key in (layout.SAVEPOINT_KEY, layout.DELETED_KEY):
        try:
            data = storage.read(key)
        except NotFoundError:
            continue
        return decode_index(data, name=key), data
    raise no_savepoint(root)
