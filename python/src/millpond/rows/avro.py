"""Decodes rows that Spark encoded with Avro (`stateStore.encodingFormat=avro`), a row at a time.

Spark derives the Avro schema from the row's schema. Every field is a union with null, null first.
An element of an array or a value of a map is such a union only if it is a struct, array or map.
Source: SchemaConverters.toAvroTypeWithDefaults, AvroStateEncoder of Spark 4.3.0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa

from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.model.varint import decode_varint
from millpond.rows.arrow_types import struct_type
from millpond.spark.types import Array, Atom, Decimal, Map, SparkType, Struct

Row = dict[str, Any]
Reader = Callable[[bytes, int], tuple[Any, int]]  # data, start -> value, end

INTEGERS = frozenset({"byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz"})


def row_reader(written: Struct, wanted: Struct | None = None) -> Callable[[bytes], Row]:
    """Return a function from the Avro bytes of a row to its columns, by their names in Arrow.

    A text that is no UTF-8 stays bytes; `array_of` takes both. The function raises FormatError
    (CHANGELOG_DAMAGED) for bytes that are no such row.

    Args:
        written: the schema with which Spark wrote the row.
        wanted: the job's schema, if it has changed since. The function returns its columns; those
            that were not there are null.
    Raises: UnsupportedError: Spark does not encode a type with Avro.
    """
    read = _record(written)
    names = (wanted if wanted is not None else written).distinct_names
    fields = (wanted if wanted is not None else written).names
    places = [written.names.index(name) if name in written.names else None for name in fields]

    def row(data: bytes) -> Row:
        try:
            values, end = read(data, 0)
        except (IndexError, struct.error, UnicodeDecodeError) as e:
            raise _damaged(f"it ends early: {e}") from e
        if end != len(data):
            raise _damaged(f"it has {len(data)} bytes, and {end} are read")
        return {
            name: None if at is None else values[at] for name, at in zip(names, places, strict=True)
        }

    return row


def _damaged(why: str) -> FormatError:
    return FormatError(
        f"bytes that are no row of the schema: {why}", kind=ErrorKind.CHANGELOG_DAMAGED
    )


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of variable length, in zigzag encoding."""
    try:
        value, at = decode_varint(data, at)
    except ValueError as e:
        raise _damaged(str(e)) from e
    return (value >> 1) ^ -(value & 1), at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    if size < 0 or at + size > len(data):
        raise _damaged("a text or binary ends early")
    return data[at : at + size], at + size


def _string(data: bytes, at: int) -> tuple[str | bytes, int]:
    value, at = _bytes(data, at)
    try:
        return value.decode("utf-8"), at
    except UnicodeDecodeError:  # a text that Spark cast from any bytes
        return value, at


def _fixed(form: str) -> Reader:
    unpack, size = struct.Struct(form), struct.calcsize(form)
    return lambda data, at: (unpack.unpack_from(data, at)[0], at + size)


def _record(kind: Struct) -> Reader:
    """Return a reader of the values of a struct's fields, in their order."""
    readers = [_nullable(field.type) for field in kind.fields]

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        values = []
        for reader in readers:
            value, at = reader(data, at)
            values.append(value)
        return values, at

    return read


def _nullable(kind: SparkType) -> Reader:
    if kind == Atom("void"):
        return lambda _data, at: (None, at)
    return _or_null(_bare(kind))


def _or_null(reader: Reader) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = _long(data, at)
        if branch not in (0, 1):
            raise _damaged(f"branch {branch} of a union of two")
        return reader(data, at) if branch else (None, at)

    return read


def _item(kind: SparkType) -> Reader:
    """Return a reader of an array's element or a map's value."""
    return _nullable(kind) if isinstance(kind, Struct | Array | Map) else _bare(kind)


def _bare(kind: SparkType) -> Reader:
    match kind:
        case Struct():
            read, names = _record(kind), kind.distinct_names

            def nested(data: bytes, at: int) -> tuple[Row, int]:
                values, at = read(data, at)
                return dict(zip(names, values, strict=True)), at

            return nested
        case Array():
            return _blocks(_item(kind.element))
        case Map():
            return _blocks(_pair(_item(kind.value)))
        case Decimal():
            return _decimal(kind)
        case Atom("void"):
            return lambda _data, at: (None, at)
        case Atom("boolean"):
            return lambda data, at: (data[at] != 0, at + 1)
        case Atom("float"):
            return _fixed("<f")
        case Atom("double"):
            return _fixed("<d")
        case Atom("string"):
            return _string
        case Atom("binary"):
            return _bytes
        case Atom(name) if name in INTEGERS:
            return _long
    raise UnsupportedError(f"Spark encodes no {kind} with Avro")


def _blocks(reader: Reader) -> Reader:
    """Return a reader of blocks of items.

    A block is the number of its items, then the items. If the number is negative, the block's size
    in bytes follows it. The number 0 ends the blocks.
    """

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            count, at = _long(data, at)
            if count == 0:
                return items, at
            if count < 0:
                _, at = _long(data, at)
            for _ in range(abs(count)):
                value, at = reader(data, at)
                items.append(value)

    return read


def _pair(value: Reader) -> Reader:
    def read(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = _bytes(data, at)
        found, at = value(data, at)
        return (key.decode("utf-8"), found), at  # Spark writes no other keys

    return read


def _decimal(kind: Decimal) -> Reader:
    size = min_bytes(kind.precision)

    def read(data: bytes, at: int) -> tuple[Number, int]:
        if at + size > len(data):
            raise _damaged("a decimal ends early")
        unscaled = int.from_bytes(data[at : at + size], "big", signed=True)
        digits = tuple(map(int, str(abs(unscaled))))
        return Number((int(unscaled < 0), digits, -kind.scale)), at + size

    return read


def min_bytes(precision: int) -> int:
    """Return how many bytes Spark gives a decimal of this precision."""
    size = 1
    while 2 ** (8 * size - 1) < 10**precision:
        size += 1
    return size


def ordering_columns(data: bytes, count: int) -> list[bytes]:
    """Return the `count` columns that order keys: each is its marker, then its big-endian value.

    Raises: FormatError: CHANGELOG_DAMAGED.
    """
    binary = _or_null(_bytes)
    columns, at = [], 0
    try:
        for _ in range(count):
            marker, at = binary(data, at)
            value, at = binary(data, at)
            columns.append((marker or b"") + (value or b""))
    except IndexError as e:
        raise _damaged("an ordering column ends early") from e
    return columns


def array_of(rows: Sequence[Row], schema: Struct) -> Any:
    """Return rows as a `pyarrow.StructArray` of exactly the type of `schema`."""
    kind = struct_type(schema)
    return pa.array(rows, _with_bytes(kind)).view(kind)


def _with_bytes(kind: Any) -> Any:
    """Return the type with binaries for texts, which lie in memory alike: Arrow checks no UTF-8."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _with_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_bytes(kind.key_type), _with_bytes(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_bytes(kind.value_type))
    return pa.binary() if pa.types.is_string(kind) else kind
