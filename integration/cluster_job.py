"""The driver that `Application` submits. It obeys the files in `<work>/commands`, in order.

spark-submit runs it as `cluster_job.py <work> <home> <pid of the test>`. It ends with that process.
An idempotent sink writes every batch of a query to `<home>/out/<query>/<batch>.json`. Spark
checkpoints are in `<home>/checkpoints/<query>`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = "k string, ts timestamp, v long"
STATE = "spark.sql.streaming.stateStore."


def _stream(spark: SparkSession, folder: str) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 4).parquet(folder)


def count(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """Return the number of rows and the sum of each key."""
    return (
        _stream(spark, command["input"])
        .groupBy("k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    )


def join(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """Return pairs of one key at most two seconds apart. No row is late."""
    left = (
        _stream(spark, command["input"])
        .withWatermark("ts", "1 day")
        .selectExpr("k as lk", "ts as lt", "v as lv")
    )
    right = (
        _stream(spark, command["other"])
        .withWatermark("ts", "1 day")
        .selectExpr("k as rk", "ts as rt", "v as rv")
    )
    near = "lk = rk and rt between lt - interval 2 seconds and lt + interval 2 seconds"
    return left.join(right, F.expr(near)).select("lk", "lv", "rv")


def slow_count(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """Return `count`. While the file `slow` exists, the first attempt of partition 0 waits."""
    slow = command["slow"]

    def wait_at_first(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        task = TaskContext.get()
        assert task is not None
        if task.partitionId() == 0 and task.attemptNumber() == 0 and os.path.exists(slow):
            Path(slow).with_suffix(".reached").touch()
            deadline = time.monotonic() + 120
            while os.path.exists(slow) and time.monotonic() < deadline:
                time.sleep(0.02)
        yield from frames

    return count(spark, command).mapInPandas(wait_at_first, "k string, n long, s long")


def rate(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """Return the number of rows of each key. Rows come without end: `rows` a second for `keys`
    keys.
    """
    rows = spark.readStream.format("rate").option("rowsPerSecond", command.get("rows", 100)).load()
    return rows.groupBy((F.col("value") % command.get("keys", 10)).alias("k")).agg(
        F.count("*").alias("n")
    )


QUERIES: dict[str, Callable[[SparkSession, dict[str, Any]], DataFrame]] = {
    "count": count,
    "join": join,
    "slow_count": slow_count,
    "rate": rate,
}


class Job:
    """The session, and the queries by name."""

    def __init__(self, work: Path, home: Path) -> None:
        self.home = home
        self.spark = SparkSession.builder.appName(work.name).getOrCreate()
        self.spark.sparkContext.setLogLevel("WARN")
        self.queries: dict[str, Any] = {}

    def ping(self, command: dict[str, Any]) -> bool:
        return True

    def app(self, command: dict[str, Any]) -> str:
        return str(self.spark.sparkContext.applicationId)

    def run(self, command: dict[str, Any]) -> str:
        """Return the id of a query's run."""
        return str(self.queries[command["name"]].runId)

    def ui(self, command: dict[str, Any]) -> str:
        """Return the URL of Spark's web pages."""
        return str(self.spark.sparkContext.uiWebUrl)

    def start(self, command: dict[str, Any]) -> str:
        """Start or resume the query `name`.

        The command has its kind `query`, its Spark checkpoint format `format`, settings `conf`, and
        the interval `every` of its trigger.
        """
        conf = {
            STATE + "checkpointFormatVersion": str(command["format"]),
            **command.get("conf", {}),
        }
        for key, value in conf.items():
            self.spark.conf.set(key, value)
        name = command["name"]
        frame = QUERIES[command["query"]](self.spark, command)
        writer = (
            frame.writeStream.queryName(name)
            .outputMode(command.get("mode", "update"))
            .option("checkpointLocation", str(self.home / "checkpoints" / name))
            .foreachBatch(self._sink(name))
        )
        to_end = command.get("to_end", False)
        query = (
            writer.trigger(availableNow=True)
            if to_end
            else writer.trigger(processingTime=command.get("every", "20 milliseconds"))
        ).start()
        self.queries[name] = query
        for key in conf:
            self.spark.conf.unset(key)
        return str(query.id)

    def finish(self, command: dict[str, Any]) -> None:
        """Wait for the end of a query that runs `to_end`. Raise its error."""
        self.queries.pop(command["name"]).awaitTermination()

    def stop(self, command: dict[str, Any]) -> None:
        """Stop a query. Raise its error."""
        query = self.queries.pop(command["name"])
        error = query.exception()
        query.stop()
        if error is not None:
            raise error

    def drop(self, command: dict[str, Any]) -> None:
        """Stop a query, if it exists. Ignore its error."""
        query = self.queries.pop(command["name"], None)
        if query is not None:
            query.stop()

    def state(self, command: dict[str, Any]) -> list[list[Any]]:
        """Return the rows of a query's state, key and value columns, by Spark's state reader."""
        rows = self.spark.read.format("statestore").load(
            str(self.home / "checkpoints" / command["name"])
        )
        return [list(row) for row in rows.selectExpr("key.*", "value.*").collect()]

    def failed(self, command: dict[str, Any]) -> str | None:
        """Return the error of a query; None if it has none."""
        error = self.queries[command["name"]].exception()
        return None if error is None else str(error)

    def _sink(self, name: str) -> Callable[[DataFrame, int], None]:
        out = self.home / "out" / name
        out.mkdir(parents=True, exist_ok=True)

        def write(batch: DataFrame, batch_id: int) -> None:
            rows = [list(row) for row in batch.collect()]
            hidden = out / f".{batch_id}"
            hidden.write_text(json.dumps(rows))
            hidden.rename(out / f"{batch_id}.json")

        return write


def main(work: Path, home: Path, parent: int) -> int:
    """Obey commands until `quit`, or until `parent` is gone."""
    job = Job(work, home)
    done = 0
    while not (work / "commands" / "quit").exists() and Path(f"/proc/{parent}").exists():
        path = work / "commands" / f"{done + 1:04d}.json"
        if not path.exists():
            time.sleep(0.02)
            continue
        done += 1
        command = json.loads(path.read_text())
        try:
            answer: dict[str, Any] = {"ok": getattr(job, command["do"])(command)}
        except Exception as error:  # the test reads it
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        hidden = work / "answers" / f".{path.name}"
        hidden.write_text(json.dumps(answer))
        hidden.rename(work / "answers" / path.name)
    for query in job.queries.values():
        query.stop()
    job.spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
