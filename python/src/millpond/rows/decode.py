"""`UnsafeRow`s to Arrow, a column at a time for all rows at once.

A row has a null bit for each field (in whole words of 8 bytes), a word for each field, then the
values that do not fit a word. A field's word holds its value, or where the value lies:
`offset from the row's start << 32 | bytes`. A nested row looks the same. An array is `u64 elements,
null bits, elements of 1, 2, 4 or 8 bytes (padded to words), values that do not fit`. A map is
`u64 bytes of the keys, array of keys, array of values`. Everything begins at a word.

Source: UnsafeRow, UnsafeArrayData, UnsafeMapData of Spark 4.3.0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import ErrorKind, FormatError
from millpond.rows.arrow_types import arrow_type, struct_type
from millpond.spark.types import Array, Atom, Decimal, Map, SparkType, Struct, element_bytes

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]  # True: null

_LOW = np.uint64(0xFFFF_FFFF)
_NARROW: dict[str, Any] = {
    "byte": np.uint8,
    "short": np.uint16,
    "integer": np.uint32,
    "date": np.uint32,
    "float": np.uint32,
    "year_month_interval": np.uint32,
}
_LONG_BYTES = 256  # the mean size from which a step for each piece costs little
_ELEMENT: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def are_long(sizes: Ints) -> bool:
    """Tell whether to copy pieces one by one. An index of their bytes takes 24 times as many."""
    return int(sizes.sum()) > _LONG_BYTES * len(sizes)


def joined(data: Bytes, starts: Ints, sizes: Ints) -> Bytes:
    """Return the pieces of `data` at `starts`, of `sizes` bytes, one after the other."""
    ends = (starts + sizes).tolist()
    return np.concatenate([data[i:j] for i, j in zip(starts.tolist(), ends, strict=True)])


def decode_rows(rows: Any, schema: Struct) -> Any:
    """Return the `pyarrow.StructArray` of the rows.

    Args:
        rows: `pyarrow` array of type binary. Each value is the bytes of one `UnsafeRow`, without a
            prefix; null stands for a null struct.
        schema: of all rows.
    Raises: FormatError: CHANGELOG_DAMAGED: the bytes are no row of this schema.
    """
    count = len(rows)
    if count == 0:
        return pa.array([], arrow_type(schema))
    offsets = np.frombuffer(rows.buffers()[1], dtype=np.int32, count=rows.offset + count + 1)[
        rows.offset :
    ].astype(np.int64)
    data = rows.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    nulls = _nulls_of(rows)
    if (offsets - first & 7).any():
        raise _damaged("its size is not a multiple of 8")
    if last == first:
        words = np.zeros(1, dtype=np.uint64)  # all rows are null, or have no fields
    else:
        words = np.require(
            np.frombuffer(data, np.uint64, (last - first) // 8, first), requirements="A"
        )
    smallest = _head_words(schema) * 8
    sizes = np.diff(offsets)
    if (
        smallest
        and int(np.min(sizes if nulls is None else sizes[~nulls], initial=smallest)) < smallest
    ):
        raise _damaged(f"it has fewer than {smallest} bytes")
    try:
        return _Decoder(words).struct((offsets[:-1] - first) >> 3, nulls, schema)
    except (IndexError, pa.ArrowInvalid) as e:
        raise _damaged(str(e)) from e


def _damaged(why: str) -> FormatError:
    return FormatError(
        f"bytes that are no row of the schema: {why}", kind=ErrorKind.CHANGELOG_DAMAGED
    )


def _head_words(schema: Struct) -> int:
    count = len(schema.fields)
    return (count + 63) // 64 + count


def _nulls_of(array: Any) -> Mask | None:
    if array.null_count == 0:
        return None
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _validity(nulls: Mask | None) -> Any:
    return None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def _either(a: Mask | None, b: Mask | None) -> Mask | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def _offsets(counts: Ints) -> Ints:
    total = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=total[1:])
    if total[-1] > 0x7FFF_FFFF:
        raise _damaged("more than 2 GiB in one batch of rows")
    return total


class _Decoder:
    def __init__(self, words: Words) -> None:
        self._words = words
        self._bytes = words.view(np.uint8)

    def _at(self, index: Ints) -> Words:
        """Return the words at `index`."""
        found: Words = self._words[index]
        return found

    def struct(self, base: Ints, nulls: Mask | None, schema: Struct) -> Any:
        """Decode the rows that begin at the words `base`."""
        count = len(base)
        bits = (len(schema.fields) + 63) // 64
        if nulls is not None:
            if nulls.all():
                # There may be fewer bytes than one row has.
                return pa.nulls(count, arrow_type(schema))
            base = np.where(nulls, 0, base)
        step = _step(base)
        columns = []
        null_words: list[Words] = (
            [self._column(base, step, word) for word in range(bits)] if count else []
        )
        for number, field in enumerate(schema.fields):
            if count == 0:
                columns.append(pa.array([], arrow_type(field.type)))
                continue
            missing: Mask | None = (
                null_words[number >> 6] >> np.uint64(number & 63) & np.uint64(1)
            ).astype(np.bool_)
            missing = _either(missing if missing is not None and missing.any() else None, nulls)
            columns.append(
                self._values(self._column(base, step, bits + number), base, missing, field.type)
            )
        return pa.Array.from_buffers(
            struct_type(schema),
            count,
            [_validity(nulls)],
            null_count=-1 if nulls is not None else 0,
            children=columns,
        )

    def _column(self, base: Ints, step: int, word: int) -> Words:
        """Return one word of each row. Rows of one size, one after the other, need no gathering."""
        if step:
            first = int(base[0]) + word
            strided: Words = self._words[first : first + (len(base) - 1) * step + 1 : step]
            if len(strided) != len(base):
                raise _damaged("it ends early")
            return strided
        return self._at(base + word)

    def _values(self, slots: Words, origin: Ints, nulls: Mask | None, kind: SparkType) -> Any:
        """Decode a column.

        `slots` has the word of each value. Offsets in it count from the word in `origin`.
        """
        if isinstance(kind, Decimal):
            return self._decimals(slots, origin, nulls, kind)
        if isinstance(kind, Atom):
            if kind.name == "void":
                return pa.nulls(len(slots))
            if kind.name in ("string", "binary", "geometry"):
                data, offsets = self._gather(*self._places(slots, origin, nulls))
                return _variable(arrow_type(kind), data, offsets, nulls)
            if kind.name == "variant":
                return self._variants(slots, origin, nulls)
            if kind.name == "calendar_interval":
                return self._intervals(slots, origin, nulls)
            return _fixed(slots, nulls, kind)
        starts, _ = self._places(slots, origin, nulls)
        base = starts >> 3
        if isinstance(kind, Struct):
            return self.struct(base, nulls, kind)
        if isinstance(kind, Array):
            values, offsets, _ = self._array(base, nulls, kind.element)
            return _list(arrow_type(kind), offsets, nulls, values)
        return self._map(base, nulls, kind)

    def _places(self, slots: Words, origin: Ints, nulls: Mask | None) -> tuple[Ints, Ints]:
        """Return the first byte and the size of each value that does not fit a word."""
        starts = (slots >> np.uint64(32)).astype(np.int64) + (origin << 3)
        sizes = (slots & _LOW).astype(np.int64)
        if nulls is not None:
            starts, sizes = np.where(nulls, 0, starts), np.where(nulls, 0, sizes)
        if len(starts) and int((starts + sizes).max()) > len(self._bytes):
            raise _damaged("a value lies behind its end")
        return starts, sizes

    def _gather(self, starts: Ints, sizes: Ints) -> tuple[npt.NDArray[np.uint8], Ints]:
        offsets = _offsets(sizes)
        if are_long(sizes):
            return joined(self._bytes, starts, sizes), offsets
        if (starts & 7).any():
            index = np.repeat(starts - offsets[:-1], sizes) + np.arange(int(offsets[-1]))
            return self._bytes[index], offsets
        # Gather words, because they are fewer than bytes. Then drop the padding of each last word.
        counts = (sizes + 7) >> 3
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        index = np.repeat((starts >> 3) - (ends - counts), counts) + np.arange(total)
        padded = self._at(index).view(np.uint8).reshape(total, 8)
        if not (sizes & 7).any():
            return padded.reshape(-1), offsets
        kept = np.full(total, 8, dtype=np.uint8)
        full = counts > 0
        kept[ends[full] - 1] = sizes[full] - ((counts[full] - 1) << 3)
        return padded[np.arange(8, dtype=np.uint8) < kept[:, None]], offsets

    # ---- types of their own

    def _decimals(self, slots: Words, origin: Ints, nulls: Mask | None, kind: Decimal) -> Any:
        halves = np.zeros((len(slots), 2), dtype=np.int64)  # little-endian, as Arrow has them
        if kind.is_long:
            low = np.ascontiguousarray(slots).view(np.int64)
            if nulls is not None:
                low = np.where(nulls, 0, low)
            halves[:, 0], halves[:, 1] = low, low >> 63
        else:
            starts, sizes = self._places(slots, origin, nulls)
            if len(sizes) and (int(sizes.max()) > 16 or (starts & 7).any()):
                raise _damaged("a decimal of more than 16 bytes")
            last = len(self._words) - 1
            index = (starts >> 3)[:, None] + np.arange(2)
            big = self._at(np.minimum(index, last)).view(np.uint8).reshape(-1, 16)
            place = sizes[:, None] - 1 - np.arange(16)
            little = np.take_along_axis(big, np.maximum(place, 0), axis=1)
            fill = np.where(big[:, :1] >> 7, np.uint8(255), np.uint8(0))
            halves = np.where(
                place >= 0, little, np.where(sizes[:, None] > 0, fill, np.uint8(0))
            ).astype(np.uint8)
        return pa.Array.from_buffers(
            arrow_type(kind),
            len(slots),
            [_validity(nulls), pa.py_buffer(np.ascontiguousarray(halves))],
        )

    def _variants(self, slots: Words, origin: Ints, nulls: Mask | None) -> Any:
        """Decode variants: `u32 bytes of the value, value, metadata`."""
        starts, sizes = self._places(slots, origin, nulls)
        head = (self._at(np.minimum(starts >> 3, len(self._words) - 1)) & _LOW).astype(np.int64)
        values = np.where(sizes > 0, head, 0)
        if (values > np.maximum(sizes - 4, 0)).any():
            raise _damaged("a variant that is longer than its bytes")
        rest = np.where(sizes > 0, sizes - 4 - values, 0)
        parts = [
            _variable(pa.binary(), *self._gather(starts + 4, values), None),
            _variable(pa.binary(), *self._gather(starts + 4 + values, rest), None),
        ]
        kind = arrow_type(Atom("variant"))
        return pa.Array.from_buffers(kind, len(slots), [_validity(nulls)], children=parts)

    def _intervals(self, slots: Words, origin: Ints, nulls: Mask | None) -> Any:
        """Decode calendar intervals: `i32 months, i32 days, i64 microseconds`."""
        base = self._places(slots, origin, nulls)[0] >> 3
        first, second = self._at(base), self._at(np.minimum(base + 1, len(self._words) - 1))
        parts = [
            _fixed(first, None, Atom("integer")),
            _fixed(first >> np.uint64(32), None, Atom("integer")),
            _fixed(second, None, Atom("long")),
        ]
        kind = arrow_type(Atom("calendar_interval"))
        return pa.Array.from_buffers(kind, len(slots), [_validity(nulls)], children=parts)

    def _array(self, base: Ints, nulls: Mask | None, element: SparkType) -> tuple[Any, Ints, Ints]:
        """Decode the arrays that begin at the words `base`.

        Returns all elements in one array, the offsets of each array in it, and how many words each
        head has.
        """
        counts = self._at(base).astype(np.int64)
        if nulls is not None:
            counts = np.where(nulls, 0, counts)
        if len(counts) and (int(counts.max()) > 8 * len(self._bytes) or int(counts.min()) < 0):
            raise _damaged("an array that is longer than its bytes")
        offsets = _offsets(counts)
        total = int(offsets[-1])
        heads = 1 + ((counts + 63) >> 6)
        origin = np.repeat(base, counts)
        number = np.arange(total) - np.repeat(offsets[:-1], counts)
        bits = self._at(origin + 1 + (number >> 6)) >> (number & 63).astype(np.uint64) & np.uint64(
            1
        )
        missing: Mask | None = bits.astype(np.bool_)
        if missing is not None and not missing.any():
            missing = None
        width = element_bytes(element)
        index = (origin + np.repeat(heads, counts)) * (8 // width) + number
        slots = self._bytes.view(_ELEMENT[width])[index].astype(np.uint64)
        return self._values(slots, origin, missing, element), offsets, heads

    def _map(self, base: Ints, nulls: Mask | None, kind: Map) -> Any:
        key_words = self._at(base) >> np.uint64(3)
        keys, offsets, _ = self._array(base + 1, nulls, kind.key)
        at = base + 1 + key_words.astype(np.int64)
        if nulls is not None:
            at = np.where(nulls, 0, at)
        values, value_offsets, _ = self._array(at, nulls, kind.value)
        if not np.array_equal(offsets, value_offsets):
            raise _damaged("a map with another number of values than keys")
        entries = pa.Array.from_buffers(
            pa.struct([pa.field("key", keys.type, nullable=False), pa.field("value", values.type)]),
            len(keys),
            [None],
            children=[keys, values],
        )
        return _list(arrow_type(kind), offsets, nulls, entries)


def _step(base: Ints) -> int:
    """Return the distance between rows in words, if it is the same everywhere; else 0."""
    if len(base) < 2:
        return 1 if len(base) else 0
    step = int(base[1] - base[0])
    return step if step > 0 and bool((np.diff(base) == step).all()) else 0


def _fixed(slots: Words, nulls: Mask | None, kind: Atom) -> Any:
    if kind.name == "boolean":
        data: Any = np.packbits((slots & np.uint64(0xFF)) != 0, bitorder="little")
    elif kind.name in _NARROW:
        data = slots.astype(_NARROW[kind.name])
    else:
        data = np.ascontiguousarray(slots)
    return pa.Array.from_buffers(
        arrow_type(kind), len(slots), [_validity(nulls), pa.py_buffer(data)]
    )


def _variable(kind: Any, data: npt.NDArray[np.uint8], offsets: Ints, nulls: Mask | None) -> Any:
    buffers = [
        _validity(nulls),
        pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(np.ascontiguousarray(data)),
    ]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def _list(kind: Any, offsets: Ints, nulls: Mask | None, values: Any) -> Any:
    buffers = [_validity(nulls), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[values])
