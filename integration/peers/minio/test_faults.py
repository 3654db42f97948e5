"""What a query says when MinIO refuses it or does not answer, by boto3 and by Hadoop's s3a."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.peers.minio.server import REGION, Minio
from integration.peers.refusals import Query

pytestmark = [pytest.mark.spark, pytest.mark.peer]


@pytest.fixture
def query(spark: SparkSession, minio: Minio, tmp_path: Path) -> Query:
    return _query(spark, minio, tmp_path, minio.bucket())


def _query(spark: SparkSession, minio: Minio, work: Path, bucket: str) -> Query:
    return Query(
        spark,
        f"s3a://{bucket}/states",
        minio.hadoop,
        work,
        names=(f"s3://{bucket}", minio.endpoint),
        options={"storage.deadlineMs": "3000"},
    )


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


def test_a_session_token_that_is_not_valid(query: Query, minio: Minio) -> None:
    """The keys are those of a session of the server. The token belongs to another session."""
    ours, other = _session(minio), _session(minio)
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
    query.goes_on({**keys, "fs.s3a.session.token": ours["SessionToken"]})


def test_no_bucket(spark: SparkSession, minio: Minio, tmp_path: Path) -> None:
    query = _query(spark, minio, tmp_path, "no-such-bucket")
    query.refused("MILLPOND_STORAGE_BUCKET_MISSING", "NoSuchBucket")


def test_another_region(query: Query) -> None:
    """The server tells the bucket's region, and boto3 goes there by itself."""
    query.goes_on(options={"storage.s3.region": "eu-west-1"})


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
