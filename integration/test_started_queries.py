"""What the driver knows of a query that starts, and what it keeps of one that has ended."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.harness import millponds_own
from integration.jvm import MILLPOND
from integration.processes import wait_until
from integration.streams import settings
from integration.test_history import wait_for

pytestmark = [pytest.mark.spark, millponds_own]
_CONF = {"spark.sql.streaming.stateStore.providerClass": MILLPOND}


def _run(session: SparkSession, checkpoint: Path) -> StreamingQuery:
    """Run a query over all present input."""
    numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = numbers.dropDuplicates(["value"]).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    with settings(session, _CONF):
        query = writer.start()
    assert query.awaitTermination(60)
    return query


def test_the_session_of_a_query_goes_with_it(spark: SparkSession, tmp_path: Path) -> None:
    """Each start of a query copies the session. A driver that started queries again and again kept
    all the copies.
    """
    jvm: Any = spark._jvm
    # threads that serve all queries keep the copy of the one that began them
    _run(spark, tmp_path)
    own_session = jvm.org.apache.spark.sql.millpond.testing.OwnSession
    sessions = [own_session.of(_run(spark, tmp_path)._jsq) for _ in range(5)]

    def gone() -> bool:
        gc.collect()  # what Python has, py4j keeps
        jvm.java.lang.System.gc()
        return all(session.refersTo(None) for session in sessions)

    wait_until(gone, seconds=30, what="the end of all copies")


def test_a_query_that_a_batch_starts_in_its_own_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    def sink(batch: DataFrame, _: int) -> None:
        _run(batch.sparkSession, tmp_path / "inner")

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = numbers.writeStream.option("checkpointLocation", str(tmp_path / "outer"))
    assert writer.trigger(availableNow=True).foreachBatch(sink).start().awaitTermination(60)
    (batch,) = wait_for(tmp_path / "inner", [0]).batches
    assert [operator.name for operator in batch.operators] == ["dedupe"]
