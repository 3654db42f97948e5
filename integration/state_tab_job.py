"""An application with two stateful queries, for `test_state_tab.py`.

It prints a line of JSON about itself once both queries have made batches. At the end of its
standard input it stops them and ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millpond
from integration.processes import wait_until


def main(work: Path, settings: list[str]) -> int:
    """Run until standard input ends."""
    builder = millpond.configure(SparkSession.builder.master("local[2]").appName("state-tab"))
    for setting in settings:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    left, right = (
        rows.withWatermark("timestamp", "1 minute").selectExpr(
            f"value as {side}", f"timestamp as {side}_at"
        )
        for side in ("l", "r")
    )
    near = "l = r and l_at between r_at - interval 1 second and r_at + interval 1 second"
    queries = []
    for name, frame in {
        "counts": rows.groupBy((F.col("value") % 10).alias("k")).count(),
        "pairs": left.join(right, F.expr(near)),
    }.items():
        writer = frame.writeStream.queryName(name).format("noop")
        mode = "append" if name == "pairs" else "update"
        writer = writer.outputMode(mode).trigger(processingTime="50 milliseconds")
        queries.append(writer.option("checkpointLocation", str(work / name)).start())
    wait_until(
        lambda: all((q.lastProgress or {"batchId": 0})["batchId"] >= 4 for q in queries),
        seconds=90,
        what="batches",
    )
    context = spark.sparkContext
    said = {
        "ui": context.uiWebUrl,
        "app": context.applicationId,
        "runs": {str(q.name): str(q.runId) for q in queries},
    }
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    for query in queries:
        query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
