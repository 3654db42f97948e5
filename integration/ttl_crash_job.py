"""The job that `test_crash` kills while rows end: a count of keys whose time to live is a second.

`python -m integration.ttl_crash_job <work dir> <Spark checkpoint format> <provider class>` runs it.
Its output and its end are those of `crash_job`.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import functions as F

from integration.crash_job import run, session, sink

STATE = "spark.sql.streaming.stateStore."


def main(argv: list[str]) -> int:
    """Run the query to the end of its input."""
    work, checkpoint_format, provider_class = Path(argv[0]), argv[1], argv[2]
    spark = session(work, checkpoint_format, provider_class)
    spark.conf.set(STATE + "millpond.ttl", "1s")
    # the model needs the time of each batch
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "100")
    rows = (
        spark.readStream.schema("k string, ts timestamp, v long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(work / "left"))
    )
    count = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    write = sink(work, "count")
    query = (
        count.writeStream.outputMode("update")
        .option("checkpointLocation", str(work / "checkpoint-count"))
        .trigger(availableNow=True)
        .foreachBatch(lambda batch, number: write(batch.orderBy("k"), number))
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    run(main)
