"""A query that counts by key, and writes the new count of each key of a batch to Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.peers.kafka.broker import Broker

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
Records = dict[str, list[str]]
Row = Mapping[str, Any]


def counted(rows: DataFrame) -> DataFrame:
    """Count and sum by key. The columns `key` and `value` are texts, as the sink wants them."""
    counts = rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("s"))
    return counts.select("key", F.to_json(F.struct("n", "s")).alias("value"))


def to_topic(frame: DataFrame, kafka: Broker, topic: str) -> DataStreamWriter:
    """Write what a batch changed to a topic."""
    writer = frame.writeStream.outputMode("update").format("kafka")
    return writer.option("kafka.bootstrap.servers", kafka.servers).option("topic", topic)


def from_topic(spark: SparkSession, kafka: Broker, topic: str, **options: str) -> DataFrame:
    """Return a stream of the rows that `produce` wrote."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.servers)
    read = reader.options(subscribe=topic, startingOffsets="earliest", **options).load()
    return read.selectExpr(
        "CAST(key AS STRING) AS key", "CAST(CAST(value AS STRING) AS BIGINT) AS value"
    )


def produce(spark: SparkSession, kafka: Broker, topic: str, rows: Iterable[Row]) -> None:
    """Add rows to a topic."""
    made = spark.createDataFrame(
        [(row["key"], str(row["value"])) for row in rows], "key string, value string"
    )
    writer = made.write.format("kafka").option("kafka.bootstrap.servers", kafka.servers)
    writer.option("topic", topic).save()


def read_topic(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """Return all records that a topic has when Spark reads the frame."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.servers)
    return reader.options(subscribe=topic, startingOffsets="earliest").load()


def records(spark: SparkSession, kafka: Broker, topic: str) -> Records:
    """Return the values of each key, in order: Kafka keeps a key in one partition."""
    found: Records = {}
    read = read_topic(spark, kafka, topic).selectExpr(
        "CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset"
    )
    for row in sorted(read.collect(), key=lambda row: (row.partition, row.offset)):
        found.setdefault(row.key, []).append(row.value)
    return found


def joined(*parts: Records) -> Records:
    """Return the records of all parts, one part after the other."""
    keys = {key for part in parts for key in part}
    return {key: [value for part in parts for value in part.get(key, [])] for key in keys}


def last(found: Records) -> dict[str, str]:
    """Return the last value of each key."""
    return {key: values[-1] for key, values in found.items()}


@dataclass
class Batches:
    """The rows of each batch of a query, and the records that it must write for them."""

    rows: list[list[Row]] = field(default_factory=list)

    def next(self) -> list[Row]:
        """Make rows of one more batch. Some keys come in many batches; each batch has a new key."""
        batch = len(self.rows)
        keys = [f"k{batch + 10}", *(f"k{(batch * 3 + n * n) % 7}" for n in range(5))]
        self.rows.append([{"key": key, "value": batch * 10 + n} for n, key in enumerate(keys)])
        return self.rows[-1]

    def records(self, first: int = 0, until: int | None = None) -> Records:
        """Return the records of the batches from `first` to before `until`."""
        sums: dict[str, tuple[int, int]] = {}
        found: Records = {}
        for batch, rows in enumerate(self.rows[:until]):
            for row in rows:
                n, s = sums.get(row["key"], (0, 0))
                sums[row["key"]] = (n + 1, s + row["value"])
            for key in sorted({row["key"] for row in rows}) if batch >= first else ():
                n, s = sums[key]
                found.setdefault(key, []).append(f'{{"n":{n},"s":{s}}}')
        return found

    def last(self, spark: SparkSession) -> dict[str, str]:
        """Return what a batch computation makes of all rows."""
        rows = [(row["key"], row["value"]) for batch in self.rows for row in batch]
        whole = counted(spark.createDataFrame(rows, "key string, value long"))
        return {row.key: row.value for row in whole.collect()}
