"""What a query says when the emulator, or Google's connector, refuses it, or nobody answers.

Hadoop keeps a bucket's client for as long as the session, so each test has a bucket.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.peers.gcs.server import Gcs
from integration.peers.refusals import Query

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_numbers = itertools.count()


@pytest.fixture
def query(spark: SparkSession, gcs: Gcs, tmp_path: Path) -> Query:
    uri = f"{gcs.bucket(f'faults-{next(_numbers)}')}/states"
    return Query(spark, uri, gcs.hadoop, tmp_path)


class _Revoked(BaseHTTPRequestHandler):
    """What gives tokens. It answers as Google does for a token that was revoked or expired."""

    def do_POST(self) -> None:
        body = b'{"error": "invalid_grant", "error_description": "Token has been expired."}'
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def tokens() -> Iterator[str]:
    """Return the address of what gives tokens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Revoked) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


@pytest.mark.sample
def test_no_bucket(spark: SparkSession, gcs: Gcs, tmp_path: Path) -> None:
    query = Query(spark, "gs://no-such-bucket/states", gcs.hadoop, tmp_path)
    query.refused("MILLPOND_STORAGE_BUCKET_MISSING", "404 Not Found")


def test_a_token_that_has_expired(query: Query, tokens: str) -> None:
    query.refused(
        "MILLPOND_STORAGE_DENIED",
        "fs.gs.auth.type",
        hadoop={
            "fs.gs.auth.type": "USER_CREDENTIALS",
            "fs.gs.auth.client.id": "a client",
            "fs.gs.auth.client.secret": "its secret",
            "fs.gs.auth.refresh.token": "a token",
            "fs.gs.token.server.url": tokens,
        },
    )


def test_sizes_with_units(query: Query) -> None:
    """Hadoop's defaults have them, and the connector reads numbers alone."""
    query.refused(
        "MILLPOND_STORAGE_MISCONFIGURED",
        '"64m"',
        "spark.hadoop.fs.gs.block.size=67108864",
        hadoop={"fs.gs.block.size": "64m"},
    )
    query.goes_on()


def test_a_server_that_is_down(spark: SparkSession, gcs: Gcs, query: Query) -> None:
    """The emulator forgets its buckets with its process."""
    gcs.kill()
    try:
        query.refused("MILLPOND_STORAGE_UNAVAILABLE", "Connection refused", "this host reaches it")
    finally:
        gcs.start()
