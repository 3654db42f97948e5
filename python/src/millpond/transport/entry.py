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
    try:
        _check(settings)
        from millpond.transport.worker import serve

        return serve(command, settings)
    except Exception as error:  # whatever keeps it from being there: the job runs without
        answer = Refusal(_reason(error))
        return _nothing, None, answer, answer


def begin_apply(command: bytes, settings: str) -> tuple[Any, None, Any, Any]:
    """Return what `begin` returns, for `applyInPandasWithState`."""
    try:
        _check(settings)
        from millpond.transport.apply import serve
    except Exception as error:
        return _by_spark(command, json.loads(settings), _reason(error))
    return serve(command, json.loads(settings))


class _OtherVersionError(Exception):
    """This Python has a Millpond that is not the driver's."""


def _check(settings: str) -> None:
    from millpond._version import __version__

    needed = json.loads(settings)["millpond"]
    if __version__ != needed:
        raise _OtherVersionError(f"it has millpond {__version__}, the driver {needed}")


def _reason(error: Exception) -> str:
    said = str(error) if type(error) is _OtherVersionError else f"{type(error).__name__}: {error}"
    return f"the Python of a worker cannot: {said}"


def _by_spark(command: bytes, settings: dict[str, Any], reason: str) -> tuple[Any, None, Any, Any]:
    """Return what Spark's worker would call; its results tell the JVM the reason.

    Rows and state have the same form as in `millpond.transport.apply`, so Spark's loop can read
    them. The name of the first column, which Spark's JVM does not look at, carries the reason.
    """
    from pyspark.util import PythonEvalType
    from pyspark.worker import EvalConf, RunnerConf, read_udfs
    from pyspark.worker_message import UDFInfo
    from pyspark.worker_util import pickleSer

    run, profiler, reader, writer = read_udfs(  # type: ignore[no-untyped-call]
        pickleSer,
        [UDFInfo([memoryview(command)], settings["offsets"], {}, settings["result_id"])],
        PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE,
        RunnerConf(settings["runner_conf"]),
        EvalConf({"state_value_schema": settings["state_schema"]}),
    )

    def told(split: int, batches: Any) -> Any:
        for batch in run(split, batches):
            yield batch.rename_columns([reason, *batch.schema.names[1:]])

    return told, profiler, reader, writer


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
