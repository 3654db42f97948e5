"""Encodes Arrow as Avro rows, a column at a time: byte for byte what Spark writes.

`millpond.rows.avro` reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.rows.avro import INTEGERS, min_bytes
from millpond.rows.encode import conform
from millpond.spark.types import Array, Atom, Decimal, Map, SparkType, Struct

_NULL, _SOME = b"\0", b"\2"  # the branch of a union of null and a type
_END = b"\0"  # ends the blocks of an array or a map
_FALSE, _TRUE = b"\0", b"\1"

Column = list[bytes | None]  # the bytes of each value; None: null


def avro_rows(rows: Any, schema: Struct) -> list[bytes]:
    """Return the Avro bytes of each row.

    Args:
        rows: `pyarrow.StructArray` without nulls. This takes its columns by name, and casts them if
            that loses nothing.
        schema: of the rows to write.
    Raises:
        InvalidInputError: INVALID_ARGUMENT: a column is missing or does not fit, or an array or a
            map holds a null, which Spark cannot write.
        UnsupportedError: Spark does not encode a type with Avro.
    """
    return _records(conform(rows, schema), schema)


def avro_ordering(columns: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the bytes of each row that `millpond.rows.avro.ordering_columns` reads.

    Args:
        columns: the columns that order keys. Each has one entry for each row: the marker, then the
            big-endian value.
    """
    return _joined(
        [
            [_SOME + _sized(one[:1]) + _SOME + _sized(one[1:]) for one in column]
            for column in columns
        ]
    )


def _records(array: Any, kind: Struct) -> list[bytes]:
    """Encode the fields of each struct. A null struct gets those of a struct of nulls."""
    if not kind.fields:
        return [b""] * len(array)
    return _joined(
        [
            _nullable(column, field.type)
            for column, field in zip(array.flatten(), kind.fields, strict=True)
        ]
    )


def _joined(columns: Sequence[list[bytes]]) -> list[bytes]:
    return list(map(b"".join, zip(*columns, strict=True)))


def _long_bytes(value: int) -> bytes:
    """Encode a number with variable length, in zigzag encoding."""
    word = value << 1 if value >= 0 else ~(value << 1)
    if word < 0x80:
        return _ONE_BYTE[word]
    out = bytearray()
    while word > 0x7F:
        out.append(word & 0x7F | 0x80)
        word >>= 7
    out.append(word)
    return bytes(out)


_ONE_BYTE = [bytes([word]) for word in range(0x80)]


def _sized(data: bytes) -> bytes:
    return _long_bytes(len(data)) + data


def _nullable(array: Any, kind: SparkType) -> list[bytes]:
    """Encode a field of a struct: a union with null."""
    if kind == Atom("void"):
        return [b""] * len(array)
    return [_NULL if value is None else _SOME + value for value in _bare(array, kind)]


def _items(array: Any, kind: SparkType) -> list[bytes]:
    """Encode elements of arrays or values of maps: unions only if they are nested themselves."""
    if isinstance(kind, Struct | Array | Map) or kind == Atom("void"):
        return _nullable(array, kind)
    found = []
    for value in _bare(array, kind):
        if value is None:
            raise InvalidInputError(
                f"a null among {kind} values of an array or a map, which Spark cannot encode with"
                " Avro",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Leave the element out, or give it a value.",
            )
        found.append(value)
    return found


def _bare(array: Any, kind: SparkType) -> Column:
    match kind:
        case Struct():
            return _kept(array, _records(array, kind))
        case Array():
            return _arrays(array, kind)
        case Map():
            return _maps(array, kind)
        case Decimal():
            return _decimals(array, kind)
        case Atom("boolean"):
            return [
                None if value is None else _TRUE if value else _FALSE for value in array.to_pylist()
            ]
        case Atom("float"):
            return _packed(array.view(pa.int32()), "<i")  # bits, because there is more than one NaN
        case Atom("double"):
            return _packed(array.view(pa.int64()), "<q")
        case Atom("string" | "binary"):
            return [
                None if value is None else _sized(value)
                for value in array.view(pa.binary()).to_pylist()
            ]
        case Atom("date"):
            return _longs(array.view(pa.int32()))
        case Atom("timestamp" | "timestamp_ntz"):
            return _longs(array.view(pa.int64()))
        case Atom(name) if name in INTEGERS:
            return _longs(array)
    raise UnsupportedError(f"Spark encodes no {kind} with Avro")


