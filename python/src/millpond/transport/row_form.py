"""The form of the API with `Row`: rows from Arrow, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType

from millpond.transport.forms import KeyRows, Keys, Offsets, Pending, whole
from millpond.transport.plain import is_sized, reader
from millpond.transport.session import Session, size_of
from millpond.transport.spark_names import arrow_schema, row_maker

_SAME_AS_UTC = {"UTC", "Etc/UTC"}  # names of `zoneinfo`
# Times of these microseconds are `datetime` in every zone; of others Arrow decides.
_FIRST_US, _LAST_US = -62_000_000_000_000_000, 253_000_000_000_000_000


def _values(column: pa.Array) -> list[Any]:
    """Return what `to_pylist` returns, which is slow."""
    kind = column.type
    if column.null_count == 0 and len(column) > 0:
        if pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind):
            return _listed(column.to_numpy(zero_copy_only=True))
        if pa.types.is_timestamp(kind) and kind.unit == "us":
            microseconds = column.view(pa.int64()).to_numpy(zero_copy_only=True)
            if microseconds.min() >= _FIRST_US and microseconds.max() <= _LAST_US:
                return _times(_listed(microseconds.view("M8[us]")), column[0].as_py().tzinfo)
    values: list[Any] = column.to_pylist()
    return values


def _listed(numbers: Any) -> list[Any]:
    found: list[Any] = numbers.tolist()
    return found


def _times(times: list[datetime], zone: tzinfo | None) -> list[datetime]:
    """Return times of UTC without a zone as those of `zone`."""
    if zone is None:
        return times
    if getattr(zone, "key", None) in _SAME_AS_UTC:
        return [time.replace(tzinfo=zone) for time in times]
    return [time.replace(tzinfo=UTC).astimezone(zone) for time in times]


def key_reader(schema: StructType) -> Callable[[tuple[Any, ...]], Row]:
    """Return what makes a key of its pickled form, as `schema.fromInternal` does, which is slow."""
    row, read = row_maker(schema.names), reader(schema)
    return row if read is None else lambda key: row(read(key))


class RowKeys:
    """Makes keys and rows."""

    def __init__(self, schema: pa.Schema, offsets: Offsets) -> None:
        self._row = row_maker(Row(*schema.names))
        self._key_offsets = offsets.keys
        # Users may change a dict or a list of a row, and that must not be the key's.
        self._own = any(pa.types.is_nested(schema.field(i).type) for i in offsets.keys)
        self._key_columns: list[pa.Array] = []
        self._keys: list[tuple[Any, ...]] = []
        self._rows: list[tuple[Any, ...]] = []

    def load(self, batch: pa.RecordBatch) -> None:
        columns = list(map(_values, batch.columns))
        if self._own:
            self._key_columns = [batch.column(i) for i in self._key_offsets]
        else:
            self._keys = list(zip(*(columns[i] for i in self._key_offsets), strict=True))
        self._rows = list(zip(*columns, strict=True))

    def key(self, at: int) -> tuple[Any, ...]:
        if self._own:
            return tuple(column[at].as_py() for column in self._key_columns)
        return self._keys[at]

    def rows(self, begin: int, end: int) -> KeyRows:
        row = self._row
        return (row(values) for values in self._rows[begin:end])

    def joined(self, rows: KeyRows) -> KeyRows:
        return rows


class RowForm:
    """Rows in, rows out.

    Of rows with just the columns of the results only the values are kept until they are sent. An
    object for each row would be looked at by Python's garbage collector, again and again. Of all
    others a dict is kept, with lists and dicts of its own.

    Other values that can change, such as a set, are those of the user's code as long as it works on
    their key, as with Spark.
    """

    def __init__(self, return_type: StructType, settings: dict[str, Any]) -> None:
        del settings  # nothing of it matters to rows
        self.schema: pa.Schema = arrow_schema(return_type, "UTC")
        self._names = list(self.schema.names)
        nested = (StructType, ArrayType, MapType, VariantType)
        self._flat = len(set(self._names)) == len(self._names) and not any(
            isinstance(field.dataType, nested) for field in return_type
        )
        self._has_bytes = any(isinstance(field.dataType, BinaryType) for field in return_type)
        self._converted: list[pa.RecordBatch] = []  # of each key that is done, unless they are flat
        self._row = row_maker(self._names)
        self._sized = is_sized(return_type)
        self._pending = Pending()
        self._only_values = self._flat  # whether that is so for all that is pending

    def keys(self, schema: pa.Schema, offsets: Offsets) -> Keys:
        return RowKeys(schema, offsets)

    def add(self, results: Iterator[Any], session: Session) -> None:
        # what `Pending.add` does, without a function for each row
        pending, names = self._pending, self._names
        entries = pending.entries
        for row in results:
            if self._only_values and type(row) is Row and getattr(row, "__fields__", None) == names:
                entries.append(tuple(row))
            else:
                if self._only_values:
                    self._restore_rows()
                entries.append(row.asDict(True))
            if self._sized:
                pending.bytes += size_of(entries[-1])
            if pending.is_full:
                session.flush(with_rows=True)

    def _restore_rows(self) -> None:
        entries = self._pending.entries
        entries[:] = [self._row(values).asDict(True) for values in entries]
        self._only_values = False

    def key_done(self) -> None:
        if self._has_bytes or not self._flat:
            self._take_over()
        self._pending.end_key()

    def _take_over(self) -> None:
        """Keep what the user's code cannot change any more: for the next key it may use the same
        objects.
        """
        pending = self._pending
        begin, entries = pending.ends[-1] if pending.ends else 0, pending.entries
        if begin == len(entries):
            return
        if self._flat:
            entries[begin:] = map(_with_own_bytes, entries[begin:])
        else:
            self._converted.append(self._batch(entries[begin:]))
            entries[begin:] = [None] * (len(entries) - begin)

    def take(self) -> bytes:
        if not self._pending.entries:
            self._pending.sent(0)
            return b""
        batch = (self._at_once() if self._only_values else None) or self._by_key()
        encoded: bytes = batch.serialize().to_pybytes()
        self._pending.sent(len(encoded))
        self._converted.clear()
        self._only_values = self._flat
        return encoded

    def _at_once(self) -> pa.RecordBatch | None:
        try:
            columns = zip(*self._pending.entries, strict=True)
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(columns, self.schema, strict=True)
            ]
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            self._restore_rows()
            return None  # the slower way says what is wrong
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _by_key(self) -> pa.RecordBatch:
        """Convert as Spark does: the rows of one key after the other."""
        batches = [
            *self._converted,
            *(self._batch(rows) for rows in self._pending.by_key() if rows[0] is not None),
        ]
        return whole(pa.Table.from_batches(batches, self.schema))

    def _batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)


def _with_own_bytes(row: Any) -> Any:
    if isinstance(row, dict):
        return {name: _own(value) for name, value in row.items()}
    return tuple(map(_own, row))


def _own(value: Any) -> Any:
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value
