"""Opens the demo's Spark session, on either state store provider."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from integration.jvm import PLAIN

PROVIDERS = ("millpond", "rocksdb")
STATE = "spark.sql.streaming.stateStore."
PARTITIONS = 4


def open_session(*, provider: str, work: Path, streaming: bool = True) -> SparkSession:
    """Return a local session of two threads whose scratch files are all under `work`.

    Args:
        provider: `millpond`, or `rocksdb` for Spark's own store with changelogs.
        work: the run's folder.
        streaming: False for the batch comparison, which keeps no state and takes no provider.
    """
    builder = SparkSession.builder.master("local[2]").appName("millpond-demo")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(work / "scratch"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={work / 'scratch'} {PLAIN}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.adaptive.coalescePartitions.enabled": "true",
        # With these a run of minutes has as many snapshots and collections as hours in production.
        STATE + "maintenanceInterval": "2s",
        STATE + "minDeltasForSnapshot": "5",
        "spark.sql.streaming.minBatchesToRetain": "10",
    }
    if streaming and provider == "millpond":
        import millpond

        builder = millpond.configure(builder, gc_grace_ms=30_000, gc_interval_ms=5_000)
    elif streaming:
        settings[STATE + "providerClass"] = (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        )
        settings[STATE + "rocksdb.changelogCheckpointing.enabled"] = "true"
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark
