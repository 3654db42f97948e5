"""Reads what the session extension writes on the driver: heartbeats, and partitions asked for.

    millpond/running/<run id>.json    {"run_id", "host", "pid", "boot_id", "pid_namespace",
                                       "interval_ms", "updated_ms"}
    millpond/running/command-<id>.json    the same, of a command: `millpond.spark.commands`
    millpond/asked.json               {"partitions", "run_id", "updated_ms", "refused"}

The extension writes a heartbeat every `interval_ms`, and removes it when the query ends. A killed
driver leaves its last one. This module does not read it after a day, and a later run of the query
deletes it after a week. In the driver's own PID namespace, on its own host, this module sees that
the process is gone. Elsewhere, as in another container of that host, the heartbeat counts until
three intervals have passed, and then while it is renewed: the clocks of this host and of the
storage need not agree. So does one from the future: nobody knows how old that is.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millpond.errors import ConflictError, ErrorKind, NotFoundError
from millpond.format import layout
from millpond.storage import Storage

_MISSED_BEATS = 3
_DEFAULT_INTERVAL_MS = 5_000
_ENDING_S = 3.0  # Spark tells its listeners a moment late that a query has ended
_POLL_S = 0.05
# Two clocks differ by less than that. What looks older is what a killed driver has left.
_MOST_SKEW_MS = 24 * 3_600_000
_RENEWED_INTERVALS = 1.5  # so long a heartbeat that looks old is watched
_WATCH_S = 0.5  # between two looks at it
_LONGEST_WATCH_S = 30.0  # whatever interval a file names


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One run of a query, or one command, that has probably not ended."""

    run_id: str  # of a command: the name of its file
    host: str
    pid: int
    age_ms: int

    @property
    def is_command(self) -> bool:
        return self.run_id.startswith(layout.COMMAND_PREFIX)


@dataclass(frozen=True, slots=True)
class _Process:
    """Where a pid means something. Each is "" where it is not known."""

    host: str
    boot_id: str
    pid_namespace: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """A heartbeat as it was at one look. `mark` differs when it has been renewed."""

    beat: Heartbeat
    age_ms: int  # below 0 if the storage's clock is ahead of this host's
    interval_ms: int
    mark: tuple[int, str, bytes]

    @property
    def is_fresh(self) -> bool:
        return abs(self.age_ms) <= _MISSED_BEATS * self.interval_ms


def heartbeats(storage: Storage) -> list[Heartbeat]:
    """Return the runs that are alive on the Spark checkpoint in `storage`, by this host's clock."""
    return [
        seen.beat
        for seen in _look(storage, "")
        if (seen.is_fresh or seen.age_ms < 0) and not seen.beat.is_command
    ]


def _look(storage: Storage, but: str) -> list[_Seen]:
    """Return the heartbeats of all processes that are not known to be gone. What killed drivers
    left more than a day ago is not read: that may be many files, and each takes a request.

    Args:
        but: the name of the file of this command, which is not looked at.
    """
    found = []
    for info in storage.list(layout.RUNNING_PREFIX):
        name = layout.parse_running(info.key)
        if name is None or name == but:
            continue
        age_ms = time.time_ns() // 1_000_000 - info.modified_ms
        if age_ms >= _MOST_SKEW_MS:
            continue
        try:
            text = storage.read(info.key)
        except NotFoundError:
            continue  # just ended
        try:
            value = json.loads(text)
        except ValueError:
            value = {}  # the driver is writing it
        if not isinstance(value, dict):
            value = {}
        beat = Heartbeat(
            run_id=name,
            host=str(value.get("host", "")),
            pid=_whole(value.get("pid"), 0),
            age_ms=max(0, age_ms),
        )
        where = _Process(
            beat.host, str(value.get("boot_id", "")), str(value.get("pid_namespace", ""))
        )
        if not _is_gone(beat, where):
            interval_ms = _whole(value.get("interval_ms"), _DEFAULT_INTERVAL_MS)
            found.append(_Seen(beat, age_ms, interval_ms, (info.modified_ms, info.tag, text)))
    return found


