"""The tests that each storage must pass, whatever keeps the files. A peer's tests call them.

    class TestContract(PlaceContract):      # the fixture `place` is the peer's own
        ...
    class TestQueries(PlaceQueries):
        ...
    def test_what_it_can_do(place):
        note(place, "creates_once", "replaces_whole", "lists_at_once")

`note` writes what a storage can do. `python -m integration.peers.matrix` makes the page anew.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.jvm import MILLPOND, REPO
from integration.peers.loopback import WITHOUT_OBSTORE, write_site
from integration.peers.racer import Racer
from integration.shapes import named
from integration.streams import Input, settings
from integration.test_crash import kill_the_driver
from millpond import savepoint
from millpond.config import MIB
from millpond.errors import ConflictError
from millpond.operations.inspect import verify
from millpond.operations.rescale import rescale
from millpond.storage import Storage, open_checkpoint
from millpond.storage.hadoop import HadoopStorage
from millpond.storage.steps import run_steps
from millpond.testing.storage_contract import StorageContract
from tests.s3_server import S3Server

OBSTORE = "obstore"
_STATE = "spark.sql.streaming.stateStore."
_WRITERS = 8
_ROUNDS = 20
_NOTES = Path(__file__).with_name("results") / "storages"
PAGE = REPO / "docs" / "reference" / "storages.md"

_HEAD = """\
# Storages

What each storage can do, as Millpond's own operations found it. The runs of the
[peers](peers.md) write this table. Try yours with `millpond storage check`.

- *Creates once*: of eight writers that create one file at once, one wins, and seven are told. Where
  Hadoop's client moves the files, they are in two processes.
- *Replaces whole*: a reader beside a writer sees the old file or the new one, never a part, and
  never none.
- *Lists at once*: a listing shows a file right after its put, and no longer after its deletion.
- *Copies itself*: the storage copies a file without sending its bytes through Millpond.

| storage | reached by | creates once | replaces whole | lists at once | copies itself |
|---|---|---|---|---|---|
"""


_TAIL = """
Behind the answers:

- ABFS has no request that replaces a file by another: the old one is deleted, then the new one is
  renamed. A reader in between finds no file. A process that is killed in between leaves the new one
  alone, under the name of a staging file (`.staging-…`). So does a rename that fails twice, and the
  error names that file. Millpond writes nearly all files once. It replaces the pin of a savepoint
  that is being made, what a task repeats under Spark's first checkpoint format (a changelog, a
  manifest), and small files that it can do without.
- Azurite has no DFS endpoint, which ABFS uses for accounts with folders. So ABFS speaks to its Blob
  endpoint (`fs.azure.fns.account.service.type=BLOB`), as for accounts without. Hadoop 3.5 has no
  WASB any more: "WASB Driver using wasb(s) schema is no longer supported".
- obstore, by which jobs and commands reach Azure without Hadoop, puts a file in one request, which
  replaces the old one.
- The emulator of Google Cloud Storage copies and deletes where the real one can move, and asks
  nobody who they are. Millpond writes a file there in one request, which names what it replaces.
- Ceph's gateway, radosgw 16.2, ignores the condition at the end of an upload in parts, so Millpond
  looks first: [State on S3](../guides/s3.md).
- SeaweedFS 3.39 ignores `If-None-Match`, so nothing there creates a file once, and a query needs
  `storage.s3.conditionalPut=false`: [State on S3](../guides/s3.md). It is of January 2023: Go's
  module proxy refuses SeaweedFS's later versions that were asked for (3.59, 3.97, a commit of
  April 2026), and the list of them. Debian, npm, PyPI and Maven Central have no server of it.
