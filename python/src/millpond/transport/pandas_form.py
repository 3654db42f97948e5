"""The form of the API with pandas: frames from Arrow, and back."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StructType,
    UserDefinedType,
    VariantType,
)

from millpond.transport.forms import KeyRows, Keys, Offsets, Pending, whole
from millpond.transport.session import Session, size_of
from millpond.transport.spark_names import arrow_schema
from millpond.transport.spark_pandas import Conversion

_UNLIMITED = 2**31 - 1


class PandasKeys:
    """Makes keys and frames.

    Spark makes a frame of each key's rows anew, and pandas guesses types each time: whole numbers
    become int64, for example. Columns for which the guess does not depend on the rows are brought
    to that type at once; with others, each key's frame is made as Spark makes it.

    Args:
        most: rows of a frame.
        most_bytes: bytes of a frame, by the average row so far, as Spark reckons.
    """

    def __init__(
        self,
        schema: pa.Schema,
        offsets: Offsets,
        conversion: Conversion,
        most: int,
        most_bytes: int = _UNLIMITED,
    ) -> None:
        # the names that `itertuples` gives to columns whose names it cannot use
        row: Any = namedtuple("Pandas", schema.names, rename=True)  # type: ignore[misc]
        self._row = row
        self._names: list[str] = list(row._fields)
        self._offsets = offsets
        self._conversion = conversion
        self._limit, self._most_bytes = most, most_bytes
        self._most = most  # the fewer of both limits
        self._seen_bytes = self._seen_rows = 0
        self._keys: list[tuple[Any, ...]] = []
        self._frame: pd.DataFrame | None = None
        self._tuples: list[Any] = []

    def _measure(self, batch: pa.RecordBatch) -> None:
        if self._most_bytes == _UNLIMITED or batch.num_rows == 0:
            return
        self._seen_rows += batch.num_rows
        self._seen_bytes += sum(
            buffer.size for column in batch.columns for buffer in column.buffers() if buffer
        )
        rows = -(-self._most_bytes * self._seen_rows // max(1, self._seen_bytes))
        self._most = max(1, min(self._limit, rows))

    def load(self, batch: pa.RecordBatch) -> None:
        self._measure(batch)
        columns = self._conversion.to_pandas(batch)
        self._keys = list(zip(*(columns[i] for i in self._offsets.keys), strict=True))
        fixed = [
            _fixed(column, array) for column, array in zip(columns, batch.columns, strict=True)
        ]
        if any(column is None for column in fixed):
            self._frame = None
            self._tuples = list(map(self._row, *columns))
            return
        frame = pd.concat(fixed, axis=1)
        frame.columns = pd.Index(self._names)
        self._frame = frame.iloc[:, self._offsets.values]

    def key(self, at: int) -> tuple[Any, ...]:
        return self._keys[at]

    def rows(self, begin: int, end: int) -> KeyRows:
        while end - begin > self._most:
            yield self._rows(begin, begin + self._most)
            begin += self._most
        yield self._rows(begin, end)

    def _rows(self, begin: int, end: int) -> pd.DataFrame:
        if self._frame is None:
            frame = pd.DataFrame(self._tuples[begin:end]).iloc[:, self._offsets.values]
        else:
            frame = self._frame.iloc[begin:end].copy()
            frame.index = pd.RangeIndex(end - begin)
        return frame

    def joined(self, rows: KeyRows) -> KeyRows:
        """Yield the frames of one key again, each as long as Spark makes it."""
        parts: list[pd.DataFrame] = []
        count = 0
        for frame in rows:
            parts.append(frame)
            count += len(frame)
            while count >= self._most:
                most = self._most  # the user's code may bring the next rows here, and a new limit
                whole = pd.concat(parts, ignore_index=True)
                yield whole.iloc[:most].copy()
                parts = [whole.iloc[most:].reset_index(drop=True)]
                count = len(parts[0])
        if count:
            yield pd.concat(parts, ignore_index=True)


def _fixed(column: pd.Series[Any], array: pa.Array) -> pd.Series[Any] | None:
    """Return the column with the type that pandas guesses for any of its rows; None: it depends."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column if column.dtype == object else None
    if column.dtype == bool or str(column.dtype) == "datetime64[ns]":
        return column
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "i":
        return column.astype(np.int64)
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
        return column.astype(np.float64)
    return None


