"""Rows from Arrow are those that Arrow itself would make, one by one; and so are results."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from millpond.transport.forms import Offsets, whole
from millpond.transport.pandas_form import PandasForm
from millpond.transport.row_form import RowForm, RowKeys, key_reader
from millpond.transport.session import Session
from millpond.transport.wire import Wire

# summer and winter, the hour that comes twice in Berlin, before 1970, the ends of the calendar
_MICROSECONDS = [
    1_720_000_000_000_001,
    1_700_000_000_999_999,
    1_698_539_400_000_000,
    1_698_543_000_000_000,
    -1,
    -2_000_000_000_000_000,
]
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999


def _rows(column: pa.Array) -> list[Any]:
    batch = pa.record_batch([column], names=["found"])
    keys = RowKeys(batch.schema, Offsets([0], [0]))
    keys.load(batch)
    return [row.found for row in keys.rows(0, batch.num_rows)]


@pytest.mark.parametrize("zone", [None, "UTC", "Etc/UTC", "+00:00", "+05:30", "Europe/Berlin"])
@pytest.mark.parametrize(
    "microseconds",
    [_MICROSECONDS, [_FIRST, _LAST], [_MICROSECONDS[0], None], []],
    ids=["usual", "ends", "null", "none"],
)
def test_times(microseconds: list[int | None], zone: str | None) -> None:
    if zone not in (None, "UTC", "Etc/UTC", "+00:00") and _FIRST in microseconds:
        microseconds = [_FIRST + 86_400_000_000, _LAST - 86_400_000_000]
    column = pa.array(microseconds, pa.int64()).view(pa.timestamp("us", tz=zone))
    found, expected = _rows(column), column.to_pylist()
    assert found == expected
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, datetime):
            assert (one.tzinfo, one.fold) == (other.tzinfo, other.fold)
            assert str(one) == str(other)


def test_a_time_that_is_no_date_is_refused_as_by_arrow() -> None:
    column = pa.array([_LAST + 1], pa.int64()).view(pa.timestamp("us"))
    with pytest.raises(OverflowError):
        column.to_pylist()
    with pytest.raises(OverflowError):
        _rows(column)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.5, float("inf"), -0.0], pa.float64()),
        pa.array([1.1, 3e38], pa.float32()),
        pa.array([1, -128], pa.int8()),
        pa.array([1, None], pa.int64()),
        pa.array([True, False]),
        pa.array(["a", "ä"]),
        pa.array([1_000], pa.int64()).view(pa.timestamp("ms")),
        pa.array([np.float16(1)], pa.float16()),
    ],
    ids=lambda column: str(column.type),
)
def test_other_columns(column: pa.Array) -> None:
    found, expected = _rows(column), column.to_pylist()
    assert repr(found) == repr(expected)
    assert [type(value) for value in found] == [type(value) for value in expected]


_RESULTS = T.StructType([T.StructField("key", T.LongType()), T.StructField("name", T.StringType())])
_GOOD = [Row(key=1, name="a"), Row(key=2, name=None)]


class _Subclass(Row):
    """What a user's code may yield, too."""


_MIXED = [
    _GOOD,
    [*_GOOD, Row(name="b", key=3)],
    [Row(name="b", key=3), *_GOOD],
    [*_GOOD, Row(key=3)],
    [*_GOOD, Row("key", "name")(3)],
    [Row("key", "name")(3), Row("key", "name")(4)],
    [*_GOOD, Row("key", "name")(3, "b"), *_GOOD],
    [*_GOOD, Row(key=3, name="b", more=1)],
    [*_GOOD, _Subclass(key=3, name="b")],
    [*_GOOD, Row(key="x", name="b")],
    [*_GOOD, Row(key=Row(a=1), name="b")],
    [*_GOOD, (3, "b")],
    [*_GOOD, Row("3", "b")],
]


def _converted(rows: list[Any]) -> Any:
    """Return what Spark's worker sends for a key with these results, or its error."""
    schema = pa.schema([("key", pa.int64()), ("name", pa.string())])
    try:
        return pa.RecordBatch.from_pylist([row.asDict(True) for row in rows], schema=schema)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("rows", _MIXED, ids=str)
def test_results_are_those_that_spark_makes(rows: list[Any]) -> None:
    form = RowForm(_RESULTS, {})
    session = Session(Wire(io.BytesIO(), io.BytesIO()))
    for results in (rows, _GOOD):  # what one sending had does not matter to the next one
        expected = _converted(results)
        if not isinstance(expected, pa.RecordBatch):
            with pytest.raises(expected[0]) as caught:
                form.add(iter(results), session)
                form.take()
            assert str(caught.value) == expected[1]
            return
        form.add(iter(results), session)
        form.key_done()
        assert pa.ipc.read_record_batch(form.take(), form.schema).equals(expected)


_PATHS = T.StructType([T.StructField("path", T.ArrayType(T.StringType()))])


def test_a_row_is_sent_as_it_was_when_it_was_yielded() -> None:
    """The user's code may go on with the same list, also for the next key."""

    def results(path: list[str]) -> Iterator[Row]:
        for page in ("a", "b"):
            path.append(page)
            yield Row(path=path)

    session = Session(Wire(io.BytesIO(), io.BytesIO()))
    form, path = RowForm(_PATHS, {}), list[str]()
    for _ in range(2):
        form.add(results(path), session)
        form.key_done()
        path.clear()
    sent = pa.ipc.read_record_batch(form.take(), form.schema).column(0).to_pylist()
    assert sent == [["a"], ["a", "b"]] * 2


