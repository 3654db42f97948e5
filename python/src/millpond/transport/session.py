"""One partition's state and results on their way between the user's code and the JVM."""

from __future__ import annotations

import io
import pickle
from array import array
from collections.abc import Collection
from typing import Any, Protocol

from millpond.transport.wire import Wire

UPDATE, CLEAR, PUT, APPEND, APPEND_LIST, UPDATE_ENTRY, REMOVE_ENTRY = range(7)
REGISTER_TIMER, DELETE_TIMER = 7, 8
FIRED = 9  # the value: so many of the expired timers that came, in their order, are done with
VARIABLES = 16  # a change's code is the operation, and the variable's number times this

_MOST_CHANGES = 30_000
_CHANGE_BYTES = 1 << 21
_SMALL = frozenset({int, float, bool, type(None)})
# Arrow takes them for arrays.
_UNORDERED: tuple[type[Collection[Any]], ...] = (
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
)


def size_of(value: Any) -> int:
    """Return about how many bytes a value takes when it is sent."""
    kind = type(value)
    if kind is str or kind is bytes:
        return 8 + len(value)
    if isinstance(value, (tuple, list)):
        size_bytes = 8
        for one in value:  # a call for each would be most of the work
            kind = type(one)
            if kind is str or kind is bytes:
                size_bytes += 8 + len(one)
            else:
                size_bytes += 8 if kind in _SMALL else size_of(one)
        return size_bytes
    if isinstance(value, dict):
        return 8 + sum(map(size_of, value)) + sum(map(size_of, value.values()))
    if isinstance(value, _UNORDERED):
        return 8 + sum(map(size_of, value))
    if isinstance(value, (bytearray, memoryview)):
        return 8 + memoryview(value).nbytes
    return 8 + int(getattr(value, "nbytes", 0)) if kind.__module__ == "numpy" else 8


class Output(Protocol):
    """Results that the user's code yielded."""

    def take(self) -> bytes:
        """Return them as an Arrow record batch, or nothing, and forget them."""


class Session:
    """Collects changes in their order, and sends them.

    Attributes:
        key: the number of the key that is worked on; below zero there is none.
        next_key: the number of the next one that arrives.
        keys_done: how many of those that arrived were done with since the last result.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.key = -1
        self.next_key = 0
        self.keys_done = 0
        self.user_nanos = 0
        self.output: Output | None = None
        self._changes: list[Any] = []
        self._most = 3 * _MOST_CHANGES
        self._bytes = 0  # about, of the values whose size is not the same for all

    def note(self, code: int, value: Any) -> None:
        """Remember a change of the current key."""
        changes = self._changes
        changes += (self.key, code, value)
        if len(changes) >= self._most:
            self.flush()

    def note_sized(self, code: int, value: Any) -> None:
        """Remember a change whose value may be large."""
        self._bytes += size_of(value)
        self.note(code, value)
        if self._bytes >= _CHANGE_BYTES:
            self.flush()

    def timer_fired(self) -> None:
        """Remember that the oldest expired timer that is not done with is to be deleted.

        The JVM knows which one that is. Where the user's code changes nothing, one change is
        enough for all timers of a frame.
        """
        changes = self._changes
        if changes and changes[-2] == FIRED:
            changes[-1] += 1
        else:
            self.note(FIRED, 1)

    def flush(
        self, *, consumed: bool = False, phase_over: bool = False, with_rows: bool = False
    ) -> None:
        """Send what is noted. Results go along if asked for."""
        rows = self.output.take() if with_rows and self.output is not None else b""
        changes = self._take_changes()
        if changes or rows or consumed or phase_over:
            keys_done, self.keys_done = self.keys_done, 0
            self.wire.result(
                consumed=consumed,
                phase_over=phase_over,
                keys_done=keys_done,
                changes=changes,
                rows=rows,
            )

    def _take_changes(self) -> bytes:
        changes = self._changes
        if not changes:
            return b""
        numbers = array("i", (len(changes) // 3,))
        numbers.extend(changes[::3])
        numbers.extend(changes[1::3])
        out = io.BytesIO()
        out.write(numbers.tobytes())
        pickler = pickle.Pickler(out, protocol=2)
        pickler.fast = True  # values are copies, none of which holds itself: nothing to remember
        pickler.dump(changes[2::3])
        taken = out.getvalue()
        most = len(changes) * _CHANGE_BYTES // len(taken)
        self._most = min(3 * _MOST_CHANGES, max(3, most))
        changes.clear()
        self._bytes = 0
        return taken

    def call(self, message: bytes) -> bytes:
        """Return the answer to a call of Spark's state protocol. Changes go before it."""
        self.flush()
        return self.wire.call(self.key, message)
