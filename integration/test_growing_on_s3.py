"""On S3 the changelog of a large batch is sent while the batch runs, and the commit sends the rest.

However the batch ends, the bucket has the whole changelog or nothing of it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.harness import (
    Harness,
    Numbered,
    Provider,
    ProviderError,
    Schema,
    module_harness,
    providers_to_test,
    short_conf,
)
from integration.jvm import MILLPOND
from integration.processes import agents_below, alive, wait_until
from integration.provider import Store
from integration.store_model import write_spark_metadata
from millpond.storage import open_storage
from millpond.storage.growing import drop_unfinished
from tests.s3_server import HADOOP, Fault, Request, S3Server, s3_server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(MILLPOND not in providers_to_test(), reason="about Millpond's storage"),
]

SCHEMA = Schema("k bigint", "v string")
ROWS = Numbered(80_000, "large", 400)  # 33 MiB: the batch leaves some thousands to its commit
PARTS = 4  # of 5 MiB, of seven, which the batch completes at least beside the first

harness = module_harness


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


class Scene:
    """A store with its state in a bucket of its own."""

    def __init__(self, server: S3Server, harness: Harness, checkpoint: Path) -> None:
        self.server, self.harness = server, harness
        self.root = write_spark_metadata(
            checkpoint, operator_name="stateStoreSave", partitions=1, provider_class=MILLPOND
        )
        (checkpoint / "metadata").write_text('{"id":"the-query"}')
        self.bucket = server.bucket()
        self.provider = self.open(harness)
        store = self.provider.store(0)
        store.put_numbered(Numbered(100, "before", 20))
        self.first = store.commit()
        assert self.first.id is not None
        server.counts.clear()

    def open(self, harness: Harness) -> Provider:
        conf = short_conf(
            {
                "checkpointFormatVersion": 2,
                "millpond.storage.uri": f"s3://{self.bucket}/states",
                "millpond.storage.s3.endpoint": self.server.endpoint,
                "millpond.storage.s3.multipartThreshold": "5m",
                "millpond.changelog.codec": "none",
                "millpond.gc.intervalMs": 0,
            }
        )
        return harness.open(
            self.root,
            provider_class=MILLPOND,
            schema=SCHEMA,
            conf=conf | {"spark.sql.shuffle.partitions": "1"},
            hadoop=HADOOP,
        )

    def batch(self) -> Store:
        """Begin the second batch, and write its rows."""
        store = self.provider.store(1, self.first.id)
        store.put_numbered(ROWS)
        return store

    def sent(self, parts: int = PARTS) -> None:
        """Wait until the server has so many parts."""
        wait_until(lambda: self.server.counts["PART"] >= parts, seconds=60, what="the parts")

    def unfinished(self) -> int:
        answer = self.server.client().list_multipart_uploads(Bucket=self.bucket)
        return len(answer.get("Uploads", ()))

    def all_end(self) -> None:
        wait_until(lambda: self.unfinished() == 0, seconds=60, what="the end of the upload")

    def keys(self) -> list[str]:
        storage = open_storage(f"s3://{self.bucket}", self.server.settings())
        return [info.key for info in storage.list("") if info.key.endswith(".changelog")]

    def check(self, id: str | None, version: int = 2) -> None:
        """Read the version on another executor."""
        other = self.open(self.harness)
        store = other.store(version, id)
        layers = [Numbered(100, "before", 20), *([ROWS] if version == 2 else [])]
        assert store.check_numbered(layers) == layers[-1].until
        store.abort()
        other.close()


@pytest.fixture
def scene(server: S3Server, harness: Harness, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(server, harness, tmp_path / "checkpoint")
    yield made
    made.provider.close()


def test_the_commit_sends_what_is_left(scene: Scene, server: S3Server) -> None:
    store = scene.batch()
    scene.sent()
    assert len(scene.keys()) == 1, "nobody sees it before the commit"
    done = store.commit()
    assert server.counts["PART"] == 7, "each once: the first, the last and perhaps one more"
    assert server.counts["CREATE"] == server.counts["COMPLETE"] == 1
    assert server.counts["PUT"] == 0
    scene.all_end()
    scene.check(done.id)
    used = store.metrics()["custom"]
    assert used["millpondStoragePutRequests"] >= PARTS + 4


def test_a_batch_that_is_taken_back(scene: Scene, server: S3Server) -> None:
    store = scene.batch()
    scene.sent(1)
    store.abort()
    scene.all_end()
    assert server.counts["COMPLETE"] == 0 and len(scene.keys()) == 1
    done = scene.batch().commit()
    scene.all_end()
    scene.check(done.id)


def test_two_attempts_of_one_version(scene: Scene) -> None:
    """As Spark's speculation makes them. Each has an object of its own."""
    slow = scene.batch()
    scene.sent()
    other = scene.open(scene.harness)
    quick = other.store(1, scene.first.id)
    quick.put_numbered(Numbered(100, "quick", 20))
    won = quick.commit()
    lost = slow.commit()
    assert won.id != lost.id and len(scene.keys()) == 3
    scene.all_end()
    scene.check(lost.id)
    store = other.store(2, won.id)
    store.check_numbered([Numbered(100, "quick", 20)])
    store.abort()
    other.close()


