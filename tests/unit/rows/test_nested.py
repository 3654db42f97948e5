"""Values at every depth.

A value that is handed back stays the same, or is refused. Far dates and times have a text.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millpond.errors import ErrorKind, InvalidInputError
from millpond.rows.encode import conform
from millpond.rows.readable import readable
from millpond.spark.types import Array, Atom, Field, Map, Struct
from millpond.spark.types import Decimal as Number
from millpond.state import writing

LONG, TEXT = Atom("long"), Atom("string")
INNER = Struct((Field("a", LONG), Field("b", TEXT)))
SCHEMA = Struct((Field("s", INNER), Field("l", Array(INNER)), Field("m", Map(TEXT, INNER))))
ROW: dict[str, Any] = {
    "s": {"a": 1, "b": "x"},
    "l": [{"a": 2, "b": None}, None],
    "m": [("k", {"a": 3, "b": "z"})],
}


def inferred(rows: list[dict[str, Any]], inner: Any) -> Any:
    kind = pa.struct([("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    return pa.array(rows, kind)


def test_other_types_that_come_back_equal_at_every_depth() -> None:
    small = pa.struct([("b", pa.large_string()), ("a", pa.int16())])
    rows: list[dict[str, Any]] = [ROW, {"s": None, "l": None, "m": None}, ROW]
    for array in (
        inferred(rows, small),
        inferred([ROW, *rows], small)[1:],
        inferred([*rows, ROW], small)[:3],
    ):
        found = conform(array, SCHEMA)
        assert found.to_pylist() == rows
        found.validate(full=True)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (pa.struct([("a", pa.int64()), ("c", pa.string())]), "no column 's.b'"),
        (pa.struct([("a", pa.int64())]), "no column 's.b'"),
        (pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())]), "no column 's.c'"),
        (
            pa.struct(
                [("a", pa.int64()), ("A", pa.int64()), ("b", pa.string()), ("b", pa.string())]
            ),
            "more than one",
        ),
    ],
)
def test_names_at_every_depth(inner: Any, message: str) -> None:
    for name, kind in (("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))):
        schema = Struct(tuple(field for field in SCHEMA.fields if field.name == name))
        with pytest.raises(InvalidInputError) as caught:
            conform(pa.StructArray.from_arrays([pa.nulls(0, kind)], [name]), schema)
        assert caught.value.kind is ErrorKind.INVALID_ARGUMENT
        assert message.split("'")[0] in str(caught.value) and f"'{name}" in str(caught.value)


def one(value: Any, kind: Any) -> Any:
    return pa.array([{"v": value}, {"v": None}], pa.struct([("v", kind)]))


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (0.129, pa.float64(), Number(10, 2)),
        (Decimal("0.129"), pa.decimal128(10, 3), Number(10, 2)),
        (1e300, pa.float64(), Atom("float")),
        (0.1, pa.float64(), Atom("float")),
        (dt.datetime(2020, 1, 2, 3), pa.timestamp("us"), Atom("date")),
        (2**53 + 1, pa.int64(), Atom("double")),
        (1.5, pa.float64(), LONG),
        (300, pa.int64(), Atom("byte")),
        ("007", pa.string(), LONG),
        (2, pa.int64(), Atom("boolean")),
        (1, pa.timestamp("ns"), Atom("timestamp_ntz")),
        (0, pa.timestamp("us", "Europe/Berlin"), Atom("timestamp_ntz")),
        (0, pa.timestamp("us", "UTC"), Atom("date")),
        (0, pa.timestamp("us"), Atom("timestamp")),
        (0, pa.timestamp("ns"), Atom("timestamp")),
        (dt.date(2020, 1, 2), pa.date32(), Atom("timestamp")),
        ([1], pa.list_(pa.int64()), LONG),
        (1, pa.int64(), Array(LONG)),
        (1_700_000_000, pa.int64(), Atom("timestamp")),
        (1_700_000_000, pa.int64(), Atom("timestamp_ntz")),
        (20_000, pa.int32(), Atom("date")),
        (3_600, pa.int64(), Atom("time")),
        (3_600, pa.int64(), Atom("day_time_interval")),
        # Spark counts milliseconds, for one in `ttlExpirationMs`; Arrow would give microseconds.
        (dt.datetime(2020, 1, 2), pa.timestamp("us"), LONG),
        (0, pa.timestamp("ns", "UTC"), LONG),
        (dt.date(2020, 1, 2), pa.date32(), Atom("integer")),
        (dt.timedelta(hours=1), pa.duration("us"), LONG),
    ],
)
def test_no_value_is_changed(value: Any, kind: Any, wanted: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        conform(one(value, kind), Struct((Field("v", wanted),)))
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT and "'v'" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind", "wanted", "result"),
    [
        (0.5, pa.float64(), Atom("float"), 0.5),
        (0.13, pa.float64(), Number(10, 2), Decimal("0.13")),
        (7, pa.int64(), Atom("byte"), 7),
        (7, pa.int64(), Atom("double"), 7.0),
        ("x", pa.large_string(), TEXT, "x"),
        (dt.datetime(2020, 1, 2), pa.timestamp("ms"), Atom("date"), dt.date(2020, 1, 2)),
        (
            dt.datetime(2020, 1, 2),
            pa.timestamp("ms"),
            Atom("timestamp_ntz"),
            dt.datetime(2020, 1, 2),
        ),
        (None, pa.timestamp("ns"), Atom("timestamp"), None),  # a column of NaT alone
        (
            dt.datetime(2020, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=1))),
            pa.timestamp("ms", "+01:00"),
            Atom("timestamp"),
            dt.datetime(2020, 1, 1, 23, tzinfo=dt.timezone.utc),
        ),
        ("x", pa.dictionary(pa.int8(), pa.string()), TEXT, "x"),
        (None, pa.null(), LONG, None),
    ],
)
def test_casts_that_come_back_equal(value: Any, kind: Any, wanted: Any, result: Any) -> None:
    column = pa.array([value, None], kind)
    found = conform(pa.StructArray.from_arrays([column], ["v"]), Struct((Field("v", wanted),)))
    assert found.to_pylist() == [{"v": result}, {"v": None}]


def test_not_a_number_stays_one() -> None:
    found = conform(one(float("nan"), pa.float64()), Struct((Field("v", Atom("float")),)))
    assert str(found.to_pylist()[0]["v"]) == "nan"


DAYS = {
    2_932_896: "9999-12-31",
    2_932_897: "+10000-01-01",
    -719_162: "0001-01-01",
    -719_163: "0000-12-31",
    -719_529: "-0001-12-31",
    2**31 - 1: "+5881580-07-11",
    -(2**31): "-5877641-06-23",
}


def test_dates_and_times_of_any_year() -> None:
    days = pa.array([*DAYS, None], pa.int32()).cast(pa.date32())
    assert readable(days).to_pylist() == [*DAYS.values(), None]
    us = 86_400_000_000
    times = pa.array([2_932_897 * us + 1, 0, -(2**63), None], pa.int64())
    assert readable(times.cast(pa.timestamp("us"))).to_pylist()[:2] == [
        "+10000-01-01T00:00:00.000001",
        "1970-01-01T00:00:00",
    ]
    found = readable(times.cast(pa.timestamp("us", "UTC"))).to_pylist()
    assert found[0] == "+10000-01-01T00:00:00.000001+00:00" and found[3] is None
    near = days[:1]
    assert readable(near) is near, "dates that Python has stay as they are"


def test_far_dates_in_every_output() -> None:
    kind = pa.struct(
        [("d", pa.date32()), ("l", pa.list_(pa.date32())), ("m", pa.map_(pa.date32(), pa.int64()))]
    )
    far = pa.scalar(2**31 - 1, pa.int32()).cast(pa.date32())
    dates = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    one_list = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), dates)
    one_map = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), dates, pa.array([7]))
    value = pa.StructArray.from_arrays([dates, one_list, one_map], fields=list(kind))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0], pa.int32()), value], names=["partition", "value"]
    )
    assert far.is_valid
    text = "+5881580-07-11"
    out = io.StringIO()
    assert writing.write_json([batch], out) == 1
    assert json.loads(out.getvalue())["value"] == {"d": text, "l": [text], "m": [[text, 7]]}
    out = io.StringIO()
    assert writing.write_csv(batch.schema, [batch], out) == 1 and out.getvalue().count(text) == 3
    lines: list[Any] = []
    writing.write_table(batch.schema, [batch], lambda head, rows, **_: lines.extend(rows))
    assert lines[0][1] == text
