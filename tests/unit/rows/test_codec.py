"""Rows to bytes and back, for random schemas.

The tests also check bytes that are no rows, and what a column must be like.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import ErrorKind, FormatError, InvalidInputError, UnsupportedError
from millpond.rows.decode import decode_rows
from millpond.rows.encode import encode_rows
from millpond.spark.types import Array, Atom, Decimal, Field, Map, Struct, parse_schema
from tests.row_examples import arrow, tables, values


@given(tables(), st.integers(0, 3))
def test_round_trip(example: tuple[Struct, list[dict[str, Any]]], skipped: int) -> None:
    schema, rows = example
    array = arrow(schema, rows)
    encoded = encode_rows(array, schema)
    assert all(len(row.as_py()) % 8 == 0 for row in encoded)
    decoded = decode_rows(encoded, schema)
    decoded.validate(full=True)
    assert decoded.equals(array)
    assert encode_rows(array.slice(len(rows)), schema).to_pylist() == []
    # These are slices, and bytes that do not begin at a multiple of 8.
    part = min(skipped, len(rows))
    assert decode_rows(encode_rows(array.slice(part), schema), schema).equals(array.slice(part))
    assert decode_rows(encoded.slice(part), schema).equals(array.slice(part))
    shifted = pa.array([b"x", *encoded.to_pylist()], pa.binary()).slice(1)
    assert decode_rows(shifted, schema).equals(array)


@given(st.data())
def test_null_rows(data: st.DataObject) -> None:
    schema = Struct(
        (Field("a", Atom("string")), Field("b", Array(Atom("short"))), Field("c", Decimal(30, 2)))
    )
    rows = data.draw(st.lists(values(schema), max_size=10))
    array = arrow(schema, rows)
    encoded = encode_rows(array, schema)
    assert [row is None for row in encoded.to_pylist()] == [row is None for row in rows]
    assert decode_rows(encoded, schema).equals(array)


def test_names_that_come_twice() -> None:
    """The rows of a join have such names."""
    schema = Struct(tuple(Field(name, Atom("long")) for name in ("k", "k_2", "k", "v", "k")))
    array = arrow(schema, [{"k": 1, "k_2": 2, "k_3": 3, "v": 4, "k_4": 5}])
    decoded = decode_rows(encode_rows(array, schema), schema)
    assert decoded.to_pylist() == [{"k": 1, "k_2": 2, "k_3": 3, "v": 4, "k_4": 5}]


def test_rows_without_fields() -> None:
    array = pa.array([{}, {}, {}], pa.struct([]))
    encoded = encode_rows(array, Struct(()))
    assert encoded.to_pylist() == [b"", b"", b""]
    assert len(decode_rows(encoded, Struct(()))) == 3


def test_bytes_of_a_row() -> None:
    """UnsafeRowWriter makes the same bytes."""
    schema = Struct(
        (Field("a", Atom("integer")), Field("s", Atom("string")), Field("n", Atom("long")))
    )
    encoded = encode_rows(arrow(schema, [{"a": -2, "s": "ü", "n": None}]), schema)
    words = [4, 0xFFFF_FFFE, 32 << 32 | 2, 0]
    assert encoded[0].as_py() == np.array(words, dtype="<u8").tobytes() + "ü".encode() + bytes(6)
    wide = Struct((Field("d", Decimal(20, 0)), Field("e", Decimal(20, 0))))
    encoded = encode_rows(arrow(wide, [{"d": -1, "e": None}]), wide)
    words = [2, 24 << 32 | 1, 40 << 32]
    assert encoded[0].as_py() == np.array(words, dtype="<u8").tobytes() + b"\xff" + bytes(31)


LONG = Struct((Field("a", Atom("long")), Field("s", Atom("string"))))


@given(st.binary(max_size=64), st.sampled_from(["long", "string", "variant", "binary"]))
def test_bytes_that_are_no_row_are_an_error_or_something(data: bytes, name: str) -> None:
    schema = Struct(
        (
            Field("a", Atom(name)),
            Field("b", Array(Atom("string"))),
            Field("m", Map(Atom("long"), Atom("byte"))),
        )
    )
    try:
        decode_rows(pa.array([data], pa.binary()), schema)
    except FormatError as e:
        assert e.kind is ErrorKind.CHANGELOG_DAMAGED


def test_sizes_that_cannot_be() -> None:
    good = encode_rows(arrow(LONG, [{"a": 1, "s": "x"}]), LONG)[0].as_py()
    for bad in (good[:-1], good[:8], good[:-8], good[:20] + b"\xff" * 4 + good[24:]):
        with pytest.raises(FormatError):
            decode_rows(pa.array([bad], pa.binary()), LONG)


def test_columns_are_taken_by_name_and_cast() -> None:
    batch = pa.record_batch(
        {
            "s": pa.array(["x", None], pa.large_string()),
            "b": [1, 2],
            "a": pa.array([1, 2], pa.int8()),
        }
    )
    assert decode_rows(encode_rows(batch, LONG), LONG).to_pylist() == [
        {"a": 1, "s": "x"},
        {"a": 2, "s": None},
    ]
    for wrong in (
        {"a": [1]},
        {"a": pa.array([2**63], pa.uint64()), "s": ["x"]},
        {"a": ["no"], "s": ["x"]},
    ):
        with pytest.raises(InvalidInputError):
            encode_rows(pa.record_batch(wrong), LONG)


TYPES = [
    ("decimal(38,6)", Decimal(38, 6)),
    ("string collate UNICODE_CI", Atom("string")),
    ("varchar(7)", Atom("string")),
    ("time(6)", Atom("time")),
    ("interval day to second", Atom("day_time_interval")),
    ("interval year to month", Atom("year_month_interval")),
    ("interval month", Atom("year_month_interval")),
    ("interval", Atom("calendar_interval")),
    ("void", Atom("void")),
    ({"type": "udt", "class": "x", "sqlType": "long"}, Atom("long")),
    ({"type": "array", "elementType": "byte", "containsNull": False}, Array(Atom("byte"))),
    (
        {"type": "map", "keyType": "date", "valueType": "variant", "valueContainsNull": True},
        Map(Atom("date"), Atom("variant")),
    ),
]


@pytest.mark.parametrize(("written", "kind"), TYPES, ids=str)
def test_types_of_spark(written: object, kind: object) -> None:
    schema = {
        "type": "struct",
        "fields": [{"name": "x", "type": written, "nullable": True, "metadata": {}}],
    }
    assert parse_schema(json.dumps(schema), name="x").fields[0].type == kind


def test_schemas_that_are_none() -> None:
    for text in (
        "",
        "[]",
        '"long"',
        '{"type":"struct"}',
        '{"type":"struct","fields":[{"name":"x","type":7}]}',
    ):
        with pytest.raises(FormatError):
            parse_schema(text, name="x")
    with pytest.raises(UnsupportedError):
        parse_schema('{"type":"struct","fields":[{"name":"x","type":"hologram"}]}', name="x")
