"""Millpond's metrics.

`StreamingQueryProgress` must equal that of Spark's RocksDB store. Other tests check the snapshot
lag, and the cost of an exact count.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.cases import CLICKS, EVENTS
from integration.harness import Harness, Schema, Store, short_conf
from integration.jvm import MILLPOND, ROCKSDB
from integration.processes import wait_until
from integration.store_cases import open_provider
from integration.streams import Input, Run, finish, settings, start
from integration.test_readers import counts

CLEANUP = "spark.sql.streaming.statefulOperator.incrementalCleanupFactor"
IDLE = "spark.sql.streaming.noDataProgressEventInterval"
PLAIN = Schema("k string, n bigint", "v string")


@pytest.mark.deep
def test_progress_equals_that_of_spark_with_incremental_cleanup(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark removes rows between puts. Output and counts of rows are equal, batch by batch."""
    source = Input(tmp_path / "input", EVENTS)
    for rows in CLICKS:
        source.add(rows)
    runs, progress = {}, {}
    for provider in (MILLPOND, ROCKSDB):
        run = Run(tmp_path / provider.rsplit(".", 1)[1])
        conf = {**short_conf({"providerClass": provider}), CLEANUP: "2"}
        query = start(spark, counts([source.stream(spark)]), run, output_mode="append", conf=conf)
        finish(query, run)
        runs[provider], progress[provider] = run, query.lastProgress
    assert runs[MILLPOND].rows == runs[ROCKSDB].rows and any(runs[MILLPOND].rows.values())
    assert runs[MILLPOND].state == runs[ROCKSDB].state
    metrics = [op for ops in runs[MILLPOND].state.values() for op in ops]
    for name in ("numRowsTotal", "numRowsUpdated", "numRowsRemoved", "numRowsDroppedByWatermark"):
        assert any(op[name] > 0 for op in metrics), name
    last = progress[MILLPOND]
    assert last is not None
    custom = last["stateOperators"][0]["customMetrics"]
    version = last["batchId"] + 1
    for partition in range(2):
        # A partition without rows reports too.
        assert 0 <= custom[f"SnapshotLastUploaded.partition_{partition}_default"] < version
    assert custom["millpondChangelogBytes"] > 0 and custom["millpondMemoryBytes"] > 0
    assert last["stateOperators"][0]["memoryUsedBytes"] == custom["millpondMemoryBytes"]


def test_what_is_there_stays_while_the_query_is_idle(spark: SparkSession, tmp_path: Path) -> None:
    """The progress of a trigger without a batch said that there were no bytes in memory."""
    source = Input(tmp_path / "input", EVENTS)
    source.add(CLICKS[0])
    with settings(spark, {**short_conf({"providerClass": MILLPOND}), IDLE: "100"}):
        writer = source.stream(spark).groupBy("user").count().writeStream.outputMode("update")
        query = writer.format("noop").option("checkpointLocation", str(tmp_path / "q")).start()
    try:
        wait_until(
            lambda: (
                bool(query.recentProgress)
                and "addBatch" not in query.recentProgress[-1]["durationMs"]
            ),
            seconds=120,
            what="the progress of a trigger without a batch",
        )
        (operator,) = query.recentProgress[-1]["stateOperators"]
    finally:
        query.stop()
    assert operator["memoryUsedBytes"] > 0
    if spark.version >= "4.3":
        assert operator["customMetrics"]["millpondMemoryBytes"] == operator["memoryUsedBytes"]


def test_the_instance_metric_names_the_newest_snapshot(harness: Harness, tmp_path: Path) -> None:
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    newest = []
    for version in range(6):
        store = provider.store(version)
        store.put(["a", version], ["v"])
        store.commit()
        (value,) = store.metrics()["instance"].values()
        newest.append(value)
        if version in (2, 4):
            provider.snapshot()
    # A snapshot is of the newest version that Spark proved committed. That is one behind.
    assert newest == [0, 0, 0, 2, 2, 4]
    provider.close()


@pytest.mark.parametrize("exact", [True, False])
def test_an_exact_count_costs_a_look_up_for_each_key_not_in_memory(
    harness: Harness, tmp_path: Path, exact: bool
) -> None:
    conf = {
        "millpond.numKeys.exact": exact,
        "millpond.memory.budget": "1m",
        "millpond.restore.warmUp": False,
    }
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=conf)
    store = provider.store(0)
    store.put_many([(["k", i], ["v"]) for i in range(2000)])
    store.commit()
    provider.store(1).abort()
    provider.snapshot()
    provider.close()
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=conf)

    def overwrite(store: Store) -> None:
        store.put_many([(["k", i], ["w"]) for i in range(1000, 3000)])
        store.remove(["k", 0])
        store.remove(["none", 0])

    # Else what helps reads, once it is made, answers for those that the disk lacks.
    harness.hold("lookup.step")
    store = provider.store(1)
    overwrite(store)
    assert store.commit().version == 2
    metrics = store.metrics()
    harness.let_go()
    assert metrics["custom"]["millpondDiskReads"] == (2002 if exact else 0)
    assert metrics["keys"] == 2999 if exact else 2000 <= metrics["keys"] <= 5000
    provider.close()
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=conf)
    rows = {k[1]: v[0] for k, v in provider.read_store(2).scan()}
    assert rows == {i: "v" if i < 1000 else "w" for i in range(1, 3000)}
    provider.close()
