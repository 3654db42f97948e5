"""A query whose rows come out once each, whatever happens to it, and the sinks it writes to."""

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
    """Gives each key out once: one that comes again, in whatever file, is known from the state.

    `keys`: all that came.
    """

    spark: SparkSession
    input: Input
    conf: Mapping[str, str]
    keys: set[str] = field(default_factory=set)

    def add(self, files: int = 1) -> None:
        """Some more files, a batch each: two new keys, and one that came before."""
        for _ in range(files):
            count = len(self.keys)
            new = [f"k{count}", f"k{count + 1}"]
            self.input.add([{"key": key} for key in [*new, f"k{count // 2}"]])
            self.keys |= set(new)

    def frame(self) -> DataFrame:
        """The stream."""
        return self.input.stream(self.spark).dropDuplicates(["key"])

    def run(
        self, checkpoint: Path, sink: Callable[[DataStreamWriter], DataStreamWriter], **conf: str
    ) -> None:
        """Run the query over all input that is there."""
        query = self.start(checkpoint, sink, **conf)
        query.awaitTermination()

    def start(
        self, checkpoint: Path, sink: Callable[[DataStreamWriter], DataStreamWriter], **conf: str
    ) -> StreamingQuery:
        """Start it."""
        with settings(self.spark, {**self.conf, **conf}):
            writer = sink(self.frame().writeStream).option("checkpointLocation", str(checkpoint))
            return writer.trigger(availableNow=True).start()


def distinct(spark: SparkSession, directory: Path, **conf: str) -> Distinct:
    """Return the query over input in `directory`, with state in Millpond, two partitions and a
    compact entry of three.
    """
    base = {PROVIDER: MILLPOND, PARTITIONS: "2", INTERVAL: "3"}
    return Distinct(spark, Input(directory / "input", _SCHEMA), {**base, **conf})


def file_sink(
    path: Path, format: str = "parquet"
) -> Callable[[DataStreamWriter], DataStreamWriter]:
    """Write to files."""
    return lambda writer: writer.format(format).option("path", str(path))


def rows_in(spark: SparkSession, path: Path, format: str = "parquet") -> list[str]:
    """What a reader finds in a file sink."""
    schema = "value string" if format == "text" else "key string"
    return sorted(
        row[0] for row in spark.read.schema(schema).format(format).load(str(path)).collect()
    )


@dataclass
class Transactions:
    """A sink as those who write Delta tables by `foreachBatch` use it: txnAppId, and the batch
    number as txnVersion. What has a version that is not above the last one of its application is
    left out.
    """

    app: str
    last: dict[str, int] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)

    def __call__(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.foreachBatch(self.write)

    def write(self, batch: DataFrame, version: int) -> None:
        """Write a batch, once."""
        rows = [row[0] for row in batch.collect()]  # left unread, a batch with state ends the query
        if version <= self.last.get(self.app, -1):
            self.left_out.append(version)
            return
        self.rows += rows
        self.last[self.app] = version


def sums(rows: Sequence[Any]) -> dict[Any, int]:
    """How often each row is there."""
    counts: dict[Any, int] = {}
    for row in rows:
        counts[row] = counts.get(row, 0) + 1
    return counts
