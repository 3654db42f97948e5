"""What kills and Millpond's commands mean for a query whose sink is a Delta table. Source:
docs/guides/sinks.md.

The query emits each key once, so the table shows what came twice or never.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import millpond
from integration.jvm import MILLPOND, ROCKSDB
from integration.peers.delta.session import table, transactions
from integration.processes import wait_until
from integration.sink_queries import FORMAT, PROVIDER, Distinct, distinct
from integration.test_crash import Job
from millpond import savepoint

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_JOB = "integration.peers.delta.job"
_BY_FUNCTION = {"app": "it"}
_MANAGER = "org.apache.spark.sql.millpond.testing.HoldingFileManager"


def rows(spark: SparkSession, path: Path) -> list[str]:
    """Return the keys in a table, each as often as it is there."""
    return sorted(row[0] for row in spark.read.format("delta").load(str(path)).collect())


@pytest.fixture(params=[1, 2])
def query(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Distinct:
    """Return the query with two batches of input, in each Spark checkpoint format."""
    made = distinct(spark, tmp_path, **{FORMAT: str(request.param)})
    made.add(2)
    return made


# ---- kills


def kill_between_the_commits(
    work: Path, format_: int, provider: str, batch: int, conf: Mapping[str, str]
) -> None:
    """Run the job, and kill its driver when the table has a batch, and Spark's log has not."""
    held = work / "held"
    conf = {
        **conf,
        "spark.hadoop.millpond.test.hold": f"commits/{batch}",
        "spark.hadoop.millpond.test.held": str(held),
        "spark.sql.streaming.checkpointFileManagerClass": _MANAGER,
    }
    job = Job(work, format_, provider, conf, _JOB)
    wait_until(
        lambda: held.exists() or job.process.poll() is not None,
        seconds=180,
        what=f"the job to reach batch {batch}: {job.lines[-3:]}",
    )
    assert held.exists(), job.report()
    os.kill(job.jvm, signal.SIGKILL)
    job.end()
    held.unlink()
    assert not (work / "checkpoint/commits" / str(batch)).exists()


@pytest.mark.parametrize(
    ("format_", "conf"),
    [(1, {}), (1, _BY_FUNCTION), (2, _BY_FUNCTION)],
    ids=["sink-1", "foreachBatch-1", "foreachBatch-2"],
)
def test_kills_neither_lose_nor_double_a_row(
    spark: SparkSession, tmp_path: Path, format_: int, conf: dict[str, str]
) -> None:
    """The driver dies once between the commit of the table and that of Spark's log, and once
    anywhere.
    """
    query = distinct(spark, tmp_path)
    query.add(5)
    kill_between_the_commits(tmp_path, format_, MILLPOND, 1, conf)
    assert len(rows(spark, tmp_path / "table")) == 4, "the table has both batches"
    job = Job(tmp_path, format_, MILLPOND, conf, _JOB)
    wait_until(
        lambda: (tmp_path / "checkpoint/commits/2").exists() or job.process.poll() is not None,
        seconds=180,
        what="batch 2",
    )
    threading.Event().wait(0.3)  # the kill must come somewhere in a batch
    if job.process.poll() is None:
        os.kill(job.jvm, signal.SIGKILL)
    job.end()
    query.add(2)
    last = Job(tmp_path, format_, MILLPOND, conf, _JOB)
    assert last.end() == 0, last.report()
    assert rows(spark, tmp_path / "table") == sorted(query.keys)
    assert millpond.checkpoint.verify(tmp_path / "checkpoint").problems == []


