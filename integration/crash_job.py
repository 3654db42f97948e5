"""The job that `test_crash` kills: an aggregation and a join over parquet files.

`python -m integration.crash_job <work dir> <Spark checkpoint format> <provider class>` runs it. It
prints `jvm <pid>`, then `batch <query> <id>` after each batch. It writes the results by batch id.
It ends with exit code 0 at the end of the input. The setting `spark.test.checkpoints` puts
the Spark checkpoints elsewhere than into the work directory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond
from integration.jvm import LIGHT_DRIVER, MILLPOND


def session(work: Path, checkpoint_format: str, provider_class: str) -> SparkSession:
    """The session of a job that is killed. MILLPOND_CRASH_JOB has more of its settings. It prints
    `jvm <pid>`.
    """
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", LIGHT_DRIVER)
        .config("spark.local.dir", str(work / "local"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "100ms")
        .config("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
        .config("spark.sql.streaming.stateStore.checkpointFormatVersion", checkpoint_format)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    )
    if provider_class == MILLPOND:
        builder = millpond.configure(builder, {"gc.graceMs": 3000, "gc.intervalMs": 0})
        for name, value in json.loads(os.environ.get("MILLPOND_CRASH_JOB", "{}")).items():
            builder = builder.config(name, value)
    else:
        builder = builder.config("spark.sql.streaming.stateStore.providerClass", provider_class)
    spark = builder.config("spark.sql.streaming.minBatchesToRetain", "3").getOrCreate()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.sparkContext.setLogLevel("ERROR")
    print(f"jvm {gateway.proc.pid}", flush=True)
    return spark


def sink(work: Path, query: str) -> Any:
    """A function for `foreachBatch`. It writes the rows of each batch to `<work>/out-<query>`."""
    out = work / f"out-{query}"
    out.mkdir(exist_ok=True)

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = [list(row) for row in batch.collect()]
        # A batch runs again after a kill, and must write the same rows. This sink is idempotent: it
        # replaces a batch by its id.
        part = out / f".{batch_id}"
        part.write_text(json.dumps(rows))
        part.rename(out / f"{batch_id}.json")
        print(f"batch {query} {batch_id}", flush=True)

    return write


def main(argv: list[str]) -> int:
    """Run both queries to the end of their input."""
    work, checkpoint_format, provider_class = Path(argv[0]), argv[1], argv[2]
    spark = session(work, checkpoint_format, provider_class)
    checkpoints = spark.conf.get("spark.test.checkpoints", str(work))

    def read(name: str) -> DataFrame:
        return (
            spark.readStream.schema("k string, ts timestamp, v long")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(work / name))
        )

    count = read("left").groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    left = (
        read("left").withWatermark("ts", "10 seconds").selectExpr("k as lk", "ts as lt", "v as lv")
    )
    right = (
        read("right").withWatermark("ts", "10 seconds").selectExpr("k as rk", "ts as rt", "v as rv")
    )
    joined = left.join(
        right, F.expr("lk = rk and rt between lt - interval 2 seconds and lt + interval 2 seconds")
    )
    started = [
        frame.writeStream.outputMode(mode)
        .option("checkpointLocation", f"{checkpoints}/checkpoint-{name}")
        .trigger(availableNow=True)
        .foreachBatch(sink(work, name))
        .start()
        for name, frame, mode in (
            ("count", count, "update"),
            ("join", joined.select("lk", "lv", "rv"), "append"),
        )
    ]
    for query in started:
        query.awaitTermination()
    spark.stop()
    return 0


def run(main: Callable[[list[str]], int]) -> NoReturn:
    """Run `main` with the arguments of this process, and end the process with its exit code."""
    try:
        code = main(sys.argv[1:])
    except Exception as error:  # the JVM was killed, or a query failed: the parent reads it
        print(f"failed {type(error).__name__}: {error}", flush=True)
        code = 3
    sys.stdout.flush()
    os._exit(code)  # an orderly exit would talk to a JVM that may be gone


if __name__ == "__main__":
    run(main)
