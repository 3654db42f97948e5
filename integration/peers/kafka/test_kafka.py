"""What Millpond's commands mean for a query that writes to Kafka. Source: docs/guides/sinks.md.

A file of the input is a batch. The sink writes one record for each key of a batch. So the records
show how often each batch was written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millpond
from integration.jvm import ROCKSDB
from integration.peers.kafka.broker import Broker
from integration.peers.kafka.jobs import Jobs
from integration.peers.kafka.observed import (
    PARTITIONS,
    STATE,
    conf_of,
    finish,
    name_of,
)
from integration.peers.kafka.queries import (
    SCHEMA,
    Batches,
    Records,
    counted,
    joined,
    last,
    records,
    to_topic,
)
from integration.streams import Input, settings
from millpond import savepoint
from millpond.operations.rescale import rescale, undo
from millpond.query.index import read_index
from millpond.storage import open_storage
from tests.failing_storage import FailingStorage, Killed

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_ON_RESTART = f"{STATE}millpond.rescale.onRestart"


@dataclass
class Query:
    """A query over files. The names of its topics begin with the name of its test."""

    spark: SparkSession
    kafka: Broker
    name: str
    input: Input
    conf: Mapping[str, str]
    batches: Batches = field(default_factory=Batches)

    def add(self, files: int = 1) -> None:
        """Add some more files, a batch each."""
        for _ in range(files):
            self.input.add(self.batches.next())

    def topic(self, name: str) -> str:
        """Return the full name of a topic of this test."""
        return f"{self.name}-{name}"

    def writer(self, topic: str) -> DataStreamWriter:
        """Return the writer that a job starts."""
        return to_topic(counted(self.input.stream(self.spark)), self.kafka, self.topic(topic))

    def run(self, checkpoint: Path, topic: str, **conf: str) -> None:
        """Run the query over all input that is there."""
        with settings(self.spark, {**self.conf, **conf}):
            finish(self.writer(topic), checkpoint)

    def records(self, topic: str) -> Records:
        """Read a topic."""
        return records(self.spark, self.kafka, self.topic(topic))

    def whole(self, found: Records) -> None:
        """Check that each batch is there once, and that the last values are right."""
        assert found == self.batches.records()
        assert last(found) == self.batches.last(self.spark)


@pytest.fixture(params=["1", "2"], ids=["format1", "format2"])
def query(
    spark: SparkSession, kafka: Broker, tmp_path: Path, request: pytest.FixtureRequest
) -> Query:
    """Return a query with two batches of input."""
    source = Input(tmp_path / "input", SCHEMA)
    made = Query(spark, kafka, name_of(request), source, conf_of(request.param))
    made.add(2)
    return made


# ---- as a sink


@pytest.mark.sample
def test_a_rescale_adds_nothing(query: Query, tmp_path: Path) -> None:
    """The command rescales to more partitions and to fewer; a restart rescales once more."""
    checkpoint = tmp_path / "checkpoint"
    query.run(checkpoint, "out")
    for partitions in (4, 3):
        report = millpond.rescale(checkpoint, partitions)
        assert (report.file_sink, report.warnings) == (None, ())
        query.add(2)
        query.run(checkpoint, "out")
        query.whole(query.records("out"))
    query.add(2)
    query.run(checkpoint, "out", **{_ON_RESTART: "true", PARTITIONS: "8"})
    assert '"spark.sql.shuffle.partitions":"8"' in (checkpoint / "offsets/9").read_text()
    query.whole(query.records("out"))


def test_an_undone_rescale_adds_nothing(query: Query, tmp_path: Path) -> None:
    """The rescale is interrupted right before it switches the query over."""
    checkpoint = tmp_path / "checkpoint"
    query.run(checkpoint, "out")
    killing = FailingStorage(str(checkpoint), kills=True, stop_before="commits/2", fsync=True)

    with pytest.raises(Killed):
        rescale(killing, str(checkpoint), 4)
    assert undo(open_storage(str(checkpoint)), str(checkpoint))
    query.add(2)
    query.run(checkpoint, "out")
    query.whole(query.records("out"))


def test_a_fork_into_another_topic_goes_on_where_the_first_ends(
    query: Query, tmp_path: Path
) -> None:
    """The new topic has only what changes after the fork. Both parts together are whole."""
    checkpoint = tmp_path / "checkpoint"
    query.run(checkpoint, "first")
    before = query.records("first")
    report = savepoint.fork(checkpoint, tmp_path / "forked")
    assert (report.batch, report.file_sink, report.warnings) == (1, None, ())
    query.add(3)
    query.run(tmp_path / "forked", "second")
    assert query.records("second") == query.batches.records(first=2)
    query.whole(joined(before, query.records("second")))
    assert query.records("first") == before
    query.run(checkpoint, "first")
    query.whole(query.records("first"))


def test_a_fork_into_the_same_topic_writes_twice(query: Query, tmp_path: Path) -> None:
    """When the second query writes, the values of a key go back. In the end they are right."""
    checkpoint = tmp_path / "checkpoint"
    query.run(checkpoint, "out")
    savepoint.fork(checkpoint, tmp_path / "forked")
    query.add(3)
    query.run(checkpoint, "out")
    query.whole(query.records("out"))
    query.run(tmp_path / "forked", "out")
    again = query.batches.records(first=2)
    assert query.records("out") == joined(query.batches.records(), again)
    assert last(query.records("out")) == query.batches.last(query.spark)


@pytest.mark.parametrize("move", [False, True], ids=["restored", "moved"])
def test_a_restored_savepoint_goes_on_in_the_topic(
    query: Query, tmp_path: Path, move: bool
) -> None:
    """The saved query has ended. A new number of partitions changes nothing."""
    query.run(tmp_path / "checkpoint", "out")
    saved = savepoint.create(tmp_path / "checkpoint", tmp_path / "saved").savepoint
    kept = read_index(open_storage(saved), saved).image.sink
    assert kept is not None and kept.kind == "KafkaTable" and not kept.is_file
    report = savepoint.restore(
        tmp_path / "saved", tmp_path / "restored", partitions=4, keep_query_id=move
    )
    assert (report.file_sink, report.warnings) == (None, ())
    query.add(3)
    query.run(tmp_path / "restored", "out")
    query.whole(query.records("out"))


def test_a_restore_of_an_older_savepoint_writes_twice(query: Query, tmp_path: Path) -> None:
    """The new query writes again what the first wrote later: Kafka knows no batch numbers."""
    query.run(tmp_path / "checkpoint", "out")
    savepoint.create(tmp_path / "checkpoint", tmp_path / "saved")
    query.add(2)
    query.run(tmp_path / "checkpoint", "out")
    savepoint.restore(tmp_path / "saved", tmp_path / "restored", keep_query_id=True)
    query.add()
    query.run(tmp_path / "restored", "out")
    once = query.batches.records(until=4)
    assert query.records("out") == joined(once, query.batches.records(first=2))
    assert last(query.records("out")) == query.batches.last(query.spark)


def test_a_bootstrapped_query_tells_only_what_comes_later(
    spark: SparkSession, query: Query, tmp_path: Path
) -> None:
    """The history counts, but reaches no sink. A key that never comes again is not in the topic."""
    live = Query(spark, query.kafka, query.name, Input(tmp_path / "live", SCHEMA), query.conf)
    live.batches.next()
    history = spark.createDataFrame(
        [(row["key"], row["value"]) for row in live.batches.rows[0]], "key string, value long"
    )
    with settings(spark, live.conf):
        report = millpond.bootstrap(
            lambda: live.writer("out"), tmp_path / "of" / "warm", rows=history
        )
    assert (report.file_sink, report.warnings) == (None, ())
    live.add(3)
    live.run(tmp_path / "of" / "warm", "out")
    assert live.records("out") == live.batches.records(first=1)
    expected = live.batches.last(spark)
    assert last(live.records("out")) == {
        key: value for key, value in expected.items() if key != "k10"
    }
    assert "k10" in expected


def test_adopt_and_release_add_nothing(query: Query, tmp_path: Path) -> None:
    """The query goes from Spark's RocksDB store to Millpond, and back."""
    old, new, back = (tmp_path / name for name in ("old", "new", "back"))
    rocksdb = {f"{STATE}providerClass": ROCKSDB}
    query.run(old, "out", **rocksdb)
    millpond.adopt(old, new)
    query.add(2)
    query.run(new, "out")
    query.whole(query.records("out"))
    millpond.release(new, back, provider="rocksdb")
    query.add(2)
    query.run(back, "out", **rocksdb)
    query.whole(query.records("out"))


