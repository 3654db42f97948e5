# SPDX-License-Identifier: Apache-2.0
"""The process of one query in real-time mode, whose latencies are taken.

`python -m benchmarks.bench_latency_query <spec.json> <result.json>`: `bench_latency` runs one for
each contender and cell. Records come from the paced source in the same process, or from Kafka.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench_latency_measures import derive
from benchmarks.bench_query import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 2  # of the source, and of the state
BUFFER_MS = 1  # how long a record may wait for others on its way to the state; default: 50
PACKAGE = "org.apache.spark.sql.millpond.bench"


def _count(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.groupBy("key").agg(f.count("*").alias("n"), f.last("at").alias("at"))


def _dedup(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["key"])


def _sessions(rows: DataFrame) -> DataFrame:
    from pyspark.sql import DataFrame

    spark = rows.sparkSession
    return DataFrame(_queries(spark).sessions(rows._jdf), spark)


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "count": _count,
    "dedup": _dedup,
    "sessions": _sessions,
}


def _stateless(rows: DataFrame) -> DataFrame:
    return rows.repartition(PARTITIONS, "key")


def plan_text(cell: dict[str, Any]) -> str:
    """Return what Scala's `Plan.of` reads."""
    twice = str(cell["query"] == "dedup").lower()
    numbers = (cell["rate"], cell["keys"], PARTITIONS, cell["warmup_s"], cell["seconds"])
    return " ".join([*map(str, numbers), twice])


def _queries(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return getattr(jvm, f"{PACKAGE}.LatencyQueries")


def _start(spark: SparkSession, spec: dict[str, Any]) -> StreamingQuery:
    from pyspark.sql import functions as f

    cell, servers, checkpoint = spec["cell"], spec["servers"], spec["checkpoint"]
    if servers is None:
        source = spark.readStream.format(f"{PACKAGE}.PacedSource")
        rows = source.option("plan", plan_text(cell)).load()
    else:
        topic = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        topic = topic.option("subscribe", "in").option("startingOffsets", "earliest")
        rows = topic.load().select(
            f.col("key").cast("string").cast("long").alias("key"),
            f.col("value").cast("string").cast("long").alias("at"),
        )
    result = (_stateless if spec["stateless"] else QUERIES[cell["query"]])(rows)
    if servers is None:
        writer: Any = result.writeStream
        writer._jwrite = writer._jwrite.foreach(_queries(spark).sink())
    else:
        texts = result.selectExpr("CAST(key AS STRING) AS key", "CAST(at AS STRING) AS value")
        writer = texts.writeStream.format("kafka").option("topic", "out")
        writer = writer.option("kafka.bootstrap.servers", servers)
        writer = writer.option("kafka.linger.ms", "0")
    writer = writer.outputMode("update").option("checkpointLocation", checkpoint)
    query: StreamingQuery = writer.trigger(realTime=f"{cell['trigger_s']} seconds").start()
    return query


def _batches(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return what Spark says of each batch that ended."""
    found = []
    for progress in (json.loads(p.json) for p in query.recentProgress):
        begun = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))
        operators = progress["stateOperators"]
        found.append(
            {
                "begun_ms": int(begun.timestamp() * 1000),
                "duration_ms": progress["durationMs"],
                "rows": progress["numInputRows"],
                "changed": sum(o["numRowsUpdated"] for o in operators),
                "state_rows": sum(o["numRowsTotal"] for o in operators),
                # Spark adds up what its tasks took side by side. None: a query without state.
                "commit_ms": sum(o["commitTimeMs"] for o in operators) / PARTITIONS
                if operators
                else None,
            }
        )
    return found


def _until(done: Callable[[], bool], query: StreamingQuery, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not done():
        failure = query.exception()
        if failure is not None:
            raise failure
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} after {seconds:.0f} s: {query.lastProgress}")
        time.sleep(0.5)  # each look costs the measured process something, so look seldom


def _in_memory(query: StreamingQuery, cell: dict[str, Any], spark: SparkSession) -> dict[str, Any]:
    jvm: Any = spark._jvm
    times = getattr(jvm, f"{PACKAGE}.Latencies")
    _until(lambda: times.begunUs().isDefined(), query, 15 * cell["trigger_s"] + 60, "filled state")
    wanted = cell["warmup_s"] + cell["seconds"] + 3 * cell["trigger_s"] + 10
    end = time.monotonic() + wanted
    # Those that are missing then are told by `derive`.
    _until(lambda: times.complete() or time.monotonic() > end, query, wanted + 60, "results")
    found: dict[str, Any] = json.loads(times.json())
    return found


class _Kafka:
    """The process that sends the records, and takes the results' times."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        self.lines = self.process.stdout
        if self.lines.readline().strip() != "ready":
            raise RuntimeError("the process that sends records to Kafka did not begin")
        self.said: list[str] = []
        self.thread = threading.Thread(target=lambda: self.said.extend(self.lines), daemon=True)
        self.thread.start()

    def result(self, query: StreamingQuery, seconds: float) -> dict[str, Any]:
        _until(lambda: len(query.recentProgress) > 0, query, seconds, "first batch")
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        _until(lambda: self.process.poll() is not None, query, seconds, "results from Kafka")
        self.thread.join()
        if self.process.returncode:
            raise RuntimeError("the process that sends records to Kafka failed")
        found: dict[str, Any] = json.loads(self.said[-1])
        return found


def main(spec_path: str, result_path: str) -> None:
    """Run the query of a spec, and write its latencies and its batches."""
    spec = json.loads(Path(spec_path).read_text())
    cell, servers = spec["cell"], spec["servers"]
    spark = open_session("millpond-latency-bench", spec["conf"])
    load = None
    if servers is not None:
        load = _Kafka(spec["load"])
    query = _start(spark, spec)
    if load is None:
        times = _in_memory(query, cell, spark)
    else:
        times = load.result(query, cell["warmup_s"] + cell["seconds"] + 300)
    # The batch that the last record belongs to has to end: it shows the last boundary.
    batches = len(query.recentProgress)
    _until(
        lambda: len(query.recentProgress) > batches, query, 3 * cell["trigger_s"] + 60, "last batch"
    )
    result = derive(times, _batches(query), cell["trigger_s"] * 1000)
    Path(result_path).write_text(json.dumps(result))
    os._exit(0)  # as in `bench_query`: the end of Spark's store may wait for a minute


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
