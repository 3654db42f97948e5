"""Which values of state travel in bulk, and as what."""

from __future__ import annotations

import datetime
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
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from millpond.transport.plain import checker, is_plain, reader
from millpond.transport.variables import Rows


def _schema(*types: DataType, nullable: bool = True) -> StructType:
    return StructType([StructField(f"f{i}", t, nullable) for i, t in enumerate(types)])


@pytest.mark.parametrize(
    "data_type",
    [FloatType(), DecimalType(10, 2), BinaryType(), ArrayType(LongType()), _schema(LongType())],
)
def test_types_that_change_on_their_way_are_not_plain(data_type: DataType) -> None:
    assert not is_plain(_schema(LongType(), data_type))
    assert not is_plain(StructType([]))


def test_a_double_may_be_a_value_but_no_key() -> None:
    assert is_plain(_schema(DoubleType()))
    assert not is_plain(_schema(DoubleType()), as_key=True)


@pytest.mark.parametrize(
    ("data_type", "good", "bad"),
    [
        (LongType(), [0, -(1 << 63), (1 << 63) - 1], [1 << 63, True, 1.0, "1"]),
        (ByteType(), [-128, 127], [128, -129]),
        (BooleanType(), [True, False], [1, 0, "true"]),
        (DoubleType(), [1.5, float("inf")], [1, True]),
        (StringType(), ["", "a", "ä", "🎉"], ["\ud800", b"a", 1]),
    ],
)
def test_a_value_is_known_if_it_has_exactly_the_right_type(
    data_type: DataType, good: list[Any], bad: list[Any]
) -> None:
    check = checker(_schema(data_type))
    assert [check((value,)) for value in [*good, None]] == [(v,) for v in [*good, None]]
    assert [check((value,)) for value in bad] == [None] * len(bad)
    assert checker(_schema(data_type, nullable=False))((None,)) is None


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


def test_numbers_of_numpy_are_known_after_what_spark_makes_of_them() -> None:
    rows = Rows(_schema(LongType(), DoubleType()))
    assert rows.check((np.int64(3), 1.5)) is None
    assert rows.known((np.int64(3), np.float64(1.5))) == (3, 1.5)
    assert rows.known([3, 1.5]) == (3, 1.5)
    assert rows.known_list([]) is None
    assert rows.known_list([(3, 1.5), ("no", 1.5)]) is None
