"""The stateful queries that are compared, and their input: pure descriptions, run by `test_operators`.

Event times are seconds after an epoch; each list of rows is one file, which is one micro-batch. The inputs hold late
rows, nulls, unicode, decimals, binary and nested keys, and a file without rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

Rows = list[dict[str, Any]]
Build = Callable[[list[DataFrame]], DataFrame]

EVENTS = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])
KEYED = pa.schema(
    [
        ("s", pa.string()),
        ("d", pa.decimal128(12, 2)),
        ("b", pa.binary()),
        ("n", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("f", pa.float64()),
        ("v", pa.int64()),
    ]
)
_START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)


def at(seconds: float) -> dt.datetime:
    """Event time."""
    return _START + dt.timedelta(seconds=seconds)


def events(*rows: tuple[str | None, float, int]) -> Rows:
    """(key, seconds, value) as rows of `EVENTS`."""
    return [{"k": k, "ts": at(t), "v": v} for k, t, v in rows]


# Keys come and go, return after their window closed (late), and one batch is empty. Seconds; watermarks below are 10 s.
CLICKS: list[Rows] = [
    events(("a", 1, 1), ("b", 2, 2), ("ü€", 3, 3), (None, 4, 4), ("", 4, 5), ("a", 5, 6)),
    events(("a", 11, 7), ("c", 14, 8), ("a", 3, 9), (None, 15, 10), ("a", 11, 7)),
    events(("d", 40, 11), ("a", 2, 12), ("b", 41, 13), ("\U0001f600", 42, 14)),
    events(),
    events(("a", 1, 15), ("a", 43, 16), ("c", 44, 17), ("d", 40, 11), ("e", 61, 18)),
    events(("a", 90, 19), ("a", 91, 20), (None, 95, 21), ("b", 120, 22)),
]
VIEWS: list[Rows] = [
    events(("a", 2, 100), ("b", 30, 101), (None, 4, 102)),
    events(("c", 13, 103), ("a", 12, 104), ("zz", 14, 105)),
    events(("ü€", 4, 106), ("d", 41, 107), ("b", 39, 108), ("d", 42, 109)),
    events(("q", 45, 110)),
    events(("c", 46, 111), ("e", 60, 112), ("e", 62, 113), ("x", 50, 114)),
    events(("a", 92, 115), ("b", 119, 116), ("k", 121, 117)),
]


def _key(i: int) -> dict[str, Any]:
    return {
        "s": [None, "", "a", "ü€\U0001f600", "a\u0000b", "long " * 40][i % 6],
        "d": [None, Decimal("0.00"), Decimal("-1.25"), Decimal("9999999999.99")][i % 4],
        "b": [None, b"", b"\x00\xff", bytes(range(256))][i % 4],
        "n": [None, {"x": i % 3, "y": None}, {"x": None, "y": "y" * (i % 5)}][i % 3],
        "f": [0.0, -0.0, float("nan"), None, 1.5][i % 5],
    }


KEYS: list[Rows] = [[{**_key((i * 7 + b * 3) % 40), "v": i} for i in range(25)] if b != 2 else [] for b in range(5)]


@dataclass(frozen=True)
class Case:
    """One query: its inputs (schema and batches), output mode, and the Spark checkpoint format that it is run with."""

    name: str
    build: Build
    inputs: Sequence[tuple[pa.Schema, list[Rows]]]
    mode: str
    checkpoint_format: int = 1
    fail_at: int = 1  # the sink fails in this batch of the first run
    first: int = 3  # that many files are there in the first run
    conf: Mapping[str, str] = field(default_factory=dict)  # of the session, for both providers


def _window(seconds: int = 10) -> Any:
    return F.window("ts", f"{seconds} seconds").alias("w")


def _agg(f: DataFrame) -> list[Any]:
    return [
        F.count("*").alias("n"),
        F.sum("v").alias("s"),
        F.max("v").alias("m"),
        F.sort_array(F.collect_set("v")).alias("all"),
    ]


def _keyed(i: list[DataFrame]) -> DataFrame:
    return i[0].groupBy("s", "d", "b", "n", "f").agg(*_agg(i[0]))


def _by_key(i: list[DataFrame]) -> DataFrame:
    return i[0].groupBy("k").agg(*_agg(i[0]))


def _windowed(i: list[DataFrame]) -> DataFrame:
    f = i[0].withWatermark("ts", "10 seconds")
    return f.groupBy(_window(), "k").agg(*_agg(f))


def _global(i: list[DataFrame]) -> DataFrame:
    return i[0].agg(*_agg(i[0]))


def _dedupe(i: list[DataFrame]) -> DataFrame:
    return i[0].dropDuplicates(["s", "d", "b", "n"])


def _dedupe_watermark(i: list[DataFrame]) -> DataFrame:
    return i[0].withWatermark("ts", "10 seconds").dropDuplicates(["k", "ts"])


def _dedupe_within(i: list[DataFrame]) -> DataFrame:
    return i[0].withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["k"])


def _sessions(i: list[DataFrame]) -> DataFrame:
    f = i[0].withWatermark("ts", "10 seconds")
    return f.groupBy(F.session_window("ts", "7 seconds").alias("w"), "k").agg(
        F.count("*").alias("n"), F.sum("v").alias("s")
    )


def _join(how: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        left = (
            i[0]
            .withWatermark("ts", "10 seconds")
            .select(F.col("k").alias("lk"), F.col("ts").alias("lt"), F.col("v").alias("lv"))
        )
        right = (
            i[1]
            .withWatermark("ts", "10 seconds")
            .select(F.col("k").alias("rk"), F.col("ts").alias("rt"), F.col("v").alias("rv"))
        )
        near = (F.col("rt") >= F.col("lt") - F.expr("interval 5 seconds")) & (
            F.col("rt") <= F.col("lt") + F.expr("interval 5 seconds")
        )
        return left.join(right, (F.col("lk") == F.col("rk")) & near, how)

    return build


def _join_then_window(i: list[DataFrame]) -> DataFrame:
    joined = _join("leftOuter")(i)
    return joined.groupBy(F.window("lt", "20 seconds").alias("w"), "lk").agg(
        F.count("rv").alias("n"), F.sum("lv").alias("s")
    )


def _window_of_window(i: list[DataFrame]) -> DataFrame:
    f = i[0].withWatermark("ts", "10 seconds")
    small = f.groupBy(F.window("ts", "5 seconds"), "k").agg(F.sum("v").alias("s"))
    return small.groupBy(F.window("window", "20 seconds").alias("w")).agg(
        F.count("*").alias("n"), F.sum("s").alias("s")
    )


def _dedupe_then_window(i: list[DataFrame]) -> DataFrame:
    f = i[0].withWatermark("ts", "10 seconds").dropDuplicates(["k", "ts"])
    return f.groupBy(_window(), "k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def _limit(i: list[DataFrame]) -> DataFrame:
    return i[0].limit(9)


def _pandas_state(timeout: str, mode: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        import pandas as pd

        def count(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
            if state.hasTimedOut:
                (n,) = state.get
                state.remove()
                yield pd.DataFrame({"k": [key[0]], "n": [n], "out": [True]})
                return
            (n,) = state.get if state.exists else (0,)
            latest = None
            for frame in frames:
                n += len(frame)
                newest = frame["ts"].max()
                latest = newest if latest is None or newest > latest else latest
            state.update((n,))
            if timeout == "EventTimeTimeout" and latest is not None:
                state.setTimeoutTimestamp(
                    max(int(latest.timestamp() * 1000) + 5_000, state.getCurrentWatermarkMs() + 1)
                )
            yield pd.DataFrame({"k": [key[0]], "n": [n], "out": [False]})

        f = i[0].withWatermark("ts", "10 seconds")
        return f.groupBy("k").applyInPandasWithState(count, "k string, n long, out boolean", "n long", mode, timeout)

    return build


_CLICKS = [(EVENTS, CLICKS)]
_KEYS = [(KEYED, KEYS)]
_BOTH = [(EVENTS, CLICKS), (EVENTS, VIEWS)]

CASES = [
    Case("agg-update-odd-keys", _keyed, _KEYS, "update", 2),
    Case("agg-complete-odd-keys", _keyed, _KEYS, "complete", 1),
    Case("agg-complete", _by_key, _CLICKS, "complete", 2, fail_at=0),
    Case("agg-window-append", _windowed, _CLICKS, "append", 1, fail_at=2),
    Case("agg-window-append-ids", _windowed, _CLICKS, "append", 2),
    Case("agg-window-update", _windowed, _CLICKS, "update", 1),
    Case("agg-window-complete", _windowed, _CLICKS, "complete", 1),
    Case("global-update", _global, _CLICKS, "update", 1),
    Case("global-complete", _global, _CLICKS, "complete", 2),
    Case("dedupe-odd-keys", _dedupe, _KEYS, "append", 1),
    Case("dedupe-watermark", _dedupe_watermark, _CLICKS, "append", 2),
    Case("dedupe-within-watermark", _dedupe_within, _CLICKS, "append", 1),
    Case("dedupe-within-watermark-ids", _dedupe_within, _CLICKS, "append", 2, fail_at=2),
    Case("sessions-append", _sessions, _CLICKS, "append", 1),
    Case("sessions-append-ids", _sessions, _CLICKS, "append", 2, fail_at=2),
    Case("sessions-complete", _sessions, _CLICKS, "complete", 1),
    Case("join-inner", _join("inner"), _BOTH, "append", 1),
    Case("join-inner-ids", _join("inner"), _BOTH, "append", 2, fail_at=2),
    Case("join-left", _join("leftOuter"), _BOTH, "append", 1, fail_at=2),
    Case("join-right", _join("rightOuter"), _BOTH, "append", 2),
    Case("join-full", _join("fullOuter"), _BOTH, "append", 1),
    Case("join-semi", _join("leftSemi"), _BOTH, "append", 2),
    Case("pandas-state-update", _pandas_state("EventTimeTimeout", "update"), _CLICKS, "update", 1),
    Case("pandas-state-append-ids", _pandas_state("EventTimeTimeout", "append"), _CLICKS, "append", 2),
    Case("pandas-state-no-timeout", _pandas_state("NoTimeout", "update"), _CLICKS, "update", 1, fail_at=0),
    Case("join-then-window", _join_then_window, _BOTH, "append", 1),
    Case("window-of-window", _window_of_window, _CLICKS, "append", 2),
    Case("dedupe-then-window", _dedupe_then_window, _CLICKS, "append", 1),
    Case("global-limit", _limit, _CLICKS, "append", 1),
]
