"""The driver keeps what Spark says of the last batches in the Spark checkpoint."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from integration.harness import millponds_own
from integration.jvm import MILLPOND
from integration.processes import wait_until
from integration.shapes import named
from integration.streams import Input, Run, finish, settings, start
from millpond import checkpoint
from millpond.cli.main import main
from millpond.format.layout import HISTORY_PREFIX

pytestmark = [pytest.mark.spark, millponds_own]
_STATE = "spark.sql.streaming.stateStore."
_HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


class Query:
    """A query in a folder of its own. Its batches are run a few at a time."""

    def __init__(self, work: Path) -> None:
        self.case = named("agg-update-odd-keys")
        ((schema, self.batches),) = self.case.inputs
        self.source = Input(work / "input", schema)
        self.done = Run(work / "run")

    def run(self, spark: SparkSession, batches: range, **conf: str) -> Path:
        """Run these batches, and stop. Return the Spark checkpoint."""
        for number in batches:
            self.source.add(self.batches[number])
        given = {f"{_STATE}providerClass": MILLPOND, **self.case.conf, **conf}
        frame = self.case.build([self.source.stream(spark)])
        finish(start(spark, frame, self.done, output_mode=self.case.mode, conf=given), self.done)
        return self.done.checkpoint


def wait_for(place: Path, batches: Sequence[int]) -> checkpoint.History:
    """Return the history once it has these batches: Spark tells its listeners late."""
    found: list[checkpoint.History] = []

    def told() -> bool:
        found[:] = [checkpoint.history(place)]
        return [batch.batch for batch in found[0].batches] == list(batches)

    wait_until(told, seconds=20, what=f"a history of the batches {list(batches)}")
    return found[0]


def test_each_batch_is_kept_over_restarts(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Query(tmp_path)
    place = query.run(spark, range(2))
    first = wait_for(place, [0, 1])
    assert first.problems == ()
    query.run(spark, range(2, 4))
    found = wait_for(place, [0, 1, 2, 3])
    assert found.batches[:2] == first.batches
    assert len({batch.run_id for batch in found.batches}) == 2
    shown = checkpoint.show(place)
    keys = sum(store.keys or 0 for operator in shown.operators for store in operator.stores)
    for batch in found.batches:
        (operator,) = batch.operators
        assert operator.name == "stateStoreSave" and operator.rows > 0
        assert operator.commit_ms >= 0 and operator.metrics["millpondChangelogBytes"] > 0
        assert batch.duration_ms >= batch.phases["addBatch"]
    assert [b.input_rows for b in found.batches] == [len(rows) for rows in query.batches[:4]]
    assert found.batches[-1].operators[0].rows == keys
    assert main(["checkpoint", "history", str(place), "--json", "--last", "1"]) == 0
    (last,) = json.loads(capsys.readouterr().out)["batches"]
    assert last["batch"] == 3 and last["operators"][0]["rows"] == keys
    assert main(["checkpoint", "history", str(place)]) == 0
    assert f" {keys:,} " in capsys.readouterr().out.splitlines()[-1]


def second_batch_beside(
    spark: SparkSession, tmp_path: Path, others: Callable[[str], Iterable[str]]
) -> tuple[str, list[str]]:
    """Run one batch, copy its file to these names, which the name of the file gives, and run the
    second batch. Return the file's name, and those that are left then: as many as are kept.
    """
    query = Query(tmp_path)
    place = query.run(spark, range(1))
    wait_for(place, [0])
    folder = place / HISTORY_PREFIX
    (mine,) = folder.glob("*.jsonl.gz")
    for name in others(mine.name):
        shutil.copy(mine, folder / name)
    query.run(spark, range(1, 2))
    wait_until(lambda: checkpoint.history(place).batches[-1].batch == 1, seconds=20, what="batch 1")
    wait_until(lambda: len(list(folder.glob("*.jsonl.gz"))) == 20, seconds=20, what="twenty files")
    return mine.name, sorted(path.name for path in folder.glob("*.jsonl.gz"))


def test_the_earliest_files_go(spark: SparkSession, tmp_path: Path) -> None:
    mine, names = second_batch_beside(
        spark, tmp_path, lambda name: [f"{number:013d}{name[13:]}" for number in range(1, 40)]
    )
    assert names[-2] == mine and int(names[0][:13]) == 22


def test_parts_with_a_digit_more_are_no_earlier_ones(spark: SparkSession, tmp_path: Path) -> None:
    """The names sorted, and the newest part was the first to go."""
    _, names = second_batch_beside(
        spark,
        tmp_path,
        lambda name: [name.replace("-000000-", f"-{part}-") for part in range(999_981, 1_000_001)],
    )
    assert len([name for name in names if "-1000000-" in name]) == 1
    assert not [name for name in names if "-999981-" in name]


def test_a_driver_whose_clock_is_behind_keeps_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """It took its own files for the earliest, and deleted them as soon as they were written."""
    ahead = 10**9
    mine, names = second_batch_beside(
        spark,
        tmp_path,
        lambda name: [f"{int(name[:13]) + ahead + number}{name[13:]}" for number in range(20)],
    )
    began = int(mine[:13]) + ahead
    assert [int(name[:13]) - began for name in names] == [*range(1, 21)]


@pytest.mark.deep
def test_a_full_file_stays_when_the_next_one_begins(spark: SparkSession, tmp_path: Path) -> None:
    """A file is full at a megabyte: of this name, at the third batch. Each batch is written by
    itself. Spark tells nobody of a batch if the stop interrupts it after its commit, but a batch
    that another one follows has been told.
    """
    place = tmp_path / "query"
    with settings(spark, {f"{_STATE}providerClass": MILLPOND, "spark.sql.shuffle.partitions": "1"}):
        query = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 3)
            .load()
            .groupBy("value")
            .count()
            .writeStream.format("noop")
            .outputMode("update")
            .queryName("a long name " * 33_000)
            .option("checkpointLocation", str(place))
            .trigger(processingTime="1500 milliseconds")
            .start()
        )
    try:
        wait_until(lambda: (place / "commits" / "8").exists(), seconds=60, what="batch 8")
    finally:
        query.stop()
    wait_until(lambda: checkpoint.history(place).batches[-1].batch >= 7, seconds=20, what="batch 7")
    kept = [batch.batch for batch in checkpoint.history(place).batches]
    assert kept == list(range(len(kept)))
    assert len(list((place / HISTORY_PREFIX).glob("*.jsonl.gz"))) == (len(kept) + 2) // 3


def test_none_where_none_is_wanted(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Query(tmp_path)
    place = query.run(spark, range(1), **{f"{_STATE}millpond.history.batches": "0"})
    other = Query(tmp_path / "other").run(spark, range(1), **{f"{_STATE}providerClass": _HDFS})
    # the batch of a later query is told after all that was before
    wait_for(Query(tmp_path / "later").run(spark, range(1)), [0])
    assert not (place / HISTORY_PREFIX).exists()
    assert not (other / "millpond").exists()
    assert main(["checkpoint", "history", str(place)]) == 0
    assert "no batch is kept" in capsys.readouterr().err


def test_a_query_goes_on_where_no_history_can_be_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(tmp_path)
    place = query.run(spark, range(1), **{f"{_STATE}millpond.history.batches": "0"})
    (place / HISTORY_PREFIX.rstrip("/")).write_text("in the way")
    query.run(spark, range(1, 3))
    (place / HISTORY_PREFIX.rstrip("/")).unlink()
    query.run(spark, range(3, 4))
    # the run before may write its batches once more when it hears of its end, which comes late

    def told() -> bool:
        return [batch.batch for batch in checkpoint.history(place).batches][-1:] == [3]

    wait_until(told, seconds=20, what="a history of batch 3")
    assert checkpoint.verify(place).ok


class Gate(StreamingQueryListener):
    """Holds up what Spark tells of batch 1 and of all later ones. Millpond hears of it after."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if event.progress.batchId == 1:
            self.reached.set()
            assert self.open.wait(60)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def test_a_spark_checkpoint_that_is_deleted_after_the_stop_stays_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The news of a batch came when its folder was gone, and the history made it again."""
    query, place, gate = Query(tmp_path), tmp_path / "gone", Gate()
    streams = spark._jsparkSession.streams()
    for listener in streams.listListeners():
        streams.removeListener(listener)
    # before Millpond's, which the next plan adds again
    spark.streams.addListener(gate)
    try:
        with settings(spark, {f"{_STATE}providerClass": MILLPOND, **query.case.conf}):
            running = (
                query.case.build([query.source.stream(spark)])
                .writeStream.format("noop")
                .outputMode(query.case.mode)
                .option("checkpointLocation", str(place))
                .start()
            )
        query.source.add(query.batches[0])
        wait_for(place, [0])
        query.source.add(query.batches[1])
        assert gate.reached.wait(60)
        running.stop()

        def removed() -> bool:
            # a heartbeat may come in between
            shutil.rmtree(place, ignore_errors=True)
            return not place.exists()

        wait_until(removed, seconds=20, what="no Spark checkpoint")
        gate.open.set()
        # the batch of a later query is told after all that was before
        wait_for(Query(tmp_path / "later").run(spark, range(1)), [0])
    finally:
        gate.open.set()
        spark.streams.removeListener(gate)
    assert not place.exists()
