"""Queries over topics of keys and numbers. Their results are keys and texts, as Kafka's sink wants
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from integration.peers.kafka.broker import Broker

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
_ROW = ("CAST(key AS STRING) AS key", "CAST(CAST(value AS STRING) AS BIGINT) AS value")
Records = dict[str, list[str]]
Row = Mapping[str, Any]


def counted(rows: DataFrame) -> DataFrame:
    """Count and sum by key. The columns `key` and `value` are texts, as the sink wants them."""
    counts = rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("s"))
    return counts.select("key", F.to_json(F.struct("n", "s")).alias("value"))


def paired(left: DataFrame, right: DataFrame) -> DataFrame:
    """Join numbers of one key that are near each other. Without a watermark, the state keeps all
    rows.
    """
    lefts = left.selectExpr("key AS left_key", "value AS l")
    rights = right.selectExpr("key AS right_key", "value AS r")
    near = F.expr("left_key = right_key AND abs(l - r) <= 12")
    pairs = F.to_json(F.struct("l", "r"))
    return lefts.join(rights, near).select(F.col("left_key").alias("key"), pairs.alias("value"))


class Totals(StatefulProcessor):
    """Counts and sums by key, as `counted` does. It also keeps each number."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long, s long")
        self.numbers = handle.getListState("numbers", "value long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        n, s = self.total.get() if self.total.exists() else (0, 0)
        for row in (int(value) for frame in rows for value in frame["value"]):
            n, s = n + 1, s + row
            self.numbers.appendValue((row,))
        self.total.update((n, s))
        yield pd.DataFrame({"key": [key[0]], "value": [f'{{"n":{n},"s":{s}}}']})

    def close(self) -> None:
        return


def remembered(rows: DataFrame) -> DataFrame:
    """Return what `counted` returns, by transformWithStateInPandas."""
    return rows.groupBy("key").transformWithStateInPandas(
        Totals(), "key string, value string", "Update", "None"
    )


QUERIES: dict[str, Callable[..., DataFrame]] = {
    "count": counted,
    "join": paired,
    "state": remembered,
}
MODES = {"join": "append"}  # the output mode, where it is not `update`


def to_topic(frame: DataFrame, kafka: Broker, topic: str) -> DataStreamWriter:
    """Write what a batch changed to a topic."""
    writer = frame.writeStream.outputMode("update").format("kafka")
    return writer.option("kafka.bootstrap.servers", kafka.servers).option("topic", topic)


def from_topic(spark: SparkSession, kafka: Broker, topic: str, **options: str) -> DataFrame:
    """Return a stream of the rows that `produce` wrote."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.servers)
    read = reader.options(**{"subscribe": topic, "startingOffsets": "earliest", **options}).load()
    return read.selectExpr(*_ROW)


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


def numbers(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """Return the rows that `produce` wrote to a topic."""
    return read_topic(spark, kafka, topic).selectExpr(*_ROW)


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
