"""A query whose state is in Spark's own store.

Millpond refuses it if the user asks for Millpond. Otherwise Millpond leaves it alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.jvm import MILLPOND, ROCKSDB

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def start(spark: SparkSession, folder: Path, provider: str) -> StreamingQuery:
    """Start a count over the files of `folder`, one per batch. The session names `provider`."""
    spark.conf.set(PROVIDER, provider)
    try:
        rows = (
            spark.readStream.schema("k string")
            .option("maxFilesPerTrigger", 1)
            .json(str(folder / "input"))
        )
        counts = rows.groupBy("k").count().writeStream.format("noop").outputMode("update")
        return counts.option("checkpointLocation", str(folder / "checkpoint")).start()
    finally:
        spark.conf.unset(PROVIDER)


def add_input(folder: Path, name: str) -> None:
    (folder / "input").mkdir(parents=True, exist_ok=True)
    (folder / "input" / f".{name}").write_text('{"k": "a"}\n')
    (folder / "input" / f".{name}").rename(folder / "input" / name)


def test_refused_when_millpond_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    add_input(tmp_path, "1.json")
    query = start(spark, tmp_path, ROCKSDB)
    query.processAllAvailable()
    query.stop()
    add_input(tmp_path, "2.json")
    query = start(spark, tmp_path, MILLPOND)
    with pytest.raises(
        StreamingQueryException, match=r"MILLPOND_FOREIGN_CHECKPOINT.*RocksDBStateStoreProvider"
    ):
        query.processAllAvailable()
    pasted = f"millpond adopt '{tmp_path}/checkpoint' '{tmp_path}/checkpoint-millpond'"
    assert pasted in str(query.exception())
    kept = f"set spark.sql.streaming.stateStore.providerClass to {ROCKSDB}"
    assert kept in str(query.exception())


def test_a_query_of_another_store_goes_on_beside_millpond(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_input(tmp_path / "rocksdb", "1.json")
    add_input(tmp_path / "millpond", "1.json")
    reference = start(spark, tmp_path / "rocksdb", ROCKSDB)
    reference.processAllAvailable()
    reference.stop()
    reference = start(spark, tmp_path / "rocksdb", ROCKSDB)
    query = start(spark, tmp_path / "millpond", MILLPOND)
    spark.conf.set(PROVIDER, MILLPOND)  # the running query must not heed the session's new setting
    try:
        for name in ("2.json", "3.json"):
            add_input(tmp_path / "rocksdb", name)
            add_input(tmp_path / "millpond", name)
            reference.processAllAvailable()
            query.processAllAvailable()
    finally:
        spark.conf.unset(PROVIDER)
        reference.stop()
        query.stop()
    assert reference.exception() is None and query.exception() is None
