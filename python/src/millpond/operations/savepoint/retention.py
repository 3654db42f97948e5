"""Savepoints that a schedule makes: each gets a name of its own, and the oldest go.

    <directory>/20261123T051400.123Z

Only savepoints with such a name, and of the same query, are ever deleted.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress

from millpond.errors import ErrorKind, InvalidInputError, MillpondError
from millpond.format import layout
from millpond.local.scratch import remove_abandoned
from millpond.operations.savepoint.delete import delete
from millpond.operations.savepoint.manage import SavepointView, places_with, savepoints_of
from millpond.storage import LocalStorage, open_storage, root_of

log = logging.getLogger(__name__)

_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z")
_GONE = (ErrorKind.NOT_A_SAVEPOINT, ErrorKind.OBJECT_NOT_FOUND)  # another run was first
_RANDOM = 32  # characters at the end of a name
_LEFT = re.compile(rf"\.{_NAME.pattern}\.staging-[0-9a-f]{{{_RANDOM}}}")
_LEFT_S = 86_400


def check_keep(keep: int) -> None:
    """Raise InvalidInputError unless `keep` savepoints can be kept."""
    if keep < 1:
        raise InvalidInputError(
            f"keep is {keep}: at least the new savepoint stays", hint="Say 1 or more: --keep 7."
        )


def new_name(directory: str, now_ms: int) -> str:
    """Return the place of a savepoint that is made now in `directory`."""
    now = dt.datetime.fromtimestamp(now_ms / 1000, dt.timezone.utc)
    return f"{root_of(directory).rstrip('/')}/{now:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z"


def remove_left(directory: str) -> None:
    """Remove what killed runs left in `directory` while they wrote or deleted a savepoint.

    Each run has another name, so no later one would. On a file system it goes after a day: another
    host may write there, and on some no lock tells. On object storage nothing tells a run that was
    killed while it wrote from one that works: there it stays.
    """
    root = root_of(directory)
    storage = open_storage(root)
    if not isinstance(storage, LocalStorage):
        for place in places_with(layout.DELETED_KEY, root, storage):
            if _NAME.fullmatch(place.rpartition("/")[2]):
                _finish(place)
        return
    with suppress(OSError):  # the directory is not there yet, or may not be listed
        for name in os.listdir(storage.root):
            if _LEFT.fullmatch(name):
                remove_abandoned(storage.root, name[:-_RANDOM], min_age_s=_LEFT_S)


def _finish(savepoint: str) -> None:
    try:
        delete(savepoint)
    except MillpondError as e:
        if e.kind not in _GONE:
            log.warning("%s was half deleted, and stays so: %s", savepoint, e)


def remove_older(
    directory: str, query_id: str | None, keep: int, *, planned: str, dry_run: bool
) -> tuple[str, ...]:
    """Delete the oldest savepoints of a query in `directory` until `keep` are left. Return them,
    without those that another run deleted first.

    Args:
        planned: the new savepoint. It counts, also in a dry run, which makes none.
        dry_run: delete nothing.
    """
    storage = open_storage(root_of(directory))
    if isinstance(storage, LocalStorage) and next(storage.list(""), None) is None:
        return ()
    gone = []
    for savepoint in too_many(savepoints_of(directory).savepoints, query_id, keep, planned):
        try:
            delete(savepoint, dry_run=dry_run)
        except MillpondError as e:
            if e.kind not in _GONE:
                raise
            continue  # another run was first
        gone.append(savepoint)
    return tuple(gone)


def too_many(
    views: Sequence[SavepointView], query_id: str | None, keep: int, planned: str
) -> tuple[str, ...]:
    """Return the savepoints to delete, the oldest first (pure).

    Args:
        views: what is in the directory. Their places may be spelled otherwise than that of
            `planned`, which may be in it, too.
    """
    new = _last(planned)
    mine = {
        name: view.savepoint
        for view in views
        if _NAME.fullmatch(name := _last(view.savepoint)) and view.index.image.query_id == query_id
    }
    # Names tell the time. Another run may have made a newer one since: it is not the one to go.
    oldest = sorted({*mine, new})[:-keep]
    return tuple(mine[name] for name in oldest if name != new)


def _last(place: str) -> str:
    return place.rpartition("/")[2]
