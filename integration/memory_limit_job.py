"""A query with Millpond's default memory, for `test_memory_limit.py`.

It counts by key, each key with a long text. It ends when its state has the size that is asked for,
and prints a line of JSON: rows of the state, and how often stores went to the disk tier.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millpond

TEXT_CHARACTERS = 1500
ROWS_A_BATCH = 20_000


def _log_to(work: Path) -> str:
    """Return the option of the JVM that lets Millpond's events go to standard error."""
    settings = work / "log4j2.properties"
    settings.write_text(
        "rootLogger.level = warn\nrootLogger.appenderRef.console.ref = console\n"
        "logger.events.name = org.apache.spark.sql.millpond.events\nlogger.events.level = info\n"
        "appender.console.type = Console\nappender.console.name = console\n"
        "appender.console.target = SYSTEM_ERR\n"
        "appender.console.layout.type = PatternLayout\n"
        "appender.console.layout.pattern = %p %c: %m%n\n"
    )
    return f"-Dlog4j2.configurationFile={settings.as_uri()}"


def main(work: Path, batches: int) -> int:
    """Run `batches` micro-batches of new keys."""
    builder = (
        millpond.configure(SparkSession.builder.master("local[2]").appName("memory-limit"))
        .config("spark.driver.memory", "512m")
        # the whole heap is resident from the beginning, as it is after a long run
        .config("spark.driver.extraJavaOptions", f"-Xms512m -XX:+AlwaysPreTouch {_log_to(work)}")
        .config("spark.ui.showConsoleProgress", value=False)
        .config("spark.sql.shuffle.partitions", 4)
        .config("spark.local.dir", str(work / "local"))
    )
    spark = builder.getOrCreate()
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_A_BATCH)
        .option("numPartitions", 2)
        .load()
    )
    text = F.rpad(F.sha2(F.col("value").cast("string"), 512), TEXT_CHARACTERS, "pond")
    seen: list[int] = []
    query = (
        numbers.groupBy("value")
        .agg(F.max(text).alias("text"), F.count("*").alias("n"))
        .writeStream.outputMode("update")
        .foreachBatch(lambda frame, _: seen.append(frame.count()))
        .option("checkpointLocation", str(work / "query"))
        .start()
    )
    while len(seen) < batches:
        if query.awaitTermination(1):
            return 1
    query.stop()
    state = query.recentProgress[-1].stateOperators[0]
    said = {
        "rows": state.numRowsTotal,
        "batches": len(query.recentProgress),
        "disk_reads": sum(
            p.stateOperators[0].customMetrics["millpondDiskReads"] for p in query.recentProgress
        ),
    }
    print(json.dumps(said), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
