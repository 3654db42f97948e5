"""Spark's own sinks after a rescale, a bootstrap, a fork and a restore.

docs/guides/sinks.md describes it. In these queries each batch is one file of input. Every third
entry in the log of a file sink is a compact one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import millpond
from integration.depth import quick_first
from integration.sink_queries import (
    PARTITIONS,
    Distinct,
    Transactions,
    distinct,
    file_sink,
    rows_in,
)
from integration.streams import InjectedFailure, settings
from millpond import savepoint
from millpond.errors import ErrorKind, MillpondError
from millpond.query.index import read_index
from millpond.storage import open_storage
from tests.failing_storage import FailingStorage, Killed

pytestmark = pytest.mark.spark

_ON_RESTART = "spark.sql.streaming.stateStore.millpond.rescale.onRestart"


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Distinct:
    made = distinct(spark, tmp_path)
    made.add(2)
    return made


def _refused(call: Any) -> MillpondError:
    with pytest.raises(MillpondError) as caught:
        call()
    return caught.value


# ---- the file sink


@pytest.mark.parametrize("format", quick_first(["parquet", "json", "csv", "orc", "text"]))
def test_a_file_sink_is_whole_after_rescales(query: Distinct, tmp_path: Path, format: str) -> None:
    """The first rescale takes the number of a compact entry. The rescale at the restart does not.

    Both find the sink by the record that the start of the query wrote.
    """
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    sink = file_sink(out, format)
    query.run(checkpoint, sink)
    report = millpond.rescale(checkpoint, 4)
    assert (report.batch, report.file_sink, report.warnings) == (2, f"file:{out}", ())
    assert rows_in(query.spark, out, format) == sorted(query.keys)
    query.add()
    query.run(checkpoint, sink)
    query.add(4)
    query.run(checkpoint, sink, **{_ON_RESTART: "true", PARTITIONS: "8"})
    assert (checkpoint / "offsets/4").read_text().count('"spark.sql.shuffle.partitions":"8"') == 1
    assert (out / "_spark_metadata/4").read_bytes() == b"v1" and (
        out / "_spark_metadata/8.compact"
    ).exists()
    assert rows_in(query.spark, out, format) == sorted(query.keys)


@pytest.mark.deep
def test_a_sink_that_nobody_tells_of_breaks(query: Distinct, tmp_path: Path) -> None:
    """A rescale that does not know the sink breaks it. The report warns of that."""
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    query.run(checkpoint, file_sink(out))
    (checkpoint / "millpond/sink.json").unlink()
    report = millpond.rescale(checkpoint, 4)
    assert (
        "--file-sink DIR" in report.warnings[0]
        and "_spark_metadata/2 doesn't exist" in report.warnings[0]
    )
    query.add(4)
    with pytest.raises(StreamingQueryException, match="BATCH_METADATA_NOT_FOUND"):
        query.run(checkpoint, file_sink(out))


@pytest.mark.deep
def test_an_undone_rescale_takes_its_entry_back(
    query: Distinct, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the entry, Spark would take the batch of that number for written, and lose its rows."""
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    query.run(checkpoint, file_sink(out))
    killing = FailingStorage(str(checkpoint), kills=True, stop_before="commits/2", fsync=True)

    from millpond.operations.rescale import rescale, undo

    with pytest.raises(Killed):
        rescale(killing, str(checkpoint), 4)
    assert (out / "_spark_metadata/2.compact").exists()
    with pytest.raises(StreamingQueryException, match=r"(?i)repartition"):
        query.run(checkpoint, file_sink(out))
    assert undo(open_storage(str(checkpoint)), str(checkpoint))
    assert sorted(p.name for p in (out / "_spark_metadata").glob("[0-9]*")) == ["0", "1"]
    query.add(3)
    query.run(checkpoint, file_sink(out))
    assert rows_in(query.spark, out) == sorted(query.keys)