def _renewed(storage: Storage, but: str) -> Heartbeat | None:
    """Watch the heartbeats that look too old, or are from the future, and return one that is
    renewed. Or return one that is new: what begins meanwhile runs too.

    A command that begins meanwhile meets the caller's own file, if it has one, and gives way.
    """
    known = {seen.beat.run_id: seen for seen in _look(storage, but)}
    old = {run_id: seen for run_id, seen in known.items() if not seen.is_fresh}
    longest_s = max((seen.interval_ms for seen in old.values()), default=0) / 1000
    deadline = time.monotonic() + min(_RENEWED_INTERVALS * longest_s, _LONGEST_WATCH_S)
    now = known
    while True:
        for run_id, seen in now.items():
            began = run_id not in known or (run_id not in old and seen.is_fresh)
            if began and not (but and seen.beat.is_command):
                return seen.beat
            if run_id in old and old[run_id].mark != seen.mark:
                return seen.beat
        old = {run_id: seen for run_id, seen in old.items() if run_id in now}
        if not old or (left := deadline - time.monotonic()) <= 0:
            return None
        time.sleep(min(_WATCH_S, left))
        now = {seen.beat.run_id: seen for seen in _look(storage, but)}


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


# The files of the commands of this process that have not ended.
OWN_COMMANDS: set[str] = set()


def _is_gone(beat: Heartbeat, where: _Process) -> bool:
    """Whether the process, or the command in it, does not run, as far as this one can know it."""
    own = _own()
    # The heartbeats of older versions name the host alone.
    if not where.boot_id and not where.pid_namespace:
        own = _Process(own.host, "", "")
    if beat.pid <= 0 or where != own:
        return False
    if beat.is_command and beat.pid == os.getpid():
        return beat.run_id not in OWN_COMMANDS
    try:
        os.kill(beat.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def own_process() -> dict[str, object]:
    """Return what a heartbeat says of the process that writes it."""
    own = _own()
    told = {"boot_id": own.boot_id, "pid_namespace": own.pid_namespace}
    return {"host": own.host, "pid": os.getpid()} | {k: v for k, v in told.items() if v}


def _own() -> _Process:
    return _Process(
        socket.gethostname(),
        _told(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip()),
        _told(lambda: os.readlink("/proc/self/ns/pid")),
    )


def _told(read: Callable[[], str]) -> str:
    """Return what `read` returns; "" where the kernel does not tell it: only Linux does."""
    try:
        return read()
    except OSError:
        return ""


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


def refuse_running(
    storage: Storage, root: str, ending_s: float | None = None, *, but: str = ""
) -> None:
    """Raise ConflictError if a query (QUERY_RUNNING) or a command that changes it
    (COMMAND_RUNNING) runs on the Spark checkpoint in `storage`.

    Where a driver was killed on another host in the last day, this takes some seconds.

    Args:
        root: the name of the Spark checkpoint, for the message.
        ending_s: how many seconds to wait for a query that is about to end; None: as long as Spark
            takes to tell its listeners.
        but: the name of the caller's own file, without `.json`.
    """
    deadline = time.monotonic() + (_ENDING_S if ending_s is None else ending_s)
    while alive := [seen.beat for seen in _look(storage, but) if seen.is_fresh]:
        if time.monotonic() > deadline:
            raise _running(root, alive[0])
        time.sleep(_POLL_S)
    if (beat := _renewed(storage, but)) is not None:
        raise _running(root, beat)


def _running(root: str, beat: Heartbeat) -> ConflictError:
    where = f"on host {beat.host or '(unknown)'}"
    age = f"its last heartbeat is {beat.age_ms / 1000:.0f} s old"
    if beat.is_command:
        return ConflictError(
            f"{root}: another command changes it, process {beat.pid} {where}; {age}",
            kind=ErrorKind.COMMAND_RUNNING,
        )
    return ConflictError(
        f"{root}: a query runs on it: run {beat.run_id} {where}; {age}",
        kind=ErrorKind.QUERY_RUNNING,
        hint=(
            "Stop the query first. If its driver was killed on another host, try again in half a"
            " minute."
        ),
    )
