"""Encodes Arrow to keys and values of one column family: the inverse of `millpond.state.codec`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.rows.avro_write import avro_ordering, avro_rows
from millpond.rows.encode import conform, encode_rows
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Atom, Field, Struct
from millpond.state.codec import AVRO, UNSAFE_ROW

_VERSION = b"\0"  # stands before each row: the version of Spark's encoding
_KEY_SCHEMA = 0  # number of the schema of keys: Spark lets no job change it
_SIGN = 1 << 63
# Formats of ordering columns: big-endian, as Java writes them.
_ORDERED = {
    "boolean": ">?",
    "byte": ">b",
    "short": ">h",
    "integer": ">i",
    "date": ">i",
    "float": ">f",
    "long": ">q",
    "double": ">d",
}


def encode_keys(keys: Any, schema: FamilySchema, *, encoding: str = UNSAFE_ROW) -> list[bytes]:
    """Return keys as stores hold them, without slot and column family.

    Args:
        keys: `pyarrow.StructArray` or `RecordBatch` with the columns of `schema.key`.
        encoding: how the column family encodes rows.
    Raises:
        InvalidInputError: INVALID_ARGUMENT: a column is missing or does not fit, or a key is null.
        UnsupportedError: Spark has no such encoding.
    """
    array = conform(keys, schema.key)
    if array.null_count:
        raise InvalidInputError(
            "a key is null", kind=ErrorKind.INVALID_ARGUMENT, hint="Give each row a key."
        )
    match schema.kind:
        case "point":
            return _rows(array, schema.key, encoding, number=_KEY_SCHEMA)
        case "prefix" | "range":
            return _framed(array, schema, encoding)
    if encoding == AVRO:
        raise UnsupportedError(f"Spark encodes no keys of kind {schema.kind} with Avro")
    return _timed(array, schema)


def sorted_by(schema: FamilySchema) -> int:
    """Return how many first columns of a key lead its bytes, so that keys with them lie together; 0
    if no fewer than all do.
    """
    if schema.kind == "time-last":
        return len(schema.key.fields) - 1
    return schema.prefix_columns if schema.kind == "prefix" else 0


def encode_prefixes(keys: Any, schema: FamilySchema, *, encoding: str = UNSAFE_ROW) -> list[bytes]:
    """Return the bytes with which keys begin.

    Args:
        keys: `pyarrow.StructArray` with the first columns of the key, `sorted_by` of them.
    Raises: as `encode_keys`.
    """
    count = sorted_by(schema)
    columns = Struct(schema.key.fields[:count])
    heads = _columns(conform(keys, columns), columns, range(count), encoding)
    if schema.kind == "time-last":
        return heads
    return [len(head).to_bytes(4, "little") + head for head in heads]


def encode_values(values: Any, schema: FamilySchema, *, encoding: str = UNSAFE_ROW) -> list[bytes]:
    """Return values as stores hold them, in the newest schema.

    Args, Raises: as `encode_keys`.
    """
    array = conform(values, schema.value)
    if array.null_count:
        raise InvalidInputError(
            "a value is null: leave the row out",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Leave rows without a value out: that deletes their keys.",
        )
    return _rows(array, schema.value, encoding, number=schema.value_id)


def _rows(array: Any, schema: Struct, encoding: str, *, number: int | None) -> list[bytes]:
    """Encode rows.

    Args:
        number: of the schema; None: Spark writes no number here. UnsafeRows never have one.
    """
    if encoding == AVRO:
        head = _VERSION if number is None else _VERSION + struct.pack("<h", number)
        return [head + row for row in avro_rows(array, schema)]
    return [_VERSION + row for row in encode_rows(array, schema).to_pylist()]


def conform_lists(values: Any, schema: Struct) -> Any:
    """Return `values`, lists of rows, as a `pyarrow.ListArray` of exactly the type of `schema`.

    Raises: as `encode_keys`.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        raise InvalidInputError(
            f"{values.type} where lists of rows are wanted",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Give each key a list of values: this state keeps several under one key.",
        )
    if values.null_count:
        raise InvalidInputError(
            "a value is null: leave the row out",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Leave rows without a value out: that deletes their keys.",
        )
    rows = conform(values.flatten(), schema, exact=True)
    counts = np.asarray(pc.list_value_length(values), dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), rows)