@pytest.mark.deep
def test_a_fork_and_a_restore_begin_a_log_of_their_own(query: Distinct, tmp_path: Path) -> None:
    """The new log has all earlier numbers.

    Millpond refuses the first query's sink, unless the restore is a move.
    """
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    query.add(3)
    query.run(checkpoint, file_sink(out))
    before = sorted(query.keys)
    savepoint.create(checkpoint, tmp_path / "saved")
    unknown = _refused(lambda: savepoint.restore(tmp_path / "saved", tmp_path / "restored"))
    assert unknown.kind is ErrorKind.FILE_SINK_UNKNOWN and f"file:{out}" in str(unknown)
    shared = _refused(lambda: savepoint.fork(checkpoint, tmp_path / "forked", file_sink=out))
    assert shared.kind is ErrorKind.FILE_SINK_MISMATCH and "--keep-query-id" in shared.hint
    assert not (tmp_path / "restored").exists() and not (tmp_path / "forked").exists()

    forked = savepoint.fork(checkpoint, tmp_path / "forked", file_sink=tmp_path / "forked-out")
    assert (forked.batch, forked.file_sink) == (4, str(tmp_path / "forked-out"))
    savepoint.restore(
        tmp_path / "saved", tmp_path / "restored", partitions=3, file_sink=tmp_path / "restored-out"
    )
    savepoint.restore(tmp_path / "saved", tmp_path / "moved", keep_query_id=True, file_sink=out)
    query.add(5)
    after = sorted(query.keys - set(before))
    for name, directory, rows in (
        ("forked", "forked-out", after),
        ("restored", "restored-out", after),
    ):
        query.run(tmp_path / name, file_sink(tmp_path / directory))
        assert rows_in(query.spark, tmp_path / directory) == rows
    query.run(tmp_path / "moved", file_sink(out))
    assert rows_in(query.spark, out) == sorted(query.keys)


def test_a_bootstrapped_query_finds_a_log_with_batch_0(query: Distinct, tmp_path: Path) -> None:
    """The bootstrap takes the sink's directory from the job."""
    spark, out, warm = query.spark, tmp_path / "out", tmp_path / "of" / "warm"
    history = spark.createDataFrame([(f"k{n}",) for n in (0, 3)], "key string")

    def job() -> Any:
        return file_sink(out)(query.frame().writeStream)

    with settings(spark, query.conf):
        report = millpond.bootstrap(job, warm, rows=history)
    assert report.file_sink == f"file:{out}" and report.warnings == ()
    query.add(3)
    query.run(warm, file_sink(out))
    with settings(spark, query.conf):
        taken = _refused(
            lambda: millpond.bootstrap(job, tmp_path / "of" / "other", rows=history, dry_run=True)
        )
    assert taken.kind is ErrorKind.FILE_SINK_MISMATCH
    assert (out / "_spark_metadata/5.compact").exists()
    assert rows_in(spark, out) == sorted(query.keys - {"k0", "k3"})


# ---- foreachBatch, memory, console


def test_versions_of_transactions(query: Distinct, tmp_path: Path) -> None:
    """Versions go up, and none comes twice. So the sink leaves no batch out.

    Only a sink that a fork shares leaves batches out.
    """
    checkpoint, table = tmp_path / "checkpoint", Transactions("it")
    query.run(checkpoint, table)
    record = json.loads((checkpoint / "millpond/sink.json").read_text())
    assert record["sink"] == "ForeachBatchSink" and "path" not in record
    assert millpond.rescale(checkpoint, 4).warnings == ()
    query.add()
    query.run(checkpoint, table)
    saved = savepoint.create(checkpoint, tmp_path / "saved").savepoint
    kept = read_index(open_storage(saved), saved).image.sink
    assert kept is not None and kept.kind == "ForeachBatchSink" and not kept.is_file
    before = sorted(query.keys)
    assert sorted(table.rows) == before and table.left_out == [] and table.last == {"it": 3}
    query.add(2)

    moved = savepoint.restore(saved, tmp_path / "moved", keep_query_id=True)
    assert moved.warnings == ()
    query.run(tmp_path / "moved", table)
    assert (
        sorted(table.rows) == sorted(query.keys)
        and table.left_out == []
        and table.last == {"it": 5}
    )
    savepoint.fork(checkpoint, tmp_path / "forked")
    query.run(tmp_path / "forked", table)
    assert table.left_out == [4, 5], "the fork writes as the same application"
    own = Transactions("own")
    savepoint.restore(saved, tmp_path / "restored")
    query.run(tmp_path / "restored", own)
    assert sorted(own.rows) == sorted(query.keys - set(before)) and own.left_out == []


