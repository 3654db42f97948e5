"""A query that must emit each row exactly once, and its sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.jvm import MILLPOND
from integration.streams import Input, settings

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_SCHEMA = pa.schema([("key", pa.string())])


@dataclass
class Distinct:
    """Emits each key once. The state knows the keys that came before.

    `keys`: all keys that came.
    """

    spark: SparkSession
    input: Input
    conf: Mapping[str, str]
    keys: set[str] = field(default_factory=set)

    def add(self, files: int = 1) -> None:
        """Add files, one per batch. Each has two new keys, and one that came before."""
        for _ in range(files):
            count = len(self.keys)
            new = [f"k{count}", f"k{count + 1}"]
            self.input.add([{"key": key} for key in [*new, f"k{count // 2}"]])
            self.keys |= set(new)

    def frame(self) -> DataFrame:
        """Return the stream."""
        return self.input.stream(self.spark).dropDuplicates(["key"])

    def run(
        self, checkpoint: Path, sink: Callable[[DataStreamWriter], DataStreamWriter], **conf: str
    ) -> None:
        """Run the query over all present input, and wait for its end."""
        query = self.start(checkpoint, sink, **conf)
        query.awaitTermination()

    def start(
        self, checkpoint: Path, sink: Callable[[DataStreamWriter], DataStreamWriter], **conf: str
    ) -> StreamingQuery:
        """Start the query over all present input."""
        with settings(self.spark, {**self.conf, **conf}):
            writer = sink(self.frame().writeStream).option("checkpointLocation", str(checkpoint))
            return writer.trigger(availableNow=True).start()


def distinct(spark: SparkSession, directory: Path, **conf: str) -> Distinct:
    """Return the query over input in `directory`.

    It has its state in Millpond, in two partitions. The sink's log compacts every third entry.
    """
    base = {PROVIDER: MILLPOND, PARTITIONS: "2", INTERVAL: "3"}
    return Distinct(spark, Input(directory / "input", _SCHEMA), {**base, **conf})


def file_sink(
    path: Path, format: str = "parquet"
) -> Callable[[DataStreamWriter], DataStreamWriter]:
    """Return a function that makes a writer write to files."""
    return lambda writer: writer.format(format).option("path", str(path))


def rows_in(spark: SparkSession, path: Path, format: str = "parquet") -> list[str]:
    """Return the rows that a reader finds in a file sink."""
    schema = "value string" if format == "text" else "key string"
    return sorted(
        row[0] for row in spark.read.schema(schema).format(format).load(str(path)).collect()
    )


@dataclass
class Transactions:
    """A sink of `foreachBatch` that works like a Delta table with txnAppId and txnVersion.

    The batch number is the txnVersion. The sink leaves out a batch whose version is not above the
    last version of its application.
    """

    app: str
    last: dict[str, int] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)

    def __call__(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.foreachBatch(self.write)

    def write(self, batch: DataFrame, version: int) -> None:
        """Write a batch, unless its version came before."""
        rows = [row[0] for row in batch.collect()]  # an unread batch with state ends the query
        if version <= self.last.get(self.app, -1):
            self.left_out.append(version)
            return
        self.rows += rows
        self.last[self.app] = version


def sums(rows: Sequence[Any]) -> dict[Any, int]:
    """Return how often each row is there."""
    counts: dict[Any, int] = {}
    for row in rows:
        counts[row] = counts.get(row, 0) + 1
    return counts