"""


@dataclass(frozen=True)
class Place:
    """Where a test keeps files. What makes one lets this process reach it, too.

    Args:
        storage: its line in the table, such as `HDFS`.
        door: who moves the files, such as `Hadoop's client` or `boto3`.
        root: URI of a folder for this test alone. The folder need not exist.
        conf: Spark's settings by their full names.
        hadoop: Hadoop's settings (`fs.s3a.endpoint`) for the job's JVM.
        jars: what a job's JVM needs beside Spark's own jars.
        state_only: Spark's logs stay in a local directory, and only the state goes to `root`. Then
            `conf` has the option storage.uri.
        open: opens a folder at or below `root`, or a Spark checkpoint whose state is there.
    """

    storage: str
    door: str
    root: str
    conf: Mapping[str, str] = field(default_factory=dict)
    hadoop: Mapping[str, str] = field(default_factory=dict)
    jars: Sequence[Path] = ()
    state_only: bool = False
    open: Callable[[str], Storage] = open_checkpoint

    def checkpoint(self, work: Path, name: str) -> str:
        """Return where a query of the test has its Spark checkpoint."""
        return str(work / name) if self.state_only else f"{self.root}/{name}"

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables by which a process without a session reaches it through Hadoop.

        Args:
            folder: gets Hadoop's settings.
        """
        folder.mkdir(parents=True, exist_ok=True)
        write_site(folder / "core-site.xml", self.hadoop)
        jars = os.pathsep.join(map(str, self.jars))
        env = {**os.environ, "HADOOP_CONF_DIR": str(folder), "SPARK_DIST_CLASSPATH": jars}
        return env if self.door == OBSTORE else {**env, WITHOUT_OBSTORE: "1"}

    def job_conf(self) -> dict[str, str]:
        """Return the settings for a job with a JVM of its own."""
        conf = {**self.conf, **{f"spark.hadoop.{name}": v for name, v in self.hadoop.items()}}
        if self.jars:
            conf["spark.driver.extraClassPath"] = ":".join(map(str, self.jars))
        if not self.state_only:
            conf["spark.test.checkpoints"] = self.root
        return conf


def large_objects(server: S3Server, work: Path) -> None:
    """A large object goes up and comes down in parts. Nobody gets a second one of its name in.

    Args:
        work: an empty folder.
    """
    body = os.urandom(17 * MIB)
    (work / "file").write_bytes(body)
    changes: dict[str, Any] = {"multipart_bytes": 5 * MIB, "part_bytes": 5 * MIB}
    bucket = server.bucket()
    storage = server.storage(bucket, **changes)
    storage.put_file("x.sst", str(work / "file"), if_absent=True)
    storage.get_to_file("x.sst", str(work / "back"))
    assert (work / "back").read_bytes() == body
    for conditional in (True, False):
        again = server.storage(bucket, conditional_put=conditional, **changes)
        with pytest.raises(ConflictError):
            again.put_file("x.sst", str(work / "file"), if_absent=True)


class PlaceContract(StorageContract):
    """The contract of storages, at a place. Inherit it beside a fixture `place`, one per test."""

    @pytest.fixture
    def storage(self, place: Place) -> Storage:
        return place.open(f"{place.root}/the checkpoint % of it")


class PlaceQueries:
    """What queries at a place go through. Inherit it beside the fixture `place`."""

    def kills(self, place: Place) -> int:
        """Return how often the driver is killed."""
        return 1

    @pytest.mark.parametrize("checkpoint_format", [1, 2])
    def test_kills_lose_nothing(self, place: Place, tmp_path: Path, checkpoint_format: int) -> None:
        exactly_once(place, tmp_path, checkpoint_format=checkpoint_format, kills=self.kills(place))

    def test_a_savepoint_and_a_rescale(
        self, spark: SparkSession, place: Place, tmp_path: Path
    ) -> None:
        savepoint_and_rescale(place, spark, tmp_path)


def exactly_once(place: Place, work: Path, *, checkpoint_format: int, kills: int = 1) -> None:
    """Kill the driver of two queries with -9 at random points. The end equals the batch
    computation. Both queries' checkpoints have no damage.
    """
    kill_the_driver(work, checkpoint_format, kills, place.job_conf())
    for query in ("count", "join"):
        root = place.checkpoint(work, f"checkpoint-{query}")
        assert verify(place.open(root), root).problems == []


