"""Copies, moves and unfinished forks of a Spark checkpoint whose state is elsewhere.

Only one query at a time may write to that state.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import millpond
from integration.harness import millponds_own
from integration.jvm import MILLPOND
from integration.streams import settings
from millpond import savepoint
from millpond.format import layout
from millpond.operations.take_over import take_over

pytestmark = millponds_own

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
URI = "spark.sql.streaming.stateStore.millpond.storage.uri"


def start(spark: SparkSession, folder: Path, checkpoint: str) -> StreamingQuery:
    """Start a count over all files of `folder`, one per batch. Its state is in `folder/states`."""
    with settings(spark, {PROVIDER: MILLPOND, URI: f"file:{folder}/states"}):
        rows = (
            spark.readStream.schema("k string")
            .option("maxFilesPerTrigger", 1)
            .json(str(folder / "input"))
        )
        counts = (
            rows.groupBy("k")
            .count()
            .writeStream.format("noop")
            .outputMode("update")
            .trigger(availableNow=True)
        )
        return counts.option("checkpointLocation", str(folder / checkpoint)).start()


def add_input(folder: Path, name: str) -> None:
    (folder / "input").mkdir(parents=True, exist_ok=True)
    (folder / "input" / f".{name}").write_text('{"k": "a"}\n')
    (folder / "input" / f".{name}").rename(folder / "input" / name)


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def count(checkpoint: Path) -> int:
    (row,) = millpond.read_state(checkpoint).to_pylist()
    return int(row["value"]["count"])


def test_a_copy_is_refused_and_what_was_moved_is_taken_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("1.json", "2.json"):
        add_input(tmp_path, name)
    start(spark, tmp_path, "ckpt").awaitTermination()
    # the driver replaces files of the history after the query has ended
    without = shutil.ignore_patterns("history")
    shutil.copytree(tmp_path / "ckpt", tmp_path / "copy", ignore=without)
    before = tree(tmp_path / "states")
    add_input(tmp_path, "3.json")
    with pytest.raises(
        StreamingQueryException, match=r"MILLPOND_STATE_OWNED.*millpond fork.*take-over"
    ):
        start(spark, tmp_path, "copy").awaitTermination()
    assert tree(tmp_path / "states") == before
    start(spark, tmp_path, "ckpt").awaitTermination()
    savepoint.fork(tmp_path / "ckpt", tmp_path / "fork", storage_uri=f"file:{tmp_path}/states")
    (tmp_path / "ckpt").rename(tmp_path / "moved")
    add_input(tmp_path, "4.json")
    with pytest.raises(StreamingQueryException, match="MILLPOND_STATE_OWNED"):
        start(spark, tmp_path, "moved").awaitTermination()
    take_over(tmp_path / "moved")
    for checkpoint in ("moved", "fork"):
        start(spark, tmp_path, checkpoint).awaitTermination()
        assert count(tmp_path / checkpoint) == 4


def test_what_a_killed_fork_left_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """On object storage. Here its claim says so, too."""
    add_input(tmp_path, "1.json")
    claim = tmp_path / "ckpt" / layout.CLAIM_KEY
    claim.parent.mkdir(parents=True)
    claim.write_text("somebody")
    match = "MILLPOND_CHECKPOINT_UNFINISHED.*delete all that is below"
    with pytest.raises(StreamingQueryException, match=match):
        start(spark, tmp_path, "ckpt").awaitTermination()
    assert not (tmp_path / "states").exists()
    claim.unlink()
    start(spark, tmp_path, "ckpt").awaitTermination()
    assert count(tmp_path / "ckpt") == 1