@pytest.mark.parametrize("provider", [MILLPOND, ROCKSDB])
def test_a_batch_that_the_sink_leaves_out_stops_a_query_in_format_2(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    """The sink does not read a batch that the table has. So the batch makes no state, and Spark
    asks for its ids, with any store. A function that reads the batch leads on.
    """
    query = distinct(spark, tmp_path, **{PROVIDER: provider, FORMAT: "2"})
    query.add(3)
    kill_between_the_commits(tmp_path, 2, provider, 1, {})
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "table"
    with pytest.raises(StreamingQueryException, match="CheckpointInfo length: 0"):
        query.run(checkpoint, table(out))
    id_ = json.loads((checkpoint / "metadata").read_text())["id"]
    query.run(checkpoint, transactions(out, id_))
    assert rows(spark, out) == sorted(query.keys)
    query.add(2)
    query.run(checkpoint, table(out))
    assert rows(spark, out) == sorted(query.keys)


# ---- the sink `delta`


def test_a_rescale_leaves_the_table_whole(query: Distinct, tmp_path: Path) -> None:
    """The table's transactions go on above the number that the rescale used up."""
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "table"
    query.run(checkpoint, table(out))
    assert millpond.rescale(checkpoint, 4).warnings == ()
    query.add(2)
    query.run(checkpoint, table(out))
    assert rows(query.spark, out) == sorted(query.keys)


def test_a_fork_doubles_rows_in_the_same_table(query: Distinct, tmp_path: Path) -> None:
    """The sink writes as an application with the query's id, and a fork has another one."""
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "table"
    query.run(checkpoint, table(out))
    before = sorted(query.keys)
    savepoint.fork(checkpoint, tmp_path / "shared")
    savepoint.fork(checkpoint, tmp_path / "apart")
    query.add(2)
    after = sorted(query.keys - set(before))
    query.run(checkpoint, table(out))
    query.run(tmp_path / "shared", table(out))
    assert rows(query.spark, out) == sorted([*before, *after, *after])
    query.run(tmp_path / "apart", table(tmp_path / "other"))
    assert rows(query.spark, tmp_path / "other") == after


def test_a_move_goes_on_in_the_table(query: Distinct, tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "table"
    query.run(checkpoint, table(out))
    saved = savepoint.create(checkpoint, tmp_path / "saved").savepoint
    savepoint.restore(saved, tmp_path / "moved", keep_query_id=True)
    query.add(2)
    query.run(tmp_path / "moved", table(out))
    assert rows(query.spark, out) == sorted(query.keys)


def test_back_to_an_older_batch(query: Distinct, tmp_path: Path) -> None:
    """A move would repeat batches that the table leaves out unread, so that they make no state.

    What leads back: the table goes back too, and the query gets a new id.
    """
    checkpoint, out, spark = tmp_path / "checkpoint", tmp_path / "table", query.spark
    query.run(checkpoint, table(out))
    saved = savepoint.create(checkpoint, tmp_path / "saved").savepoint
    version = spark.sql(f"describe history delta.`{out}` limit 1").collect()[0]["version"]
    query.add(2)
    query.run(checkpoint, table(out))
    whole = sorted(query.keys)
    savepoint.restore(saved, tmp_path / "moved", keep_query_id=True)
    query.add()
    with pytest.raises(StreamingQueryException, match=r"CHANGELOG_MISSING|CheckpointInfo length"):
        query.run(tmp_path / "moved", table(out))
    assert rows(spark, out) == whole, "no row is lost or doubled"

    savepoint.restore(saved, tmp_path / "restored")
    spark.sql(f"restore table delta.`{out}` to version as of {version}")
    assert rows(spark, out) != whole
    query.run(tmp_path / "restored", table(out))
    assert rows(spark, out) == sorted(query.keys)


# ---- foreachBatch


def test_transactions_of_foreach_batch(query: Distinct, tmp_path: Path) -> None:
    """A fork that writes as the same application is left out. With an application of its own its
    rows come twice in the same table.
    """
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "table"
    query.run(checkpoint, transactions(out, "it"))
    before = set(query.keys)
    assert millpond.rescale(checkpoint, 4).warnings == ()
    query.add(2)
    savepoint.fork(checkpoint, tmp_path / "same")
    savepoint.fork(checkpoint, tmp_path / "own")
    query.run(checkpoint, transactions(out, "it"))
    assert rows(query.spark, out) == sorted(query.keys)
    query.run(tmp_path / "same", transactions(out, "it"))
    assert rows(query.spark, out) == sorted(query.keys), "it wrote nothing"
    query.run(tmp_path / "own", transactions(tmp_path / "other", "own"))
    assert rows(query.spark, tmp_path / "other") == sorted(query.keys - before)
