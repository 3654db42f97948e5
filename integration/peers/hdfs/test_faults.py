"""What a query says when HDFS fails, and that it goes on when the fault has ended."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.cases import EVENTS, events
from integration.jvm import MILLPOND
from integration.peers.hdfs.cluster import Hdfs
from integration.streams import Input, settings
from millpond.operations.inspect import verify
from millpond.storage import open_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_STATE = "spark.sql.streaming.stateStore."
_numbers = itertools.count()


class Query:
    """A query that counts by key. Its files on HDFS are below `folder`.

    With `whole` the Spark checkpoint is there, else only the state.
    """

    def __init__(self, spark: SparkSession, hdfs: Hdfs, work: Path, whole: bool) -> None:
        self.spark = spark
        self.whole_there = whole
        self.folder = f"/tests/faults-{next(_numbers)}"
        self.uri = f"{hdfs.uri}{self.folder}"
        self.checkpoint = f"{self.uri}/checkpoint" if whole else str(work / "checkpoint")
        self.conf = {
            f"{_STATE}providerClass": MILLPOND,
            f"{_STATE}minDeltasForSnapshot": "2",
            # The client asks a name node that is down for half a minute otherwise.
            "ipc.client.connect.max.retries": "2",
        }
        if not whole:
            self.conf[f"{_STATE}millpond.storage.uri"] = f"{self.uri}/states"
        self.rows: dict[int, list[str]] = {}
        self.jobs: list[int] = []
        self._input = Input(work / "input", EVENTS)
        self._expected: list[list[str]] = []
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, files: int) -> None:
        """Add files of input, a batch each."""
        for _ in range(files):
            batch = len(self._expected)
            rows = [(f"k{(batch * 3 + n) % 5}", float(batch), batch + n) for n in range(4)]
            for key, _, value in rows:
                n, s = self._counts.get(key, (0, 0))
                self._counts[key] = (n + 1, s + value)
            self._input.add(events(*rows))
            changed = sorted({key for key, *_ in rows})
            self._expected.append(
                [f"Row(k={k!r}, n={self._counts[k][0]}, s={self._counts[k][1]})" for k in changed]
            )

    def run(self, during: Callable[[int], None] = lambda batch: None) -> None:
        """Run to the end of the input. The sink calls `during` with the number of each batch.

        Raises: StreamingQueryException: the query failed.
        """

        def sink(batch: DataFrame, number: int) -> None:
            rows = sorted(repr(row) for row in batch.collect())
            assert self.rows.setdefault(number, rows) == rows, "it wrote other rows before"
            during(number)

        counts = self._input.stream(self.spark).groupBy("k")
        frame = counts.agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        with settings(self.spark, self.conf):
            writer = frame.writeStream.outputMode("update").foreachBatch(sink)
            writer = writer.option("checkpointLocation", self.checkpoint)
            query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(180), query.lastProgress
        finally:
            tracker = self.spark.sparkContext.statusTracker()
            self.jobs = list(tracker.getJobIdsForGroup(str(query.runId)))

    def fails(self, during: Callable[[int], None] = lambda batch: None) -> str:
        """Run, and return how the query failed."""
        with pytest.raises(StreamingQueryException) as caught:
            self.run(during)
        return str(caught.value)

    def whole(self) -> None:
        """Check every batch, and every byte of the Spark checkpoint."""
        assert [self.rows[batch] for batch in sorted(self.rows)] == self._expected
        storage = open_checkpoint(self.checkpoint)
        assert verify(storage, self.checkpoint).problems == []


@pytest.fixture
def cluster(hdfs: Hdfs) -> Iterator[Hdfs]:
    """The cluster. Afterwards it is as it was: both nodes run, and safe mode is off."""
    yield hdfs
    for node in ("namenode", "datanode"):
        if not hdfs.runs(node):
            hdfs.start(node)
    hdfs.wait(leave_safe_mode=True)


@pytest.fixture(params=[False, True], ids=["state", "checkpoint"])
def query(
    request: pytest.FixtureRequest, spark: SparkSession, cluster: Hdfs, tmp_path: Path
) -> Query:
    made = Query(spark, cluster, tmp_path, request.param)
    cluster.shell("-mkdir", made.folder)
    cluster.shell("-chmod", "777", made.folder)
    return made


@pytest.fixture
def of_state(spark: SparkSession, cluster: Hdfs, tmp_path: Path) -> Query:
    """A query with its state on HDFS. Whatever Spark itself does is in a local directory."""
    made = Query(spark, cluster, tmp_path, False)
    cluster.shell("-mkdir", made.folder)
    cluster.shell("-chmod", "777", made.folder)
    return made


def once(do: Callable[[], object]) -> Callable[[int], None]:
    """Return a function for `Query.run` that calls `do` in batch 1."""

    def during(batch: int) -> None:
        if batch == 1:
            do()

    return during


# ---- known before the first batch


def _refused(query: Query, *says: str) -> None:
    """The query fails before its first task. The error names the address, and what to do."""
    said = query.fails()
    assert query.jobs == [], "a task ran"
    for text in (query.uri, *says):
        assert text in said, said


def test_a_directory_where_the_user_may_not_write(of_state: Query, cluster: Hdfs) -> None:
    of_state.add(2)
    cluster.shell("-chmod", "755", of_state.folder)
    _refused(of_state, "MILLPOND_STORAGE_DENIED", "Permission denied: user=", "Give the user")
    cluster.shell("-chmod", "777", of_state.folder)
    of_state.run()
    of_state.whole()


@pytest.mark.sample
def test_safe_mode_before_the_start(of_state: Query, cluster: Hdfs) -> None:
    of_state.add(2)
    cluster.admin("-safemode", "enter")
    _refused(
        of_state, "MILLPOND_STORAGE_UNAVAILABLE", "Name node is in safe mode", "-safemode leave"
    )
    cluster.admin("-safemode", "leave")
    of_state.run()
    of_state.whole()


def test_no_name_node_at_the_start(of_state: Query, cluster: Hdfs) -> None:
    of_state.add(2)
    cluster.kill("namenode")
    _refused(of_state, "MILLPOND_STORAGE_UNAVAILABLE", "the name node)")
    cluster.start("namenode")
    cluster.wait()
    of_state.run()
    of_state.whole()


def test_a_full_quota_at_the_start(of_state: Query, cluster: Hdfs) -> None:
    of_state.add(2)
    cluster.admin("-setQuota", "1", of_state.folder)
    _refused(of_state, "MILLPOND_STORAGE_FULL", "quota", "-setQuota")
    cluster.admin("-clrQuota", of_state.folder)
    # less than the block that a file has while it is written
    cluster.admin("-setSpaceQuota", "1m", of_state.folder)
    _refused(of_state, "MILLPOND_STORAGE_FULL", "quota", "-setSpaceQuota", "dfs.blocksize")
    cluster.admin("-clrSpaceQuota", of_state.folder)
    of_state.run()
    of_state.whole()


def test_no_data_node_at_the_start(of_state: Query, cluster: Hdfs) -> None:
    of_state.add(2)
    cluster.kill("datanode")
    _refused(of_state, "MILLPOND_STORAGE_UNAVAILABLE", "could only be written to 0", "-report")
    cluster.start("datanode")
    cluster.wait()
    of_state.run()
    of_state.whole()


# ---- in mid-query


def test_a_quota_that_fills_up(query: Query, cluster: Hdfs) -> None:
    query.add(4)
    said = query.fails(once(lambda: cluster.admin("-setQuota", "1", query.folder)))
    assert "quota" in said and query.folder in said, said
    if not query.whole_there:
        assert "MILLPOND_STORAGE_FULL" in said and "-setSpaceQuota" in said, said
    assert max(query.rows) < 3
    cluster.admin("-clrQuota", query.folder)
    query.run()
    query.whole()


def test_safe_mode_in_mid_query(query: Query, cluster: Hdfs) -> None:
    query.add(4)
    said = query.fails(once(lambda: cluster.admin("-safemode", "enter")))
    assert "safe mode" in said, said
    if not query.whole_there:
        assert "MILLPOND_STORAGE_UNAVAILABLE" in said and "-safemode leave" in said, said
    cluster.admin("-safemode", "leave")
    query.run()
    query.whole()


def _goes_on(query: Query, cluster: Hdfs, during: Callable[[int], None]) -> None:
    """Run with a fault that ends. If the query fails for it, it goes on at its restart."""
    try:
        query.run(during)
    except StreamingQueryException as failed:
        said = str(failed)
        assert query.uri.split("/")[2] in said or query.folder in said, said
        cluster.wait()
        query.run()
    query.add(2)
    cluster.wait()
    query.run()
    query.whole()


@pytest.mark.parametrize("node", ["datanode", "namenode"])
def test_a_node_is_killed_and_starts_again(query: Query, cluster: Hdfs, node: str) -> None:
    """The node is killed with -9 in batch 1, and starts while the query runs."""

    def again() -> None:
        cluster.kill(node)
        cluster.start(node)

    query.add(4)
    _goes_on(query, cluster, once(again))


# ---- commands


def _millpond(cluster: Hdfs, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millpond.cli.main", *arguments],
        env={**os.environ, "HADOOP_CONF_DIR": str(cluster.conf)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_commands_reach_the_cluster(cluster: Hdfs, query: Query) -> None:
    """They need no session. HADOOP_CONF_DIR says where the cluster is."""
    query.add(3)
    query.run()
    for arguments in (
        ["storage", "check", "--quick", f"hdfs:{query.folder}"],
        ["checkpoint", "verify", query.checkpoint],
        ["savepoint", "create", query.checkpoint, f"{query.uri}/saved"],
        ["savepoint", "verify", f"{query.uri}/saved"],
        ["rescale", query.checkpoint, "--partitions", "4"],
    ):
        done = _millpond(cluster, *arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    query.add(1)
    query.run()
    cluster.admin("-safemode", "enter")
    done = _millpond(cluster, "savepoint", "create", query.checkpoint, f"{query.uri}/other")
    assert done.returncode != 0 and "Name node is in safe mode" in done.stderr, done.stderr
    assert "-safemode leave" in done.stderr
