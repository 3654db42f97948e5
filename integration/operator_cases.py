"""The operators of the DataFrame API, each over the input of `integration.cases`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from integration.cases import (
    AVRO,
    CLICKED,
    CLICKED_AND_VIEWED,
    NO_EMPTY_BATCHES,
    ODD_KEYS,
    Build,
    Case,
    of,
)

_AGGREGATION = "spark.sql.streaming.aggregation.stateFormatVersion"
_STREAMLINE = {"spark.sql.streaming.useStreamlineAggregator": "true"}
_CLEANUP = {"spark.sql.streaming.statefulOperator.incrementalCleanupFactor": "1"}
_CHECKSUM = {"spark.sql.streaming.stateStore.rowChecksum.enabled": "true"}
# Spark refuses state with keys that may be equal although their bytes differ.
_COLLATED = "STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY"


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


def _deep_keys(i: list[DataFrame]) -> DataFrame:
    keys = [
        F.array("s", F.lit(None)).alias("a"),
        F.struct("n", F.struct("d", "b")).alias("deep"),
        F.col("f"),
    ]
    return (
        i[0]
        .groupBy(*keys)
        .agg(F.collect_list(F.struct("v", "b", F.create_map("v", "s"))).alias("all"))
    )


def _sliding(i: list[DataFrame]) -> DataFrame:
    f = i[0].withWatermark("ts", "10 seconds")
    return f.groupBy(F.window("ts", "10 seconds", "5 seconds").alias("w"), "k").agg(*_agg(f))


def _union(i: list[DataFrame]) -> DataFrame:
    return i[0].select("k", "v").unionByName(i[1].select("k", "v")).groupBy("k").agg(*_agg(i[0]))


def _collated(i: list[DataFrame]) -> DataFrame:
    return i[0].select(
        F.collate("k", "UTF8_LCASE").alias("k"),
        F.collate(F.upper("k"), "UNICODE_CI").alias("u"),
        "v",
    )


def _collated_group(i: list[DataFrame]) -> DataFrame:
    return _collated(i).groupBy("k").count()


def _collated_dedupe(i: list[DataFrame]) -> DataFrame:
    return _collated(i).dropDuplicates(["k"])


def _collated_values(i: list[DataFrame]) -> DataFrame:
    return (
        _collated(i)
        .groupBy((F.col("v") % 5).alias("g"))
        .agg(F.max("k").alias("k"), F.min("u").alias("u"))
    )


def _collated_join(i: list[DataFrame]) -> DataFrame:
    left, right = (
        _collated(i[:1]),
        _collated(i[1:]).withColumn("k", F.collate(F.upper("k"), "UTF8_LCASE")),
    )
    return left.select("k", "v").join(right.select("k", F.col("v").alias("rv")), "k")


def _limit_distinct(i: list[DataFrame]) -> DataFrame:
    return i[0].select("k").dropDuplicates().limit(6)


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


def _watermarked(i: list[DataFrame]) -> list[DataFrame]:
    return [f.withWatermark("ts", "10 seconds") for f in i]


def _join(how: str) -> Build:
    return lambda i: _join_near(_watermarked(i), how)


def _join_near(i: list[DataFrame], how: str) -> DataFrame:
    left = i[0].select(F.col("k").alias("lk"), F.col("ts").alias("lt"), F.col("v").alias("lv"))
    right = i[1].select(F.col("k").alias("rk"), F.col("ts").alias("rt"), F.col("v").alias("rv"))
    near = (F.col("rt") >= F.col("lt") - F.expr("interval 5 seconds")) & (
        F.col("rt") <= F.col("lt") + F.expr("interval 5 seconds")
    )
    return left.join(right, (F.col("lk") == F.col("rk")) & near, how)


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


def _join_of_windows(i: list[DataFrame]) -> DataFrame:
    clicks, views = (
        f.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "10 seconds"), "k")
        .agg(F.sum("v").alias(f"s{n}"))
        for n, f in enumerate(i)
    )
    return clicks.join(views, ["window", "k"], "leftOuter")


def _dedupe_then_join(i: list[DataFrame]) -> DataFrame:
    return _join_near([f.dropDuplicates(["k", "ts"]) for f in _watermarked(i)], "inner")


def _sessions_then_window(i: list[DataFrame]) -> DataFrame:
    return (
        _sessions(i)
        .groupBy(F.window(F.window_time("w"), "30 seconds").alias("w"))
        .agg(F.sum("n").alias("n"))
    )


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
            if timeout == "ProcessingTimeTimeout":
                state.setTimeoutDuration(
                    1
                )  # a batch takes longer, so the timeout fires in the next batch, or in an hour
                if n % 2:
                    state.setTimeoutDuration(3_600_000)
            yield pd.DataFrame({"k": [key[0]], "n": [n], "out": [False]})

        f = i[0].withWatermark("ts", "10 seconds")
        return f.groupBy("k").applyInPandasWithState(
            count, "k string, n long, out boolean", "n long", mode, timeout
        )

    return build


CASES = [
    *of(
        "groupBy().agg()",
        Case("agg-update-odd-keys", _keyed, ODD_KEYS, "update", 2),
        Case("agg-complete-odd-keys", _keyed, ODD_KEYS, "complete", 1),
        Case("agg-update-deep-keys", _deep_keys, ODD_KEYS, "update", 1, fail_at=2),
        Case("agg-complete", _by_key, CLICKED, "complete", 2, fail_at=0),
        Case("agg-update-v1", _keyed, ODD_KEYS, "update", 1, conf={_AGGREGATION: "1"}),
        Case("agg-complete-v1-ids", _by_key, CLICKED, "complete", 2, conf={_AGGREGATION: "1"}),
        Case("agg-of-union", _union, CLICKED_AND_VIEWED, "update", 2),
        Case("agg-sink-acts-twice", _by_key, CLICKED, "update", 1, actions=2),
        Case("agg-sink-acts-twice-ids", _by_key, CLICKED, "update", 2, actions=2),
        Case("agg-row-checksums", _by_key, CLICKED, "complete", 2, conf=_CHECKSUM),
        Case("agg-collated-values", _collated_values, CLICKED, "update", 2),
    ),
    *of(
        "groupBy(window()).agg()",
        Case("agg-window-append", _windowed, CLICKED, "append", 1, fail_at=2),
        Case("agg-window-append-ids", _windowed, CLICKED, "append", 2),
        Case("agg-window-append-v1", _windowed, CLICKED, "append", 1, conf={_AGGREGATION: "1"}),
        Case("agg-window-update", _windowed, CLICKED, "update", 1),
        Case("agg-window-update-ids", _windowed, CLICKED, "update", 2, fail_at=2),
        Case("agg-window-complete", _windowed, CLICKED, "complete", 1),
        Case("agg-window-incremental-cleanup", _windowed, CLICKED, "update", 2, conf=_CLEANUP),
        Case("agg-sliding-append", _sliding, CLICKED, "append", 2, fail_at=0),
    ),
    *of(
        "agg() without keys",
        Case("global-update", _global, CLICKED, "update", 1),
        Case("global-update-ids", _global, CLICKED, "update", 2),
        Case("global-complete", _global, CLICKED, "complete", 2),
    ),
    *of(
        "groupBy().agg(), streamline operator",
        Case("streamline-update", _keyed, ODD_KEYS, "update", 1, conf=_STREAMLINE),
        Case("streamline-complete-ids", _by_key, CLICKED, "complete", 2, conf=_STREAMLINE),
        Case(
            "streamline-window-append", _windowed, CLICKED, "append", 2, fail_at=2, conf=_STREAMLINE
        ),
    ),
    *of(
        "dropDuplicates",
        Case("dedupe-odd-keys", _dedupe, ODD_KEYS, "append", 1),
        Case("dedupe-update-odd-keys-ids", _dedupe, ODD_KEYS, "update", 2),
        Case("dedupe-watermark", _dedupe_watermark, CLICKED, "append", 2),
    ),
    *of(
        "dropDuplicatesWithinWatermark",
        Case("dedupe-within-watermark", _dedupe_within, CLICKED, "append", 1),
        Case("dedupe-within-watermark-ids", _dedupe_within, CLICKED, "append", 2, fail_at=2),
    ),
    *of(
        "groupBy(session_window()).agg()",
        Case("sessions-append", _sessions, CLICKED, "append", 1),
        Case("sessions-append-ids", _sessions, CLICKED, "append", 2, fail_at=2),
        Case("sessions-complete", _sessions, CLICKED, "complete", 1),
    ),
    *of(
        "join of two streams, inner",
        Case("join-inner", _join("inner"), CLICKED_AND_VIEWED, "append", 1),
        Case("join-inner-ids", _join("inner"), CLICKED_AND_VIEWED, "append", 2, fail_at=2),
        Case("join-collated-keys", _collated_join, CLICKED_AND_VIEWED, "append", 2),
    ),
    *of(
        "join of two streams, outer",
        Case("join-left", _join("leftOuter"), CLICKED_AND_VIEWED, "append", 1, fail_at=2),
        Case("join-right", _join("rightOuter"), CLICKED_AND_VIEWED, "append", 2),
        Case("join-full", _join("fullOuter"), CLICKED_AND_VIEWED, "append", 1),
    ),
    *of(
        "join of two streams, left semi",
        Case("join-semi", _join("leftSemi"), CLICKED_AND_VIEWED, "append", 2),
    ),
    *of(
        "applyInPandasWithState",
        Case(
            "pandas-state-update", _pandas_state("EventTimeTimeout", "update"), CLICKED, "update", 1
        ),
        Case(
            "pandas-state-append-ids",
            _pandas_state("EventTimeTimeout", "append"),
            CLICKED,
            "append",
            2,
        ),
        Case(
            "pandas-state-no-timeout",
            _pandas_state("NoTimeout", "update"),
            CLICKED,
            "update",
            1,
            fail_at=0,
        ),
        Case(
            "pandas-state-processing-time",
            _pandas_state("ProcessingTimeTimeout", "update"),
            CLICKED,
            "update",
            2,
            conf=NO_EMPTY_BATCHES,
            shows=("out=True",),
        ),
    ),
    *of(
        "stateful operators in a chain",
        Case("join-then-window", _join_then_window, CLICKED_AND_VIEWED, "append", 1),
        Case("join-of-windows", _join_of_windows, CLICKED_AND_VIEWED, "append", 2),
        Case("window-of-window", _window_of_window, CLICKED, "append", 2),
        Case("sessions-then-window", _sessions_then_window, CLICKED, "append", 1),
        Case("dedupe-then-window", _dedupe_then_window, CLICKED, "append", 1),
        Case("dedupe-then-join", _dedupe_then_join, CLICKED_AND_VIEWED, "append", 2),
    ),
    *of(
        "limit",
        Case("global-limit", _limit, CLICKED, "append", 1),
        Case("global-limit-ids", _limit_distinct, CLICKED, "append", 2),
    ),
    *of(
        "keys with a collation",
        Case("agg-collated-keys", _collated_group, CLICKED, "update", refused=_COLLATED),
        Case("dedupe-collated-keys", _collated_dedupe, CLICKED, "append", 2, refused=_COLLATED),
    ),
    *of(
        "Avro encoding, other operators than transformWithState",
        Case(
            "agg-avro",
            _by_key,
            CLICKED,
            "update",
            conf=AVRO,
            refused="State store encoding format as avro",
        ),
    ),
]
