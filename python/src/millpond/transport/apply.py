"""What a Python worker runs for `applyInPandasWithState`: Spark's loop, for many keys at once.

What goes in and out is what Spark's JVM sends and expects, so all bytes in the store are Spark's.
Only the conversions are not done for each key by itself: see `apply_frames.py` and `apply_out.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from millpond.transport.apply_frames import Chunk, chunks_of, state_of
from millpond.transport.apply_out import Results
from millpond.transport.collector import spare_what_stays
from millpond.transport.forms import Offsets
from millpond.transport.spark_names import fail_on_stopiteration, unpickled_function
from millpond.transport.spark_pandas import Conversion, arrow_streams, pickled, unpickled


def serve(command: bytes, settings: dict[str, Any]) -> tuple[Any, None, Any, Any]:
    """Return what Spark's worker calls: a function, no profiler, and two serializers."""
    spare_what_stays()
    function, return_type = unpickled_function(command)
    streams = arrow_streams()
    return Partition(function, return_type, settings).run, None, streams, streams


class Partition:
    """One partition of one batch."""

    def __init__(
        self, function: Callable[..., Any], return_type: StructType, settings: dict[str, Any]
    ) -> None:
        self._function = fail_on_stopiteration(function)
        self._return_type = return_type
        self._offsets = Offsets.of(settings["offsets"])
        self._conversion = Conversion(return_type, settings["runner_conf"])
        self._state_schema = StructType.fromJson(json.loads(settings["state_schema"]))
        self._most = self._conversion.max_rows

    def run(self, _: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield results and state of all keys in Arrow batches, as Spark's JVM expects them."""
        chunks = chunks_of(batches, self._offsets, self._conversion)
        results = Results(self._return_type, self._conversion)
        for first in chunks:
            state = state_of(first, self._state_schema, unpickled)
            later = _later(first, chunks)
            for frame in self._called(first, later, state):
                if len(frame) > 0:
                    results.add(frame)
                    if results.rows > self._most:
                        yield results.take()
            results.add_state(state, self._pickled(state))
            for _chunk in later:  # that the user's code did not read
                pass
        if results.some:
            yield results.take()

    def _pickled(self, state: GroupState) -> bytes | None:
        if not state.exists:
            return None
        return pickled(state._value_schema.toInternal(state._value))

    def _called(
        self, first: Chunk, later: Iterator[Chunk], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        frame, key = first.frames.rows(first.begin, first.count)
        frames: Iterable[pd.DataFrame]
        if state.hasTimedOut:
            frames = [pd.DataFrame(columns=frame().columns)]
        else:
            frames = _frames(frame, later)
        found = self._function(key, frames, state)
        if isinstance(found, pd.DataFrame):
            raise _wrong_type("iterable of pandas.DataFrame", type(found).__name__)
        try:
            iter(found)
        except TypeError:
            raise _wrong_type("iterable", type(found).__name__) from None
        return map(self._checked, found)

    def _checked(self, frame: Any) -> pd.DataFrame:
        if not isinstance(frame, pd.DataFrame):
            raise _wrong_type("iterator of pandas.DataFrame", f"iterator of {type(frame).__name__}")
        columns = len(frame.columns)
        if columns != len(self._return_type) and not (columns == 0 and frame.empty):
            raise PySparkRuntimeError(
                errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                messageParameters={
                    "expected": str(len(self._return_type)),
                    "actual": str(columns),
                },
            )
        return frame


def _later(first: Chunk, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the other chunks of a key."""
    chunk = first
    while not chunk.last:
        chunk = next(chunks)
        yield chunk


def _frames(first: Callable[[], pd.DataFrame], later: Iterator[Chunk]) -> Iterator[pd.DataFrame]:
    yield first()
    for chunk in later:
        yield chunk.frames.rows(chunk.begin, chunk.count)[0]()


def _wrong_type(expected: str, actual: str) -> PySparkTypeError:
    return PySparkTypeError(
        errorClass="UDF_RETURN_TYPE",
        messageParameters={"expected": expected, "actual": actual},
    )
