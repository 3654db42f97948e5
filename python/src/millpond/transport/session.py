"""One partition's state and results on their way between the user's code and the JVM."""

from __future__ import annotations

import io
import pickle
from typing import Any, Protocol

from millpond.transport.wire import Wire

UPDATE, CLEAR, PUT, APPEND, APPEND_LIST, UPDATE_ENTRY, REMOVE_ENTRY = range(7)
REGISTER_TIMER, DELETE_TIMER = 7, 8
VARIABLES = 16  # a change's code is the operation, and the variable's number times this

_MOST_CHANGES = 30_000
_CHANGE_BYTES = 1 << 21


class Output(Protocol):
    """Results that the user's code yielded."""

    def take(self) -> bytes:
        """Return them as an Arrow record batch, or nothing, and forget them."""


class Session:
    """Collects changes in their order, and sends them.

    `key` is the number of the key that is worked on; below zero there is none.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.key = -1
        self.next_key = 0  # the number of the next one that arrives
        self.user_nanos = 0
        self.output: Output | None = None
        self._changes: list[Any] = []
        self._most = 3 * _MOST_CHANGES
        self._keys_done = 0

    def note(self, code: int, value: Any) -> None:
        """Remember a change of the current key."""
        changes = self._changes
        changes += (self.key, code, value)
        if len(changes) >= self._most:
            self.flush()

    def keys_done(self, count: int) -> None:
        """Say that the next `count` keys of those that arrived are done with."""
        self._keys_done += count

    def flush(
        self, *, consumed: bool = False, phase_over: bool = False, with_rows: bool = False
    ) -> None:
        """Send what is noted. Results go along if asked for."""
        rows = self.output.take() if with_rows and self.output is not None else b""
        changes = self._take_changes()
        if changes or rows or consumed or phase_over:
            keys_done, self._keys_done = self._keys_done, 0
            self.wire.result(
                consumed=consumed,
                phase_over=phase_over,
                keys_done=keys_done,
                changes=changes,
                rows=rows,
            )

    def _take_changes(self) -> bytes:
        if not self._changes:
            return b""
        out = io.BytesIO()
        pickler = pickle.Pickler(out, protocol=2)
        pickler.fast = True  # values are copies, none of which holds itself: nothing to remember
        pickler.dump(self._changes)
        count = len(self._changes)
        self._changes.clear()
        pickled = out.getvalue()
        most = count * _CHANGE_BYTES // len(pickled)
        self._most = min(3 * _MOST_CHANGES, max(3, most))
        return pickled

    def call(self, message: bytes) -> bytes:
        """Return the answer to a call of Spark's state protocol. Changes go before it."""
        self.flush()
        return self.wire.call(self.key, message)
