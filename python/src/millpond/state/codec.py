"""Decodes physical keys and values of one column family to Arrow.

How keys of each kind are laid out: docs/reference/format.md, "Physical key".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.model.json_fields import ColumnFamily
from millpond.model.physical_key import PHYSICAL_PREFIX_BYTES
from millpond.rows import avro
from millpond.rows.arrow_types import struct_type
from millpond.rows.decode import Ints, are_long, decode_rows, joined
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Atom, Field, Struct
from millpond.state.ages import AGE_BYTES

UNSAFE_ROW, AVRO = "unsaferow", "avro"
_ROW = 1  # bytes before each row: the version of Spark's encoding
_SCHEMA_ID = 2  # bytes before each row in Avro: the number of its schema, little-endian
_TIME_BYTES = 8
_SIGN = np.uint64(1 << 63)
_NULL_MARKER = 2
_WIDTHS = {
    "byte": 1,
    "boolean": 1,
    "short": 2,
    "integer": 4,
    "float": 4,
    "long": 8,
    "double": 8,
    "date": 4,
}
_FLOATS = ("float", "double")


def check_supported(family: ColumnFamily, schema: FamilySchema) -> None:
    """Check that rows of the family can be decoded. Raises: UnsupportedError, FormatError."""
    if family.encoding not in (UNSAFE_ROW, AVRO) or (
        family.encoding == AVRO and schema.kind.startswith("time-")
    ):
        raise UnsupportedError(
            f"column family {family.name!r} is encoded as {family.encoding}: this version makes no"
            " tables of that",
            hint="Read it with Spark's source statestore: docs/guides/reading-state.md.",
        )
    if family.kind and family.kind != schema.kind:
        raise FormatError(
            f"column family {family.name!r} is of kind {family.kind}, and Spark's schema file says"
            f" {schema.kind}",
            kind=ErrorKind.FORMAT_DAMAGED,
        )


def decode_keys(
    keys: Sequence[bytes] | Any,
    schema: FamilySchema,
    *,
    place_bytes: int = PHYSICAL_PREFIX_BYTES,
    encoding: str = UNSAFE_ROW,
) -> Any:
    """Return the `pyarrow.StructArray` of keys, with the columns of `schema.key` in their order.

    Args:
        keys: physical keys, or a `pyarrow` array of them.
        place_bytes: how many bytes of each key come before the key itself: slot and column family;
            0 if they are already cut off.
        encoding: how the column family encodes rows.
    Raises: FormatError: CHANGELOG_DAMAGED: bytes are not a key of this schema.
    """
    if encoding == AVRO:
        return _avro_keys(_listed(keys), schema, place_bytes)
    array = _array(keys)
    if len(array) == 0:
        return pa.array([], struct_type(schema.key))
    match schema.kind:
        case "point":
            return decode_rows(without(array, place_bytes + _ROW), schema.key)
        case "prefix" | "range":
            return _framed(array, schema, place_bytes)
        case _:
            return _timed(array, schema, place_bytes)


def decode_values(
    values: Sequence[bytes] | Any, schema: FamilySchema, *, encoding: str = UNSAFE_ROW
) -> Any:
    """Return a `pyarrow.StructArray` of the values. Args, Raises: as `decode_keys`."""
    if encoding == AVRO:
        return _avro_values(_listed(values), schema)
    array = _array(values)
    return (
        decode_rows(_without_ages(without(array, _ROW)), schema.value)
        if len(array)
        else pa.array([], struct_type(schema.value))
    )


def _without_ages(rows: Any) -> Any:
    """Return the rows of values without their ages: docs/reference/format.md, "Physical key"."""
    data, offsets = _raw(rows)
    sizes = np.diff(offsets)
    aged = sizes & 7 == AGE_BYTES
    return _cut(data, offsets[:-1], sizes - AGE_BYTES * aged) if aged.any() else rows


def decode_lists(
    values: Sequence[bytes], schema: FamilySchema, *, encoding: str = UNSAFE_ROW
) -> Any:
    """Return a `pyarrow.ListArray` of the lists of values. Args, Raises: as `decode_keys`."""
    single, counts = split_lists(values)
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    # Not by `pa.array`: given numpy arrays, it imports pandas if that is installed.
    ends = pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)])
    return pa.ListArray.from_arrays(ends, decode_values(single, schema, encoding=encoding))


def binary_array(rows: Sequence[bytes]) -> Any:
    """Return `pyarrow.array(rows, pyarrow.binary())`, in a fifth of the time."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), out=offsets[1:])
    if offsets[-1] > 0x7FFF_FFFF:
        return pa.array(rows, pa.binary())  # raises an error that says what is wrong
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(rows))]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


def _listed(rows: Sequence[bytes] | Any) -> list[bytes]:
    return rows.to_pylist() if isinstance(rows, pa.Array) else list(rows)


def _array(rows: Sequence[bytes] | Any) -> Any:
    return rows if isinstance(rows, pa.Array) else binary_array(rows)


