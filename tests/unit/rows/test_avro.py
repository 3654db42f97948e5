"""Rows as Spark encodes them with Avro: all types, schemas that changed, bytes that are no rows."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal as Number
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import FormatError, InvalidInputError, UnsupportedError
from millpond.rows.avro import min_bytes, row_reader
from millpond.rows.avro_write import avro_rows
from millpond.rows.readable import readable
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Array, Atom, Decimal, Field, Map, SparkType, Struct
from millpond.state.codec import AVRO, decode_keys, decode_values
from millpond.state.encoding import encode_keys, encode_values
from tests.row_examples import arrow, tables

_UTC_EPOCH, _EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc), dt.datetime(1970, 1, 1)
_ATOMS = (
    *("boolean", "byte", "short", "integer", "long", "float", "double"),
    *("date", "timestamp", "timestamp_ntz", "string", "binary", "void"),
)


def long(value: int) -> bytes:
    word = (value << 1) ^ (value >> 63)
    out = bytearray()
    while word > 0x7F:
        out.append(word & 0x7F | 0x80)
        word >>= 7
    return bytes([*out, word])


def encoded(kind: SparkType, value: Any, *, bare: bool = False, top: bool = False) -> bytes:
    """Encode as Avro's writer does.

    `bare`: the value is an item of an array or a map. It is no union unless it has parts.
    """
    if kind == Atom("void"):
        return b""
    parts = isinstance(kind, Struct | Array | Map)
    if top or (bare and not parts):
        return _body(kind, value)
    return long(0) if value is None else long(1) + _body(kind, value)


def _body(kind: SparkType, value: Any) -> bytes:
    data: bytes
    match kind:
        case Struct():
            return b"".join(encoded(f.type, value[f.name]) for f in kind.fields)
        case Array():
            items = b"".join(encoded(kind.element, item, bare=True) for item in value)
            return (long(len(value)) + items if value else b"") + long(0)
        case Map():
            pairs = b"".join(
                _body(Atom("string"), k) + encoded(kind.value, v, bare=True) for k, v in value
            )
            return (long(len(value)) + pairs if value else b"") + long(0)
        case Decimal():
            unscaled = int(value.scaleb(kind.scale, context=None) if value else 0)
            return unscaled.to_bytes(min_bytes(kind.precision), "big", signed=True)
        case Atom("boolean"):
            return bytes([value])
        case Atom("float"):
            return struct.pack("<f", value)
        case Atom("double"):
            return struct.pack("<d", value)
        case Atom("string"):
            data = value.encode()
            return long(len(data)) + data
        case Atom("binary"):
            return long(len(value)) + bytes(value)
        case Atom("date"):
            return long((value - dt.date(1970, 1, 1)).days)
        case Atom("timestamp"):
            return long((value - _UTC_EPOCH) // dt.timedelta(microseconds=1))
        case Atom("timestamp_ntz"):
            return long((value - _EPOCH) // dt.timedelta(microseconds=1))
    return long(value)


def writable(kind: SparkType, value: Any, *, item: bool = False) -> bool:
    """Return whether Spark encodes the value: an item must not be null."""
    if value is None:
        return not item or isinstance(kind, Struct | Array | Map) or kind == Atom("void")
    match kind:
        case Struct():
            return all(writable(f.type, value[f.name]) for f in kind.fields)
        case Array():
            return all(writable(kind.element, one, item=True) for one in value)
        case Map():
            return all(writable(kind.value, v, item=True) for _, v in value)
    return True


def has(kind: SparkType, found: Callable[[SparkType], bool]) -> bool:
    """Return whether `found` is true of the type, or of a part of it."""
    match kind:
        case Struct():
            parts: list[SparkType] = [field.type for field in kind.fields]
        case Array():
            parts = [kind.element]
        case Map():
            parts = [kind.key, kind.value]
        case _:
            parts = []
    return found(kind) or any(has(part, found) for part in parts)


def long_decimal(kind: SparkType) -> bool:
    """Return whether the decimal has more digits than Python computes with."""
    return isinstance(kind, Decimal) and kind.precision > 28


def odd_map(kind: SparkType) -> bool:
    """Return whether it is a map whose keys are not texts."""
    return isinstance(kind, Map) and kind.key != Atom("string")


def keyed(kind: SparkType, value: Any) -> Any:
    """Return the value with the entries of maps by key. Of equal keys the last one counts."""
    match kind, value:
        case _, None:
            return None
        case Struct(), _:
            return [keyed(f.type, value[f.name]) for f in kind.fields]
        case Array(), _:
            return [keyed(kind.element, one) for one in value]
        case Map(), _:
            return {str(k): keyed(kind.value, v) for k, v in value}
    return value


@given(tables(atoms=_ATOMS, most=4), st.integers(0, 4))
def test_all_types(example: tuple[Struct, list[dict[str, Any]]], first: int) -> None:
    schema, rows = example
    if has(schema, odd_map):
        with pytest.raises(UnsupportedError):
            avro_rows(arrow(schema, []), schema)
        return
    for row in rows:
        if not writable(schema, row):
            with pytest.raises(InvalidInputError):
                avro_rows(arrow(schema, [row]), schema)
    rows = [row for row in rows if writable(schema, row)]
    read = row_reader(schema)
    data = avro_rows(arrow(schema, rows).slice(first), schema)
    made = arrow(schema, [read(row) for row in data])
    assert keyed(Array(schema), made.to_pylist()) == keyed(Array(schema), rows[first:])
    # The maps are in Java's order now. The bytes equal those of Avro's own writer. The encoder
    # writes a row as the reader found it.
    assert data == avro_rows(made, schema)
    if not has(schema, long_decimal):
        assert data == [encoded(schema, row, top=True) for row in made.to_pylist()]


def test_blocks_that_tell_their_size() -> None:
    """Avro allows such blocks. Spark does not write them."""
    schema = Struct((Field("a", Array(Atom("long"))),))
    items = long(5) + long(-6)
    assert row_reader(schema)(long(1) + long(-2) + long(len(items)) + items + long(0)) == {
        "a": [5, -6]
    }


def test_maps_in_the_order_of_java() -> None:
    """java.util.HashMap, made for nine entries, yielded them in this order."""
    schema = Struct((Field("m", Map(Atom("string"), Atom("long"))),))
    names = ["v3", "Aa", "BB", "ü€", "v1", "\U0001f600", "v0", ""]
    (data,) = avro_rows(arrow(schema, [{"m": [(name, 1) for name in [*names, "v1"]]}]), schema)
    assert [name for name, _ in row_reader(schema)(data)["m"]] == [
        "Aa",
        "BB",
        "ü€",
        "",
        "\U0001f600",
        "v0",
        "v1",
        "v3",
    ]


K = Struct((Field("k", Atom("long")), Field("s", Atom("string"))))


def family(kind: str = "point", **more: Any) -> FamilySchema:
    return FamilySchema(name="x", key=K, value=K, kind=kind, values={0: K}, **more)


def numbered(row: dict[str, Any], number: int = 0, schema: Struct = K) -> bytes:
    return b"\0" + struct.pack("<h", number) + encoded(schema, row, top=True)


def test_values_of_a_schema_that_changed() -> None:
    before = Struct((Field("gone", Atom("double")), Field("k", Atom("integer"))))
    schema = FamilySchema(
        name="x", key=K, value=K, kind="point", values={0: before, 1: K}, value_id=1
    )
    data = [numbered({"gone": 0.5, "k": -3}, 0, before), numbered({"k": 4, "s": "ü"}, 1)]
    found = decode_values(data, schema, encoding=AVRO)
    assert found.to_pylist() == [{"k": -3, "s": None}, {"k": 4, "s": "ü"}]
    assert encode_values(found, schema, encoding=AVRO) == [
        numbered({"k": -3, "s": None}, 1),
        data[1],
    ]
    with pytest.raises(FormatError, match="schema 2"):
        decode_values([numbered({"k": 4, "s": ""}, 2)], schema, encoding=AVRO)


def test_texts_that_are_no_utf8() -> None:
    """Spark writes the bytes of a text as they are. Keys of maps went through Java, which mends
    them.
    """
    inner = Struct((Field("t", Atom("string")), Field("nothing", Struct(()))))
    schema = Struct(
        (
            Field("s", Atom("string")),
            Field("l", Array(Atom("string"))),
            Field("m", Map(Atom("string"), inner)),
        )
    )
    bad, good = long(3) + b"\xff\xedn", long(1) + b"a"
    some, end = long(1), long(0)
    of_map = some + long(1) + good + some + some + bad + some + end
    head = b"\0" + struct.pack("<h", 0)
    data = [head + some + bad + some + long(2) + good + bad + end + of_map, head + end * 3]
    values = FamilySchema(name="x", key=K, value=schema, kind="point", values={0: schema})
    found = decode_values(data, values, encoding=AVRO)
    assert encode_values(found, values, encoding=AVRO) == data
    shown = "\\xff\\xedn"
    assert readable(found).to_pylist()[0] == {
        "s": shown,
        "l": ["a", shown],
        "m": [("a", {"t": shown, "nothing": {}})],
    }
    keys = FamilySchema(name="x", key=inner, value=K, kind="point", values={0: K})
    key = head + some + bad + some
    found = decode_keys([b"slot" + key], keys, encoding=AVRO)
    assert encode_keys(found, keys, encoding=AVRO) == [key]
    with pytest.raises(FormatError, match="no row of the schema"):
        decode_values([head + end * 2 + some + long(1) + bad], values, encoding=AVRO)


def test_keys_of_every_kind() -> None:
    row = {"k": -5, "s": "text"}
    place = b"slot"
    found = decode_keys([place + numbered(row)], family(), encoding=AVRO)
    assert found.to_pylist() == [row] and encode_keys(found, family(), encoding=AVRO) == [
        numbered(row)
    ]
    part = Struct(K.fields[:1])
    head, rest = (
        b"\0" + encoded(part, {"k": -5}, top=True),
        numbered({"s": "text"}, 0, Struct(K.fields[1:])),
    )
    key = struct.pack("<I", len(head)) + head + rest
    _both_ways(family("prefix", prefix_columns=1), key, row)
    ordered = b"".join(
        long(1) + long(len(b)) + b for b in (b"\0", (-5).to_bytes(8, "big", signed=True))
    )
    key = struct.pack("<I", len(ordered) + 1) + b"\0" + ordered + rest
    _both_ways(family("range", ordinals=(0,)), key, row)
    with pytest.raises(UnsupportedError):
        encode_keys(arrow(K, [row]), family("time-last"), encoding=AVRO)


def _both_ways(schema: FamilySchema, key: bytes, row: dict[str, Any]) -> None:
    found = decode_keys([key], schema, place_bytes=0, encoding=AVRO)
    assert found.to_pylist() == [row]
    assert encode_keys(found, schema, encoding=AVRO) == [key]


@pytest.mark.parametrize("cut", [0, 2, 4, 6])
def test_bytes_that_are_no_row(cut: int) -> None:
    data = numbered({"k": 500, "s": "text"})
    for wrong in (data[:cut], data + b"x"):
        with pytest.raises(FormatError):
            decode_values([wrong], family(), encoding=AVRO)
        with pytest.raises(FormatError):
            decode_keys([wrong], family(), place_bytes=0, encoding=AVRO)


def test_type_that_spark_does_not_encode() -> None:
    schema = Struct((Field("v", Atom("variant")),))
    with pytest.raises(UnsupportedError):
        row_reader(schema)
    with pytest.raises(UnsupportedError):
        avro_rows(arrow(schema, []), schema)


def test_decimals() -> None:
    schema = Struct((Field("d", Decimal(38, 2)),))
    value = 10**38 - 1
    data = long(1) + (-value).to_bytes(min_bytes(38), "big", signed=True)
    assert min_bytes(38) == 16 and min_bytes(9) == 4
    row = {"d": Number((1, tuple(map(int, str(value))), -2))}
    assert row_reader(schema)(data) == row
    assert avro_rows(arrow(schema, [row]), schema) == [data]
