"""Arrow to `UnsafeRow`s, a column at a time for all rows at once: byte for byte what Spark writes.

`millpond.rows.decode` describes the layout. Each column first says how many words each of its
values needs beyond its own word. That gives the place of every row. Then each column writes.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import ErrorKind, InvalidInputError
from millpond.rows.arrow_types import struct_type
from millpond.rows.decode import Ints, Mask, Words
from millpond.rows.nested import fitted
from millpond.spark.types import Array, Atom, Decimal, Map, SparkType, Struct, element_bytes

_VIEWS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_PLAIN: dict[str, Any] = {
    "byte": np.uint8,
    "short": np.uint16,
    "integer": np.uint32,
    "date": np.uint32,
    "float": np.uint32,
    "year_month_interval": np.uint32,
}


def encode_rows(rows: Any, schema: Struct) -> Any:
    """Return a `pyarrow` array of type binary: an `UnsafeRow` for each row, null for a null struct.

    Args:
        rows: a `pyarrow.StructArray` or `RecordBatch`. This takes its columns by name, and casts
            them if each value comes back equal.
        schema: of the rows to write.
    Raises: InvalidInputError: INVALID_ARGUMENT: a column is missing, or its type does not fit.
    """
    array = conform(rows, schema)
    node = _Rows(array, schema)
    count = len(array)
    sizes = node.words
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    if starts[-1] * 8 > 0x7FFF_FFFF:
        raise InvalidInputError("more than 2 GiB of rows in one batch: use smaller ones")
    out = np.zeros(int(starts[-1]), dtype=np.uint64)
    node.write_rows(out, starts[:-1])
    nulls = node.nulls
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    offsets = pa.py_buffer((starts * 8).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [validity, offsets, pa.py_buffer(out)])


def conform(rows: Any, schema: Struct, *, exact: bool = False) -> Any:
    """Return `rows` as a `pyarrow.StructArray` of exactly the Arrow type of `schema`.

    Args:
        exact: True: `rows` may have no other columns.
    Raises: as `encode_rows`.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = rows.to_struct_array()
    target = struct_type(schema)
    if rows.type.equals(target):
        return rows if rows.offset == 0 else pa.concat_arrays([rows])
    if not pa.types.is_struct(rows.type):
        raise InvalidInputError(
            f"{rows.type} where {target} is wanted", kind=ErrorKind.INVALID_ARGUMENT
        )
    return fitted(rows, target, "", exact=exact)


class _Column(Protocol):
    """One column and all its values."""

    @property
    def nulls(self) -> Mask | None: ...
    @property
    def words(self) -> Ints | None:
        """How many words each value needs beyond its own; None: no value needs any."""

    def write(self, out: Words, slot: Ints, origin: Ints, at: Ints) -> None:
        """Write each value into the word `slot`.

        A value that does not fit goes to the word `at` and on. Offsets count from `origin`.
        """


def _column(array: Any, kind: SparkType, *, element: bool) -> _Column:
    """Return the encoder of a column. `element`: of an array, in which a null takes no words."""
    if isinstance(kind, Decimal):
        return _LongDecimals(array) if kind.is_long else _Decimals(array, element)
    if isinstance(kind, Atom):
        if kind.name in ("string", "binary", "geometry"):
            return _Bytes(array)
        if kind.name == "variant":
            return _variants(array)
        if kind.name == "calendar_interval":
            return _Intervals(array, element)
        return _Fixed(array, kind)
    if isinstance(kind, Struct):
        return _Rows(array, kind)
    return _Arrays(array, kind) if isinstance(kind, Array) else _Maps(array, kind)


def _nulls_of(array: Any) -> Mask | None:
    if array.null_count == 0:
        return None
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _values(array: Any, dtype: Any, per_value: int = 1) -> Any:
    """Return the numbers in an array's data buffer."""
    count = len(array) * per_value
    if count == 0:
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=count + array.offset * per_value)[
        array.offset * per_value :
    ]


def _zeroed(values: Words, nulls: Mask | None) -> Words:
    return values if nulls is None else np.where(nulls, np.uint64(0), values)


