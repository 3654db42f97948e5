"""Ends a query between two micro-batches, to save it or to rescale it.

`import millpond` imports this module, and every agent does that. For the sake of start-up time,
each function imports what it needs.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from millpond.errors import (
    ErrorKind,
    InvalidInputError,
    MillpondError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from millpond.operations.rescale import RescaleReport
    from millpond.operations.savepoint.create import CreateReport
    from millpond.storage import Storage
    from millpond.storage.given import Given

log = logging.getLogger(__name__)

_LOCAL_POLL_S = 0.01
_REMOTE_POLL_S = 0.25
_ATTEMPTS = 5
_TOLD_EARLY = (
    ErrorKind.BATCH_NOT_COMMITTED,
    ErrorKind.STORAGE_FULL,
    ErrorKind.LOCAL_DISK_FULL,
    ErrorKind.RESCALE_UNFINISHED,
)


class RunningQuery(Protocol):
    """The part of pyspark's `StreamingQuery` that this module uses."""

    @property
    def isActive(self) -> bool: ...
    @property
    def status(self) -> Mapping[str, Any]: ...
    @property
    def lastProgress(self) -> Any: ...
    def stop(self) -> None: ...


def stop_with_savepoint(
    query: RunningQuery,
    savepoint: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    wait_s: float = 60.0,
    copy: bool = False,
    link: bool = True,
    options: Mapping[str, object] | None = None,
) -> CreateReport:
    """Let the running micro-batch of `query` end, stop the query, and save it as it was after its
    last committed batch.

    A query that restores the savepoint goes on exactly where this one ended.

    Args:
        query: what `writeStream.start()` returned. A query that has ended is saved too.
        savepoint: path or URI that does not exist yet, or is an empty directory. That is checked
            before the query is stopped.
        checkpoint: the query's Spark checkpoint; None: ask the query (not possible with Spark
            Connect).
        wait_s: seconds to wait for the running micro-batch. One that takes longer is interrupted. A
            query that restores the savepoint does it again, over the same input.
        copy, link: as for `millpond.savepoint.create`.
        options: of the storages, by name; None: those of the query's session. What the session says
            by Hadoop's names (`fs.s3a.*`) holds as well. With Spark Connect the session is asked
            nothing.
    Raises: as `millpond.operations.savepoint.create`; UnsupportedError: `checkpoint` is needed;
        InvalidInputError: `wait_s` is negative.
    """
    # Start-up time, as in all functions here.
    from millpond.operations.output.atomic_target import check_vacant
    from millpond.operations.savepoint.create import check_apart, create
    from millpond.storage import open_checkpoint, root_of
    from millpond.storage.given import reached_by

    if wait_s < 0:
        raise InvalidInputError(
            f"wait_s is {wait_s}: it must not be negative",
            hint="Give the seconds to wait, or leave wait_s out.",
        )
    root = root_of(checkpoint) if checkpoint is not None else _checkpoint_of(query)
    new_root = root_of(savepoint)
    with reached_by(_given_to(query, options)):
        check_apart(root, new_root)
        check_vacant(new_root)  # or the query would be stopped for nothing
        storage = open_checkpoint(root)
        _wait_for_commit(query, storage, wait_s)
        query.stop()
        return create(root, new_root, copy=copy, link=link)


Query = TypeVar("Query", bound=RunningQuery)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRescale(Generic[Query]):
    """What `rescale_query` did.

    query: the new run.
    report: what the rescale did; None: it was refused, and the query goes on with as many
    partitions as before.
    refused: why it was refused.
    gap_ms: from the call of `stop()` until the new run had committed a micro-batch, or waited for
    input.
    """

    query: Query
    report: RescaleReport | None
    refused: MillpondError | None
    gap_ms: int


def rescale_query(
    start: Callable[[], Query],
    query: Query,
    *,
    partitions: int,
    checkpoint: str | os.PathLike[str] | None = None,
    max_parallelism: int | None = None,
    wait_s: float = 60.0,
    file_sink: str | os.PathLike[str] | None = None,
    options: Mapping[str, object] | None = None,
) -> QueryRescale[Query]:
    """Let the running micro-batch of `query` end, stop the query, give its state `partitions`, and
    start it again.

    A rescale that is known to fail is refused while the query runs on. If the rescale fails later,
    it is taken back, and the query is started with as many partitions as before: look at `refused`.
    A query may begin its next micro-batch before it is stopped. Then it is started again to finish
    that one, and stopped again, a few times at most.

    Args:
        start: starts the query with the same plan and the same checkpointLocation. As a rule it is
            called once.
        query: what `start` returned the last time.
        partitions, max_parallelism, file_sink: as for `millpond.rescale`.
        checkpoint: the query's Spark checkpoint; None: ask the query (not possible with Spark
            Connect).
        wait_s: seconds to wait for a micro-batch: for the running one, and once more for the first
            one afterwards.
        options: as for `stop_with_savepoint`.
    Raises: InvalidInputError, UnsupportedError, STORAGE_FULL: as `millpond.rescale`; the query runs
        on. What `start` raises.
    """
    from millpond.operations.rescale import rescale, undo
    from millpond.storage import open_checkpoint, root_of
    from millpond.storage.given import reached_by

    if wait_s < 0:
        raise InvalidInputError(
            f"wait_s is {wait_s}: it must not be negative",
            hint="Give the seconds to wait, or leave wait_s out.",
        )
    root = root_of(checkpoint) if checkpoint is not None else _checkpoint_of(query)
    with reached_by(_given_to(query, options)):
        storage = open_checkpoint(root)
        _refuse_early(storage, root, partitions, max_parallelism, file_sink)

        def rescaled() -> RescaleReport:
            return rescale(
                storage, root, partitions, max_parallelism=max_parallelism, file_sink=file_sink
            )

        return _restarted(start, query, storage, rescaled, lambda: undo(storage, root), wait_s)


