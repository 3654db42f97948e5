"""What Spark says if S3 refuses its own files by s3a. Source: docs/guides/troubleshooting.md.

MinIO gives no session shorter than a quarter of an hour, and serves one region. So the server of
the tests gives the answers, and the client is Hadoop's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from integration.cases import EVENTS
from integration.jvm import MILLPOND, REPO
from integration.peers.loopback import free_port
from integration.streams import Input, settings
from tests.s3_server import HADOOP, Fault, S3Server, s3_server

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_PAGE = (REPO / "docs/guides/troubleshooting.md").read_text()
_SOON = {"fs.s3a.attempts.maximum": "1", "fs.s3a.retry.limit": "1"}


@pytest.fixture(scope="module")
def server(connectors: list[Path]) -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def _refusal(spark: SparkSession, work: Path, uri: str, hadoop: Mapping[str, str]) -> str:
    """Start a query with its Spark checkpoint there. Return what Spark says, before any batch."""
    (work / "rows").mkdir(parents=True)
    frame = Input(work / "rows" / "input", EVENTS).stream(spark).groupBy("k").count()
    conf = {"spark.sql.streaming.stateStore.providerClass": MILLPOND, **hadoop}
    with settings(spark, conf), pytest.raises(Py4JJavaError) as caught:
        writer = frame.writeStream.outputMode("update").format("noop")
        writer.option("checkpointLocation", f"{uri}/checkpoint").start()
    return str(caught.value.java_exception)


def _reaches(endpoint: str) -> dict[str, str]:
    path_style = {"fs.s3a.path.style.access": "true", "fs.s3a.connection.ssl.enabled": "false"}
    return {**HADOOP, **_SOON, **path_style, "fs.s3a.endpoint": endpoint}


_REGION = (("x-amz-bucket-region", "eu-west-1"),)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(400, "ExpiredToken"), ("AWSBadRequestException", "ExpiredToken")),
        (
            Fault(400, "AuthorizationHeaderMalformed", headers=_REGION),
            ("AWSBadRequestException", "AuthorizationHeaderMalformed"),
        ),
    ],
    ids=["token", "region"],
)
def test_what_the_server_refuses(
    spark: SparkSession, server: S3Server, tmp_path: Path, fault: Fault, says: tuple[str, ...]
) -> None:
    uri = f"s3a://{server.bucket()}"
    with server.faults(lambda request: fault):
        said = _refusal(spark, tmp_path, uri, _reaches(server.endpoint))
    assert uri in said, said
    for text in says:
        assert text in said and f"`{text}`" in _PAGE, said


def test_the_server_sends_to_another_region(
    spark: SparkSession, server: S3Server, tmp_path: Path
) -> None:
    """s3a names the setting, and not the bucket."""
    fault, uri = Fault(301, "PermanentRedirect", headers=_REGION), f"s3a://{server.bucket()}"
    with server.faults(lambda request: fault):
        said = _refusal(spark, tmp_path, uri, _reaches(server.endpoint))
    assert "AWSRedirectException" in said and "eu-west-1" in said, said
    assert "fs.s3a.endpoint.region" in said and "`AWSRedirectException`" in _PAGE


def test_nobody_answers(spark: SparkSession, server: S3Server, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    uri = f"s3a://{server.bucket()}"
    said = _refusal(spark, tmp_path, uri, _reaches(f"http://{address}"))
    assert uri in said and address in said, said
    for text in ("ConnectException", "Connection refused"):
        assert text in said and f"`{text}`" in _PAGE, said