def _places(at: Ints, origin: Ints, sizes: Ints) -> Words:
    places: Words = (((at - origin) << 35) | sizes).astype(np.uint64)
    return places


def _spread(counts: Ints, starts: Ints) -> Ints:
    """Return the words `starts[i] .. starts[i] + counts[i]` of all i, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total)


class _Fixed:
    words: Ints | None = None

    def __init__(self, array: Any, kind: Atom) -> None:
        self.nulls = _nulls_of(array)
        count = len(array)
        if kind.name == "void":
            self.values: Words = np.zeros(count, dtype=np.uint64)
            self.nulls = np.ones(count, dtype=np.bool_) if count else None
        elif kind.name == "boolean":
            self.values = _zeroed(_bits(array).astype(np.uint64), self.nulls)
        else:
            self.values = _zeroed(
                _values(array, _PLAIN.get(kind.name, np.uint64)).astype(np.uint64), self.nulls
            )

    def write(self, out: Words, slot: Ints, origin: Ints, at: Ints) -> None:
        out[slot] = self.values


def _bits(array: Any) -> npt.NDArray[np.uint8]:
    if len(array) == 0:
        return np.zeros(0, dtype=np.uint8)
    bits = np.unpackbits(np.frombuffer(array.buffers()[1], dtype=np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)]


class _LongDecimals:
    words: Ints | None = None

    def __init__(self, array: Any) -> None:
        self.nulls = _nulls_of(array)
        self.values = _zeroed(_values(array, np.uint64, 2)[::2], self.nulls)

    def write(self, out: Words, slot: Ints, origin: Ints, at: Ints) -> None:
        out[slot] = self.values


class _Decimals:
    """The bytes of Java's BigInteger: big-endian, as few as hold number and sign.

    In a row a decimal takes two words, whatever its value, even null.
    """

    def __init__(self, array: Any, element: bool) -> None:
        self.nulls = _nulls_of(array)
        count = len(array)
        big = np.ascontiguousarray(_values(array, np.uint8, 16).reshape(count, 16)[:, ::-1])
        negative = big[:, :1] >> 7
        fill = np.where(negative, np.uint8(255), np.uint8(0))
        spare = (big[:, :-1] == fill) & ((big[:, 1:] >> 7) == negative)
        dropped = np.cumprod(spare, axis=1, dtype=np.int64).sum(axis=1)
        self.sizes = 16 - dropped
        place = np.arange(16) + dropped[:, None]
        packed = np.where(
            place < 16, np.take_along_axis(big, np.minimum(place, 15), axis=1), np.uint8(0)
        )
        if self.nulls is not None:
            packed[self.nulls] = 0
            self.sizes = np.where(self.nulls, 0, self.sizes)
        self.values: Words = packed.astype(np.uint8).view(np.uint64).reshape(count, 2)
        self.element = element
        self.words: Ints | None = (
            (self.sizes + 7) >> 3 if element else np.full(count, 2, dtype=np.int64)
        )

    def write(self, out: Words, slot: Ints, origin: Ints, at: Ints) -> None:
        places = _places(at, origin, self.sizes)
        out[slot] = _zeroed(places, self.nulls) if self.element else places
        for number in range(2):
            there = self.words is None or self.words > number
            out[(at + number)[there]] = self.values[:, number][there]


class _Intervals:
    """`i32 months, i32 days, i64 microseconds`. In a row even null takes two words."""

    def __init__(self, array: Any, element: bool) -> None:
        self.nulls = _nulls_of(array)
        months, days = (_values(array.field(i), np.uint32).astype(np.uint64) for i in range(2))
        self.first = _zeroed(months | days << np.uint64(32), self.nulls)
        self.second = _zeroed(_values(array.field(2), np.uint64), self.nulls)
        there = (
            np.ones(len(array), dtype=np.bool_)
            if self.nulls is None or not element
            else ~self.nulls
        )
        self.there = there
        self.words: Ints | None = there.astype(np.int64) * 2

    def write(self, out: Words, slot: Ints, origin: Ints, at: Ints) -> None:
        there = self.there
        out[slot[there]] = _places(at, origin, np.full(len(at), 16, dtype=np.int64))[there]
        out[at[there]], out[at[there] + 1] = self.first[there], self.second[there]


class _Bytes:
    """Text, binary."""

    def __init__(self, array: Any) -> None:
        self.nulls = _nulls_of(array)
        count = len(array)
        offsets = _values(array, np.int32, 1) if count == 0 else _binary_offsets(array)
        starts, ends = (offsets[:-1], offsets[1:]) if count else (offsets, offsets)
        sizes = ends - starts
        data = array.buffers()[2]
        raw = (
            np.frombuffer(data, dtype=np.uint8)
            if data is not None and count
            else np.zeros(0, dtype=np.uint8)
        )
        if self.nulls is not None and bool(sizes[self.nulls].any()):
            # Arrow allows bytes behind a null.
            kept = np.where(self.nulls, 0, sizes)
            raw, sizes = raw[_spread(kept, starts)], kept
        elif count:
            raw = raw[int(offsets[0]) : int(offsets[-1])]
        self.sizes: Ints = sizes
        self.data = raw
        self.words: Ints | None = (sizes + 7) >> 3

    def write(self, out: Words, slot: Ints, origin: Ints, at: Ints) -> None:
        out[slot] = _zeroed(_places(at, origin, self.sizes), self.nulls)
        counts = (self.sizes + 7) >> 3
        total = int(counts.sum())
        padded = np.zeros((total, 8), dtype=np.uint8)
        if (self.sizes & 7).any():
            kept = np.full(total, 8, dtype=np.uint8)
            full = counts > 0
            kept[np.cumsum(counts)[full] - 1] = self.sizes[full] - ((counts[full] - 1) << 3)
            padded[np.arange(8, dtype=np.uint8) < kept[:, None]] = self.data
        else:
            padded.reshape(-1)[:] = self.data
        out[_spread(counts, at)] = padded.view(np.uint64).reshape(-1)


def _binary_offsets(array: Any) -> Ints:
    raw = np.frombuffer(array.buffers()[1], dtype=np.int32, count=array.offset + len(array) + 1)
    return raw[array.offset :].astype(np.int64)


def _variants(array: Any) -> _Column:
    """Return variants as a column of binary: `u32 bytes of the value, value, metadata`."""
    nulls = array.is_null()
    pieces = [
        None if missing else len(value := v or b"").to_bytes(4, "little") + value + (m or b"")
        for missing, v, m in zip(
            nulls.to_pylist(), array.field(0).to_pylist(), array.field(1).to_pylist(), strict=True
        )
    ]
    return _Bytes(pa.array(pieces, pa.binary()))


class _Rows:
    """Structs, and whole rows."""

    def __init__(self, array: Any, schema: Struct) -> None:
        self.nulls = _nulls_of(array)
        self.there: Any = slice(None)
        if self.nulls is not None:
            self.there = ~self.nulls
            array = array.filter(pa.array(self.there))
        elif array.offset:
            array = pa.concat_arrays([array])
        self.columns = [
            _column(array.field(i), f.type, element=False) for i, f in enumerate(schema.fields)
        ]
        count = len(array)
        self.bits = (len(schema.fields) + 63) // 64
        self.head = self.bits + len(schema.fields)
        inner = np.full(count, self.head, dtype=np.int64)
        for column in self.columns:
            if column.words is not None:
                inner += column.words
        self.inner = inner
        if self.nulls is None:
            self.words: Ints = inner
        else:
            self.words = np.zeros(len(self.nulls), dtype=np.int64)
            self.words[self.there] = inner

    def write_rows(self, out: Words, start: Ints) -> None:
        """Write each row that is not null. It begins at its word of `start`."""
        base = start[self.there]
        at = base + self.head
        for number, column in enumerate(self.columns):
            column.write(out, base + (self.bits + number), base, at)
            if column.words is not None:
                at = at + column.words
            if column.nulls is not None:
                out[(base + (number >> 6))[column.nulls]] |= np.uint64(1 << (number & 63))

    def write(self, out: Words, slot: Ints, origin: Ints, at: Ints) -> None:
        out[slot] = _zeroed(_places(at, origin, self.words << 3), self.nulls)
        self.write_rows(out, at)


class _Elements:
    """Arrays, one after the other: how many elements each has, and all elements in one column."""

    def __init__(self, counts: Ints, values: Any, kind: SparkType) -> None:
        self.counts = counts
        self.width = element_bytes(kind)
        self.column = _column(values, kind, element=True)
        self.heads = 1 + ((counts + 63) >> 6)
        self.fixed = (counts * self.width + 7) >> 3
        self.words: Ints = self.heads + self.fixed
        self.beyond: Ints | None = self.column.words
        if self.beyond is not None:
            ends = np.concatenate([[0], np.cumsum(self.beyond)])
            last = np.cumsum(counts)
            self.words = self.words + ends[last] - ends[last - counts]

    def write(self, out: Words, base: Ints) -> None:
        """Write each array. It begins at its word of `base`."""
        counts = self.counts
        out[base] = counts.astype(np.uint64)
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        if total == 0:
            return
        origin = np.repeat(base, counts)
        number = np.arange(total) - np.repeat(ends - counts, counts)
        nulls = self.column.nulls
        if nulls is not None:
            word = (origin + 1 + (number >> 6))[nulls]
            np.bitwise_or.at(out, word, np.uint64(1) << (number[nulls] & 63).astype(np.uint64))
        first = origin + np.repeat(self.heads, counts)
        at = first + np.repeat(self.fixed, counts)
        if self.beyond is not None:
            before = np.cumsum(self.beyond) - self.beyond
            at = at + before - np.repeat(before[np.minimum(ends - counts, total - 1)], counts)
        if self.width == 8:
            self.column.write(out, first + number, origin, at)
            return
        narrow = np.zeros(total, dtype=np.uint64)
        self.column.write(narrow, np.arange(total), origin, at)
        out.view(_VIEWS[self.width])[first * (8 // self.width) + number] = narrow.astype(
            _VIEWS[self.width]
        )


def _lists(array: Any) -> tuple[Mask | None, Any, Ints]:
    """Return the nulls, the lists that are not null, and the lengths of those."""
    nulls = _nulls_of(array)
    if nulls is not None:
        array = array.filter(pa.array(~nulls))
    elif array.offset:
        array = pa.concat_arrays([array])
    counts = np.diff(_binary_offsets(array)) if len(array) else np.zeros(0, dtype=np.int64)
    return nulls, array, counts


def _scattered(inner: Ints, nulls: Mask | None) -> Ints:
    if nulls is None:
        return inner
    words = np.zeros(len(nulls), dtype=np.int64)
    words[~nulls] = inner
    return words


class _Arrays:
    def __init__(self, array: Any, kind: Array) -> None:
        self.nulls, lists, counts = _lists(array)
        first = int(_binary_offsets(lists)[0]) if len(lists) else 0
        self.elements = _Elements(
            counts, lists.values.slice(first, int(counts.sum())), kind.element
        )
        self.words: Ints = _scattered(self.elements.words, self.nulls)

    def write(self, out: Words, slot: Ints, origin: Ints, at: Ints) -> None:
        out[slot] = _zeroed(_places(at, origin, self.words << 3), self.nulls)
        self.elements.write(out, at if self.nulls is None else at[~self.nulls])


class _Maps:
    def __init__(self, array: Any, kind: Map) -> None:
        self.nulls, maps, counts = _lists(array)
        first, total = int(_binary_offsets(maps)[0]) if len(maps) else 0, int(counts.sum())
        self.keys = _Elements(counts, maps.keys.slice(first, total), kind.key)
        self.items = _Elements(counts, maps.items.slice(first, total), kind.value)
        self.words: Ints = _scattered(1 + self.keys.words + self.items.words, self.nulls)

    def write(self, out: Words, slot: Ints, origin: Ints, at: Ints) -> None:
        out[slot] = _zeroed(_places(at, origin, self.words << 3), self.nulls)
        base = at if self.nulls is None else at[~self.nulls]
        out[base] = (self.keys.words << 3).astype(np.uint64)
        self.keys.write(out, base + 1)
        self.items.write(out, base + 1 + self.keys.words)