def _restarted(
    start: Callable[[], Query],
    query: Query,
    storage: Storage,
    rescaled: Callable[[], RescaleReport],
    undone: Callable[[], object],
    wait_s: float,
) -> QueryRescale[Query]:
    """Stop the query, rescale, and start it again: a few times, if it begins a micro-batch.

    Args: rescaled: rescales the stopped query. undone: takes back what is left of that.
    """
    from millpond.spark.metadata import newest_commit
    from millpond.storage.given import NOTHING, reached_by

    stopped: float | None = None
    for attempt in range(_ATTEMPTS):
        _wait_for_commit(query, storage, wait_s)
        stopped = time.monotonic() if stopped is None else stopped
        query.stop()
        report: RescaleReport | None = None
        refused: MillpondError | None = None
        try:
            report = rescaled()
        except MillpondError as e:
            refused = e
            if isinstance(e, UnavailableError):
                # If taking back failed too, Spark would not start the query.
                undone()
        commits = newest_commit(storage)
        with reached_by(NOTHING):
            query = start()
        if (
            refused is None
            or refused.kind is not ErrorKind.BATCH_NOT_COMMITTED
            or attempt == _ATTEMPTS - 1
        ):
            break
        log.info("the query had begun its next micro-batch: it finishes that, and is stopped again")
        stopped = None  # the query works again
        _wait_for_first(query, storage, commits, wait_s)
    assert stopped is not None
    if refused is not None:
        log.warning(
            "the query goes on with as many partitions as before: %s: %s",
            refused.kind.value,
            refused,
        )
    _wait_for_first(query, storage, commits, wait_s)
    gap_ms = round((time.monotonic() - stopped) * 1000)
    return QueryRescale(query=query, report=report, refused=refused, gap_ms=gap_ms)


def _refuse_early(
    storage: Storage,
    root: str,
    partitions: int,
    max_parallelism: int | None,
    file_sink: str | os.PathLike[str] | None,
) -> None:
    """Raise InvalidInputError or UnsupportedError if the rescale would raise it.

    The query runs, so other errors may pass.
    """
    from millpond.operations.rescale import rescale

    try:
        rescale(
            storage,
            root,
            partitions,
            max_parallelism=max_parallelism,
            dry_run=True,
            skip_uncommitted=True,
            file_sink=file_sink,
        )
    except MillpondError as e:
        wrong = (
            isinstance(e, (InvalidInputError, UnsupportedError))
            and e.kind is not ErrorKind.FILE_SINK_MISMATCH
        )
        if wrong or e.kind in _TOLD_EARLY:
            raise
        log.info("cannot tell beforehand whether the query can be rescaled: %s", e)


def _wait_for_first(query: RunningQuery, storage: Storage, commits: int, wait_s: float) -> None:
    """Wait until a micro-batch above `commits` is committed, the query waits for input, or the
    time is over.
    """
    from millpond.spark.metadata import newest_commit

    deadline, poll_s = time.monotonic() + wait_s, _poll_s(storage)
    while query.isActive and newest_commit(storage) <= commits and time.monotonic() < deadline:
        status = query.status
        if not status.get("isTriggerActive") and str(status.get("message")).startswith(
            "Waiting for"
        ):
            return
        time.sleep(poll_s)


def _poll_s(storage: Storage) -> float:
    from millpond.storage import LocalStorage

    return _LOCAL_POLL_S if isinstance(storage, LocalStorage) else _REMOTE_POLL_S


def _wait_for_commit(query: RunningQuery, storage: Storage, wait_s: float) -> None:
    """Wait until no micro-batch runs, another one is committed and told of, or the time is over.

    Spark tells `lastProgress` and the query's listeners of a micro-batch after its commit. A query
    that is stopped between the two never tells them.
    """
    from millpond.spark.metadata import newest_commit

    deadline, poll_s = time.monotonic() + wait_s, _poll_s(storage)
    before = newest_commit(storage)
    while query.isActive and query.status.get("isTriggerActive") and time.monotonic() < deadline:
        committed = newest_commit(storage)
        if committed > before:
            told = query.lastProgress
            if told is not None and told.batchId >= committed:
                return
        time.sleep(poll_s)


def _given_to(query: RunningQuery, options: Mapping[str, object] | None) -> Given:
    """Return how to reach the storages of a query: as its session does, by `options` if they are
    given.
    """
    from millpond.spark.session import given_by_session
    from millpond.storage.given import given_by

    java = getattr(query, "_jsq", None)  # of Spark Connect there is none
    return (
        given_by(options or {}) if java is None else given_by_session(java.sparkSession(), options)
    )


def _checkpoint_of(query: RunningQuery) -> str:
    java = getattr(query, "_jsq", None)
    if java is None:
        raise UnsupportedError(
            f"{type(query).__module__}.{type(query).__name__} does not say where its checkpoint is",
            hint="Name it with checkpoint=...",
        )
    # No public API of Spark tells it. The execution behind the query's handle does.
    execution = java.streamingQuery() if hasattr(java, "streamingQuery") else java
    return str(execution.resolvedCheckpointRoot())