@pytest.mark.parametrize("operation", ["CREATE", "PART"])
def test_a_server_that_fails_in_the_batch(scene: Scene, server: S3Server, operation: str) -> None:
    with server.faults(lambda r: Fault(403, "AccessDenied") if r.operation == operation else None):
        store = scene.batch()
        wait_until(lambda: server.counts[operation] >= 1, seconds=60, what="the refusal")
    done = store.commit()
    scene.all_end()
    scene.check(done.id)


def test_a_server_that_does_not_answer_does_not_hold_the_batch(
    scene: Scene, server: S3Server
) -> None:
    """All rows are written while the first request still waits for its answer."""
    asked, answered = threading.Event(), threading.Event()

    def hold(request: Request) -> None:
        if request.operation == "CREATE":
            asked.set()
            assert answered.wait(60)

    with server.faults(hold):
        store = scene.batch()
        assert asked.wait(60)
        assert server.counts["PART"] == 0
        answered.set()
        done = store.commit()
    scene.all_end()
    scene.check(done.id)


def test_an_agent_that_dies_in_the_batch(scene: Scene, harness: Harness) -> None:
    """The next one sends the whole file. What the first one sent goes with a collection."""
    store = scene.batch()
    scene.sent()
    (agent,) = agents_below(harness.pid)
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not alive(agent), seconds=30, what="the agent's end")
    done = store.commit()
    scene.check(done.id)
    assert scene.unfinished() == 1
    # moto says of each upload that it began in 2010.
    scene.provider.store(2, done.id).abort()
    scene.provider.cleanup()
    scene.all_end()
    scene.check(done.id)


def test_kill_9_in_the_batch(scene: Scene, server: S3Server, tmp_path: Path) -> None:
    doomed = Harness(tmp_path)
    provider = scene.open(doomed)
    provider.store(1, scene.first.id).put_numbered(ROWS)
    scene.sent()
    doomed.kill()
    assert scene.unfinished() == 1 and len(scene.keys()) == 1
    done = scene.batch().commit()
    storage = open_storage(f"s3://{scene.bucket}", server.settings())
    assert drop_unfinished(storage, "states/the-query/state/0/", server.uploads_began_ms) == 0
    assert drop_unfinished(storage, "states/the-query/state/0/", server.uploads_began_ms + 1) == 1
    scene.check(done.id)


def test_a_commit_that_fails_is_made_again(scene: Scene, server: S3Server) -> None:
    store = scene.batch()
    scene.sent()
    refusal = Fault(403, "AccessDenied")
    with (
        server.faults(lambda r: refusal if r.method in ("PUT", "POST") else None),
        pytest.raises(ProviderError, match="STORAGE_DENIED"),
    ):
        store.commit()
    done = store.commit()
    scene.all_end()
    scene.check(done.id)