def _set_to(value: Any, n: int) -> None:
    if isinstance(value, set):
        value.clear()
        value.add(n)
    elif isinstance(value, tuple):
        value[0][0] = n
    else:
        value[0] = n


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside-others"])
@pytest.mark.parametrize(
    ("of", "value", "shown"),
    [
        (T.BinaryType(), bytearray(1), lambda n: bytes([n])),
        (T.BinaryType(), memoryview(bytearray(1)), lambda n: bytes([n])),
        (T.ArrayType(T.LongType()), set[int](), lambda n: [n]),
        (T.ArrayType(T.DoubleType()), np.zeros(1), lambda n: [float(n)]),
        (T.ArrayType(T.ArrayType(T.LongType())), ([0],), lambda n: [[n]]),
    ],
    ids=["bytearray", "memoryview", "set", "numpy", "tuple"],
)
def test_a_value_that_is_used_for_the_next_key_too(
    of: T.DataType, value: Any, shown: Any, others: bool
) -> None:
    """Spark converts the rows of a key before it asks for those of the next one."""
    fields = [T.StructField("n", T.LongType()), T.StructField("v", of)]
    form = RowForm(T.StructType(fields), {})
    session = Session(Wire(io.BytesIO(), io.BytesIO()))

    def results(n: int) -> Iterator[Row]:
        for i in range(2):
            _set_to(value, 10 * n + i)
            # Other names, so that a dict is kept of all rows.
            yield Row(v=value, n=i) if others else Row(n=i, v=value)

    for n in (1, 2, 3):
        form.add(results(n), session)
        form.key_done()
        form.key_done()  # a key without results
    sent = pa.ipc.read_record_batch(form.take(), form.schema).column(1).to_pylist()
    assert sent == [shown(n) for n in (11, 11, 21, 21, 31, 31)]
    form.add(iter([Row(n=0, v=value)]), session)  # in mid-key
    assert pa.ipc.read_record_batch(form.take(), form.schema).num_rows == 1


@pytest.mark.parametrize("of", [T.LongType(), T.ArrayType(T.LongType())], ids=["flat", "nested"])
def test_a_frame_is_sent_as_it_was_when_it_was_yielded(of: T.DataType) -> None:
    def results() -> Iterator[pd.DataFrame]:
        frame = pd.DataFrame({"n": [0] if isinstance(of, T.LongType) else [[0]]})
        for n in (1, 2):
            if isinstance(of, T.LongType):
                frame.at[0, "n"] = n
            else:
                frame.at[0, "n"].append(n)
            yield frame

    settings = {"runner_conf": {}, "max_rows": 10_000, "max_bytes": 2**31 - 1}
    form = PandasForm(T.StructType([T.StructField("n", of)]), settings)
    form.add(results(), Session(Wire(io.BytesIO(), io.BytesIO())))
    form.key_done()
    sent = pa.ipc.read_record_batch(form.take(), form.schema).column(0).to_pylist()
    assert sent == ([1, 2] if isinstance(of, T.LongType) else [[0, 1], [0, 1, 2]])


def test_keys_are_those_that_spark_makes() -> None:
    schema = T.StructType(
        [
            T.StructField("n", T.LongType()),
            T.StructField("s", T.StringType()),
            T.StructField("d", T.DateType()),
            T.StructField("t", T.TimestampType()),
            T.StructField("u", T.TimestampNTZType()),
            T.StructField("x", T.DecimalType(5, 2)),
        ]
    )
    whole = (7, "a", dt.date(2024, 2, 29), datetime(2024, 1, 1), datetime(1950, 1, 1), Decimal("1"))
    for columns in (schema, T.StructType(schema.fields[:2])):
        for values in (whole, (None,) * 6):
            key = columns.toInternal(values[: len(columns)])
            found, expected = key_reader(columns)(key), columns.fromInternal(key)
            assert (type(found), found, found.__fields__) == (Row, expected, expected.__fields__)
            assert type(found.__fields__) is type(expected.__fields__)


def test_a_change_of_a_row_does_not_change_its_key() -> None:
    of = pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])
    value = {"x": 1, "tags": ["a"]}
    batch = pa.record_batch([pa.array([value, value], of), pa.array([5, 6])], names=["s", "k"])
    keys = RowKeys(batch.schema, Offsets([0, 1], [0, 1]))
    keys.load(batch)
    key = keys.key(0)
    for row in keys.rows(0, 2):
        row.s["x"] = 9
        row.s["tags"].append("b")
    assert key == (value, 5) == keys.key(0)
    assert keys.key(1) == (value, 6)


def test_results_that_arrow_splits_are_refused() -> None:
    """Arrow does so where a column has more than 2 GiB of text."""
    part = pa.record_batch({"t": ["a"]})
    split = SimpleNamespace(
        nbytes=3 << 30, combine_chunks=lambda: pa.Table.from_batches([part] * 2)
    )
    with pytest.raises(ValueError, match="3072 MiB at once"):
        whole(cast(pa.Table, split))
    assert whole(pa.Table.from_batches([part, part])).num_rows == 2