def encode_lists(values: Any, schema: FamilySchema, *, encoding: str = UNSAFE_ROW) -> list[bytes]:
    """Return lists of values as stores hold them: for each value its size (u32), then its bytes.

    Args:
        values: from `conform_lists`.
    """
    encoded = encode_values(values.flatten(), schema, encoding=encoding)
    single = [len(value).to_bytes(4, "little") + value for value in encoded]
    ends = np.cumsum(np.asarray(pc.list_value_length(values), dtype=np.int64)).tolist()
    return [b"".join(single[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _columns(
    array: Any,
    schema: Struct,
    numbers: Sequence[int],
    encoding: str = UNSAFE_ROW,
    *,
    number: int | None = None,
) -> list[bytes]:
    fields = Struct(tuple(schema.fields[number] for number in numbers))
    if not numbers:
        return [b""] * len(array)
    part = pa.StructArray.from_arrays(
        [array.field(number) for number in numbers], names=fields.distinct_names
    )
    return _rows(part, fields, encoding, number=number)


def _framed(array: Any, schema: FamilySchema, encoding: str) -> list[bytes]:
    every = range(len(schema.key.fields))
    first = (
        list(schema.ordinals) if schema.kind == "range" else list(every)[: schema.prefix_columns]
    )
    others = [number for number in every if number not in first]
    if schema.kind == "range":
        ordered = [_ordering(array.field(number), schema.key.fields[number]) for number in first]
        heads = _ordered(ordered, encoding)
    else:
        heads = _columns(array, schema.key, first, encoding)
    rests = _columns(array, schema.key, others, encoding, number=_KEY_SCHEMA)
    return [
        len(head).to_bytes(4, "little") + head + rest
        for head, rest in zip(heads, rests, strict=True)
    ]


def _ordered(columns: list[list[bytes]], encoding: str) -> list[bytes]:
    """Return the rows of ordering columns."""
    if encoding == AVRO:
        return [_VERSION + row for row in avro_ordering(columns)]
    fields = Struct(tuple(Field(f"c{number}", Atom("binary")) for number in range(len(columns))))
    part = pa.StructArray.from_arrays(
        [pa.array(column, pa.binary()) for column in columns], names=fields.names
    )
    return [_VERSION + row for row in encode_rows(part, fields).to_pylist()]


def _ordering(column: Any, field: Field) -> list[bytes]:
    """Encode an ordering column: a marker (negative 0, positive 1, null 2), then the value. All
    bits of negative floats are flipped.
    """
    name = field.type.name if isinstance(field.type, Atom) else ""
    form = _ORDERED.get("long" if name.startswith("timestamp") else name)
    if form is None:
        raise UnsupportedError(f"keys ordered by column {field.name!r} of type {field.type}")
    if name.startswith("timestamp") or name == "date":
        column = column.cast(pa.int64() if name != "date" else pa.int32())
    size = struct.calcsize(form)
    result = []
    for value in column.to_pylist():
        if value is None:
            result.append(b"\2" + bytes(size))
            continue
        data = struct.pack(form, value)
        if form in (">f", ">d"):
            negative = bool(data[0] & 0x80)
            data = bytes(byte ^ 0xFF for byte in data) if negative else data
        else:
            negative = value < 0
        result.append((b"\0" if negative else b"\1") + data)
    return result


def _timed(array: Any, schema: FamilySchema) -> list[bytes]:
    last = len(schema.key.fields) - 1
    rows = _columns(array, schema.key, range(last)) if last else [_VERSION] * len(array)
    result = []
    for row, time in zip(rows, array.field(last).to_pylist(), strict=True):
        if time is None:
            raise InvalidInputError(
                "an event time in a key is null",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Give each row a key.",
            )
        big = ((time + _SIGN) % (1 << 64)).to_bytes(8, "big")
        result.append(big + row if schema.kind == "time-first" else row + big)
    return result
