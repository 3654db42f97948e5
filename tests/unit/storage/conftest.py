"""A server of S3 and a bucket on it, for the modules that define no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millpond.storage.s3_client import S3Client
from tests.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> str:
    return server.bucket()


@pytest.fixture(scope="module")
def client(server: S3Server, bucket: str) -> S3Client:
    """All tests share one client: a new one takes a tenth of a second."""
    return S3Client(bucket, server.settings().s3)
