"""Queries that read Kafka: killed, saved, forked, bootstrapped."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millpond
from integration.peers.kafka.broker import Broker
from integration.peers.kafka.jobs import Jobs, kill
from integration.peers.kafka.observed import (
    PARTITIONS,
    conf_of,
    ends_of,
    finish,
    name_of,
    of_topic,
    offsets_of,
    shown,
    state_of,
)
from integration.peers.kafka.queries import (
    Batches,
    counted,
    from_topic,
    last,
    produce,
    read_topic,
    records,
    to_topic,
)
from integration.streams import settings
from millpond import savepoint
from millpond.cli.main import main

pytestmark = [pytest.mark.spark, pytest.mark.peer]


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
    batches, source, out = Batches(), f"{name_of(request)}-in", f"{name_of(request)}-out"
    for _ in range(6):
        produce(spark, kafka, source, batches.next())
    checkpoint = tmp_path / "checkpoint"
    jobs = Jobs(tmp_path, kafka, connectors, format, {"sources": [source], "topic": out})
    jobs.kill_when_held(jobs.start("commits/1"))
    job = jobs.start()
    jobs.wait_for(job, 2)
    kill(job)
    again = jobs.start()
    assert again.end() == 0, again.report()
    expected = of_topic(spark, kafka, source)
    assert expected == batches.last(spark)
    assert state_of(checkpoint) == expected
    assert last(records(spark, kafka, out)) == expected

    saved = tmp_path / "saved"
    savepoint.create(checkpoint, saved)
    assert main(["savepoint", "show", str(saved)]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    ends = ends_of(spark, kafka, source)
    for partition, end in ends[source].items():
        assert ["0", source, partition, str(end)] in printed
    assert shown(saved) == ends == offsets_of(saved, 5)

    produce(spark, kafka, source, batches.next())
    savepoint.restore(saved, tmp_path / "restored", partitions=4)
    with settings(spark, {**conf_of(format), PARTITIONS: "4"}):
        writer = to_topic(counted(from_topic(spark, kafka, source)), kafka, f"{out}-restored")
        finish(writer, tmp_path / "restored")
    assert records(spark, kafka, f"{out}-restored") == batches.records(first=6)
    assert state_of(tmp_path / "restored") == of_topic(spark, kafka, source)


@pytest.mark.parametrize("format", ["1", "2"])
def test_a_fork_of_an_older_batch_reads_the_topic_again_from_there(
    spark: SparkSession,
    kafka: Broker,
    tmp_path: Path,
    format: str,
    request: pytest.FixtureRequest,
) -> None:
    """The first query has read on. Its fork reads what came after the batch, and counts it once."""
    batches, source, out = Batches(), f"{name_of(request)}-in", f"{name_of(request)}-out"
    checkpoint, forked = tmp_path / "checkpoint", tmp_path / "forked"
    ends = []
    for _ in range(3):
        produce(spark, kafka, source, batches.next())
        ends.append(ends_of(spark, kafka, source))
        with settings(spark, conf_of(format)):
            finish(to_topic(counted(from_topic(spark, kafka, source)), kafka, out), checkpoint)
    savepoint.create(checkpoint, tmp_path / "saved", batch=1)
    assert shown(tmp_path / "saved") == ends[1] != ends[2]
    savepoint.fork(checkpoint, forked, batch=1)
    assert offsets_of(forked, 1) == ends[1]
    with settings(spark, conf_of(format)):
        again = to_topic(counted(from_topic(spark, kafka, source)), kafka, f"{out}-forked")
        finish(again, forked)
    assert offsets_of(forked, 2) == ends[2]
    assert records(spark, kafka, f"{out}-forked") == batches.records(first=2)
    assert state_of(forked) == of_topic(spark, kafka, source) == batches.last(spark)


@pytest.mark.parametrize("format", ["1", "2"])
def test_a_bootstrapped_query_begins_at_the_offsets_that_it_is_told(
    spark: SparkSession,
    kafka: Broker,
    tmp_path: Path,
    format: str,
    request: pytest.FixtureRequest,
) -> None:
    """The topic up to these offsets is the history. Source: docs/guides/savepoints.md."""
    batches, source, out = Batches(), f"{name_of(request)}-in", f"{name_of(request)}-out"
    for _ in range(2):
        produce(spark, kafka, source, batches.next())
    history, ends = read_topic(spark, kafka, source), ends_of(spark, kafka, source)
    history.persist().count()  # without what the topic gets later

    def job() -> DataStreamWriter:
        return to_topic(counted(from_topic(spark, kafka, source)), kafka, out)

    with settings(spark, conf_of(format)):
        report = millpond.bootstrap(job, tmp_path / "of" / "warm", rows=history, offsets={0: ends})
        assert report.sources[0].rows == sum(len(rows) for rows in batches.rows)
        produce(spark, kafka, source, batches.next())
        finish(job(), tmp_path / "of" / "warm")
    history.unpersist()
    assert records(spark, kafka, out) == batches.records(first=2)
    assert state_of(tmp_path / "of" / "warm") == of_topic(spark, kafka, source)
