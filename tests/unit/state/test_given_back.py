"""A key that is shown can be given back, whatever it is."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millpond
from millpond.errors import ErrorKind, InvalidInputError
from millpond.rows.arrow_types import struct_type
from millpond.rows.readable import readable_rows
from millpond.spark.types import Array, Atom, Field, Struct
from millpond.state.tables import key_value
from millpond.state.writing import cell, json_rows
from tests.row_checkpoints import DistinctBuilder

_DAY_US = 86_400_000_000
_CASES = [
    ("date", [0, -141_437, -141_428, -719_162, -719_163, -800_000, 10_000_000]),
    (
        "timestamp",
        [
            -1,
            1_700_000_000_123_456,
            -719_162 * _DAY_US - 1,
            -720_000 * _DAY_US,
            253_402_300_800_000_000,
        ],
    ),
    ("timestamp", [-(2**62), 2**62]),
    ("timestamp_ntz", [-1, 253_402_300_800_000_000]),
    ("time", [0, 1_000, 86_399_999_999_000]),
    ("day_time_interval", [0, -1, 1, 1_500_000, 3_600_000_000, -(2**52)]),
    ("string", ["", "a\0b", "=x", "1"]),
    ("binary", [b"", b"\0\xff"]),
    ("double", [0.1, 5e-324, float("inf")]),
]


@pytest.mark.parametrize(("name", "values"), _CASES)
def test_what_is_shown_is_taken(name: str, values: list[Any]) -> None:
    schema = Struct((Field("k", Atom(name)),))
    kind = struct_type(schema)[0].type
    for value in values:
        plain = pa.int32() if name == "date" else pa.int64()
        is_number = isinstance(value, int)
        column = pa.array([value], plain).view(kind) if is_number else pa.array([value], kind)
        batch = pa.RecordBatch.from_arrays([column], names=["k"])
        for shown in (json_rows([batch])[0]["k"], cell(readable_rows([batch])[0]["k"])):
            back = key_value(schema, "k", shown, {})
            assert pa.array([back], kind).equals(column), shown


class _Finer(datetime):
    """As pandas has it."""

    nanosecond = 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("date", datetime(2026, 1, 31, 23)),
        ("timestamp_ntz", _Finer(2026, 1, 31, 12)),
        ("day_time_interval", 1e-7),
        ("day_time_interval", "soon"),
        ("day_time_interval", float("nan")),
        ("day_time_interval", True),
        ("day_time_interval", 10**20),
        ("time", "25:00:00"),
        ("time", "12:00:00+01:00"),
        ("time", time(12, tzinfo=timezone.utc)),
        ("date", "+300000000-01-01"),
        ("date", "-0221-13-01"),
        ("timestamp", "+300000-01-01T00:00:00+00:00"),
        ("timestamp", "+10000-01-01T00:00:00"),
        ("timestamp_ntz", "+10000-01-01T00:00:00+00:00"),
        ("timestamp_ntz", "2026-01-31T12:00:00+01:00"),
        ("timestamp_ntz", datetime(2026, 1, 31, 12, tzinfo=timezone.utc)),
        ("timestamp", "2026-01-31T12:00:00"),
        ("timestamp", datetime(2026, 1, 31, 12)),
        ("date", np.datetime64("2026-01-31", "us")),
        ("long", np.timedelta64(1, "s")),
        ("long", 1.5),
        ("long", np.float32(1.5)),
        ("integer", Decimal("1.5")),
        ("date", 1.5),
        ("year_month_interval", float("nan")),
        ("byte", float("inf")),
        ("date", 20_000),
        ("timestamp", 1_700_000_000),
        ("timestamp", True),
        ("timestamp", np.int64(1_700_000_000)),
        ("timestamp", 1_700_000_000.0),
        ("timestamp_ntz", Decimal(1_700_000_000)),
        ("time", 3_600),
    ],
)
def test_what_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError) as refused:
        key_value(Struct((Field("k", Atom(name)),)), "k", value, {})
    assert refused.value.kind is ErrorKind.INVALID_ARGUMENT


def test_a_fraction_is_no_whole_number(tmp_path: Path) -> None:
    """Arrow would cut it, and look up, and erase, another key."""
    built = DistinctBuilder(tmp_path / "query").build(snapshots=())
    rows = millpond.read_state(built.root).to_pylist()
    with millpond.lookup(built.root) as state:
        for row in rows:
            number = row["key"]["k"]
            for same in (float(number), Decimal(number), np.float32(number)):
                assert state.get({"k": same}) == [row]
            for other in (number + 0.5, Decimal(number) + Decimal("0.1"), np.float64(number + 0.5)):
                for refused in (
                    partial(state.get, {"k": other}),
                    partial(millpond.read_state, built.root, keys={"k": other}),
                    partial(millpond.erase, [built.root], key={"k": other}),
                ):
                    with pytest.raises(InvalidInputError, match="key column 'k' is int64"):
                        refused()
    with pytest.raises(InvalidInputError):
        key_value(Struct((Field("k", Array(Atom("long"))),)), "k", [1.5], {})


@pytest.mark.parametrize("name", ["timestamp", "day_time_interval"])
def test_a_number_among_times_is_none(name: str) -> None:
    """Arrow would take it for microseconds."""
    with pytest.raises(InvalidInputError):
        key_value(Struct((Field("k", Array(Atom(name))),)), "k", [5], {})


class _Builder(DistinctBuilder):
    """The keys are intervals of some half seconds."""

    key_type = Struct((Field("k", Atom("day_time_interval")),))

    def key_row(self, number: int) -> dict[str, Any]:
        return {"k": 500_000 * number}


@pytest.mark.parametrize("seconds", [5, 5.0, np.int64(5), np.int32(5), np.float32(5), Decimal(5)])
def test_a_number_of_any_kind_is_seconds(seconds: object) -> None:
    schema = Struct((Field("k", Atom("day_time_interval")),))
    assert key_value(schema, "k", seconds, {}).as_py() == timedelta(seconds=5)


def test_intervals_are_looked_up_in_seconds(tmp_path: Path) -> None:
    built = _Builder(tmp_path / "query").build(snapshots=())
    rows = millpond.read_state(built.root).to_pylist()
    assert len(rows) == 12
    with millpond.lookup(built.root) as state:
        for row in rows:
            seconds = row["key"]["k"].total_seconds()
            for given in (seconds, str(seconds), Decimal(str(seconds)), row["key"]["k"]):
                assert [found["key"] for found in state.get({"k": given})] == [row["key"]], given
    gone = rows[0]["key"]["k"].total_seconds()
    assert millpond.erase([built.root], key={"k": gone}).places[0].rows == 1


class _Days(DistinctBuilder):
    """The keys are days, from the fourth of October of 1582 on. The older calendar skips ten."""

    key_type = Struct((Field("k", Atom("date")),))

    def key_row(self, number: int) -> dict[str, Any]:
        return {"k": date(1582, 10, 4) + timedelta(days=number)}


def test_days_that_the_older_calendar_skips_are_keys(tmp_path: Path) -> None:
    built = _Days(tmp_path / "query").build(snapshots=())
    days = [row["key"]["k"] for row in millpond.read_state(built.root).to_pylist()]
    skipped = [day for day in days if date(1582, 10, 5) <= day <= date(1582, 10, 14)]
    assert skipped
    with millpond.lookup(built.root) as state:
        for day in days:
            midnight = datetime(day.year, day.month, day.day)
            for given in (day, day.isoformat(), midnight):
                assert [row["key"]["k"] for row in state.get({"k": given})] == [day]
            with pytest.raises(InvalidInputError):
                state.get({"k": midnight + timedelta(hours=1)})
    assert millpond.erase([built.root], key={"k": skipped[0]}).places[0].rows == 1
    left = [row["key"]["k"] for row in millpond.read_state(built.root).to_pylist()]
    assert sorted(left) == sorted(day for day in days if day != skipped[0])


def test_a_number_is_no_day(tmp_path: Path) -> None:
    """Arrow would take it for days since 1970, or for microseconds. An erasure of seconds would
    find nothing, and say that the key is gone.
    """
    built = _Days(tmp_path / "query").build(snapshots=())
    days = (date(1582, 10, 4) - date(1970, 1, 1)).days
    with millpond.lookup(built.root) as state:
        for keys in ([{"k": days}], [{"k": days}, {"k": days + 1}]):
            with pytest.raises(InvalidInputError, match="key column 'k' is date32"):
                state.table(keys)
    with pytest.raises(InvalidInputError):
        millpond.read_state(built.root, keys={"k": days})
    with pytest.raises(InvalidInputError):
        millpond.erase([built.root], key={"k": days})


class _Times(DistinctBuilder):
    """The keys are the first hours of 2026, by a clock on the wall."""

    key_type = Struct((Field("k", Atom("timestamp_ntz")),))

    def key_row(self, number: int) -> dict[str, Any]:
        return {"k": datetime(2026, 1, 1) + timedelta(hours=number)}


def test_the_clock_of_another_zone_is_no_key(tmp_path: Path) -> None:
    """Arrow would look up, and erase, what the clock of UTC showed."""
    built = _Times(tmp_path / "query").build(snapshots=())
    wanted: datetime = millpond.read_state(built.root).to_pylist()[0]["key"]["k"]
    wrong = wanted.replace(tzinfo=timezone(timedelta(hours=1)))
    with millpond.lookup(built.root) as state:
        assert [row["key"]["k"] for row in state.get({"k": wanted})] == [wanted]
        with pytest.raises(InvalidInputError):
            state.get({"k": wrong})
        with pytest.raises(InvalidInputError):
            state.table([{"k": wanted}, {"k": wrong}])
    with pytest.raises(InvalidInputError):
        millpond.read_state(built.root, keys={"k": wrong})
    with pytest.raises(InvalidInputError):
        millpond.erase([built.root], key={"k": wrong})
    assert millpond.read_state(built.root).num_rows == 12
