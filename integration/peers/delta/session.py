"""Sessions with Delta Lake and Millpond, and the two ways to write to a Delta table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millpond
from integration.jvm import LIGHT, compile_harness
from integration.peers.delta import jars


def session(work: Path, conf: Mapping[str, str]) -> SparkSession:
    """Start a session with files below `work`, and settings by their full names."""
    path = os.pathsep.join(map(str, [compile_harness(), *jars.jars()]))
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "900m")
        .config("spark.driver.extraJavaOptions", LIGHT)
        .config("spark.driver.extraClassPath", path)
        .config("spark.local.dir", str(work / "local"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "100ms")
        .config("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
    )
    builder = millpond.configure(builder)  # it keeps Delta's extension
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def table(path: Path) -> Callable[[DataStreamWriter], DataStreamWriter]:
    """Return a function that makes a writer write to a Delta table."""
    return lambda writer: writer.format("delta").option("path", str(path))


def transactions(path: Path, app: str) -> Callable[[DataStreamWriter], DataStreamWriter]:
    """Return the same with foreachBatch, where the function says who writes which version."""

    def write(batch: DataFrame, number: int) -> None:
        batch.persist().count()  # Delta does not read a batch that it leaves out
        out = batch.write.format("delta").mode("append")
        out.option("txnAppId", app).option("txnVersion", number).save(str(path))
        batch.unpersist()

    return lambda writer: writer.foreachBatch(write)
