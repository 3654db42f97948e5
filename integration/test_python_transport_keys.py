"""Which keys are equal, in Python and in the store: grouping columns, and the keys of maps. Both
transports have the same ones.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from integration import python_state_cases
from integration.cases import NO_EMPTY_BATCHES, Case, transform_with_state
from integration.jvm import IS_SPARK_4_2, ROCKSDB
from integration.state_programs import Interpreter, Program, Variable, case, scripted
from integration.state_values import shown
from integration.transports import BULK, PROVIDER, SPARK, Leg, Side, assert_same, play

_SIDES = {"spark": (SPARK,), "bulk": (BULK,), "in-turn": (BULK, SPARK)}
_POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
_DEEP = pa.struct(
    [
        ("point", _POINT),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("more", pa.struct([("flag", pa.bool_()), ("raw", pa.binary())])),
        ("exact", pa.struct([("n", pa.decimal128(9, 2)), ("small", pa.int8())])),
    ]
)
_NAMED = pa.struct([("First", pa.int64()), ("Then", pa.struct([("AtLast", pa.string())]))])
_INPUT = pa.schema(
    [
        ("ts", pa.timestamp("us", tz="UTC")),
        ("k", pa.string()),
        ("p", _POINT),
        ("deep", _DEEP),
        ("named", _NAMED),
        ("v", pa.int64()),
    ]
)
_AT = dt.datetime(2024, 2, 29, 23, 59, 59, 1, tzinfo=dt.timezone.utc)
_POINTS = (None, {"x": None, "y": None}, {"x": 1, "y": None}, {"x": 1, "y": "ü"}, {"x": 2, "y": ""})
_NOTHING = dict.fromkeys(("point", "day", "at", "more", "exact"))
_DEEPS = (
    None,
    _NOTHING,
    {**_NOTHING, "point": {"x": None, "y": None}},
    {**_NOTHING, "point": {"x": 7, "y": "a"}, "day": dt.date(2024, 2, 29)},
    {**_NOTHING, "at": _AT, "more": {"flag": True, "raw": b"\x00\xff"}},
    {**_NOTHING, "more": {"flag": False, "raw": b""}},
    {**_NOTHING, "exact": {"n": Decimal("-1.50"), "small": -128}},
    {**_NOTHING, "exact": {"n": Decimal("0.00"), "small": None}},
    # The JVM's older classes do not have the tenth: Spark keeps its state under the twentieth.
    {**_NOTHING, "day": dt.date(1582, 10, 10)},
    {**_NOTHING, "day": dt.date(1582, 10, 15)},
    {**_NOTHING, "day": dt.date(1582, 10, 20)},
    {**_NOTHING, "day": dt.date(1500, 2, 28)},
)


def _row(i: int, batch: int) -> dict[str, Any]:
    key = (i * 7 + batch * 3) % 40
    return {
        "ts": dt.datetime(2024, 1, 1, 0, 0, key % 5 * 10, tzinfo=dt.timezone.utc),
        "k": (None, "", "a")[key % 3],
        "p": _POINTS[key % 5],
        "deep": _DEEPS[key % len(_DEEPS)],
        "named": {"First": key % 3, "Then": {"AtLast": "ab"[key % 2]}},
        "v": i,
    }


_ROWS = [[_row(i, batch) for i in range(30)] if batch != 2 else [] for batch in range(5)]


class Keyed(python_state_cases.Everything):
    """Shows its keys, all columns and types: of rows, of timers."""

    def out(self, *columns: Any) -> Any:
        return super().out(shown(columns[0]), *columns[1:])

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for one in super().handleInputRows(key, rows, timerValues):
            yield self.named(one, key)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        for one in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield self.named(one, key)

    def named(self, one: Any, key: Any) -> Any:
        """Return the row of output with the text of the whole key."""
        if self.form == "pandas":
            return one.assign(k=shown(key))
        return type(one)(**{**one.asDict(), "k": shown(key)})


def _keyed(form: str, columns: tuple[Any, ...], time: str = "ProcessingTime") -> Case:
    def build(i: list[DataFrame]) -> DataFrame:
        windowed = i[0].withColumn("w", F.window("ts", "20 seconds", "10 seconds"))
        method = transform_with_state(windowed.groupBy(*columns), form)
        output = "k string, what string, state string"
        found: DataFrame = method(Keyed(form, time), output, "Update", time)
        return found

    inputs = [(_INPUT, _ROWS)]
    return Case("keys", build, inputs, "update", 2, conf=NO_EMPTY_BATCHES)


_LEGS = [Leg(files=3, fail_at=1), Leg(files=3), Leg(files=5)]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("form", "columns"),
    [(form, columns) for columns in (("k", "deep"), ("p",)) for form in ("row", "pandas")],
    ids=lambda of: of if isinstance(of, str) else "-".join(of),
)
def test_nested_keys(
    spark: SparkSession, tmp_path: Path, form: str, columns: tuple[str, ...]
) -> None:
    """With nulls at each level, timers that fire in the batch that registered them, and values that
    expire.
    """
    sides = play(spark, tmp_path, _keyed(form, columns), _LEGS, _SIDES)
    assert_same(sides, aside=IS_SPARK_4_2 and form == "pandas")


@pytest.mark.deep
@pytest.mark.parametrize("form", ["row", "pandas"])
def test_windows_as_keys(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """A window is a struct of two timestamps."""
    tested = _keyed(form, ("w", "k"))
    sides = play(spark, tmp_path, tested, _LEGS, _SIDES)
    assert_same(sides, aside=IS_SPARK_4_2 and form == "pandas")


# The workers are in UTC.
_FAR = {"spark.sql.session.timeZone": "Asia/Kathmandu"}
# Clocks there go two hours forward in March, and back in October.
_TWICE = {"spark.sql.session.timeZone": "Antarctica/Troll"}


@pytest.mark.deep
@pytest.mark.parametrize("form", ["row", "pandas"])
@pytest.mark.parametrize("columns", [("ts", "k"), ("w", "k")], ids="-".join)
def test_times_as_keys_in_another_zone(
    spark: SparkSession, tmp_path: Path, form: str, columns: tuple[str, ...]
) -> None:
    """With pandas Spark keeps the state under the time that clocks of the worker would show. In
    bulk the state of the other transport was not found.
    """
    tested = _keyed(form, columns)
    tested = replace(tested, conf={**tested.conf, **_FAR})
    sides = play(spark, tmp_path, tested, _LEGS, _SIDES)
    assert_same(sides, aside=form == "pandas")


@pytest.mark.deep
def test_times_of_an_hour_that_comes_twice(spark: SparkSession, tmp_path: Path) -> None:
    """In bulk each has its own state. In Spark's worker two times are equal where the clocks show
    the same, and their rows come as those of one key.
    """

    class Counting(python_state_cases.Processor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            count = (self.count.get() or (0,))[0] + sum(1 for _ in rows)
            self.count.update((count,))
            yield self.out(str(key[0].utcoffset()), "", str(count))

    def build(i: list[DataFrame]) -> DataFrame:
        method = transform_with_state(i[0].groupBy("ts"), "row")
        output = "k string, what string, state string"
        found: DataFrame = method(Counting("row"), output, "Update", "None")
        return found

    shown_twice = [dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.timezone.utc) for hour in (0, 2)]
    batch = [{**_row(0, 0), "ts": at} for at in shown_twice]
    conf = {**_TWICE, "spark.sql.shuffle.partitions": "1"}
    tested = Case("twice", build, [(_INPUT, [batch, batch])], "update", 1, conf=conf)
    sides = {"spark": (SPARK,), "bulk": (BULK,)}
    of_spark, side = play(spark, tmp_path, tested, [Leg(files=1), Leg(files=2)], sides)
    assert side.ran == [True, True]
    assert side.rows[1] == [f"Row(k='{hours}:00:00', what='', state='2')" for hours in (2, 0)]
    assert of_spark.rows[1] == ["Row(k='2:00:00', what='', state='4')"]


@pytest.mark.deep
def test_fields_with_capital_letters(spark: SparkSession, tmp_path: Path) -> None:
    """In bulk each key has its own state. Spark's worker reads the names in lower case, takes the
    fields for missing, and all keys share one state.
    """
    tested = _keyed("row", ("named",), "None")
    (side,) = play(spark, tmp_path, tested, _LEGS, {"bulk": (BULK,)})
    assert side.ran == [True] * len(side.ran)
    found: dict[str, int] = {}
    for _, rows in sorted(side.rows.items()):
        for row in rows:
            (last,) = re.findall(r"""^Row\(k="(.*?)", what=.* state='\[\((\d+),\)""", row)
            found[last[0]] = int(last[1])
    # each row lies in two windows, so it comes twice
    keys = Counter(2 * [shown((row["named"],)) for batch in _ROWS for row in batch])
    assert len(keys) == 6 and found == keys


def _struct(*types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(f"f{i}", of) for i, of in enumerate(types)])


