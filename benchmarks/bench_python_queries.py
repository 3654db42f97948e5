# SPDX-License-Identifier: Apache-2.0
"""The queries of the level of Python's state: each is one processor over the same stream of keys.

Every key has one row in every batch. `bench_python` names the scenarios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUT = "key long, n long"
# Event time advances by a second a batch, and so does the watermark.
_TIMER_MS = 1000


class Value(StatefulProcessor):
    """Reads and writes a value for each key."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        seen = self._count.get()
        count = (seen[0] if seen else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(key=key[0], n=count)

    def close(self) -> None: ...


class Frames(Value):
    """The same with pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        seen = self._count.get()
        count = (seen[0] if seen else 0) + sum(len(frame) for frame in rows)
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "n": [count]})


class Entries(StatefulProcessor):
    """Reads three entries of a map, and writes one of them, in turn."""

    def init(self, handle: Any) -> None:
        self._latest = handle.getMapState("latest", "slot long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        seen = [self._latest.getValue((slot,)) for slot in range(3)]
        total = sum(value[0] for value in seen if value is not None)
        count = sum(1 for _ in rows)
        self._latest.updateValue((total % 3,), (total + count,))
        yield Row(key=key[0], n=total)

    def close(self) -> None: ...


class Items(StatefulProcessor):
    """Reads a list, of ten items at first, and appends one."""

    def init(self, handle: Any) -> None:
        self._recent = handle.getListState("recent", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        seen = [item[0] for item in self._recent.get()]
        count = sum(1 for _ in rows)
        if seen:
            self._recent.appendValue((seen[-1] + count,))
        else:
            self._recent.put([(i,) for i in range(10)])
        yield Row(key=key[0], n=sum(seen))

    def close(self) -> None: ...


class Timers(StatefulProcessor):
    """Registers a timer for each key, which fires in the next batch."""

    def init(self, handle: Any) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self._handle.registerTimer(int(row["timestamp"].timestamp() * 1000) - _TIMER_MS + 1)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield Row(key=key[0], n=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None: ...


def count_frames(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """Read and write a value for each key, with `applyInPandasWithState`."""
    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"key": [key[0]], "n": [count]})


_PROCESSORS: dict[str, Callable[[], StatefulProcessor]] = {
    "value": Value,
    "pandas": Frames,
    "map": Entries,
    "list": Items,
    "timers": Timers,
}


def _passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return keys as they came: the least that a Python worker can do with rows."""
    for batch in batches:
        key = batch.column("key")
        yield pa.RecordBatch.from_arrays([key, key], ["key", "n"])


def keys(spark: SparkSession, rows: int) -> DataFrame:
    """Return a stream of `timestamp` and `key`, with each of `rows` keys once in every batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    source = source.option("startTimestamp", 1_000_000).option("advanceMillisPerBatch", 1000)
    stream = source.option("numPartitions", 2).load()
    return stream.select("timestamp", (f.col("value") % rows).alias("key"))


def build(spark: SparkSession, query: str, api: str, rows: int) -> DataFrame:
    """Return the query of that name, by the API that a scenario names.

    `stateless` sends the same rows through the same shuffle into Python, and keeps no state: a
    floor for whatever a transport of state may cost.
    """
    stream = keys(spark, rows)
    if api == "stateless":
        return stream.repartition("key").mapInArrow(_passed, OUTPUT)
    if api == "sql":
        return stream.groupBy("key").count()
    timed = query == "timers"
    if timed:
        stream = stream.withWatermark("timestamp", "0 seconds")
    if api == "scala":
        from pyspark.sql import DataFrame

        jvm: Any = spark._jvm
        peers = jvm.org.apache.spark.sql.millpond.bench.ScalaProcessors
        return DataFrame(peers.build(query, stream._jdf), spark)
    grouped: Any = stream.groupBy("key")
    if api == "apply":
        counted: DataFrame = grouped.applyInPandasWithState(
            count_frames, OUTPUT, "n long", "update", "NoTimeout"
        )
        return counted
    apply = grouped.transformWithStateInPandas if api == "pandas" else grouped.transformWithState
    time = "EventTime" if timed else "None"
    processor = _PROCESSORS["pandas" if api == "pandas" else query]()
    found: DataFrame = apply(processor, OUTPUT, "Update", time)
    return found
