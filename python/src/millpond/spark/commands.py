"""Lets one command at a time change a Spark checkpoint, or a savepoint.

    millpond/running/command-<id>.json    {"command", "host", "pid", "boot_id", "pid_namespace",
                                           "interval_ms", "updated_ms"}
    millpond/running/command-<id>.hold    empty, written once

A rescale and an erasure write this heartbeat while they work. The next command waits for it, as for
that of a query. A command that was killed leaves both files, and the next one deletes them and
brings to an end what the killed one began. One that only stood still (a laptop that slept) finds
its hold gone when it goes on, and stops before it touches anything. The heartbeat cannot tell it
that: a renewal that hung meanwhile may come late, and bring that file back. An erasure writes the
two into savepoints as well.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from millpond.errors import ConflictError, ErrorKind, MillpondError
from millpond.format import layout, spark_names
from millpond.spark.heartbeats import OWN_COMMANDS, own_process, refuse_running
from millpond.storage import Storage, is_there

log = logging.getLogger(__name__)

_INTERVAL_MS = 5_000
# So often a command makes sure that nobody took the Spark checkpoint over. Others count it as dead
# only after three intervals.
_CHECK_S = 1.0


class Hold:
    """What a command has of the Spark checkpoint that it changes."""

    def __init__(self, storage: Storage, root: str, command: str) -> None:
        self.storage = storage
        self.root = root
        self.name = f"{layout.COMMAND_PREFIX}{uuid.uuid4()}"
        self._key = layout.running_key(self.name)
        self._hold = layout.hold_key(self.name)
        self._text: dict[str, object] = {"command": command, **own_process()}
        self._is_held = False
        self._checked = -math.inf
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="millpond-command", daemon=True)

    def refuse_running(self, ending_s: float | None = None) -> None:
        """Raise ConflictError if a query or another command runs on the Spark checkpoint."""
        refuse_running(self.storage, self.root, ending_s, but=self.name)

    def check(self) -> None:
        """Raise ConflictError (COMMAND_RUNNING) if another command took the Spark checkpoint over.

        To be called before each change. Reads the file at most once a second.
        """
        now = _now_s()
        if not self._is_held or now - self._checked < _CHECK_S:
            return
        if not is_there(self.storage, self._hold):
            raise ConflictError(
                f"{self.root}: this command stood still, and another one took over",
                kind=ErrorKind.COMMAND_RUNNING,
            )
        self._checked = now

    def _begin(self, ending_s: float | None) -> None:
        """Write the heartbeat first: of two that begin at once, at most one goes on."""
        OWN_COMMANDS.add(self.name)
        self.storage.put_bytes(self._hold, b"")
        self._write()
        self.refuse_running(ending_s)
        self.storage.delete(
            info.key
            for info in list(self.storage.list(layout.RUNNING_COMMANDS_PREFIX))
            if info.key not in (self._key, self._hold)
        )
        self._is_held = True
        self._thread.start()
        self.check()

    def _end(self) -> None:
        self._over.set()
        if self._is_held:
            self._thread.join()
        OWN_COMMANDS.discard(self.name)
        try:
            self.storage.delete([self._key, self._hold])
        except MillpondError as e:
            log.warning("%s: %s cannot be deleted, and grows old: %s", self.root, self._key, e)

    def _write(self) -> None:
        times = {"interval_ms": _INTERVAL_MS, "updated_ms": time.time_ns() // 1_000_000}
        self.storage.put_bytes(self._key, json.dumps(self._text | times).encode())

    def _renew(self) -> None:
        while not self._over.wait(_INTERVAL_MS / 1000):
            try:
                if not is_there(self.storage, self._hold):
                    return
                self._write()
                if not is_there(self.storage, self._hold):
                    self.storage.delete([self._key])
                    return
            except MillpondError as e:
                log.warning("%s: the heartbeat of this command: %s", self.root, e)


def _now_s() -> float:
    """Return the seconds of a clock that goes on while the machine sleeps: other commands count
    that time. On Linux the monotonic clock stands still.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@contextmanager
def at_work(
    storage: Storage, root: str, command: str, ending_s: float | None = None
) -> Iterator[Hold]:
    """Keep other commands from the Spark checkpoint in `storage`.

    Where there is none with Millpond's state, and no savepoint either, nothing is written: the
    command will say so.

    Args:
        root: name of the Spark checkpoint, or of the savepoint, for messages.
        command: what its heartbeat calls this command.
        ending_s: as for `refuse_running`.
    Raises: ConflictError: QUERY_RUNNING, COMMAND_RUNNING.
    """
    hold = Hold(storage, root, command)
    needed = (spark_names.QUERY_METADATA_KEY, layout.FORMAT_KEY)
    is_query = all(is_there(storage, key) for key in needed)
    if not is_query and not is_there(storage, layout.SAVEPOINT_KEY):
        hold.refuse_running(ending_s)
        yield hold
        return
    try:
        hold._begin(ending_s)
        yield hold
    finally:
        hold._end()
