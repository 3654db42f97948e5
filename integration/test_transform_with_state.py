"""`transformWithState` from Python on Millpond and on Spark's RocksDB store: equal batch for batch, over a restart, with value, list
and map state, TTL, event-time timers and a dropped variable; and what the state reader says of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from integration.jvm import MILLPOND, ROCKSDB

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
BUDGET = "spark.sql.streaming.stateStore.millpond.memory.budget"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
STEP_MS = 1000  # event time that a batch covers
FIRST_RUN, SECOND_RUN = 5, 11  # last batch of each run
OUTPUT = "k long, n long, total long, recent string, latest string, kept string, fired string"


class Everything(StatefulProcessor):
    """Counts, remembers and forgets in every kind of state; its output names all that the state holds.

    Spark has timers of event time or state with TTL in one query, not both: `timed` chooses.
    """

    def __init__(self, timed: bool) -> None:
        self.timed = timed

    def init(self, handle: Any) -> None:
        self.handle = handle
        one = StructType([StructField("v", LongType())])
        self.count = handle.getValueState("count", one)
        self.recent = handle.getListState("recent", one)
        self.latest = handle.getMapState("latest", StructType([StructField("k", LongType())]), one)
        # far in the future: nothing expires while the test runs, but every write passes through the families of TTL
        ttl = {} if self.timed else {"ttlDurationMs": 3_600_000}
        self.kept = handle.getListState("kept", one, **ttl)
        self.seen = handle.getValueState("seen", one, **ttl)
        self.newest = handle.getMapState("newest", one, one, **ttl)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        count = self.count.get()[0] if self.count.exists() else 0
        total = 0
        for frame in rows:
            values = [int(v) for v in frame["value"]]
            count += len(values)
            total += sum(values)
            for v in values[:3]:
                self.recent.appendValue((v,))
                self.kept.appendValue((v,))
                self.latest.updateValue((v % 7,), (v,))
                self.newest.updateValue((v % 3,), (v,))
            self.seen.update((values[-1],))
        self.count.update((count,))
        recent = [v[0] for v in self.recent.get()]
        if len(recent) > 12:
            self.recent.put([(v,) for v in recent[-4:]])
            self.recent.appendList([(-1,), (-2,)])
        if count % 3 == 0 and self.latest.containsKey((3,)):
            self.latest.removeKey((3,))
        if count % 5 == 0:
            self.kept.clear()
        if self.timed:
            watermark = timerValues.getCurrentWatermarkInMs()
            for timer in list(self.handle.listTimers()):
                if timer > watermark + 3 * STEP_MS:
                    self.handle.deleteTimer(timer)
            self.handle.registerTimer(watermark + 2 * STEP_MS)
        yield self._row(key, count, total, "")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        count = self.count.get()[0] if self.count.exists() else -1
        if fired % (2 * STEP_MS) == 0:
            self.latest.clear()
            self.count.clear()
        yield self._row(key, count, 0, str(fired))

    def _row(self, key: Any, count: int, total: int, fired: str) -> pd.DataFrame:
        latest = sorted((k[0], v[0]) for k, v in self.latest.iterator())
        newest = sorted((k[0], v[0]) for k, v in self.newest.iterator())
        kept = [v[0] for v in self.kept.get()]
        seen = self.seen.get()[0] if self.seen.exists() else None
        columns = {
            "k": [key[0]],
            "n": [count],
            "total": [total],
            "recent": [str([v[0] for v in self.recent.get()])],
            "latest": [str(latest)],
            "kept": [str((kept, seen, newest))],
            "fired": [fired],
        }
        return pd.DataFrame(columns)

    def close(self) -> None:
        return


def run(spark: SparkSession, checkpoint: Path, *, timed: bool, until: int) -> dict[int, list[Any]]:
    """Run the query until batch `until` is done; returns the rows of every batch, sorted."""
    batches: dict[int, list[Any]] = {}

    def collect(frame: DataFrame, batch: int) -> None:
        batches[batch] = sorted(map(tuple, frame.collect()))

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 60).option("startTimestamp", 10_000)
    rows = source.option("advanceMillisPerBatch", STEP_MS).option("numPartitions", 1).load()
    grouped = rows.withWatermark("timestamp", "0 seconds").withColumn("k", F.col("value") % 9).groupBy("k")
    states = grouped.transformWithStateInPandas(
        Everything(timed), OUTPUT, "Update", "EventTime" if timed else "ProcessingTime"
    )
    query = (
        states.writeStream.foreachBatch(collect)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        deadline = time.monotonic() + 120
        while max(batches, default=-1) < until:
            if (error := query.exception()) is not None:
                raise error
            assert time.monotonic() < deadline, f"stuck after batches {sorted(batches)}"
            query.awaitTermination(0.1)  # type: ignore[arg-type]  # seconds, as its documentation says; pyspark declares int
    finally:
        query.stop()
    return batches


def read(spark: SparkSession, checkpoint: Path, *, timed: bool) -> dict[str, list[str]]:
    """What Spark's state reader says of the state after the first run, by variable."""
    choices: dict[str, tuple[str, str | bool]] = {n: ("stateVarName", n) for n in ("count", "recent", "latest")}
    if timed:
        choices["timers"] = ("readRegisteredTimers", True)
    rows: dict[str, list[str]] = {}
    for name, choice in choices.items():
        reader = spark.read.format("statestore").option("batchId", FIRST_RUN).option(*choice)
        rows[name] = sorted(map(str, reader.load(str(checkpoint)).collect()))
    return rows


@pytest.mark.parametrize(
    ("timed", "checkpoint_format", "settings"),
    [(True, "1", {}), (False, "2", {}), (True, "2", {BUDGET: "1m"}), (False, "1", {ENCODING: "avro"})],
    ids=["timers", "ttl-format2", "timers-format2-1m", "ttl-avro"],
)
def test_equal_to_spark(
    spark: SparkSession, tmp_path: Path, timed: bool, checkpoint_format: str, settings: dict[str, str]
) -> None:
    results: dict[str, dict[int, list[Any]]] = {}
    readings: dict[str, dict[str, list[str]]] = {}
    for provider in (MILLPOND, ROCKSDB):
        checkpoint = tmp_path / provider.rsplit(".", 1)[1]
        conf = {PROVIDER: provider, FORMAT: checkpoint_format, **settings}
        for name, value in conf.items():
            spark.conf.set(name, value)
        try:
            batches = run(spark, checkpoint, timed=timed, until=FIRST_RUN)
            batches |= run(spark, checkpoint, timed=timed, until=SECOND_RUN)
            results[provider] = {n: batches[n] for n in range(SECOND_RUN + 1)}
            readings[provider] = read(spark, checkpoint, timed=timed)
        finally:
            for name in conf:
                spark.conf.unset(name)
    for batch in range(SECOND_RUN + 1):
        assert results[MILLPOND][batch] == results[ROCKSDB][batch], f"batch {batch}"
    assert any(row[-1] for rows in results[MILLPOND].values() for row in rows) == timed
    assert readings[MILLPOND] == readings[ROCKSDB]
    assert readings[MILLPOND]["recent"]
