"""A store on S3 whose batches are so large that their changelogs are sent while they run.

The tests with moto and those of the peers, which are real servers, have the same scene.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from integration.harness import Harness, Numbered, Provider, Schema, short_conf
from integration.jvm import MILLPOND
from integration.processes import wait_until
from integration.provider import Store
from integration.store_model import write_spark_metadata
from millpond.storage import open_storage
from millpond.storage.growing import drop_unfinished
from tests.s3_server import HADOOP, S3Server

SCHEMA = Schema("k bigint", "v string")
ROWS = Numbered(80_000, "large", 400)  # 33 MiB: the batch leaves some thousands to its commit
PARTS = 4  # of 5 MiB, of seven, which the batch completes at least beside the first
_STATE = "states/the-query/state"


class Scene:
    """A store with its state in a bucket of its own."""

    def __init__(
        self, server: S3Server, harness: Harness, checkpoint: Path, local_dir: Path | None = None
    ) -> None:
        self.server, self.harness, self.local_dir = server, harness, local_dir
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
        if self.local_dir is not None:
            conf["spark.sql.streaming.stateStore.millpond.localDir"] = str(self.local_dir)
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
        wait_until(lambda: self.parts() >= parts, seconds=60, what="the parts")

    def parts(self) -> int:
        """Return how many parts the server has been sent."""
        return self.server.counts["PART"]

    def uploads(self) -> list[Any]:
        """Return the uploads that nobody has finished, as the server lists them."""
        answer = self.server.client().list_multipart_uploads(Bucket=self.bucket)
        return list(answer.get("Uploads", ()))

    def unfinished(self) -> int:
        """Return how many uploads nobody has finished."""
        return len(self.uploads())

    def drop_unfinished(self, begun_before_ms: int) -> int:
        """Do what a collection of garbage does; return how many uploads it threw away."""
        storage = open_storage(f"s3://{self.bucket}", self.server.settings())
        return drop_unfinished(storage, f"{_STATE}/0/", begun_before_ms)

    def all_end(self) -> None:
        wait_until(lambda: self.unfinished() == 0, seconds=60, what="the end of the upload")

    def keys(self) -> list[str]:
        """Return the changelogs that are objects."""
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