# ---- kill -9


@pytest.mark.parametrize(("format", "leave_out"), [("1", False), ("2", False), ("2", True)])
def test_a_batch_that_was_interrupted_comes_twice(
    spark: SparkSession,
    kafka: Broker,
    connectors: list[Path],
    tmp_path: Path,
    format: str,
    leave_out: bool,
    request: pytest.FixtureRequest,
) -> None:
    """The test kills the driver when the sink has all of batch 2, and Spark has not noted it.

    A rescale may leave the batch out. Then its file comes again in one batch with the next file,
    since Spark's log of files has it already.
    """
    source, batches, topic = Input(tmp_path / "input", SCHEMA), Batches(), name_of(request)
    for _ in range(4):
        source.add(batches.next())
    jobs = Jobs(tmp_path, kafka, connectors, format, {"topic": topic})
    jobs.kill_when_held(jobs.start("commits/2"))
    assert sorted(os.listdir(tmp_path / "checkpoint/offsets"))[-1] == "2"
    assert not (tmp_path / "checkpoint/commits/2").exists()
    assert records(spark, kafka, topic) == batches.records(until=3)
    if leave_out:
        assert millpond.rescale(tmp_path / "checkpoint", 4, skip_uncommitted=True).warnings == ()
    again = jobs.start()
    assert again.end() == 0, again.report()
    again_and_more = [batches.records(first=2, until=3), batches.records(first=3)]
    if leave_out:
        again_and_more = [{k: values[-1:] for k, values in batches.records(first=2).items()}]
    found = records(spark, kafka, topic)
    assert found == joined(batches.records(until=3), *again_and_more)
    assert last(found) == batches.last(spark)