def _kept(array: Any, values: list[bytes]) -> Column:
    if array.null_count == 0:
        return [*values]
    return [
        value if there else None
        for value, there in zip(values, array.is_valid().to_pylist(), strict=True)
    ]


def _longs(array: Any) -> Column:
    return [None if value is None else _long_bytes(value) for value in array.to_pylist()]


def _packed(array: Any, form: str) -> Column:
    pack = struct.Struct(form).pack
    return [None if value is None else pack(value) for value in array.to_pylist()]


def _decimals(array: Any, kind: Decimal) -> Column:
    """Encode decimals: as many bytes as the precision needs, big-endian.

    Arrow has 16 bytes, little-endian.
    """
    size = min_bytes(kind.precision)
    data = array.buffers()[1].to_pybytes() if len(array) else b""
    return _kept(
        array,
        [
            data[16 * n : 16 * n + size][::-1]
            for n in range(array.offset, array.offset + len(array))
        ],
    )


def _arrays(array: Any, kind: Array) -> Column:
    lists, offsets = _lists(array)
    items = _items(lists.values.slice(offsets[0], offsets[-1] - offsets[0]), kind.element)
    return _scattered(array, [_block(items[start:end]) for start, end in _spans(offsets)])


def _maps(array: Any, kind: Map) -> Column:
    if kind.key != Atom("string"):
        raise UnsupportedError(f"Spark encodes no map by {kind.key} with Avro")
    maps, offsets = _lists(array)
    keys = maps.keys.slice(offsets[0], offsets[-1] - offsets[0]).to_pylist()
    items = _items(maps.items.slice(offsets[0], offsets[-1] - offsets[0]), kind.value)
    found = []
    for start, end in _spans(offsets):
        pairs = _as_java_orders(list(zip(keys[start:end], items[start:end], strict=True)))
        found.append(_block([_sized(key.encode()) + item for key, item in pairs]))
    return _scattered(array, found)


def _lists(array: Any) -> tuple[Any, list[int]]:
    """Return the lists that are not null, the start of each, and the end of the last."""
    lists = array.filter(array.is_valid()) if array.null_count else array
    return lists, lists.offsets.to_pylist() or [0]


def _spans(offsets: list[int]) -> list[tuple[int, int]]:
    places = [offset - offsets[0] for offset in offsets]
    return list(pairwise(places))


def _block(items: list[bytes]) -> bytes:
    return _long_bytes(len(items)) + b"".join(items) + _END if items else _END


def _scattered(array: Any, values: list[bytes]) -> Column:
    found = iter(values)
    return [next(found) if there else None for there in array.is_valid().to_pylist()]


def _as_java_orders(pairs: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return the entries of a map in the order of `java.util.HashMap`, which Spark fills with them.

    The order is by bucket. Inside a bucket the entries keep the order in which they came.
    """
    if len(pairs) < 2:
        return pairs
    buckets = 1
    while buckets < len(pairs):
        buckets *= 2
    entries = dict(pairs)
    if len(entries) > buckets * 3 // 4:
        buckets *= 2

    def bucket(pair: tuple[str, bytes]) -> int:
        text = pair[0].encode("utf-16-le")
        code = 0
        for unit in struct.unpack(f"<{len(text) // 2}H", text):
            code = (31 * code + unit) & 0xFFFF_FFFF
        return (code ^ code >> 16) & (buckets - 1)

    return sorted(entries.items(), key=bucket)
