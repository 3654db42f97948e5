"""Tells whether a query that is moved runs. With Spark's own stores it has no heartbeat."""

from __future__ import annotations

import time
from dataclasses import dataclass

from millpond.errors import ConflictError, ErrorKind
from millpond.format import spark_names
from millpond.spark.heartbeats import refuse_running
from millpond.storage import Storage

_RECENT_MS = 60_000
_NEW_QUERY_ID = "--new-query-id (Python: new_query_id=True)"


@dataclass(frozen=True, slots=True)
class Logs:
    """The newest entries of Spark's logs at one moment."""

    entries: tuple[tuple[str, int], ...]  # name of a log, number of its newest batch
    age_ms: int  # of the newest entry of all; by the clock of this machine


def read_logs(storage: Storage) -> Logs:
    """Return the newest entries of the offset and commit logs."""
    newest: dict[str, int] = {}
    written_ms = 0
    for name in (spark_names.OFFSETS_DIR, spark_names.COMMITS_DIR):
        for info in storage.list(f"{name}/"):
            entry = spark_names.log_entry(info.key)
            if entry is not None and entry[1] >= newest.get(name, -1):
                newest[name] = entry[1]
                written_ms = max(written_ms, info.modified_ms)
    return Logs(tuple(newest.items()), max(0, time.time_ns() // 1_000_000 - written_ms))


def refuse_beating(storage: Storage, root: str) -> None:
    """Raise ConflictError if a query with Millpond's state runs in `storage` (QUERY_RUNNING), or a
    command that changes it (COMMAND_RUNNING).
    """
    try:
        refuse_running(storage, root)
    except ConflictError as e:
        if e.kind is not ErrorKind.QUERY_RUNNING:
            raise
        said = f"{e.message}. Two queries of one id would go on, and sinks take them for one"
        raise ConflictError(said, kind=ErrorKind.QUERY_RUNNING, hint=_hint(_NEW_QUERY_ID)) from e


def refuse_moved(storage: Storage, root: str, before: Logs, own: str = _NEW_QUERY_ID) -> None:
    """Raise ConflictError (QUERY_RUNNING) if the logs have got entries since `before`.

    Args:
        own: what a user says to the command for a query of its own.
    """
    if read_logs(storage).entries != before.entries:
        raise ConflictError(
            f"{root}: its query runs: its logs have new entries since this command began. Two"
            " queries of one id would go on, and sinks take them for one",
            kind=ErrorKind.QUERY_RUNNING,
            hint=_hint(own),
        )


def _hint(own: str) -> str:
    return f"Stop the query first. For a trial beside it, make a query of its own: {own}."


def warning(root: str, logs: Logs) -> tuple[str, ...]:
    """Return a warning if the query may run; no warning if its logs are old."""
    if logs.age_ms > _RECENT_MS:
        return ()
    return (
        f"{root}: its query was at work {logs.age_ms / 1000:.0f} s ago. If it still runs, stop it,"
        " or say --new-query-id: sinks take two queries of one id for one.",
    )
