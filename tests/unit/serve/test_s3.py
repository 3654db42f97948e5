"""Following a query whose Spark checkpoint is on S3, by HTTP to a server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import millpond
from integration.depth import quick_first
from millpond.serve.app import serve_app
from millpond.serve.following import Following
from millpond.serve.lookups import Limits
from millpond.storage.given import given_by, reached_by
from tests.asgi import ask
from tests.row_checkpoints import HashedBuilder
from tests.s3_server import Request, S3Server, environment, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.mark.parametrize("spark_format", quick_first([2, 1]))
def test_a_commit_takes_few_requests(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    """The options of the command hold for requests and for the thread that follows, too."""
    for name, value in environment("http://127.0.0.1:1").items():  # nobody listens
        monkeypatch.setenv(name, value)
    options = {"storage.s3.endpoint": server.endpoint}
    built = HashedBuilder(tmp_path / "query", spark_format=spark_format)
    built.build(batches=8, snapshots=(3, 5))
    hidden = built.hide(4, 7)
    bucket = server.bucket()
    storage = server.storage(bucket, "query")
    for info in built.storage.list(""):
        storage.put_bytes(info.key, built.storage.read(info.key))
    place = f"s3://{bucket}/query"
    with reached_by(given_by(options)):
        following = Following(place, every_ms=1)
    app = serve_app(following, Limits())
    body = json.dumps({"keys": [{"k": k} for k in range(30)]}).encode()
    try:
        for batch in range(3, 8):
            if batch > 3:
                for key, text in hidden[batch].items():
                    storage.put_bytes(key, text)
                before = server.counts.total()
                following.look()
                requests = server.counts.total() - before
                # Two partitions: a listing, a header and a changelog each. The rest is the same for
                # any number of partitions.
                assert requests <= 9 + 2 * 3
            before = server.counts.total()
            told = ask(app, "/v1/lookup", method="POST", body=body).json()
            assert (batch == 3) == (server.counts.total() > before)  # then memory and disk answer
            assert told["batch"] == batch
            rows = millpond.read_state(place, batch=batch, options=options).to_pylist()
            assert told["rows"] == sorted(
                (r for r in rows if r["key"]["k"] < 30), key=lambda r: r["key"]["k"]
            )
        before = server.counts.total()
        following.look()
        assert server.counts.total() - before == 1  # nothing new: one listing
    finally:
        following.stop()


def test_to_stop_tells_whether_it_still_reads(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    reading, go_on = threading.Event(), threading.Event()

    def held_up(request: Request) -> None:
        reading.set()
        go_on.wait(60)

    bucket = server.bucket()
    built = HashedBuilder(tmp_path / "query")
    built.build(batches=3)
    storage = server.storage(bucket, "query")
    for info in built.storage.list(""):
        storage.put_bytes(info.key, built.storage.read(info.key))
    following = Following(f"s3://{bucket}/query", every_ms=1)
    with server.faults(held_up):
        following.start()
        try:
            assert reading.wait(60)
            assert not following.stop(0)
        finally:
            go_on.set()
        assert following.stop(60)