def prefixes(array: Any, size: int) -> Any:
    """Return the first `size` bytes of each piece of a binary array, as a row of a matrix.

    Raises: FormatError: CHANGELOG_DAMAGED: a piece is shorter.
    """
    data, offsets = _raw(array)
    if (np.diff(offsets) < size).any():
        raise _damaged("a key ends early")
    return data[offsets[:-1, None] + np.arange(size)]


def without(array: Any, prefix_bytes: int) -> Any:
    """Return the pieces of a binary array without their first bytes. Raises: as `prefixes`."""
    # Not by pyarrow's binary_slice: in 26.0 it fails for some arrays ("Negative buffer resize").
    data, offsets = _raw(array)
    return _cut(data, offsets[:-1] + prefix_bytes, np.diff(offsets) - prefix_bytes)


def split_lists(values: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Return the single values of all lists, one after the other, and the length of each list.

    Raises: as `decode_keys`.
    """
    single: list[bytes] = []
    counts: list[int] = []
    for value in values:
        before = len(single)
        single += single_values(value)
        counts.append(len(single) - before)
    return single, counts


def single_values(value: bytes) -> Iterator[bytes]:
    """Yield the values of a list. Raises: as `decode_keys`."""
    at = 0
    while at < len(value):
        if at + 4 > len(value):
            raise _damaged("a list of values ends early")
        (size,) = struct.unpack_from("<I", value, at)
        at += 4 + size
        if at > len(value):
            raise _damaged("a list of values ends early")
        yield value[at - size : at]


def _damaged(why: str) -> FormatError:
    return FormatError(
        f"bytes that are no state of this schema: {why}", kind=ErrorKind.CHANGELOG_DAMAGED
    )


def _part(schema: Struct, numbers: Sequence[int]) -> Struct:
    return Struct(tuple(schema.fields[number] for number in numbers))


def _raw(array: Any) -> tuple[Any, Ints]:
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=array.offset + len(array) + 1)
    data = array.buffers()[2]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    return raw, offsets[array.offset :].astype(np.int64)


def _cut(data: Any, starts: Ints, sizes: Ints) -> Any:
    """Return a binary array of the pieces of `data` at `starts`, of `sizes` bytes."""
    if len(sizes) and (int(sizes.min()) < 0 or int((starts + sizes).max()) > len(data)):
        raise _damaged("a key ends early")
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    size, step = (int(sizes[0]), int(starts[1] - starts[0])) if len(sizes) > 1 else (0, 0)
    if (
        size
        and step >= size
        and bool((sizes == size).all())
        and bool((np.diff(starts) == step).all())
    ):
        # All pieces have one size and one distance: copy them without an index for each byte.
        first, count = int(starts[0]), len(sizes)
        pieces = np.lib.stride_tricks.as_strided(
            data[first:], (count, size), (step, 1), writeable=False
        )
        cut = np.ascontiguousarray(pieces).reshape(-1)
    elif are_long(sizes):
        cut = joined(data, starts, sizes)
    else:
        cut = data[np.repeat(starts - offsets[:-1], sizes) + np.arange(int(offsets[-1]))]
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(cut)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def _framed(physical: Any, schema: FamilySchema, place_bytes: int) -> Any:
    """Decode `u32 prefix_bytes, prefix row, other row`. The prefix row has the columns that lookups
    or the order use.
    """
    key = schema.key
    every = range(len(key.fields))
    first = (
        list(schema.ordinals) if schema.kind == "range" else list(every)[: schema.prefix_columns]
    )
    others = [number for number in every if number not in first]
    data, offsets = _raw(physical)
    starts = offsets[:-1] + place_bytes
    if (starts + 4 > offsets[1:]).any():
        raise _damaged("a key ends early")
    prefix = (
        np.ascontiguousarray(data[starts[:, None] + np.arange(4)])
        .view("<u4")
        .reshape(-1)
        .astype(np.int64)
    )
    head = _cut(data, starts + 4 + _ROW, prefix - _ROW)
    if schema.kind == "range":
        ordered = Struct(
            tuple(Field(field.name, Atom("binary")) for field in _part(key, first).fields)
        )
        rows = decode_rows(head, ordered)
        columns = {n: _ordering(rows.field(i), key.fields[n]) for i, n in enumerate(first)}
    else:
        rows = decode_rows(head, _part(key, first))
        columns = {n: rows.field(i) for i, n in enumerate(first)}
    if others:
        rest = starts + 4 + prefix + _ROW
        rows = decode_rows(_cut(data, rest, offsets[1:] - rest), _part(key, others))
        columns.update({n: rows.field(i) for i, n in enumerate(others)})
    return pa.StructArray.from_arrays([columns[n] for n in every], fields=list(struct_type(key)))


def _ordering(column: Any, field: Field) -> Any:
    """Decode an ordering column: a marker (negative 0, positive 1, null 2), then the value,
    big-endian. All bits of negative floats are flipped.
    """
    name = field.type.name if isinstance(field.type, Atom) else ""
    width = _WIDTHS.get(name)
    if width is None and isinstance(field.type, Atom) and name.startswith("timestamp"):
        width = 8
    if width is None:
        raise UnsupportedError(f"keys ordered by column {field.name!r} of type {field.type}")
    data, offsets = _raw(column)
    if (np.diff(offsets) != 1 + width).any():
        raise _damaged("an ordering column of another size")
    bytes_ = data[offsets[0] : offsets[-1]].reshape(-1, 1 + width)
    marker, value = bytes_[:, 0], np.ascontiguousarray(bytes_[:, :0:-1])
    if name in _FLOATS:
        value = np.where((marker == 0)[:, None], value ^ np.uint8(255), value)
    words = np.zeros((len(value), 8), dtype=np.uint8)
    words[:, :width] = value
    nulls = marker == _NULL_MARKER
    head = np.zeros((len(value), 2), dtype=np.uint64)
    head[:, 0] = nulls
    head[:, 1] = np.where(nulls, np.uint64(0), words.view(np.uint64).reshape(-1))
    offsets32 = pa.py_buffer((np.arange(len(value) + 1) * 16).astype(np.int32))
    rows = pa.Array.from_buffers(pa.binary(), len(value), [None, offsets32, pa.py_buffer(head)])
    return decode_rows(rows, Struct((field,))).field(0)


def _timed(physical: Any, schema: FamilySchema, place_bytes: int) -> Any:
    """Decode keys with an event time: 8 bytes, big-endian, sign flipped. The time stands before or
    after the row of the other columns.
    """
    key = schema.key
    data, offsets = _raw(physical)
    starts, ends = offsets[:-1] + place_bytes, offsets[1:]
    first = schema.kind == "time-first"
    time_at = starts if first else ends - _TIME_BYTES
    row_at = starts + _ROW + (_TIME_BYTES if first else 0)
    sizes = ends - starts - _TIME_BYTES - _ROW
    if (sizes < 0).any():
        raise _damaged("a key ends early")
    big = (
        np.ascontiguousarray(data[time_at[:, None] + np.arange(_TIME_BYTES)])
        .view(">u8")
        .reshape(-1)
    )
    times = (big.astype(np.uint64) ^ _SIGN).view(np.int64)
    others = Struct(key.fields[:-1])
    rows = decode_rows(_cut(data, row_at, sizes), others)
    columns = [rows.field(i) for i in range(len(others.fields))]
    return pa.StructArray.from_arrays(
        [*columns, pa.array(times, pa.int64())], fields=list(struct_type(key))
    )


# ---- Avro ----------------------------------------------------------------------------------------


def _avro_values(values: list[bytes], schema: FamilySchema) -> Any:
    readers: dict[int, Any] = {}
    rows = []
    for value in values:
        number, data = _numbered(value)
        if number not in readers:
            written = schema.values.get(number)
            if written is None:
                raise _damaged(f"a value of schema {number}, which no schema file describes")
            readers[number] = avro.row_reader(written, schema.value)
        rows.append(readers[number](data))
    return avro.array_of(rows, schema.value)


def _avro_keys(keys: list[bytes], schema: FamilySchema, place_bytes: int) -> Any:
    if schema.kind == "point":
        read = avro.row_reader(schema.key)
        return avro.array_of([read(_numbered(key[place_bytes:])[1]) for key in keys], schema.key)
    every = range(len(schema.key.fields))
    first = (
        list(schema.ordinals) if schema.kind == "range" else list(every)[: schema.prefix_columns]
    )
    others = [number for number in every if number not in first]
    heads, rests = [], []
    for key in keys:
        if len(key) < place_bytes + 4:
            raise _damaged("a key ends early")
        end = place_bytes + 4 + struct.unpack_from("<I", key, place_bytes)[0]
        heads.append(key[place_bytes + 4 + _ROW : end])
        rests.append(key[end:])
    columns: dict[int, Any] = {}
    if schema.kind == "range":
        ordering = [avro.ordering_columns(head, len(first)) for head in heads]
        for place, number in enumerate(first):
            column = pa.array([row[place] for row in ordering], pa.binary())
            columns[number] = _ordering(column, schema.key.fields[number])
    else:
        part = _part(schema.key, first)
        found = avro.array_of(list(map(avro.row_reader(part), heads)), part)
        columns |= {number: found.field(place) for place, number in enumerate(first)}
    if others:
        part = _part(schema.key, others)
        read = avro.row_reader(part)
        found = avro.array_of([read(_numbered(rest)[1]) for rest in rests], part)
        columns |= {number: found.field(place) for place, number in enumerate(others)}
    return pa.StructArray.from_arrays(
        [columns[n] for n in every], fields=list(struct_type(schema.key))
    )


def _numbered(data: bytes) -> tuple[int, bytes]:
    """Return the number of the schema, and the Avro bytes."""
    if len(data) < _ROW + _SCHEMA_ID:
        raise _damaged("a row ends early")
    return struct.unpack_from("<h", data, _ROW)[0], data[_ROW + _SCHEMA_ID :]
