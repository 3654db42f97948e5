"""A Spark Connect client in its own process.

`python -m integration.connect_client <remote> <directory>` runs it. It knows nothing of Millpond.
It prints one JSON object: by query, the sorted output rows of both runs and the state metrics, each
with its sum over the batches.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

ROWS, KEYS = 40, 7  # rows per batch; every run does one batch


class Sums(StatefulProcessor):
    """Keeps the sum and the list of the values of each key."""

    def init(self, handle: Any) -> None:
        one = StructType([StructField("v", LongType())])
        self.sum = handle.getValueState("sum", one)
        self.all = handle.getListState("all", one)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        values = [row["value"] for row in rows]
        total = (self.sum.get()[0] if self.sum.exists() else 0) + sum(values)
        self.sum.update((total,))
        self.all.appendList([(v,) for v in values])
        yield Row(k=key[0], total=total, n=sum(1 for _ in self.all.get()))

    def close(self) -> None:
        return


def _numbers(spark: SparkSession) -> DataFrame:
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", 1)
    )
    return source.load().withColumn("k", F.col("value") % KEYS)


def _counts(spark: SparkSession) -> DataFrame:
    return _numbers(spark).groupBy("k").agg(F.sum("value").alias("total"), F.count("*").alias("n"))


def _states(spark: SparkSession) -> DataFrame:
    return (
        _numbers(spark)
        .groupBy("k")
        .transformWithState(Sums(), "k long, total long, n long", "Append", "None")
    )


def main(remote: str, directory: str) -> None:
    """Run both queries, each twice on its Spark checkpoint."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    results: dict[str, Any] = {}
    for name, build, mode in (
        ("aggregation", _counts, "complete"),
        ("transformWithState", _states, "append"),
    ):
        runs = []
        for run in range(2):
            writer = build(spark).writeStream.outputMode(mode).trigger(availableNow=True)
            writer = writer.option("checkpointLocation", f"{directory}/{name}")
            # A client can read two sinks that go on from a Spark checkpoint: the memory sink in
            # complete mode, the parquet sink in append mode.
            table, path = f"{name}{run}", f"{directory}/{name}-out"
            memory = mode == "complete"
            query = (
                writer.format("memory").queryName(table).start()
                if memory
                else writer.format("parquet").start(path)
            )
            if not query.awaitTermination(120):
                raise TimeoutError(f"{name}: {query.lastProgress}")
            metrics: Counter[str] = Counter()
            for progress in query.recentProgress:
                for operator in progress["stateOperators"]:
                    metrics.update(operator["customMetrics"])
            found = spark.table(table) if memory else spark.read.parquet(path)
            # The files hold the rows of both runs. The last row of each key counts.
            latest = {
                row["k"]: [row["k"], row["total"], row["n"]] for row in found.orderBy("n").collect()
            }
            runs.append(
                {
                    "rows": sorted(latest.values()),
                    "metrics": dict(metrics),
                }
            )
        results[name] = runs
    print(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
