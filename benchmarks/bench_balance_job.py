# SPDX-License-Identifier: Apache-2.0
"""The driver of `bench_balance.py`: a count by key whose tasks wait, a batch each half second.

Run by `integration.cluster.Application`. A row costs its task a wait, as a call to a service would:
so executors that share the cores of one machine show what executors with their own would.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration import cluster_job


def waiting(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """Return counts by key; each task waits `wait_ms` in all."""
    wait_s = command["wait_ms"] / 1000
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2000).load()

    def wait(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        time.sleep(wait_s)
        yield from frames

    counts = rows.groupBy((F.col("value") % 997).alias("k")).agg(F.count("*").alias("n"))
    return counts.mapInPandas(wait, "k long, n long")


class Job(cluster_job.Job):
    """Tells the last batches, too."""

    def progress(self, command: dict[str, Any]) -> list[tuple[int, int]]:
        """Return number and time in ms of the last batches of a query."""
        return [
            (p["batchId"], p["durationMs"]["triggerExecution"])
            for p in self.queries[command["name"]].recentProgress
            if p["durationMs"].get("addBatch")
        ]


if __name__ == "__main__":
    cluster_job.QUERIES["waiting"] = waiting
    cluster_job.Job = Job  # type: ignore[misc]
    sys.exit(cluster_job.main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
