"""Values with and without the ages of their rows."""

from __future__ import annotations

import pytest

from millpond.errors import FormatError
from millpond.model.json_fields import ColumnFamily
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Atom, Field, Struct
from millpond.state.ages import AGE_BYTES, with_ages, without_ages
from millpond.state.codec import decode_values

_PLAIN = ColumnFamily("default", 0)
_LISTS = ColumnFamily("default", 0, multi=True)
_AVRO = ColumnFamily("default", 0, encoding="avro")
_LONG = Struct((Field("n", Atom("long")),))
_SCHEMA = FamilySchema(name="default", key=_LONG, value=_LONG, kind="point")


def _row(number: int, age: bytes = b"") -> bytes:
    return b"\0" + bytes(8) + number.to_bytes(8, "little") + age


def test_values_are_decoded_without_their_ages() -> None:
    values = [_row(1), _row(2, b"\xff" * AGE_BYTES), _row(3, bytes(AGE_BYTES)), _row(4)]
    found = decode_values(values, _SCHEMA)
    assert found.to_pylist() == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
    assert decode_values(values[1:2], _SCHEMA).to_pylist() == [{"n": 2}]


@pytest.mark.parametrize("rest", [1, 3, 5, 7])
def test_other_sizes_are_damage(rest: int) -> None:
    with pytest.raises(FormatError, match="multiple of 8"):
        decode_values([_row(1), _row(2, bytes(rest))], _SCHEMA)


def test_ages_go_and_come_back() -> None:
    before = [(b"a", _row(1, b"age1")), (b"b", _row(2)), (b"c", _row(3, b"age3"))]
    assert without_ages(_PLAIN, [value for _, value in before]) == [_row(1), _row(2), _row(3)]
    keys = [b"c", b"b", b"new"]
    after = with_ages(_PLAIN, before, keys, [_row(9), _row(8), _row(7)])
    assert after == [_row(9, b"age3"), _row(8), _row(7)]


@pytest.mark.parametrize("family", [_LISTS, _AVRO])
def test_values_of_any_size_have_no_ages(family: ColumnFamily) -> None:
    value = bytes(8) + b"\x01\x02\x03\x04\x05"
    assert without_ages(family, [value]) == [value]
    assert with_ages(family, [(b"a", value)], [b"a"], [b"new"]) == [b"new"]