_ODD_MAPS = ("floats", "deep_floats", "deep_key", "nested_whole", "collated")
_PLAIN = (
    T.BooleanType(),
    T.ByteType(),
    T.ShortType(),
    T.IntegerType(),
    T.LongType(),
    T.DecimalType(38, 10),
    T.StringType(),
    T.BinaryType(),
    T.DateType(),
    T.TimestampType(),
    T.TimestampNTZType(),
)
_ODD = (
    _struct(),
    T.ArrayType(T.LongType()),
    T.MapType(T.StringType(), T.LongType()),
    T.FloatType(),
    T.DoubleType(),
    T.StringType("UTF8_LCASE"),
    T.NullType(),
    T.DayTimeIntervalType(),
    T.YearMonthIntervalType(),
)


def test_which_keys_go_in_bulk(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    plain = jvm.org.apache.spark.sql.millpond.transport.PickleOut.isPlainKey

    def in_bulk(of: T.DataType) -> bool:
        return bool(plain(session.parseDataType(of.json())))

    all_plain = _struct(*_PLAIN)
    assert [of for of in (*_PLAIN, all_plain, _struct(all_plain)) if not in_bulk(of)] == []
    for odd in _ODD:
        nested = [odd, _struct(T.LongType(), odd), _struct(_struct(odd)), T.ArrayType(odd)]
        assert [of for of in nested if in_bulk(of)] == []


def _zeros(name: str) -> tuple[Program, Program]:
    """Return programs for a map whose pool of keys begins with zero, minus zero and NaN."""
    first = [
        ("updateValue", 0, 0),
        ("getValue", 1),
        ("containsKey", 1),
        ("updateValue", 2, 2),
        ("getValue", 2),
        ("updateValue", 1, 1),
        ("getValue", 0),
        ("getValue", 1),
        ("iterator",),
        *(("updateValue", i, i) for i in (3, 4, 2)),
        ("keys",),
    ]
    later = [
        *(("getValue", i) for i in range(5)),
        ("iterator",),
        ("removeKey", 1),
        ("containsKey", 0),
        ("containsKey", 1),
        ("removeKey", 2),
        ("iterator",),
        ("updateValue", 1, 3),
        ("removeKey", 0),
        ("values",),
        ("exists",),
    ]
    return [[name, *step] for step in first], [[name, *step] for step in later]


def _without_order(side: Side) -> dict[int, list[str]]:
    """Return the rows without what iterators gave: another store has another order."""
    return {
        batch: sorted(re.sub(r"[.](iterator|keys|values): [^;]*", "", row) for row in rows)
        for batch, rows in side.rows.items()
    }


@pytest.mark.deep
@pytest.mark.parametrize("form", ["row", "pandas"])
def test_zeros_and_nan_as_keys_of_maps(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """Zero has two forms, and no NaN is equal to another one in Python: the store is asked."""
    declared = tuple(Variable("map", f"of_{pool}", "number", pool) for pool in _ODD_MAPS)
    writes, reads = {}, {}
    for number, variable in enumerate(declared):
        writes[f"k{number}"], reads[f"k{number}"] = _zeros(variable.name)
    tested = case("zeros", Interpreter(form, "None", declared), scripted(writes, reads, reads))
    legs = [Leg(files=1), Leg(files=3)]
    sides = play(spark, tmp_path, tested, legs, _SIDES)
    assert_same(sides, aside=IS_SPARK_4_2 and form == "pandas")
    rocksdb = replace(tested, conf={**tested.conf, PROVIDER: ROCKSDB})
    (peer,) = play(spark, tmp_path / "peer", rocksdb, legs, {"spark": (SPARK,)})
    assert _without_order(peer) == _without_order(sides[0])
