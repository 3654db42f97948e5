"""The job on YARN: it counts by key. Its sink replaces a batch by its number.

`spark-submit job.py <input> <checkpoint> <output directory>`. All settings come from spark-submit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def main(argv: list[str]) -> None:
    """Run the query to the end of its input."""
    source, checkpoint, out = argv[0], argv[1], Path(argv[2])
    spark = SparkSession.builder.getOrCreate()

    def sink(batch: DataFrame, number: int) -> None:
        rows = sorted([list(row) for row in batch.collect()])
        part = out / f".{number}"
        part.write_text(json.dumps(rows))
        part.rename(out / f"{number}.json")

    rows = (
        spark.readStream.schema("k string, ts timestamp, v long")
        .option("maxFilesPerTrigger", 1)
        .parquet(source)
    )
    counts = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    writer = counts.writeStream.outputMode("update").foreachBatch(sink)
    writer = writer.option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
