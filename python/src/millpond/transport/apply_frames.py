"""The keys, rows and state that Spark's JVM sends to `applyInPandasWithState`, chunk by chunk.

`ApplyInPandasWithStateWriter` of Spark writes them: Arrow batches with the rows of many keys, and a
last column with the state. A row of that column names a chunk, which is a run of one key's rows. A
key has several chunks if its rows lie in several batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import types
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from millpond.transport.forms import Offsets
from millpond.transport.spark_pandas import Conversion

# Frames of a whole batch that are kept: one for each set of columns with NULLs in a key's rows.
_MOST_FRAMES = 8

# Values of these types are converted one by one, whatever else is in the column.
_ONE_BY_ONE: tuple[Callable[[pa.DataType], bool], ...] = (
    types.is_integer,
    types.is_boolean,
    types.is_floating,
    types.is_string,
    types.is_large_string,
    types.is_binary,
    types.is_large_binary,
    types.is_decimal,
    types.is_date,
    types.is_time,
    types.is_timestamp,
    types.is_duration,
    types.is_null,
)


class BatchFrames:
    """Frames of runs of rows of one Arrow batch.

    Spark converts each key's rows by themselves, and the type of a column of whole numbers or
    booleans depends on whether one of these rows is NULL. So a batch is converted once for each set
    of columns that have a NULL among the rows of some key. With columns of which a value depends on
    its neighbours, or whose conversion fails, the rows of each key are converted as Spark does it.
    """

    def __init__(self, batch: pa.RecordBatch, offsets: Offsets, conversion: Conversion) -> None:
        self._batch = batch
        self._offsets = offsets
        self._conversion = conversion
        self._by_nulls: dict[tuple[bool, ...], _Whole] = {}
        # columns with NULLs of which the type depends on them, and which rows are NULL
        self._nulls: list[tuple[int, Any]] = [
            (i, column.is_null().to_numpy(zero_copy_only=False))
            for i, column in enumerate(batch.columns)
            if column.null_count
            and (types.is_integer(column.type) or types.is_boolean(column.type))
        ]
        self._at_once = all(any(of(column.type) for of in _ONE_BY_ONE) for column in batch.columns)

    def rows(self, begin: int, count: int) -> tuple[Callable[[], pd.DataFrame], tuple[Any, ...]]:
        """Return what makes the frame of these rows, and the first one's key."""
        found = self._whole(begin, count) if self._at_once and count else None
        if found is not None:
            return lambda: found.frame_of(begin, count), found.key_of(begin)
        columns = self._conversion.to_pandas(self._batch.slice(begin, count))
        key = tuple(columns[i][0] for i in self._offsets.keys)
        return lambda: pd.concat([columns[i] for i in self._offsets.values], axis=1), key

    def _whole(self, begin: int, count: int) -> _Whole | None:
        nulls = tuple(bool(null[begin : begin + count].any()) for _, null in self._nulls)
        found = self._by_nulls.get(nulls)
        if found is None and len(self._by_nulls) < _MOST_FRAMES:
            filled = [i for (i, _), some in zip(self._nulls, nulls, strict=True) if not some]
            try:
                columns = self._conversion.to_pandas(_without_nulls(self._batch, filled))
            except Exception:
                # a value that cannot be converted: its own key will say so
                self._at_once = False
                return None
            found = self._by_nulls[nulls] = _Whole(columns, self._offsets)
        return found


def _without_nulls(batch: pa.RecordBatch, filled: list[int]) -> pa.RecordBatch:
    if not filled:
        return batch
    columns = [
        column.fill_null(pa.scalar(0).cast(column.type)) if i in filled else column
        for i, column in enumerate(batch.columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


class _Whole:
    """A whole batch, converted."""

    def __init__(self, columns: list[pd.Series[Any]], offsets: Offsets) -> None:
        self._keys = [columns[i].array for i in offsets.keys]
        self._frame = pd.concat([columns[i] for i in offsets.values], axis=1)

    def frame_of(self, begin: int, count: int) -> pd.DataFrame:
        frame = self._frame.iloc[begin : begin + count].copy()
        frame.index = pd.RangeIndex(count)
        return frame

    def key_of(self, at: int) -> tuple[Any, ...]:
        return tuple(values[at] for values in self._keys)


@dataclass(slots=True)
class Chunk:
    """A run of rows of one key."""

    frames: BatchFrames
    begin: int
    count: int
    last: bool
    state: tuple[str, bytes, bytes | None]  # properties, key, pickled value


def chunks_of(
    batches: Iterator[pa.RecordBatch], offsets: Offsets, conversion: Conversion
) -> Iterator[Chunk]:
    """Yield the chunks of all batches. No batch is read before the one before it is done with."""
    for batch in batches:
        rows = pa.RecordBatch.from_arrays(
            batch.columns[:-1], schema=pa.schema(list(batch.schema)[:-1])
        )
        frames = BatchFrames(rows, offsets, conversion)
        column = batch.column(batch.num_columns - 1)
        column = column.slice(0, len(column) - column.null_count)  # rows without a chunk are last
        fields = [
            column.field(name).to_pylist()
            for name in (
                "startOffset",
                "numRows",
                "isLastChunk",
                "properties",
                "keyRowAsUnsafe",
                "object",
            )
        ]
        for begin, count, last, *state in zip(*fields, strict=True):
            yield Chunk(frames, begin, count, last, tuple(state))


def state_of(chunk: Chunk, schema: StructType, loads: Callable[[bytes], Any]) -> GroupState:
    """Return the state as the user's code gets it."""
    properties, key, value = chunk.state
    found = json.loads(properties)
    found["optionalValue"] = loads(value) if value else None
    return GroupState(keyAsUnsafe=key, valueSchema=schema, **found)