def savepoint_and_rescale(place: Place, spark: SparkSession, work: Path) -> None:
    """Save a query, rescale it, let it go on. The restored and the forked query write the same."""
    case = named("agg-update-odd-keys")
    schema, batches = case.inputs[0]
    source = Input(work / "input", schema)
    conf = {
        f"{_STATE}providerClass": MILLPOND,
        f"{_STATE}checkpointFormatVersion": str(case.checkpoint_format),
        **place.conf,
        **place.hadoop,
        **case.conf,
    }
    uri = place.conf.get(f"{_STATE}millpond.storage.uri")
    assert (uri is not None) == place.state_only

    def go_on(name: str) -> list[list[str]]:
        """Run the query until its input is done. Return the rows of each batch."""
        rows: list[list[str]] = []

        def sink(batch: DataFrame, _: int) -> None:
            rows.append(sorted(repr(row) for row in batch.collect()))

        frame = case.build([source.stream(spark)])
        with settings(spark, conf):
            writer = frame.writeStream.outputMode(case.mode).foreachBatch(sink)
            writer = writer.option("checkpointLocation", place.checkpoint(work, name))
            query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120), query.lastProgress
        return rows

    for batch in batches[:3]:
        source.add(batch)
    go_on("run")
    first, saved = place.checkpoint(work, "run"), f"{place.root}/saved/first"
    savepoint.create(first, saved)
    assert savepoint.verify(saved).ok
    savepoint.fork(first, place.checkpoint(work, "fork"), storage_uri=uri)
    savepoint.restore(saved, place.checkpoint(work, "restored"), storage_uri=uri)
    assert rescale(place.open(first), first, 4).partitions == 4
    for batch in batches[3:]:
        source.add(batch)
    after = go_on("run")
    assert any(after), "no rows came after the savepoint, so the test proves nothing"
    for name in ("fork", "restored"):
        assert go_on(name) == after, name
    for name in ("run", "fork", "restored"):
        root = place.checkpoint(work, name)
        assert verify(place.open(root), root).problems == [], name


# ---- the table


def note(place: Place, *can: str) -> None:
    """Find out what the storage can do, and make the page anew with it.

    Args:
        can: the columns that must be true; the others must be false.
    """
    steps = run_steps(place.open(f"{place.root}/steps"))
    assert [(step.name, step.error) for step in steps if step.error is not None] == []
    found = {name: has(place, f"{place.root}/{name}") for name, has in _PROPERTIES.items()}
    _NOTES.mkdir(parents=True, exist_ok=True)
    line = {"storage": place.storage, "door": place.door, **found}
    name = "".join(c if c.isalnum() else "-" for c in f"{place.storage} {place.door}".lower())
    (_NOTES / f"{name}.json").write_text(json.dumps(line, indent=2) + "\n")
    PAGE.write_text(page())
    assert [name for name in found if found[name]] == [*can]


def page() -> str:
    """Return docs/reference/storages.md as the saved notes make it."""
    lines = [json.loads(path.read_text()) for path in sorted(_NOTES.glob("*.json"))]
    return _HEAD + "".join(map(_row, lines)) + _TAIL


def _row(line: Mapping[str, object]) -> str:
    cells = [line["storage"], line["door"], *("yes" if line[n] else "no" for n in _PROPERTIES)]
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _creates_once(place: Place, root: str) -> bool:
    storage = place.open(root)
    by_hadoop = isinstance(storage, HadoopStorage)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        env = place.environment(Path(folder)) if by_hadoop else None
        # One JVM lets in one creator at a time, so others must race with it.
        racers = [
            stack.enter_context(Racer(place.open, root, _WRITERS // 2, first, env))
            for first in (0, _WRITERS // 2)
        ]
        for round_ in range(_ROUNDS):
            key = f"once/{round_}"
            for racer in racers:
                racer.go(key)
            won = [number for racer in racers for number in racer.winners()]
            if len(won) != 1 or storage.read(key) != b"%d" % won[0]:
                return False
    return True


def _replaces_whole(place: Place, root: str) -> bool:
    storage = place.open(root)
    bodies = [bytes([i]) * 200_000 for i in range(4)]
    storage.put_bytes("whole", bodies[0])
    stop, torn = threading.Event(), threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                seen = storage.read("whole")
            except Exception:  # whatever the reader is told: it did not get the whole file
                seen = b""
            if seen not in bodies:
                torn.set()

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(60):
        storage.put_bytes("whole", bodies[i % 4])
    stop.set()
    reader.join()
    return not torn.is_set()


def _lists_at_once(place: Place, root: str) -> bool:
    storage = place.open(root)
    for i in range(20):
        storage.put_bytes(f"listed/{i}", b"x")
        if f"listed/{i}" not in {info.key for info in storage.list("listed/")}:
            return False
    for i in range(20):
        storage.delete([f"listed/{i}"])
        if f"listed/{i}" in {info.key for info in storage.list("listed/")}:
            return False
    return True


def _copies_itself(place: Place, root: str) -> bool:
    storage = place.open(root)
    storage.put_bytes("copied/from", b"x" * 1000)
    return storage.copy_from(storage, "copied/from", "copied/to") is not None


_PROPERTIES: dict[str, Callable[[Place, str], bool]] = {
    "creates_once": _creates_once,
    "replaces_whole": _replaces_whole,
    "lists_at_once": _lists_at_once,
    "copies_itself": _copies_itself,
}

if __name__ == "__main__":
    PAGE.write_text(page())
