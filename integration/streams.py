"""Streams that a test can run twice.

Their input is parquet files, one file per batch. `Run` keeps every batch's output and state
metrics.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from integration.jvm import MILLPOND

Batch = list[str]
_STATE_METRICS = (
    "operatorName",
    "numRowsTotal",
    "numRowsUpdated",
    "numRowsRemoved",
    "numRowsDroppedByWatermark",
)
_EPOCH_S = 1_700_000_000


class InjectedFailure(Exception):
    """The sink failed, after Spark committed the batch's state."""


class Input:
    """A directory that a file stream reads in the order of `add`."""

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self.directory = directory
        self.schema = schema
        self._count = 0
        directory.mkdir(parents=True)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a file. It is one more batch, even without rows."""
        table = pa.Table.from_pylist(list(rows), schema=self.schema)
        hidden = (
            self.directory / f"_{self._count:05d}.parquet"
        )  # Spark does not list names that start with _
        pq.write_table(table, hidden)
        os.utime(
            hidden, (_EPOCH_S + self._count, _EPOCH_S + self._count)
        )  # the source orders files by time
        hidden.rename(self.directory / f"{self._count:05d}.parquet")
        self._count += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the input as a stream, one file per batch."""
        schema = from_arrow_schema(self.schema, prefer_timestamp_ntz=False)
        return (
            spark.readStream.schema(schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.directory))
        )


@dataclass
class Run:
    """The results of a query over all its restarts: rows and state metrics by batch id."""

    checkpoint: Path
    rows: dict[int, Batch] = field(default_factory=dict)
    state: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def note_progress(self, query: StreamingQuery) -> None:
        """Keep the state metrics of the batches that ended."""
        for progress in query.recentProgress:
            self.state[progress["batchId"]] = [
                {name: op[name] for name in _STATE_METRICS} for op in progress["stateOperators"]
            ]


def start(
    spark: SparkSession,
    frame: DataFrame,
    run: Run,
    *,
    output_mode: str,
    conf: Mapping[str, str],
    fail_at: int | None = None,
    actions: int = 1,
    during: Callable[[int], None] | None = None,
) -> StreamingQuery:
    """Start `frame` over all present input. Its results go to `run`.

    Args:
        conf: settings of the session.
        fail_at: the batch in which the sink throws. Its state is committed then, but the commit log
            does not have the batch. So the restart asks every store for the version before it.
        actions: how often the sink computes each batch, through the stateful operators. All results
            must be equal.
        during: the sink calls it with the number of each batch. The batch's state is committed
            then, but the commit log does not have the batch.
    """

    def sink(batch: DataFrame, batch_id: int) -> None:
        rows = sorted(repr(row) for row in batch.collect())
        for _ in range(actions - 1):
            assert sorted(repr(row) for row in batch.collect()) == rows
        if batch_id == fail_at:
            raise InjectedFailure(f"injected in batch {batch_id}")
        run.rows[batch_id] = rows
        if during is not None:
            during(batch_id)

    with settings(spark, conf):
        writer = frame.writeStream.outputMode(output_mode).option(
            "checkpointLocation", str(run.checkpoint)
        )
        return writer.trigger(availableNow=True).foreachBatch(sink).start()


@contextmanager
def settings(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Change the session's settings until the end of the block."""
    before = {key: spark.conf.get(key, None) for key in conf}
    try:
        for key, value in conf.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def count_numbers(
    spark: SparkSession,
    checkpoint: Path,
    *,
    available_now: bool,
    conf: Mapping[str, str] = MappingProxyType({}),
    sink: Callable[[DataFrame, int], None] | None = None,
) -> StreamingQuery:
    """Start a query on Millpond that counts a hundred numbers a second, or once, by seven keys.

    Args:
        sink: gets each batch as `foreachBatch` does. None: no batch has to go anywhere.
    """
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    counts = numbers.withColumn("key", numbers.value % 7).groupBy("key").count()
    provider = {"spark.sql.streaming.stateStore.providerClass": MILLPOND}
    with settings(spark, {**provider, **conf}):
        writer = counts.writeStream.outputMode("update").option(
            "checkpointLocation", str(checkpoint)
        )
        writer = writer.format("noop") if sink is None else writer.foreachBatch(sink)
        return (
            writer.trigger(availableNow=True)
            if available_now
            else writer.trigger(processingTime="1 second")
        ).start()


def finish(query: StreamingQuery, run: Run, *, fails: bool = False, seconds: int = 120) -> None:
    """Wait for the end of the query. `fails`: the injected failure must end it."""
    try:
        ended = query.awaitTermination(seconds)
    except StreamingQueryException as error:
        if not fails or "InjectedFailure" not in str(error):
            raise
        ended = True
    else:
        if fails:
            raise AssertionError("the sink's failure did not end the query")
    run.note_progress(query)
    if not ended:
        _tell_threads()
        query.stop()
        raise AssertionError(f"the query did not end within {seconds} s: {query.lastProgress}")


def _tell_threads() -> None:
    """Let the JVM print its threads: nothing else tells later where a query stood."""
    session = SparkSession.getActiveSession()
    gateway: Any = None if session is None else session.sparkContext._gateway
    if gateway is not None:
        os.kill(gateway.proc.pid, signal.SIGQUIT)
