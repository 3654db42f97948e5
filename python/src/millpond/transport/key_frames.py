"""Keys with their rows, from frames. A key's rows may lie in several frames."""

from __future__ import annotations

import pickle
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millpond.transport import wire as kinds
from millpond.transport.client import Handle
from millpond.transport.forms import Form, KeyRows, Keys, Offsets
from millpond.transport.session import Session


@dataclass(slots=True)
class _Frame:
    counts: tuple[int, ...]  # rows of each key
    goes_on: bool  # the first key began in an earlier frame
    more: bool  # the last key has rows in the next frame
    states: list[Any]  # for each variable, of each key that begins here


class KeyFrames:
    """One phase of rows. It makes each key the session's current one."""

    def __init__(self, session: Session, handle: Handle, form: Form, offsets: list[int]) -> None:
        self._session = session
        self._handle = handle
        schema = session.wire.next()
        assert schema[0] == kinds.SCHEMA
        self._schema = pa.ipc.read_schema(pa.py_buffer(schema[1:]))
        self._keys: Keys = form.keys(self._schema, Offsets.of(offsets))
        self._frame: _Frame | None = None
        self._open = False  # whether the current key has rows in later frames

    def _next(self) -> _Frame | None:
        payload = self._session.wire.next()
        if payload[0] == kinds.PHASE_OVER:
            return None
        groups, goes_on, more = struct.unpack_from(">i??", payload, 1)
        counts = struct.unpack_from(f">{groups}i", payload, 7)
        at = 7 + 4 * groups
        (length,) = struct.unpack_from(">i", payload, at)
        view = memoryview(payload)
        states = pickle.loads(view[at + 4 : at + 4 + length])
        rows = pa.py_buffer(payload).slice((at + 4 + length + 7) // 8 * 8)
        self._keys.load(pa.ipc.read_record_batch(rows, self._schema))
        return _Frame(counts, goes_on, more, states)

    def __iter__(self) -> Iterator[tuple[Any, Iterator[Any]]]:
        session, handle, keys = self._session, self._handle, self._keys
        while (frame := self._next()) is not None:
            began = time.perf_counter_ns()
            self._frame = frame
            begin = 0
            states = handle.beginnings(frame.states)
            last = len(frame.counts) - 1
            for i, count in enumerate(frame.counts):
                session.key = session.next_key
                session.next_key += 1
                for begin_key, values in states:
                    begin_key(values[i])
                end = begin + count
                rows = keys.rows(begin, end)
                if i == last and frame.more:
                    self._open = True
                    rows = keys.joined(self._long(rows))
                yield keys.key(begin), rows
                while self._open:
                    # pass over what the user's code did not read; it may have closed `rows`
                    self._go_on()
                rows.close()  # the user's code may have kept it
                session.keys_done += 1
                begin = end
            session.user_nanos += time.perf_counter_ns() - began
            session.flush(consumed=True, with_rows=True)
        session.key = -1
        session.flush(phase_over=True, with_rows=True)

    def _long(self, rows: KeyRows) -> KeyRows:
        """Yield the rows of a key that lie in several frames."""
        yield from rows
        while self._open:
            yield from self._keys.rows(0, self._go_on())

    def _go_on(self) -> int:
        """Take the next frame of the current key. Return how many rows it has."""
        self._session.flush(consumed=True, with_rows=True)
        frame = self._next()
        assert frame is not None and frame.goes_on and len(frame.counts) == 1
        self._open = frame.more
        return frame.counts[0]
