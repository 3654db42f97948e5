"""In which time zones a worker takes part where times are among the grouping columns."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql import types as T

from millpond.transport import key_zone
from millpond.transport.key_zone import OtherZoneError, check_zone

_WINDOW = T.StructType(
    [T.StructField("start", T.TimestampType()), T.StructField("end", T.TimestampType())]
)


def _keys(*types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(f"k{i}", of) for i, of in enumerate(types)])


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give this process the clocks of a zone."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        key_zone._is_own.cache_clear()
        yield request.param
    time.tzset()
    key_zone._is_own.cache_clear()


_ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe")


@pytest.mark.parametrize("zone", _ZONES, indirect=True)
def test_the_zone_of_the_session_is_the_workers_own(zone: str) -> None:
    for keys in (_keys(T.TimestampType()), _keys(T.StringType(), _WINDOW), _keys(_keys(_WINDOW))):
        for other in _ZONES:
            if other == zone:
                check_zone(keys, other)
            else:
                with pytest.raises(OtherZoneError, match=other):
                    check_zone(keys, other)


@pytest.mark.parametrize("zone", ["UTC"], indirect=True)
def test_names_of_one_zone(zone: str) -> None:
    for same in ("Etc/UTC", "GMT", "+00:00"):
        check_zone(_keys(T.TimestampType()), same)


@pytest.mark.parametrize("zone", ["UTC"], indirect=True)
def test_keys_without_times_have_no_zone(zone: str) -> None:
    keys = _keys(T.StringType(), T.DateType(), T.TimestampNTZType(), _keys(T.LongType()))
    check_zone(keys, "Asia/Kathmandu")
