"""What Millpond's commands mean for a query that writes to Kafka, or reads from it. Source:
docs/guides/sinks.md.

A file of the input is a batch. The sink writes one record for each key of a batch. So the records
show how often each batch was written.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millpond
from integration.jvm import MILLPOND, ROCKSDB, compile_harness
from integration.peers.kafka.broker import Broker
from integration.peers.kafka.queries import (
    SCHEMA,
    Batches,
    Records,
    counted,
    from_topic,
    joined,
    last,
    produce,
    read_topic,
    records,
    to_topic,
)
from integration.processes import agents_below, alive, wait_until
from integration.streams import Input, settings
from integration.test_crash import Job
from millpond import savepoint
from millpond.cli.main import main
from millpond.operations.rescale import rescale, undo
from millpond.query.index import read_index
from millpond.storage import open_storage
from tests.failing_storage import FailingStorage, Killed

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_STATE = "spark.sql.streaming.stateStore."
_ON_RESTART = f"{_STATE}millpond.rescale.onRestart"
_FORMAT = f"{_STATE}checkpointFormatVersion"
_PARTITIONS = "spark.sql.shuffle.partitions"


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
            _finish(self.writer(topic), checkpoint)

    def records(self, topic: str) -> Records:
        """Read a topic."""
        return records(self.spark, self.kafka, self.topic(topic))

    def whole(self, found: Records) -> None:
        """Check that each batch is there once, and that the last values are right."""
        assert found == self.batches.records()
        assert last(found) == self.batches.last(self.spark)


def _name(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture(params=["1", "2"], ids=["format1", "format2"])
def query(
    spark: SparkSession, kafka: Broker, tmp_path: Path, request: pytest.FixtureRequest
) -> Query:
    """Return a query with two batches of input."""
    source = Input(tmp_path / "input", SCHEMA)
    made = Query(spark, kafka, _name(request), source, _conf(request.param))
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
    query.run(checkpoint, "out", **{_ON_RESTART: "true", _PARTITIONS: "8"})
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
    rocksdb = {f"{_STATE}providerClass": ROCKSDB}
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


def _job(
    work: Path, kafka: Broker, connectors: list[Path], format: str, job: Mapping[str, str]
) -> Callable[..., Job]:
    """Return a function that runs the job in `work`. With `hold` the job never writes that file."""
    said = {"servers": kafka.servers, **job}
    (work / "job.json").write_text(json.dumps(said))

    def start(hold: str | None = None) -> Job:
        jars = os.pathsep.join(map(str, [compile_harness(), *connectors]))
        conf = {"spark.driver.extraClassPath": jars}
        if hold is not None:
            conf["spark.hadoop.millpond.test.hold"] = hold
            conf["spark.hadoop.millpond.test.held"] = str(work / "held")
            conf["spark.sql.streaming.checkpointFileManagerClass"] = (
                "org.apache.spark.sql.millpond.testing.HoldingFileManager"
            )
        return Job(work, int(format), MILLPOND, conf, module="integration.peers.kafka.job")

    return start


def _kill_when_held(work: Path, job: Job) -> None:
    """Kill the driver with -9 as soon as it is about to write the file `hold`."""
    held = work / "held"
    wait_until(
        lambda: held.exists() or job.process.poll() is not None, seconds=120, what="the commit"
    )
    assert held.exists(), job.report()
    _kill(job)
    held.unlink()


def _kill(job: Job) -> None:
    agents = agents_below(job.jvm)
    os.kill(job.jvm, signal.SIGKILL)
    assert job.end() != 0
    wait_until(lambda: not any(alive(agent) for agent in agents), seconds=5, what="the agents")


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
    source, batches, topic = Input(tmp_path / "input", SCHEMA), Batches(), _name(request)
    for _ in range(4):
        source.add(batches.next())
    start = _job(tmp_path, kafka, connectors, format, {"topic": topic})
    _kill_when_held(tmp_path, start("commits/2"))
    assert sorted(os.listdir(tmp_path / "checkpoint/offsets"))[-1] == "2"
    assert not (tmp_path / "checkpoint/commits/2").exists()
    assert records(spark, kafka, topic) == batches.records(until=3)
    if leave_out:
        assert millpond.rescale(tmp_path / "checkpoint", 4, skip_uncommitted=True).warnings == ()
    again = start()
    assert again.end() == 0, again.report()
    again_and_more = [batches.records(first=2, until=3), batches.records(first=3)]
    if leave_out:
        again_and_more = [{k: values[-1:] for k, values in batches.records(first=2).items()}]
    found = records(spark, kafka, topic)
    assert found == joined(batches.records(until=3), *again_and_more)
    assert last(found) == batches.last(spark)


# ---- as a source


def _conf(format: str) -> dict[str, str]:
    return {f"{_STATE}providerClass": MILLPOND, _PARTITIONS: "2", _FORMAT: format}


def _finish(writer: DataStreamWriter, checkpoint: Path) -> None:
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def _ends(spark: SparkSession, kafka: Broker, topic: str) -> dict[str, dict[str, int]]:
    """Return the next offset of each partition, in the form of Spark's offset log."""
    read = read_topic(spark, kafka, topic).groupBy("partition").agg({"offset": "max"})
    return {topic: {str(row[0]): row[1] + 1 for row in read.collect()}}


def _offsets(checkpoint: Path, batch: int) -> Any:
    """Return the offsets of the first source after a batch."""
    return json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])


def _shown(saved: Path) -> dict[str, dict[str, int]]:
    """Return the offsets that `show` reports, in the form of Spark's log."""
    found: dict[str, dict[str, int]] = {}
    for one in savepoint.show(saved).kafka_offsets:
        found.setdefault(one.topic, {})[str(one.partition)] = one.offset
    return found


