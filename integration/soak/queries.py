"""The three queries of the soak, and the same computations as a batch in plain Python.

The state of each query has a bound. Rows are `cases.EVENTS`: key, event time, value. File n holds
event times from `STEP_S * n - DISORDER_S` on, so no row is later than the watermark. So every query
has one right result. It does not depend on where micro-batches begin and end.
"""

from __future__ import annotations

import bisect
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from integration.cases import at

SCHEMA = "k string, ts timestamp, v long"
DELAY = "20 seconds"  # of the watermarks
STEP_S = 10
DISORDER_S = 5
NEAR_S = 3
GAP_S = 8
BUCKET_S = 20
KEYS = 120
ROWS = 150  # of one file
END_S = 10_000_000.0  # event time of the marker that closes every window
END_KEY = "~end"

Row = tuple[Any, ...]
Event = tuple[str, float, int]  # key, event time in s, value


def file_rows(seed: int, side: str, number: int) -> list[Event]:
    """Return the rows of file `number` of the input `side`, the same in each call."""
    rng = random.Random(f"{seed}-{side}-{number}")
    begin = STEP_S * number - DISORDER_S
    return [
        (
            f"k{rng.randrange(KEYS)}",
            begin + rng.randrange(1, (STEP_S + DISORDER_S) * 1000) / 1000,
            rng.randrange(1000),
        )
        for _ in range(ROWS)
    ]


def as_records(rows: Sequence[Event]) -> list[dict[str, Any]]:
    """Return rows for a file of the input."""
    return [{"k": k, "ts": at(t), "v": v} for k, t, v in rows]


def _stream(spark: SparkSession, folder: str) -> DataFrame:
    return (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 4)
        .parquet(folder)
        .withWatermark("ts", DELAY)
    )


def joined(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """Return pairs of rows of one key, at most `NEAR_S` seconds apart."""
    left = _stream(spark, command["left"]).selectExpr("k as lk", "ts as lt", "v as lv")
    right = _stream(spark, command["right"]).selectExpr("k as rk", "ts as rt", "v as rv")
    near = (
        f"lk = rk and rt between lt - interval {NEAR_S} seconds and lt + interval {NEAR_S} seconds"
    )
    return left.join(right, F.expr(near)).selectExpr(
        "lk", "unix_millis(lt)", "lv", "unix_millis(rt)", "rv"
    )


def sessions(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """Return runs of a key's rows less than `GAP_S` seconds apart: begin, end, rows and sum."""
    grouped = _stream(spark, command["left"]).groupBy(
        F.session_window("ts", f"{GAP_S} seconds 500 microseconds").alias("w"), "k"
    )
    summed = grouped.agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    return summed.selectExpr("k", "unix_millis(w.start)", "unix_millis(w.end)", "n", "s")


class Buckets(StatefulProcessor):
    """Gathers the rows of a key and bucket in every kind of state.

    It yields them when the bucket's timer fires.
    """

    def init(self, handle: Any) -> None:
        self.handle = handle
        one = StructType([StructField("v", LongType())])
        self.sum = handle.getValueState("sum", one)
        self.values = handle.getListState("values", one)
        self.by_digit = handle.getMapState("by_digit", one, one)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        total = self.sum.get()[0] if self.sum.exists() else 0
        for frame in rows:
            for value in (int(v) for v in frame["v"]):
                total += value
                self.values.appendValue((value,))
                digit = (value % 10,)
                before = self.by_digit.getValue(digit)[0] if self.by_digit.containsKey(digit) else 0
                self.by_digit.updateValue(digit, (before + 1,))
        self.sum.update((total,))
        fires_ms = int((key[1] + 1) * BUCKET_S * 1000)
        if fires_ms not in set(self.handle.listTimers()):
            self.handle.registerTimer(fires_ms)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        values = sorted(int(row[0]) for row in self.values.get())
        digits = sorted((int(k[0]), int(v[0])) for k, v in self.by_digit.iterator())
        row = {
            "k": key[0],
            "bucket": key[1],
            "s": self.sum.get()[0],
            "all": str(values),
            "digits": str(digits),
        }
        self.sum.clear()
        self.values.clear()
        self.by_digit.clear()
        yield pd.DataFrame([row])

    def close(self) -> None:
        """There is nothing to close."""


def buckets(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """Return the rows of `Buckets` for each key and bucket of `BUCKET_S` seconds."""
    bucket = F.floor(F.unix_millis("ts") / (1000 * BUCKET_S)).cast("long")
    return (
        _stream(spark, command["right"])
        .withColumn("bucket", bucket)
        .groupBy("k", "bucket")
        .transformWithStateInPandas(
            statefulProcessor=Buckets(),
            outputStructType="k string, bucket long, s long, all string, digits string",
            outputMode="append",
            timeMode="EventTime",
        )
    )


# ---- the same as a batch computation -------------------------------------------------------------


def _ms(seconds: float) -> int:
    return round(at(seconds).timestamp() * 1000)


def expect_joined(left: Sequence[Event], right: Sequence[Event]) -> Counter[Row]:
    """Return the right result of `joined`."""
    by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for k, t, v in right:
        by_key[k].append((_ms(t), v))
    for rows in by_key.values():
        rows.sort()
    out: Counter[Row] = Counter()
    for k, t, v in left:
        rows, ms = by_key.get(k, []), _ms(t)
        first = bisect.bisect_left(rows, (ms - NEAR_S * 1000, -1))
        last = bisect.bisect_left(rows, (ms + NEAR_S * 1000 + 1, -1))
        out.update((k, ms, v, other_ms, other) for other_ms, other in rows[first:last])
    return out


def expect_sessions(left: Sequence[Event]) -> Counter[Row]:
    """Return the right result of `sessions`."""
    by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for k, t, v in left:
        by_key[k].append((_ms(t), v))
    out: Counter[Row] = Counter()
    for k, rows in by_key.items():
        run: list[tuple[int, int]] = []
        for row in sorted(rows):
            # The query's gap is half a millisecond longer. Rows have whole milliseconds, so no two
            # rows are exactly one gap apart.
            if run and row[0] > run[-1][0] + GAP_S * 1000:
                out[_session(k, run)] += 1
                run = []
            run.append(row)
        out[_session(k, run)] += 1
    return out


def _session(key: str, run: Sequence[tuple[int, int]]) -> Row:
    return (key, run[0][0], run[-1][0] + GAP_S * 1000, len(run), sum(v for _, v in run))


def expect_buckets(right: Sequence[Event]) -> Counter[Row]:
    """Return the right result of `buckets`."""
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for k, t, v in right:
        groups[k, _ms(t) // (1000 * BUCKET_S)].append(v)
    return Counter(
        (k, bucket, sum(vs), str(sorted(vs)), str(sorted(Counter(v % 10 for v in vs).items())))
        for (k, bucket), vs in groups.items()
    )
