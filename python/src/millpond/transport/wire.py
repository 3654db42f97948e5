"""The messages between JVM and worker: a length, a kind, a payload.

`jvm-shim/src/main/scala/transport/Frame.scala` has the other end. Arrow's part of a payload begins
at a multiple of 8 bytes.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
from collections import deque
from typing import BinaryIO

SCHEMA, DATA, TIMERS, PHASE_OVER, ANSWER = b"HDTPA"
READY, CALL, RESULT, DONE, REFUSED = b"RCOZN"  # `entry.py` writes the last one

_LENGTH = struct.Struct(">i")
_RESULT = struct.Struct(">B??ii")
# A little less than the largest array that a JVM has.
_MOST_BYTES = (1 << 31) - 64


def _allowed(length: int) -> int:
    """Return `length`. Raises: ValueError: the JVM takes no message of so many bytes."""
    if length > _MOST_BYTES:
        raise ValueError(
            f"a function changes or yields {length >> 20} MiB at once; a message to the JVM has to"
            " be below 2 GiB; let the function write or yield fewer or smaller rows at once"
        )
    return length


def send_at_once(stream: BinaryIO) -> None:
    """Let the socket below a stream send small frames without delay.

    Otherwise the second of two frames waits until the other side has acknowledged the first one,
    which takes up to 40 ms. The JVM's side is in `WorkerPipe.scala`.
    """
    try:
        number = stream.fileno()
    except io.UnsupportedOperation:  # a worker without a daemon: it starts slowly in any case
        return
    with socket.socket(fileno=os.dup(number)) as found:
        # By `socket.setdefaulttimeout`, which a job may call, a new socket does not wait. Nor would
        # the stream then: the two share that.
        found.settimeout(None)
        if found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Wire:
    """Reads and writes frames. Frames that arrive before an answer are kept for later."""

    def __init__(self, stream_in: BinaryIO, stream_out: BinaryIO) -> None:
        self._in = stream_in
        self._out = stream_out
        self._kept: deque[bytes] = deque()

    def _read(self) -> bytes:
        (length,) = _LENGTH.unpack(self._exactly(4))
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        found = self._in.read(length)
        if len(found) < length:
            raise EOFError
        return found

    def next(self) -> bytes:
        """Return the payload of the next frame that is not an answer."""
        return self._kept.popleft() if self._kept else self._read()

    def _write(self, *parts: bytes) -> None:
        self._out.write(_LENGTH.pack(_allowed(sum(map(len, parts)))))
        for part in parts:
            self._out.write(part)
        self._out.flush()

    def call(self, key: int, message: bytes) -> bytes:
        """Return the answer to a call of Spark's state protocol, for the key with this number."""
        self._write(struct.pack(">Bi", CALL, key), message)
        while (frame := self._read())[0] != ANSWER:
            self._kept.append(frame)
        return frame[1:]

    def ready(self, variables: list[tuple[str, str]], schema: bytes) -> None:
        """Name the variables that travel in bulk, and the columns of the results."""
        declared = pickle.dumps(variables, protocol=2)
        self._write(struct.pack(">Bi", READY, len(declared)), declared, schema)

    def result(
        self, *, consumed: bool, phase_over: bool, keys_done: int, changes: bytes, rows: bytes
    ) -> None:
        """Send changes and results.

        Args:
            consumed: whether a frame of rows or timers is done with.
            keys_done: how many keys are done with since the last result.
            rows: an Arrow record batch, or nothing.
        """
        size = _allowed(len(changes))
        head = _RESULT.pack(RESULT, consumed, phase_over, keys_done, size)
        padding = bytes(-(len(head) + len(changes)) % 8) if rows else b""
        self._write(head, changes, padding, rows)

    def done(self, user_nanos: int) -> None:
        """Say that nothing more comes."""
        self._write(struct.pack(">Bq", DONE, user_nanos))
