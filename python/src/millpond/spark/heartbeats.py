"""Reads what the session extension writes on the driver: heartbeats, and partitions asked for.

    millpond/running/<run id>.json    {"run_id", "host", "pid", "interval_ms", "updated_ms"}
    millpond/asked.json               {"partitions", "run_id", "updated_ms", "refused"}

The extension writes a heartbeat every `interval_ms`, and removes it when the query ends. A killed
driver leaves its last one. On the driver's own host this module sees that the process is gone. On
another host the heartbeat counts until three intervals have passed.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass

from millpond.errors import ConflictError, ErrorKind, NotFoundError
from millpond.format import layout
from millpond.storage import Storage

_MISSED_BEATS = 3
_DEFAULT_INTERVAL_MS = 5_000
_ENDING_S = 3.0  # Spark tells its listeners a moment late that a query has ended
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One run of a query that has probably not ended."""

    run_id: str
    host: str
    pid: int
    age_ms: int


def heartbeats(storage: Storage) -> list[Heartbeat]:
    """Return the runs that are alive on the Spark checkpoint in `storage`."""
    alive = []
    for info in storage.list(layout.RUNNING_PREFIX):
        name = info.key.rpartition("/")[2]
        if not name.endswith(".json") or name.startswith("."):
            continue
        try:
            value = json.loads(storage.read(info.key))
        except NotFoundError:
            continue  # just ended
        except ValueError:
            value = {}  # the driver is writing it
        if not isinstance(value, dict):
            value = {}
        age_ms = max(0, time.time_ns() // 1_000_000 - info.modified_ms)
        beat = Heartbeat(
            run_id=name.removesuffix(".json"),
            host=str(value.get("host", "")),
            pid=_whole(value.get("pid"), 0),
            age_ms=age_ms,
        )
        interval_ms = _whole(value.get("interval_ms"), _DEFAULT_INTERVAL_MS)
        if age_ms <= _MISSED_BEATS * interval_ms and not _is_gone(beat):
            alive.append(beat)
    return alive


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _is_gone(beat: Heartbeat) -> bool:
    if beat.pid <= 0 or beat.host != socket.gethostname():
        return False
    try:
        os.kill(beat.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


@dataclass(frozen=True, slots=True)
class Asked:
    """The number of partitions that the last start of the query asked for."""

    partitions: int
    refused: str  # why the query did not get them (option rescale.onRestart)


def read_asked(storage: Storage) -> Asked | None:
    """Return what the last start asked for.

    None if no start ever asked for another number of partitions than the state has.
    """
    try:
        value = json.loads(storage.read(layout.ASKED_KEY))
        return Asked(int(value["partitions"]), str(value["refused"]))
    except NotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None  # the driver is writing it; nothing depends on this file


def refuse_running(storage: Storage, root: str, ending_s: float | None = None) -> None:
    """Raise ConflictError (QUERY_RUNNING) if a query runs on the Spark checkpoint in `storage`.

    Args:
        root: the name of the Spark checkpoint, for the message.
        ending_s: how many seconds to wait for a query that is about to end; None: as long as Spark
            takes to tell its listeners.
    """
    deadline = time.monotonic() + (_ENDING_S if ending_s is None else ending_s)
    while alive := heartbeats(storage):
        if time.monotonic() > deadline:
            beat = alive[0]
            raise ConflictError(
                f"{root}: a query runs on it: run {beat.run_id} on host {beat.host or '(unknown)'};"
                f" its last heartbeat is {beat.age_ms / 1000:.0f} s old",
                kind=ErrorKind.QUERY_RUNNING,
                hint=(
                    "Stop the query first. If its driver was killed on another host, try again in"
                    " half a minute."
                ),
            )
        time.sleep(_POLL_S)
