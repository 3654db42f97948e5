"""What a Python worker runs before anything else of Millpond's.

The shim has a copy of this file, and sends its text to the worker, whose Python may have no
Millpond, or another one. Then Spark's own transport runs the partition. So this file imports
nothing but the standard library before it knows.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO


def begin(command: bytes, settings: str) -> tuple[Any, None, Any, Any]:
    """Return what Spark's worker calls: a function, no profiler, and two serializers.

    Args:
        command: the user's pickled function, as Spark would send it.
        settings: see `BulkTransport.scala`.
    """
    needed = json.loads(settings)["millpond"]
    try:
        from millpond._version import __version__

        if __version__ != needed:
            return _refusal(f"it has millpond {__version__}, the driver {needed}")
        from millpond.transport.worker import serve

        return serve(command, settings)
    except Exception as error:  # whatever keeps it from being there: the job runs without
        return _refusal(f"{type(error).__name__}: {error}")


def _refusal(reason: str) -> tuple[Any, None, Any, Any]:
    answer = Refusal(f"the Python of a worker cannot: {reason}")
    return _nothing, None, answer, answer


def _nothing(_: int, given: None) -> None:
    return given


class Refusal:
    """Both serializers of a worker that takes no part. It reads nothing, and says why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def load_stream(self, stream: BinaryIO) -> None:
        """Leave the input alone: there is none yet."""

    def dump_stream(self, _: None, stream: BinaryIO) -> None:
        """Write the frame `REFUSED` of `wire.py`."""
        payload = b"N" + self._reason.encode(errors="replace")
        stream.write(struct.pack(">i", len(payload)) + payload)
        stream.flush()
