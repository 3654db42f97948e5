"""Rows from Arrow are those that Arrow itself would make, one by one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.transport.forms import Offsets
from millpond.transport.row_form import RowKeys

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
