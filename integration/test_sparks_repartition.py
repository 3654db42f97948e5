"""Spark's own repartition of a Spark checkpoint, which refuses Millpond's stores half way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import millpond
from integration.jvm import IS_SPARK_4_2, MILLPOND
from integration.streams import count_numbers, settings
from millpond.config import PREFIX
from millpond.operations.inspect import verify
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import open_storage

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(IS_SPARK_4_2, reason="Spark 4.3 has the repartition"),
]
_PARTITIONS = "spark.sql.shuffle.partitions"
_ON_RESTART = f"{PREFIX}rescale.onRestart"


def _run(spark: SparkSession, checkpoint: Path, partitions: int, **more: str) -> None:
    conf = {_PARTITIONS: str(partitions), **more}
    query = count_numbers(spark, checkpoint, available_now=True, conf=conf)
    query.awaitTermination()


def _repartition(spark: SparkSession, checkpoint: Path, partitions: int) -> None:
    manager: Any = spark._streamingCheckpointManager
    with pytest.raises(Exception, match="UNSUPPORTED_PROVIDER"):
        manager.repartition(str(checkpoint), partitions)


def _check(spark: SparkSession, checkpoint: Path, batches: int, partitions: int) -> None:
    """Check the counts after so many batches of a hundred numbers."""
    expected: dict[int, int] = {}
    for number in range(100 * batches):
        expected[number % 7] = expected.get(number % 7, 0) + 1
    with settings(spark, {"spark.sql.streaming.stateStore.providerClass": MILLPOND}):
        state = spark.read.format("statestore").load(str(checkpoint))
        rows = state.select("key.key", "value.count").collect()
    assert {row[0]: row[1] for row in rows} == expected and len(rows) == len(expected)
    storage = open_storage(str(checkpoint))
    assert read_spark_metadata(storage, batches=(), operators=()).partitions == partitions
    assert verify(storage, "it").problems == []


@pytest.mark.parametrize("partitions", [8, 3, 4])
def test_a_rescale_takes_away_what_it_leaves(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    checkpoint = tmp_path / "checkpoint"
    _run(spark, checkpoint, 4)
    _repartition(spark, checkpoint, 8)
    with pytest.raises(StreamingQueryException, match="UNFINISHED_REPARTITION"):
        _run(spark, checkpoint, 4)
    (problem,) = verify(open_storage(str(checkpoint)), "it").problems
    assert problem.kind == "RESCALE_UNFINISHED" and "Spark's own repartition" in problem.message
    assert millpond.rescale(checkpoint, partitions).undone
    _check(spark, checkpoint, 1, partitions)
    _run(spark, checkpoint, partitions)
    _check(spark, checkpoint, 2, partitions)


@pytest.mark.parametrize("partitions", [8, 4])
def test_a_start_takes_it_away(spark: SparkSession, tmp_path: Path, partitions: int) -> None:
    checkpoint = tmp_path / "checkpoint"
    _run(spark, checkpoint, 4)
    _repartition(spark, checkpoint, 8)
    _run(spark, checkpoint, partitions, **{_ON_RESTART: "true"})
    _check(spark, checkpoint, 2, partitions)
