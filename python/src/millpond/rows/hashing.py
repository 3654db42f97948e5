"""Spark's hash of rows (`Murmur3Hash`, seed 42), for all rows at once.

The hash decides a row's key group and partition. The hash of a column is the seed of the next
column. A null leaves the hash as it is. Source: Murmur3_x86_32, `InterpretedHashFunction` of Spark
4.3.0. Unlike the published Murmur3, Spark hashes the last bytes one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import UnsupportedError
from millpond.rows.decode import Ints
from millpond.spark.types import Atom, Decimal, SparkType, Struct, type_text

Hashes = npt.NDArray[np.uint32]

SEED = 42
_INTS: dict[str, Any] = {
    "byte": np.int8,
    "short": np.int16,
    "integer": np.int32,
    "date": np.int32,
    "year_month_interval": np.int32,
}
_LONGS = ("long", "timestamp", "timestamp_ntz", "time", "day_time_interval")
_HASHED = {
    Atom(name)
    for name in (
        *(*_INTS, *_LONGS, "boolean", "float", "double", "string", "binary"),
        *("calendar_interval", "void"),
    )
}


def hash_rows(rows: Any, schema: Struct) -> npt.NDArray[np.int32]:
    """Return the hash of each row over all columns.

    Args:
        rows: `pyarrow.StructArray` of the Arrow type of `schema`.
        schema: of the rows.
    Raises: UnsupportedError: this module does not know the hash of a column's type (arrays, maps,
        variants).
    """
    hashes = np.full(len(rows), SEED, dtype=np.uint32)
    with np.errstate(over="ignore"):
        return _struct(rows, schema, hashes).view(np.int32)


def check_hashable(schema: Struct) -> None:
    """Raise UnsupportedError if `hash_rows` does not know the hash of a column's type."""
    for field in schema.fields:
        if isinstance(field.type, Struct):
            check_hashable(field.type)
        elif not isinstance(field.type, Decimal) and field.type not in _HASHED:
            raise _unhashable(field.type)


def groups_of(hashes: npt.NDArray[np.int32], max_parallelism: int) -> Ints:
    """Return `pmod(hash, max_parallelism)`: the key group of each row."""
    return hashes.astype(np.int64) % max_parallelism


def _struct(rows: Any, schema: Struct, hashes: Hashes) -> Hashes:
    for number, field in enumerate(schema.fields):
        hashes = _column(rows.field(number), field.type, hashes)
    return hashes


def _column(column: Any, kind: SparkType, seed: Hashes) -> Hashes:
    if len(column) == 0 or kind == Atom("void"):
        return seed
    hashed = _values(column, kind, seed)
    if column.null_count == 0:
        return hashed
    return np.where(np.asarray(column.is_null().to_numpy(zero_copy_only=False)), seed, hashed)


def _values(column: Any, kind: SparkType, seed: Hashes) -> Hashes:
    if isinstance(kind, Struct):
        return _struct(column, kind, seed)
    if isinstance(kind, Decimal):
        if kind.is_long:
            low = _numbers(column, np.uint64, 2)[::2]
            return _hash_long(low, seed)
        return _hash_bytes(_big_integers(column), seed)
    name = kind.name if isinstance(kind, Atom) else ""
    if name in _INTS:
        return _hash_int(_numbers(column, _INTS[name]).astype(np.int32).view(np.uint32), seed)
    if name == "boolean":
        return _hash_int(
            np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False)).astype(np.uint32),
            seed,
        )
    if name == "float":
        values = _numbers(column, np.float32) + np.float32(0)  # -0.0 is 0.0
        bits = np.where(np.isnan(values), np.uint32(0x7FC0_0000), values.view(np.uint32))
        return _hash_int(bits.astype(np.uint32), seed)
    if name == "double":
        numbers = _numbers(column, np.float64) + np.float64(0)
        wide = np.where(
            np.isnan(numbers), np.uint64(0x7FF8_0000_0000_0000), numbers.view(np.uint64)
        )
        return _hash_long(wide.astype(np.uint64), seed)
    if name in ("string", "binary"):
        return _hash_bytes(column, seed)
    if name == "calendar_interval":
        hashes = _hash_long(_numbers(column.field(2), np.uint64), seed)
        for number in (1, 0):
            hashes = _hash_int(_numbers(column.field(number), np.uint32), hashes)
        return hashes
    if name in _LONGS:
        return _hash_long(_numbers(column, np.uint64), seed)
    raise _unhashable(kind)


