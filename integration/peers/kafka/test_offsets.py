"""The commands say what Kafka no longer has of the offsets in a savepoint, and Spark then does what
they say. Source: docs/guides/savepoints.md.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millpond
from integration.jvm import REPO
from integration.peers.kafka.admin import add_partitions, delete_records, delete_topic
from integration.peers.kafka.broker import Broker
from integration.peers.kafka.observed import (
    conf_of,
    ends_of,
    finish,
    name_of,
    of_topic,
    state_of,
)
from integration.peers.kafka.queries import (
    Batches,
    counted,
    from_topic,
    produce,
    read_topic,
    to_topic,
)
from integration.streams import settings
from millpond import savepoint
from millpond.cli.main import main

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_FORMAT = "2"


class Saved:
    """A query that counts a topic, saved after its first records."""

    def __init__(self, spark: SparkSession, kafka: Broker, work: Path, name: str) -> None:
        self.spark, self.kafka, self.work = spark, kafka, work
        self.source, self.out = f"{name}-in", f"{name}-out"
        self.batches = Batches()
        produce(spark, kafka, self.source, self.batches.next())
        self.run(work / "checkpoint")
        self.place = work / "saved"
        savepoint.create(work / "checkpoint", self.place)
        self.ends = {int(p): end for p, end in self.saved_ends()[self.source].items()}
        assert set(self.ends) == {0, 1} and min(self.ends.values()) > 0

    def saved_ends(self) -> dict[str, dict[str, int]]:
        """Return where each partition of the topic ends now, in the form of Spark's log."""
        return ends_of(self.spark, self.kafka, self.source)

    def job(self, **options: str) -> Callable[[], DataStreamWriter]:
        """Return the job."""
        return lambda: to_topic(
            counted(from_topic(self.spark, self.kafka, self.source, **options)),
            self.kafka,
            self.out,
        )

    def run(self, checkpoint: Path, **options: str) -> None:
        """Run the job over all that the topic has."""
        with settings(self.spark, conf_of(_FORMAT)):
            finish(self.job(**options)(), checkpoint)

    def warnings(self, job: Any = None) -> tuple[str, ...]:
        """Return what `plan`, `restore` and `fork` warn of. All must say the same."""
        job = job or self.job()
        with settings(self.spark, conf_of(_FORMAT)):
            report = savepoint.plan(self.place, job)
            restored = savepoint.restore(self.place, self.work / "new", job=job, dry_run=True)
            forked = savepoint.fork(
                self.work / "checkpoint", self.work / "new", job=job, dry_run=True
            )
        assert report.ok
        assert report.warnings == restored.warnings == forked.warnings
        return report.warnings

    def restored(self, name: str) -> Path:
        """Return a new Spark checkpoint."""
        savepoint.restore(self.place, self.work / name)
        return self.work / name


@pytest.fixture
def saved(
    spark: SparkSession, kafka: Broker, tmp_path: Path, request: pytest.FixtureRequest
) -> Saved:
    return Saved(spark, kafka, tmp_path, name_of(request))


def test_a_topic_that_has_all_needs_no_warning(saved: Saved) -> None:
    produce(saved.spark, saved.kafka, saved.source, saved.batches.next())
    assert saved.warnings() == ()
    pattern = saved.source.replace("-in", ".in")

    def by_pattern() -> DataStreamWriter:
        reader = saved.spark.readStream.format("kafka").option("subscribePattern", pattern)
        reader = reader.option("kafka.bootstrap.servers", saved.kafka.servers)
        rows = reader.load().selectExpr("CAST(key AS STRING) AS key", "1L AS value")
        return to_topic(counted(rows), saved.kafka, saved.out)

    assert saved.warnings(by_pattern) == ()


@pytest.mark.sample
def test_records_have_left_retention(saved: Saved) -> None:
    """Spark ends the query, and goes on with what is left if it is told so."""
    for _ in range(3):
        produce(saved.spark, saved.kafka, saved.source, saved.batches.next())
    first = {partition: end + 1 for partition, end in saved.ends.items()}
    delete_records(saved.spark, saved.kafka, saved.source, first)
    (said,) = saved.warnings()
    assert f"source 0: topic {saved.source} no longer has all records" in said
    for partition, end in saved.ends.items():
        assert f"partition {partition} at {end}, its first record is {end + 1}" in said
    assert "failOnDataLoss" in said
    text = "Some data may have been lost because they are not available in Kafka any more"
    assert text in (REPO / "docs/guides/troubleshooting.md").read_text()
    with pytest.raises(StreamingQueryException, match=text):
        saved.run(saved.restored("stops"))
    checkpoint = saved.restored("skips")
    saved.run(checkpoint, failOnDataLoss="false")
    counts = [int(text.split(":")[1].split(",")[0]) for text in state_of(checkpoint).values()]
    assert sum(counts) == sum(len(rows) for rows in saved.batches.rows) - len(first)