def _of_topic(spark: SparkSession, kafka: Broker, topic: str) -> dict[str, str]:
    """Return what a batch computation makes of a topic."""
    rows = read_topic(spark, kafka, topic).selectExpr(
        "CAST(key AS STRING) AS key", "CAST(CAST(value AS STRING) AS BIGINT) AS value"
    )
    return {row.key: row.value for row in counted(rows).collect()}


def _state(checkpoint: Path) -> dict[str, str]:
    """Return the state in the form of the records that the query writes."""
    return {
        row["key"]["key"]: json.dumps(
            {"n": row["value"]["count"], "s": row["value"]["sum"]}, separators=(",", ":")
        )
        for row in millpond.read_state(checkpoint).to_pylist()
    }


@pytest.mark.parametrize("format", ["1", "2"])
def test_a_topic_is_counted_once_whatever_is_killed(
    spark: SparkSession,
    kafka: Broker,
    connectors: list[Path],
    tmp_path: Path,
    format: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The test kills the driver between the commits of the state and of a batch, and soon after a
    batch.

    A savepoint holds the offsets. A query that is restored from it goes on there.
    """
    batches, source, out = Batches(), f"{_name(request)}-in", f"{_name(request)}-out"
    for _ in range(6):
        produce(spark, kafka, source, batches.next())
    checkpoint = tmp_path / "checkpoint"
    start = _job(tmp_path, kafka, connectors, format, {"source": source, "topic": out})
    _kill_when_held(tmp_path, start("commits/1"))
    job = start()
    wait_until(
        lambda: (checkpoint / "commits/2").exists() or job.process.poll() is not None,
        seconds=120,
        what="batch 2",
    )
    assert job.process.poll() is None, job.report()
    _kill(job)
    again = start()
    assert again.end() == 0, again.report()
    expected = _of_topic(spark, kafka, source)
    assert expected == batches.last(spark)
    assert _state(checkpoint) == expected
    assert last(records(spark, kafka, out)) == expected

    saved = tmp_path / "saved"
    savepoint.create(checkpoint, saved)
    assert main(["savepoint", "show", str(saved)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    ends = _ends(spark, kafka, source)
    for partition, end in ends[source].items():
        assert ["0", source, partition, str(end)] in shown
    assert _shown(saved) == ends == _offsets(saved, 5)

    produce(spark, kafka, source, batches.next())
    savepoint.restore(saved, tmp_path / "restored", partitions=4)
    with settings(spark, {**_conf(format), _PARTITIONS: "4"}):
        writer = to_topic(counted(from_topic(spark, kafka, source)), kafka, f"{out}-restored")
        _finish(writer, tmp_path / "restored")
    assert records(spark, kafka, f"{out}-restored") == batches.records(first=6)
    assert _state(tmp_path / "restored") == _of_topic(spark, kafka, source)


@pytest.mark.parametrize("format", ["1", "2"])
def test_a_fork_of_an_older_batch_reads_the_topic_again_from_there(
    spark: SparkSession,
    kafka: Broker,
    tmp_path: Path,
    format: str,
    request: pytest.FixtureRequest,
) -> None:
    """The first query has read on. Its fork reads what came after the batch, and counts it once."""
    batches, source, out = Batches(), f"{_name(request)}-in", f"{_name(request)}-out"
    checkpoint, forked = tmp_path / "checkpoint", tmp_path / "forked"
    ends = []
    for _ in range(3):
        produce(spark, kafka, source, batches.next())
        ends.append(_ends(spark, kafka, source))
        with settings(spark, _conf(format)):
            _finish(to_topic(counted(from_topic(spark, kafka, source)), kafka, out), checkpoint)
    savepoint.create(checkpoint, tmp_path / "saved", batch=1)
    assert _shown(tmp_path / "saved") == ends[1] != ends[2]
    savepoint.fork(checkpoint, forked, batch=1)
    assert _offsets(forked, 1) == ends[1]
    with settings(spark, _conf(format)):
        again = to_topic(counted(from_topic(spark, kafka, source)), kafka, f"{out}-forked")
        _finish(again, forked)
    assert _offsets(forked, 2) == ends[2]
    assert records(spark, kafka, f"{out}-forked") == batches.records(first=2)
    assert _state(forked) == _of_topic(spark, kafka, source) == batches.last(spark)


@pytest.mark.parametrize("format", ["1", "2"])
def test_a_bootstrapped_query_begins_at_the_offsets_that_it_is_told(
    spark: SparkSession,
    kafka: Broker,
    tmp_path: Path,
    format: str,
    request: pytest.FixtureRequest,
) -> None:
    """The topic up to these offsets is the history. Source: docs/guides/savepoints.md."""
    batches, source, out = Batches(), f"{_name(request)}-in", f"{_name(request)}-out"
    for _ in range(2):
        produce(spark, kafka, source, batches.next())
    history, ends = read_topic(spark, kafka, source), _ends(spark, kafka, source)
    history.persist().count()  # without what the topic gets later

    def job() -> DataStreamWriter:
        return to_topic(counted(from_topic(spark, kafka, source)), kafka, out)

    with settings(spark, _conf(format)):
        report = millpond.bootstrap(job, tmp_path / "of" / "warm", rows=history, offsets={0: ends})
        assert report.sources[0].rows == sum(len(rows) for rows in batches.rows)
        produce(spark, kafka, source, batches.next())
        _finish(job(), tmp_path / "of" / "warm")
    history.unpersist()
    assert records(spark, kafka, out) == batches.records(first=2)
    assert _state(tmp_path / "of" / "warm") == _of_topic(spark, kafka, source)
