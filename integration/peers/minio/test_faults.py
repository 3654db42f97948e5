"""What a query says when MinIO refuses it or does not answer, by boto3 and by Hadoop's s3a."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.cases import EVENTS, events
from integration.jvm import MILLPOND
from integration.peers.minio.server import REGION, Minio
from integration.streams import Input, settings

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_STATE = "spark.sql.streaming.stateStore."


class Query:
    """A query that counts by key, with its state in a bucket of the test."""

    def __init__(self, spark: SparkSession, minio: Minio, work: Path) -> None:
        self.spark, self.minio, self.work = spark, minio, work
        self.uri = f"s3a://{minio.bucket()}/states"
        self.rows: list[str] = []
        self.jobs: list[int] = []
        self._input = Input(work / "input", EVENTS)
        self._input.add(events(("a", 1.0, 1), ("b", 1.0, 2), ("a", 2.0, 3)))

    def run(self, hadoop: Mapping[str, str], more: Mapping[str, str]) -> None:
        """Run to the end of the input. Raises: StreamingQueryException: the query failed."""

        def sink(batch: DataFrame, _: int) -> None:
            self.rows += sorted(repr(row) for row in batch.collect())

        conf = {
            f"{_STATE}providerClass": MILLPOND,
            f"{_STATE}millpond.storage.uri": self.uri,
            f"{_STATE}millpond.storage.deadlineMs": "3000",
            **self.minio.hadoop,
            **hadoop,
            **{f"{_STATE}millpond.{name}": value for name, value in more.items()},
        }
        frame = self._input.stream(self.spark).groupBy("k").count()
        with settings(self.spark, conf):
            writer = frame.writeStream.outputMode("update").foreachBatch(sink)
            writer = writer.option("checkpointLocation", str(self.work / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120), query.lastProgress
        finally:
            tracker = self.spark.sparkContext.statusTracker()
            self.jobs = list(tracker.getJobIdsForGroup(str(query.runId)))

    def refused(self, *says: str, hadoop: Mapping[str, str] | None = None, **more: str) -> None:
        """The query fails before its first task. The error names bucket, server and remedy."""
        given = {name.replace("_", "."): value for name, value in more.items()}
        with pytest.raises(StreamingQueryException) as caught:
            self.run(hadoop or {}, given)
        assert self.jobs == [], "a task ran"
        bucket = self.uri.split("/")[2]
        for text in (f"s3://{bucket}", self.minio.endpoint, *says):
            assert text in str(caught.value), caught.value

    def goes_on(self) -> None:
        """With the right settings, the same Spark checkpoint goes on."""
        self.run({}, {})
        assert self.rows == ["Row(k='a', count=2)", "Row(k='b', count=1)"]


@pytest.fixture
def query(spark: SparkSession, minio: Minio, tmp_path: Path) -> Query:
    return Query(spark, minio, tmp_path)


@pytest.mark.sample
def test_wrong_credentials(query: Query) -> None:
    query.refused(
        "MILLPOND_STORAGE_DENIED",
        "SignatureDoesNotMatch",
        "fs.s3a.secret.key",
        hadoop={"fs.s3a.secret.key": "another secret"},
    )
    query.refused(
        "MILLPOND_STORAGE_DENIED",
        "InvalidAccessKeyId",
        "fs.s3a.access.key",
        hadoop={"fs.s3a.access.key": "nobody"},
    )
    query.goes_on()


def test_a_session_token_that_is_not_valid(query: Query) -> None:
    """The keys are those of a session of the server. The token belongs to another session."""
    ours, other = _session(query.minio), _session(query.minio)
    keys = {
        "fs.s3a.access.key": ours["AccessKeyId"],
        "fs.s3a.secret.key": ours["SecretAccessKey"],
    }
    query.refused(
        "MILLPOND_STORAGE_DENIED",
        "InvalidTokenId",
        "hand over a new one",
        hadoop={**keys, "fs.s3a.session.token": other["SessionToken"]},
    )
    query.run({**keys, "fs.s3a.session.token": ours["SessionToken"]}, {})
    assert query.rows == ["Row(k='a', count=2)", "Row(k='b', count=1)"]


def test_no_bucket(query: Query) -> None:
    query.uri = "s3a://no-such-bucket/states"
    query.refused("MILLPOND_STORAGE_BUCKET_MISSING", "NoSuchBucket")


def test_another_region(query: Query) -> None:
    """The server tells the bucket's region, and boto3 goes there by itself."""
    query.run({}, {"storage.s3.region": "eu-west-1"})
    assert query.rows == ["Row(k='a', count=2)", "Row(k='b', count=1)"]


def test_a_server_that_is_down(query: Query, down: Minio) -> None:
    query.refused("MILLPOND_STORAGE_UNAVAILABLE", "storage.s3.endpoint", "network")
    down.start()
    query.goes_on()


@pytest.fixture
def down(minio: Minio, query: Query) -> Iterator[Minio]:
    """The server, killed after the query has its bucket. Afterwards it runs."""
    minio.kill()
    yield minio
    if not minio.runs():
        minio.start()


def _session(minio: Minio) -> dict[str, Any]:
    import boto3

    client = boto3.client(
        "sts",
        endpoint_url=minio.endpoint,
        region_name=REGION,
        aws_access_key_id=minio.hadoop["fs.s3a.access.key"],
        aws_secret_access_key=minio.hadoop["fs.s3a.secret.key"],
    )
    answer = client.assume_role(RoleArn="arn:aws:iam::0:role/any", RoleSessionName="test")
    credentials: dict[str, Any] = answer["Credentials"]
    return credentials