# The user's code may change what is in such a column of a frame that it has yielded.
_CHANGEABLE = (ArrayType, BinaryType, MapType, StructType, UserDefinedType, VariantType)


class PandasForm:
    """Frames in, frames out. Small frames are converted many at once, from copies."""

    def __init__(self, return_type: StructType, settings: dict[str, Any]) -> None:
        self._conversion = Conversion(return_type, settings["runner_conf"])
        most = settings["max_rows"]
        self._most = most if most > 0 else _UNLIMITED
        self._most_bytes: int = settings["max_bytes"]
        self.schema: pa.Schema = arrow_schema(return_type, self._conversion.timezone)
        self._is_struct = isinstance(return_type, StructType)
        self._at_once = any(isinstance(field.dataType, _CHANGEABLE) for field in return_type)
        self._pending = Pending()

    def keys(self, schema: pa.Schema, offsets: Offsets) -> Keys:
        return PandasKeys(schema, offsets, self._conversion, self._most, self._most_bytes)

    def add(self, results: Iterator[Any], session: Session) -> None:
        self._pending.add(self._kept(results), session, lambda kept: kept.nbytes)

    def _kept(self, results: Iterator[Any]) -> Iterator[pa.RecordBatch | Columns]:
        for frame in results:
            if self._is_struct and not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a "
                    "pandas.DataFrame when the specified return type is StructType."
                )
            yield self._conversion.from_pandas(frame) if self._at_once else Columns(frame)

    def key_done(self) -> None:
        self._pending.end_key()

    def take(self) -> bytes:
        kept = self._pending.entries
        if not kept:
            self._pending.sent(0)
            return b""
        table = pa.Table.from_batches(
            kept if self._at_once else self._converted_all(kept), self.schema
        )
        encoded: bytes = whole(table).serialize().to_pybytes() if len(table) else b""
        self._pending.sent(len(encoded))
        return encoded

    def _converted_all(self, frames: list[Columns]) -> list[pa.RecordBatch]:
        batches = []
        begin = 0
        for end in range(1, len(frames) + 1):
            if end == len(frames) or not frames[begin].alike(frames[end]):
                batches += self._converted(frames[begin:end])
                begin = end
        return batches

    def _converted(self, frames: list[Columns]) -> list[pa.RecordBatch]:
        """Convert frames of the same columns and types at once."""
        try:
            return [self._conversion.from_pandas(joined(frames))]
        except Exception:
            if len(frames) == 1:
                raise
            # one of the frames is wrong: Spark's conversion of that one says why
            return [self._conversion.from_pandas(joined([frame])) for frame in frames]


class Columns:
    """The columns of a frame, copied. Pandas makes a series for each of them, which costs more than
    all else that is done with a small frame, so this takes the arrays below the series."""

    __slots__ = ("arrays", "names", "rows", "types")

    def __init__(self, frame: pd.DataFrame) -> None:
        self.arrays = [array.copy() for array in _arrays(frame)]
        self.names = frame.columns.tolist()
        self.rows = len(frame)
        self.types = [array.dtype for array in self.arrays]

    @property
    def nbytes(self) -> int:
        """About how many bytes the frame takes."""
        return sum(
            size_of(array.tolist()) if array.dtype == object else array.nbytes
            for array in self.arrays
        )

    def alike(self, other: Columns) -> bool:
        return self.names == other.names and self.types == other.types


def _arrays(frame: pd.DataFrame) -> list[Any]:
    # Spark allows any newer pandas, and the short way is private to pandas
    private = getattr(frame, "_iter_column_arrays", None)
    if private is not None:
        return list(private())
    return [column.array for _, column in frame.items()]


def joined(columns: list[Columns]) -> pd.DataFrame:
    """Return what `pd.concat` makes of frames that are alike, without their index."""
    first = columns[0]
    joined: dict[int, Any] = {}
    for i, array in enumerate(first.arrays):
        parts = [one.arrays[i] for one in columns]
        if isinstance(array, np.ndarray):
            joined[i] = np.concatenate(parts)
        else:
            joined[i] = type(array)._concat_same_type(parts)
    frame = pd.DataFrame(joined, index=pd.RangeIndex(sum(one.rows for one in columns)), copy=False)
    frame.columns = pd.Index(first.names)
    return frame