def test_partitions_were_added(saved: Saved) -> None:
    """Spark reads them from their first records on: each record counts once."""
    add_partitions(saved.spark, saved.kafka, saved.source, 4)
    produce(saved.spark, saved.kafka, saved.source, saved.batches.next())
    (said,) = saved.warnings()
    assert f"topic {saved.source} has more partitions than were saved (2, 3)" in said
    checkpoint = saved.restored("restored")
    saved.run(checkpoint)
    assert state_of(checkpoint) == of_topic(saved.spark, saved.kafka, saved.source)
    assert state_of(checkpoint) == saved.batches.last(saved.spark)


def test_a_topic_is_gone(saved: Saved, capsys: pytest.CaptureFixture[str]) -> None:
    """The command warns too. A restore without offsets keeps the state."""
    delete_topic(saved.spark, saved.kafka, saved.source)
    (said,) = saved.warnings()
    where = f"says the Kafka broker at {saved.kafka.servers}"
    assert f"topic {saved.source} is not there any more, {where}" in said
    with pytest.raises(StreamingQueryException, match=saved.source):
        saved.run(saved.restored("stops"))
    job = saved.work / "job.py"
    job.write_text(
        "def build(spark):\n"
        "    reader = spark.readStream.format('kafka')\n"
        f"    reader = reader.option('kafka.bootstrap.servers', {saved.kafka.servers!r})\n"
        f"    rows = reader.option('subscribe', {saved.source!r}).load()\n"
        "    frame = rows.selectExpr('CAST(key AS STRING) AS key', '1L AS value')\n"
        "    return frame.groupBy('key').agg({'*': 'count', 'value': 'sum'})\n"
    )
    main(["savepoint", "plan", str(saved.place), "--job", f"{job}:build"])
    assert f"millpond: warning: {said}\n" in capsys.readouterr().err
    arguments = [str(saved.place), str(saved.work / "dropped"), "--offsets", "drop"]
    assert main(["savepoint", "restore", *arguments]) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_topic_was_made_anew(saved: Saved) -> None:
    """It has fewer records than were read."""
    delete_topic(saved.spark, saved.kafka, saved.source)
    produce(saved.spark, saved.kafka, saved.source, [{"key": "k0", "value": 1}])
    (said,) = saved.warnings()
    assert f"topic {saved.source} ends before the saved offsets" in said


def test_a_job_reads_another_topic(saved: Saved) -> None:
    other = f"{saved.source}-2"
    produce(saved.spark, saved.kafka, other, saved.batches.next())
    rows = from_topic(saved.spark, saved.kafka, other)
    unread, new = saved.warnings(lambda: to_topic(counted(rows), saved.kafka, saved.out))
    assert f"topic {saved.source} has saved offsets, and the job does not read it" in unread
    assert f"topic {other} has no saved offsets" in new


def test_nobody_answers(saved: Saved) -> None:
    """A broker that is down is a warning that names its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = Broker(f"127.0.0.1:{probe.getsockname()[1]}")
    rows = from_topic(saved.spark, nobody, saved.source)
    with settings(saved.spark, conf_of(_FORMAT)):
        report = savepoint.plan(saved.place, lambda: to_topic(counted(rows), nobody, saved.out))
    assert report.ok
    (said,) = report.warnings
    assert f"source 0: the Kafka broker at {nobody.servers} did not say" in said
    assert "TimeoutException: " in said and "Look whether it runs" in said


def test_without_the_job_nobody_knows_the_broker(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["savepoint", "restore", str(saved.place), str(saved.work / "restored")]) == 0
    said = capsys.readouterr().err
    assert f"warning: the query goes on at saved offsets of Kafka (topic {saved.source})" in said
    assert "was not checked; millpond savepoint plan --job checks it" in said


def test_bootstrap_warns_of_the_offsets_that_it_is_given(saved: Saved) -> None:
    history = read_topic(saved.spark, saved.kafka, saved.source)
    given = {0: {saved.source: {"0": saved.ends[0] + 5, "1": saved.ends[1]}}}
    with settings(saved.spark, conf_of(_FORMAT)):
        report = millpond.bootstrap(
            saved.job(), saved.work / "of" / "warm", rows=history, offsets=given
        )
    (said,) = report.warnings
    assert f"topic {saved.source} ends before the saved offsets" in said
    assert f"partition 0 at {saved.ends[0] + 5}, it ends at {saved.ends[0]}" in said


def test_bootstrap_without_offsets_begins_where_the_job_says(saved: Saved) -> None:
    """A source without an offset begins as in a new query: at `startingOffsets`."""
    history = read_topic(saved.spark, saved.kafka, saved.source).persist()
    assert history.count() == len(saved.batches.rows[0])
    starting = str(saved.saved_ends()).replace("'", '"')
    job = saved.job(startingOffsets=starting)
    with settings(saved.spark, conf_of(_FORMAT)):
        report = millpond.bootstrap(job, saved.work / "of" / "warm", rows=history)
        assert report.warnings == () and report.sources[0].offset is None
        produce(saved.spark, saved.kafka, saved.source, saved.batches.next())
        finish(job(), saved.work / "of" / "warm")
    history.unpersist()
    assert state_of(saved.work / "of" / "warm") == saved.batches.last(saved.spark)
