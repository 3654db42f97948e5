"""Which values of state travel in bulk, and as what."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    NullType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimeType,
    VarcharType,
    VariantType,
)

from millpond.transport.plain import checker, comes_back_as_written, is_plain, reader
from millpond.transport.variables import Rows


def _schema(*types: DataType, nullable: bool = True) -> StructType:
    return StructType([StructField(f"f{i}", t, nullable) for i, t in enumerate(types)])


@pytest.mark.parametrize(
    "data_type",
    [
        NullType(),
        VarcharType(3),
        TimeType(),
        DayTimeIntervalType(),
        VariantType(),
        StructType([]),
        MapType(DoubleType(), LongType()),
        MapType(ArrayType(LongType()), LongType()),
        ArrayType(_schema(VariantType())),
    ],
    ids=lambda t: t.simpleString(),
)
def test_types_that_change_on_their_way_are_not_plain(data_type: DataType) -> None:
    assert not is_plain(_schema(LongType(), data_type))
    assert not is_plain(StructType([]))


@pytest.mark.parametrize(
    "data_type",
    [
        DoubleType(),
        FloatType(),
        StringType("UTF8_LCASE"),
        ArrayType(LongType()),
        MapType(StringType(), LongType()),
        _schema(LongType()),
    ],
    ids=lambda t: t.simpleString(),
)
def test_what_may_be_a_value_but_no_key(data_type: DataType) -> None:
    assert is_plain(_schema(data_type))
    assert not is_plain(_schema(data_type), as_key=True)


@pytest.mark.parametrize(
    ("data_type", "good", "bad"),
    [
        (LongType(), [0, -(1 << 63), (1 << 63) - 1], [1 << 63, True, 1.0, "1"]),
        (ByteType(), [-128, 127], [128, -129]),
        (BooleanType(), [True, False], [1, 0, "true"]),
        (DoubleType(), [1.5, float("inf")], [1, True]),
        (FloatType(), [1.5, float("inf"), 2.0**-149], [1, True, "1"]),
        (BinaryType(), [b"", b"\xff"], ["a", [1]]),
        (StringType(), ["", "a", "ä", "🎉"], ["\ud800", b"a", 1]),
        (StringType("UTF8_LCASE"), ["", "A"], [1]),
        (ArrayType(LongType()), [[], [1, -2], [None, 1]], [[1.0], {1}, "ab", 1]),
        (ArrayType(LongType(), False), [[], [1]], [[1, None]]),
        (MapType(StringType(), LongType()), [{}, {"b": 1, "a": None}], [{None: 1}, {1: 1}, []]),
        (MapType(StringType(), LongType(), False), [{"a": 2}], [{"a": None}]),
        (_schema(LongType(), StringType()), [(1, "a"), (None, None)], [(1,), [1, "a"], {}, (1, 1)]),
        (ArrayType(_schema(LongType())), [[(1,), (None,), None]], [[(1, 2)], [("a",)]]),
    ],
)
def test_a_value_is_known_if_it_has_exactly_the_right_type(
    data_type: DataType, good: list[Any], bad: list[Any]
) -> None:
    check = checker(_schema(data_type))
    assert [check((value,)) for value in [*good, None]] == [(v,) for v in [*good, None]]
    assert [check((value,)) for value in bad] == [None] * len(bad)
    assert checker(_schema(data_type, nullable=False))((None,)) is None


def test_nulls_within_are_left_to_spark_where_its_store_refuses_them() -> None:
    schema = _schema(ArrayType(DateType()), MapType(StringType(), ArrayType(LongType())))
    check = checker(schema, nulls=False)
    assert check(([], {"a": [1]})) == ([], {"a": [1]})
    assert check((None, None)) == (None, None)
    values: list[Any] = [([None], {}), ([], {"a": None}), ([], {"a": [1, None]})]
    for value in values:
        assert check(value) is None
        assert checker(schema)(value) == value


def test_what_is_nested_is_kept_as_it_was_and_shown_as_spark_shows_it() -> None:
    inner = StructType([StructField("x", FloatType()), StructField("days", ArrayType(DateType()))])
    columns = [StructField("rows", ArrayType(inner)), StructField("by", MapType(DateType(), inner))]
    schema = StructType(columns)
    check, read = checker(schema), reader(schema)
    day = datetime.date(2026, 2, 3)
    days = [day]
    kept = check(([Row(x=0.1, days=days), (None, None)], {day: (1.5, [])}))
    days.clear()
    number, pickled = (day - datetime.date(1970, 1, 1)).days, 0.10000000149011612
    assert kept == ([(pickled, [number]), (None, None)], {number: (1.5, [])})
    assert read is not None
    shown = read(kept)
    assert shown == ([Row(x=pickled, days=[day]), Row(x=None, days=None)], {day: (1.5, [])})
    assert shown[0][0].asDict() == {"x": pickled, "days": [day]}
    shown[0].clear()
    assert read(kept)[0] != [], "who changes what was read changes no state"
    assert read(([None], {number: None})) == ([None], {day: None})
    assert read((None, None)) == (None, None)
    assert not comes_back_as_written(schema)
    assert comes_back_as_written(_schema(ArrayType(inner)))


def test_a_row_has_as_many_values_as_the_schema() -> None:
    check = checker(_schema(LongType(), StringType()))
    assert check((1, "a")) == (1, "a")
    assert check((1,)) is None
    assert check((1, "a", 2)) is None
    assert check(7) is None


def test_times_are_known_within_the_calendars_that_agree() -> None:
    schema = _schema(DateType(), TimestampNTZType())
    check, read = checker(schema), reader(schema)
    day, time = datetime.date(2026, 2, 3), datetime.datetime(2026, 2, 3, 4, 5, 6, 7)
    pickled = check((day, time))
    assert pickled is not None and all(type(v) is int for v in pickled)
    assert read is not None and read(pickled) == (day, time)
    assert check((datetime.date(1500, 1, 1), time)) is None
    assert check((time, time)) is None


def test_a_float_is_kept_as_the_jvm_rounds_it() -> None:
    check = checker(_schema(FloatType(), LongType()))
    assert check((0.1, 2)) == (0.10000000149011612, 2)
    assert check((3.5e38, 2)) == (math.inf, 2)


@pytest.mark.parametrize("text", ["1", "1.5", "-1.50", "0", "0.00", "99999999.99", "1E+3"])
def test_a_decimal_is_kept_with_the_digits_of_its_type(text: str) -> None:
    with localcontext(prec=3):  # of the user's code
        kept = checker(_schema(DecimalType(10, 2)))((Decimal(text),))
    assert kept is not None
    assert kept[0] == Decimal(text) and kept[0].as_tuple().exponent == -2


@pytest.mark.parametrize(
    "value",
    [*map(Decimal, ["0.005", "1.000", "100000000", "1E+8", "-0.0", "0E+1", "NaN", "Infinity"]), 1],
)
def test_a_decimal_that_does_not_fit_is_left_to_spark(value: Any) -> None:
    assert checker(_schema(DecimalType(10, 2)))((value,)) is None


def test_bytes_are_kept_as_they_were() -> None:
    schema = _schema(BinaryType(), LongType())
    given = bytearray(b"ab")
    kept = checker(schema)((given, 1))
    given[0] = 0
    assert kept == (b"ab", 1) and type(kept[0]) is bytes
    assert reader(schema) is None


def test_numbers_of_numpy_are_known_after_what_spark_makes_of_them() -> None:
    rows = Rows(_schema(LongType(), DoubleType()))
    assert rows.check((np.int64(3), 1.5)) is None
    assert rows.known((np.int64(3), np.float64(1.5))) == (3, 1.5)
    assert rows.known([3, 1.5]) == (3, 1.5)
    assert rows.known_list([]) is None
    assert rows.known_list([(3, 1.5), ("no", 1.5)]) is None