class _Whole(Distinct):
    """Reads all present input in one batch."""

    def frame(self) -> DataFrame:
        read = self.spark.readStream.schema("key string")
        return read.parquet(str(self.input.directory)).dropDuplicates(["key"])


@pytest.mark.deep
def test_a_move_to_before_a_batch_that_was_left_out_loses_nothing(
    query: Distinct, tmp_path: Path
) -> None:
    """The sink saw that batch, and leaves it out. So the batch must have the same rows again."""
    checkpoint, table = tmp_path / "checkpoint", Transactions("it")
    whole = _Whole(query.spark, query.input, query.conf, query.keys)
    whole.run(checkpoint, table)

    def failing(batch: DataFrame, version: int) -> None:
        table.write(batch, version)
        raise InjectedFailure

    whole.add()
    with pytest.raises(StreamingQueryException, match="InjectedFailure"):
        whole.run(checkpoint, lambda writer: writer.foreachBatch(failing))
    whole.add()
    millpond.rescale(checkpoint, 4, skip_uncommitted=True)
    savepoint.fork(checkpoint, tmp_path / "moved", batch=0, keep_query_id=True)
    whole.run(tmp_path / "moved", table)
    assert table.left_out == [1] and sorted(table.rows) == sorted(whole.keys)


@pytest.mark.deep
def test_a_bootstrapped_query_begins_with_version_1(query: Distinct, tmp_path: Path) -> None:
    table = Transactions("it")
    history = query.spark.createDataFrame([("k0",)], "key string")
    with settings(query.spark, query.conf):
        job = lambda: table(query.frame().writeStream)  # noqa: E731
        assert millpond.bootstrap(job, tmp_path / "warm", rows=history).warnings == ()
    query.run(tmp_path / "warm", table)
    assert (
        sorted(table.rows) == sorted(query.keys - {"k0"})
        and table.last == {"it": 2}
        and table.left_out == []
    )


@pytest.mark.deep
def test_the_memory_sink_goes_on_in_complete_mode_only(query: Distinct, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run(at: Path, mode: str) -> list[tuple[str, int]]:
        with settings(query.spark, query.conf):
            counts = (
                query.input.stream(query.spark).groupBy("key").count().writeStream.outputMode(mode)
            )
            writer = (
                counts.format("memory").queryName("in_memory").option("checkpointLocation", str(at))
            )
            writer.trigger(availableNow=True).start().awaitTermination()
        return sorted((row[0], row[1]) for row in query.spark.table("in_memory").collect())

    def expected() -> list[tuple[str, int]]:
        found = (
            query.spark.read.parquet(str(query.input.directory)).groupBy("key").count().collect()
        )
        return sorted((row[0], row[1]) for row in found)

    assert run(checkpoint, "complete") == expected()
    assert millpond.rescale(checkpoint, 4).warnings == ()
    query.add()
    assert run(checkpoint, "complete") == expected()
    savepoint.fork(checkpoint, tmp_path / "forked")
    query.add()
    assert run(tmp_path / "forked", "complete") == expected()
    with pytest.raises(AnalysisException, match="recovering"):
        run(checkpoint, "update")


@pytest.mark.deep
def test_the_console_goes_on_with_the_next_number(query: Distinct, tmp_path: Path) -> None:
    def run() -> list[int]:
        started = query.start(tmp_path / "checkpoint", lambda writer: writer.format("console"))
        started.awaitTermination()
        return [progress["batchId"] for progress in started.recentProgress]

    assert run() == [0, 1]
    assert millpond.rescale(tmp_path / "checkpoint", 4).warnings == ()
    query.add()
    assert run() == [3]
