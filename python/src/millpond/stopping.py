"""End a query and save it. Imported with the package, by every agent too: what it needs is imported when it is called."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from millpond.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from millpond.savepoint import CreateReport
    from millpond.storage import Storage

_LOCAL_POLL_S = 0.01
_REMOTE_POLL_S = 0.25


class RunningQuery(Protocol):
    """What is needed of pyspark's `StreamingQuery`."""

    @property
    def isActive(self) -> bool: ...
    @property
    def status(self) -> Mapping[str, Any]: ...
    def stop(self) -> None: ...


def stop_with_savepoint(
    query: RunningQuery,
    savepoint: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    wait_s: float = 60.0,
    link: bool = True,
) -> CreateReport:
    """Let the running micro-batch of `query` end, stop the query, and save it as it was after its last committed batch.

    A query that restores the savepoint goes on exactly where this one ended.

    Args:
        query: what `writeStream.start()` returned. One that has ended already is saved all the same.
        savepoint: path or URI that does not exist yet, or is an empty directory. It is looked at before the query is stopped.
        checkpoint: the query's Spark checkpoint; None: ask the query (not possible with Spark Connect).
        wait_s: seconds to wait for the running micro-batch. One that takes longer is interrupted; whoever restores the
            savepoint does it again, over the same input.
        link: as for `millpond.savepoint.create`.
    Raises: as `millpond.savepoint.create`; UnsupportedError: `checkpoint` is needed; InvalidInputError: `wait_s` is negative.
    """
    from millpond import savepoint as savepoints
    from millpond.savepoint.create import check_apart
    from millpond.savepoint.target import check_vacant
    from millpond.storage import LocalStorage, open_checkpoint, root_of

    if wait_s < 0:
        raise InvalidInputError(f"wait_s is {wait_s}: it must not be negative")
    root = root_of(checkpoint) if checkpoint is not None else _checkpoint_of(query)
    place = root_of(savepoint)
    check_apart(root, place)
    check_vacant(place)  # before the query is stopped for nothing
    storage = open_checkpoint(root)
    _wait_for_commit(query, storage, wait_s, _LOCAL_POLL_S if isinstance(storage, LocalStorage) else _REMOTE_POLL_S)
    query.stop()
    return savepoints.create(root, place, link=link)


def _wait_for_commit(query: RunningQuery, storage: Storage, wait_s: float, poll_s: float) -> None:
    """Return when no micro-batch runs, or one has been committed since, or the time is over."""
    deadline = time.monotonic() + wait_s
    before = _commits(storage)
    while query.isActive and query.status.get("isTriggerActive") and time.monotonic() < deadline:
        if _commits(storage) != before:
            return
        time.sleep(poll_s)


def _commits(storage: Storage) -> int:
    from millpond import layout

    prefix = f"{layout.COMMITS_DIR}/"
    numbers = (layout.parse_batch(info.key[len(prefix) :]) for info in storage.list(prefix))
    return max((number for number in numbers if number is not None), default=-1)


def _checkpoint_of(query: RunningQuery) -> str:
    java = getattr(query, "_jsq", None)
    if java is None:
        raise UnsupportedError(
            f"{type(query).__module__}.{type(query).__name__} does not say where its checkpoint is",
            hint="Name it: stop_with_savepoint(query, savepoint, checkpoint=...).",
        )
    # Spark's public API names it nowhere; the execution behind the query's handle does.
    execution = java.streamingQuery() if hasattr(java, "streamingQuery") else java
    return str(execution.resolvedCheckpointRoot())
