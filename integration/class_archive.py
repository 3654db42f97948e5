"""Makes the archive of Spark's classes that the tests' JVMs map into memory.

A JVM of a test lives for seconds, and half of its time goes into loading 20,000 classes. It
maps an archive of them instead, if there is one that fits its version and its class path. If not,
it loads them as ever, and says nothing. `make test` runs this once.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from integration.jvm import CLASSES, PLAIN


def make(archive: Path) -> None:
    """Run what most tests run in a JVM that writes the classes it used to `archive` as it ends."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    import millpond

    with tempfile.TemporaryDirectory(prefix="millpond-classes-") as name:
        work = Path(name)
        written = archive.with_name(f".{archive.name}.{os.getpid()}")
        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.local.dir", str(work / "local"))
            .config("spark.sql.warehouse.dir", str(work / "warehouse"))
            .config("spark.driver.extraJavaOptions", f"{PLAIN} -XX:ArchiveClassesAtExit={written}")
        )
        spark = millpond.configure(builder).getOrCreate()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        process = gateway.proc
        rows = spark.range(20).select(
            F.timestamp_seconds("id").alias("time"), "id", (F.col("id") % 3).alias("key")
        )
        rows.write.parquet(str(work / "rows"))
        stream = spark.readStream.schema(rows.schema).parquet(str(work / "rows"))
        late = stream.withWatermark("time", "1 second")
        queries = {
            "count": late.groupBy(F.window("time", "5 seconds"), "key").count(),
            "unique": late.dropDuplicates(["key", "time"]),
            "join": late.alias("a").join(
                late.alias("b"), F.expr("a.id = b.id and a.time = b.time"), "left"
            ),
        }
        for query, frame in queries.items():
            running = (
                frame.writeStream.format("memory")
                .queryName(query)
                .outputMode("append")
                .option("checkpointLocation", str(work / query))
                .start()
            )
            running.processAllAvailable()
            running.stop()
            spark.table(query).toPandas()
        spark.stop()
        # Spark's JVM ends when its standard input does, and writes the archive then.
        process.stdin.close()
        process.wait()
        written.chmod(0o600)
        written.replace(archive)


if __name__ == "__main__":
    CLASSES.parent.mkdir(exist_ok=True)
    make(CLASSES)