def _unhashable(kind: SparkType) -> UnsupportedError:
    return UnsupportedError(
        f"keys with a column of type {type_text(kind)}: Millpond does not know their hash outside"
        " of Spark"
    )


def _numbers(column: Any, dtype: Any, per_value: int = 1) -> Any:
    """Return the values in an array's data buffer. A null has any value."""
    start, count = column.offset * per_value, len(column) * per_value
    return np.frombuffer(column.buffers()[1], dtype=dtype, count=start + count)[start:]


def _big_integers(column: Any) -> Any:
    """Return the unscaled values as Java's BigInteger.toByteArray does."""
    scale = column.type.scale
    pieces = []
    for value in column.to_pylist():
        number = 0 if value is None else _unscaled(value, scale)
        pieces.append(
            number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
        )
    return pa.array(pieces, pa.binary())


def _unscaled(value: Any, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)) or "0") * int(10 ** (exponent + scale))
    return -number if sign else number


def _mix_k(k: Hashes) -> Hashes:
    k = k * np.uint32(0xCC9E_2D51)
    k = (k << np.uint32(15)) | (k >> np.uint32(17))
    return k * np.uint32(0x1B87_3593)


def _mix_h(h: Hashes, k: Hashes) -> Hashes:
    h = h ^ k
    h = (h << np.uint32(13)) | (h >> np.uint32(19))
    return h * np.uint32(5) + np.uint32(0xE654_6B64)


def _finish(h: Hashes, length: Any) -> Hashes:
    h = h ^ np.asarray(length, dtype=np.uint32)
    h = h ^ (h >> np.uint32(16))
    h = h * np.uint32(0x85EB_CA6B)
    h = h ^ (h >> np.uint32(13))
    h = h * np.uint32(0xC2B2_AE35)
    return h ^ (h >> np.uint32(16))


def _hash_int(values: Hashes, seed: Hashes) -> Hashes:
    return _finish(_mix_h(seed, _mix_k(values)), 4)


def _hash_long(values: npt.NDArray[np.uint64], seed: Hashes) -> Hashes:
    h = _mix_h(seed, _mix_k(values.astype(np.uint32)))
    return _finish(_mix_h(h, _mix_k((values >> np.uint64(32)).astype(np.uint32))), 8)


def _hash_bytes(column: Any, seed: Hashes) -> Hashes:
    count = len(column)
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32, count=column.offset + count + 1)[
        column.offset :
    ]
    starts = offsets[:-1].astype(np.int64)
    sizes = np.diff(offsets).astype(np.int64)
    raw = column.buffers()[2]
    data = np.frombuffer(raw, dtype=np.uint8) if raw is not None else np.zeros(0, dtype=np.uint8)
    h = seed.copy()
    for word in range(int(sizes.max()) >> 2):
        rows = np.flatnonzero(sizes >= (word + 1) * 4)
        piece = data[starts[rows, None] + (word * 4 + np.arange(4))]
        h[rows] = _mix_h(
            h[rows], _mix_k(np.ascontiguousarray(piece).view("<u4").reshape(-1).astype(np.uint32))
        )
    whole = sizes & ~np.int64(3)
    for place in range(3):
        rows = np.flatnonzero(sizes - whole > place)
        signed = (
            data[starts[rows] + whole[rows] + place].view(np.int8).astype(np.int32).view(np.uint32)
        )
        h[rows] = _mix_h(h[rows], _mix_k(signed))
    return _finish(h, sizes)
