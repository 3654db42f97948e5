# SPDX-License-Identifier: Apache-2.0
"""The driver of `bench_standby.py`: a count of many keys.

Run by `integration.cluster.Application`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import bench_balance_job
from integration import cluster_job


def counted(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """Return counts of `keys` keys, `rows` rows a batch: each key once before any comes again."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", command["rows"])
    key = (F.col("value") * 48_271 % command["keys"]).alias("k")  # coprime to the number of keys
    return rows.load().groupBy(key).agg(F.count("*").alias("n"))


class Job(bench_balance_job.Job):
    """Writes the results nowhere, and tells what the executors report, too."""

    def reports(self, command: dict[str, Any]) -> dict[str, dict[str, float]]:
        """Return the metrics of each executor; none with Spark's own stores."""
        jvm: Any = self.spark._jvm
        reports = jvm.org.apache.spark.sql.millpond.observe.DriverReports.latest()
        told = [json.loads(reports.apply(i).text()) for i in range(reports.size())]
        return {r["executor"]: r["metrics"] for r in told if r["executor"] != "driver"}

    def _sink(self, name: str) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            batch.write.format("noop").mode("overwrite").save()

        return write


if __name__ == "__main__":
    cluster_job.QUERIES["counted"] = counted
    cluster_job.Job = Job  # type: ignore[misc]
    sys.exit(cluster_job.main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
