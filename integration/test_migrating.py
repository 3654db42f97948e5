"""Queries move from one state store to another, and back. Each batch keeps its rows and state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import millpond
from integration.cases import Case, transform_with_state
from integration.depth import quick_first
from integration.harness import EVERYTHING
from integration.jvm import MILLPOND, REPO
from integration.processes import wait_until
from integration.python_state_cases import Seeded
from integration.shapes import SHAPES, named
from integration.streams import Input, Run, finish, settings, start
from millpond.cli.main import main
from millpond.errors import ConflictError, ErrorKind, MillpondError
from millpond.operations.inspect import verify
from millpond.operations.migrate import migrate
from millpond.operations.migrate.plan import HDFS, PROVIDERS, ROCKSDB
from millpond.storage import open_storage
from tests.s3_server import HADOOP, Fault, Request, S3Server, s3_server

pytestmark = pytest.mark.spark

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
# The first has values in lists and two orders by time. The second has timers, TTL, lists and maps.
# The third has two operators in plain stores.
_CASES = [("join-left-v4", ROCKSDB), ("scala-event-time", ROCKSDB), ("dedupe-then-window", HDFS)]


def _cases() -> list[Any]:
    """Return names of cases, with the store that the query has before and after.

    With MILLPOND_SHAPES=all: every shape that Spark runs.
    """
    if not EVERYTHING:
        return quick_first(_CASES)
    runs = [case for case in SHAPES if not case.refused and case.later is None]
    plain = [case.name for case in runs if case.checkpoint_format == 1 and not _has_families(case)]
    return [(case.name, ROCKSDB) for case in runs] + [(name, HDFS) for name in plain]


def _has_families(case: Case) -> bool:
    return (
        "transformWithState" in case.operator
        or case.name.endswith(("v3", "v4"))
        or case.encoding == "avro"
    )


def _conf(case: Case, provider: str) -> dict[str, str]:
    # Every second case has no changelogs. Its Spark checkpoint has other files.
    changelog = (
        {_CHANGELOG: str(len(case.name) % 2 == 0).lower()} if provider == PROVIDERS[ROCKSDB] else {}
    )
    own = case.candidate_conf if provider == MILLPOND else {}
    return {
        _PROVIDER: provider,
        _FORMAT: str(case.checkpoint_format),
        **changelog,
        **case.conf,
        **own,
    }


def _tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def _unchanged(root: Path, before: Mapping[str, bytes]) -> bool:
    """Return whether all files are as they were.

    Hidden, unfinished files do not count. The heartbeat of the ended query does not count either:
    Spark's listener removes it a moment later.
    """

    def kept(tree: Mapping[str, bytes]) -> dict[str, bytes]:
        return {
            name: content
            for name, content in tree.items()
            if "/." not in name and "/running/" not in name
        }

    return kept(_tree(root)) == kept(before)


@pytest.mark.parametrize(("name", "provider"), _cases())
def test_goes_on_in_another_store_and_back(
    spark: SparkSession, tmp_path: Path, name: str, provider: str
) -> None:
    case = named(name)
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for rows in batches:
            source.add(rows)

    def frame() -> DataFrame:
        return case.build([source.stream(spark) for source in inputs])

    def run_on(run: Run, store: str) -> Run:
        finish(start(spark, frame(), run, output_mode=case.mode, conf=_conf(case, store)), run)
        # Otherwise the loaded stores of the ended query would write snapshots and clean up while
        # the test compares files.
        jvm: Any = spark.sparkContext._jvm
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        return run

    old = run_on(Run(tmp_path / "old"), PROVIDERS[provider])
    before = _tree(old.checkpoint)
    adopted = millpond.adopt(old.checkpoint, tmp_path / "new", batch=1)
    assert (adopted.batch, adopted.provider_before) == (1, provider)
    assert _unchanged(old.checkpoint, before)
    for options in case.reads or _reads(case):
        known = _read(spark, old.checkpoint, options, _conf(case, PROVIDERS[provider]))
        found = _read(spark, tmp_path / "new", options, _conf(case, MILLPOND))
        assert known and found == known, f"Spark's state reader, {options}"
    new = run_on(Run(tmp_path / "new"), MILLPOND)
    _same_after(new, old, 1, case)
    assert verify(open_storage(str(new.checkpoint)), "x").problems == []

    before = _tree(new.checkpoint)
    released = millpond.release(new.checkpoint, tmp_path / "back", provider=provider, batch=3)
    assert (released.batch, released.query_id) == (3, adopted.query_id)
    assert _unchanged(new.checkpoint, before)
    back = run_on(Run(tmp_path / "back"), PROVIDERS[provider])
    _same_after(back, old, 3, case)
    assert adopted.rows + released.rows > 0, "no state was copied, so the test proves nothing"


def _reads(case: Case) -> list[dict[str, str]]:
    """Return options of Spark's state reader, for cases that have none."""
    if ("chain" in case.operator or "-then-" in case.name) and case.name != "dedupe-then-window":
        # Without options it reads operator 0. There that is a join, or has no state yet.
        return []
    if "join" in case.operator:
        return [{"joinSide": side} for side in ("left", "right")]
    return [] if "transformWithState" in case.operator else [{}]


def _read(
    spark: SparkSession, checkpoint: Path, options: Mapping[str, str], conf: Mapping[str, str]
) -> list[str]:
    """Return the rows that Spark's state reader finds after batch 1, with TTL expiry times."""
    with settings(spark, conf):
        reader = spark.read.format("statestore").options(**{**options, "batchId": "1"})
        return sorted(repr(row) for row in reader.load(str(checkpoint)).collect())


def _same_after(run: Run, reference: Run, batch: int, case: Case) -> None:
    rows = {number: rows for number, rows in reference.rows.items() if number > batch}
    assert rows, "no batch came after, so the test proves nothing"
    assert run.rows == rows
    if not case.random_keys:
        assert run.state == {
            number: state for number, state in reference.state.items() if number > batch
        }


def test_a_query_that_runs_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does a batch while it is taken over. A trial gets an id of its own, and is let pass."""
    case = named("agg-update-odd-keys")
    source = Input(tmp_path / "input", case.inputs[0][0])
    source.add(case.inputs[0][1][0])
    with settings(spark, _conf(case, PROVIDERS[ROCKSDB])):
        writer = case.build([source.stream(spark)]).writeStream.format("noop")
        old = tmp_path / "old"
        query = writer.outputMode(case.mode).option("checkpointLocation", str(old)).start()
    try:
        query.processAllAvailable()

        def works_on(done: int, stores: int) -> None:
            if done == 1:
                source.add(case.inputs[0][1][1])
                query.processAllAvailable()

        with pytest.raises(ConflictError, match="its query runs") as refused:
            millpond.adopt(old, tmp_path / "new", progress=works_on)
        assert refused.value.kind is ErrorKind.QUERY_RUNNING
        assert "--new-query-id" in refused.value.hint
        assert not (tmp_path / "new").exists()
        assert main(["state", "read", str(old), "--format", "json"]) == 0
        seen = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert main(["state", "list", str(old)]) == 0
        listed = capsys.readouterr().out
        assert f"millpond state read {old} --operator 0" in listed and f"{len(seen)} rows" in listed
        planned = millpond.adopt(old, tmp_path / "new", dry_run=True)
        warned = planned.warnings
        assert len(warned) == 1 and "--new-query-id" in warned[0]
        trial = millpond.adopt(old, tmp_path / "trial", new_query_id=True, progress=works_on)
        assert trial.warnings == ()
        assert planned.rows == trial.rows == len(seen) > 0 and planned.row_bytes > 16 * planned.rows
        assert not (tmp_path / "new").exists()
    finally:
        query.stop()
    hour_ago = time.time() - 3600
    for log in [*(old / "offsets").iterdir(), *(old / "commits").iterdir()]:
        os.utime(log, (hour_ago, hour_ago))
    assert millpond.adopt(old, tmp_path / "new").warnings == ()


@pytest.mark.parametrize(
    "name",
    quick_first(
        [
            "scala-typed-key",
            "scala-tuple-key",
            "row-collated-keys",
            "scala-reordered-key",
            "row-event-time",
        ],
        2,
    ),
)
def test_an_adopted_query_tells_once_where_its_keys_lie(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Spark's store says nothing of it, and in one partition no key is in a wrong one. So the state
    was rescaled, and keys that lie by something else than their bytes began anew.
    """
    case = named(name)
    ((schema, batches),) = case.inputs
    source = Input(tmp_path / "input", schema)

    def batch(run: Run, provider: str) -> None:
        source.add(batches[len(run.rows)])
        frame, conf = case.build([source.stream(spark)]), _conf(case, provider)
        conf["spark.sql.shuffle.partitions"] = "1"
        finish(start(spark, frame, run, output_mode=case.mode, conf=conf), run)

    batch(Run(tmp_path / "old"), PROVIDERS[ROCKSDB])
    millpond.adopt(tmp_path / "old", tmp_path / "new")
    with pytest.raises(MillpondError, match="start the query once") as caught:
        millpond.rescale(tmp_path / "new", 4)
    assert caught.value.kind is ErrorKind.STORE_UNSCALABLE
    assert "first batch" in caught.value.hint
    with pytest.raises(MillpondError, match="start the query once"):
        millpond.fork(tmp_path / "new", tmp_path / "forked", partitions=4)
    run = Run(tmp_path / "new")
    batch(run, MILLPOND)
    if case.unscalable:
        with pytest.raises(MillpondError, match="or with a collation"):
            millpond.rescale(run.checkpoint, 4)
    else:
        assert millpond.rescale(run.checkpoint, 4).partitions == 4
    assert verify(open_storage(str(run.checkpoint)), "x").problems == []


@pytest.mark.deep
def test_keys_that_spark_made_of_others_are_adopted_as_such(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With pandas Spark's transport has no whole numbers beside a NULL. Millpond's has, and its
    tasks say that keys lie by their bytes.
    """
    numbers = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    source = Input(tmp_path / "input", numbers)

    def batch(run: Run, provider: str, keys: list[int | None]) -> None:
        source.add([{"k": k, "v": 1} for k in keys])
        grouped = transform_with_state(source.stream(spark).groupBy("k"), "pandas")
        sums = grouped(Seeded("pandas"), "k double, what string, state string", "Update", "None")
        conf = {_PROVIDER: provider, "spark.sql.shuffle.partitions": "1"}
        finish(start(spark, sums, run, output_mode="update", conf=conf), run)

    batch(Run(tmp_path / "old"), PROVIDERS[ROCKSDB], [1, None])
    run = Run(tmp_path / "new")
    millpond.adopt(tmp_path / "old", run.checkpoint)
    batch(run, MILLPOND, [1, 2])
    with pytest.raises(MillpondError, match="NULL for whole numbers"):
        millpond.rescale(run.checkpoint, 4)


@pytest.mark.skipif(not EVERYTHING, reason="a JVM each time: with MILLPOND_SHAPES=all")
def test_killed_at_any_moment(spark: SparkSession, tmp_path: Path) -> None:
    """A kill during `adopt` leaves nothing at the target, or all of it. The next run succeeds."""
    case = named("agg-update-odd-keys")
    source = Input(tmp_path / "input", case.inputs[0][0])
    source.add(case.inputs[0][1][0])
    old = Run(tmp_path / "old")
    stream = case.build([source.stream(spark)])
    finish(
        start(spark, stream, old, output_mode=case.mode, conf=_conf(case, PROVIDERS[ROCKSDB])), old
    )
    before = _tree(old.checkpoint)
    target = tmp_path / "new"
    environment = {**os.environ, "PYTHONPATH": str(REPO / "python/src")}
    command = [sys.executable, "-m", "millpond.cli.main", "adopt", str(old.checkpoint), str(target)]
    for delay_s in (0.3 + 0.35 * i for i in range(20)):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        if target.exists():
            assert verify(open_storage(str(target)), "x").problems == []
            break
    assert _unchanged(old.checkpoint, before)
    if not target.exists():
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        assert [path.name for path in tmp_path.glob(".new.staging-*")] == []
    assert verify(open_storage(str(target)), "x").problems == []


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.mark.parametrize("how", quick_first(["Ctrl-C", "a damaged store", "an interrupt"]))
def test_nothing_is_written_after_the_target_was_emptied(
    spark: SparkSession,
    server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """The session's JVM went on with the copies that it was at, and with those that were to come.
    What they wrote lay at a target that was free, or was another command's by then. Where Spark
    notices Ctrl-C, all was copied before the command ended.
    """
    case = named("agg-update-odd-keys")
    source = Input(tmp_path / "input", case.inputs[0][0])
    source.add(case.inputs[0][1][0])
    old = Run(tmp_path / "old")
    own = {_FORMAT: "1", "spark.sql.shuffle.partitions": "6"}
    conf = {**_conf(case, PROVIDERS[HDFS]), **own}
    finish(
        start(spark, case.build([source.stream(spark)]), old, output_mode=case.mode, conf=conf),
        old,
    )
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    if how == "a damaged store":
        (old.checkpoint / "state/0/3/1.delta").write_bytes(b"no delta")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    access = {**HADOOP, "fs.s3a.endpoint": server.endpoint}
    for name, value in access.items():
        hadoop.set(name, value)
    target = f"s3://{server.bucket()}/new"
    emptied = threading.Event()
    seen: list[str] = []

    def hold(request: Request) -> Fault | None:
        """Hold back what stores write until the target is emptied, or some seconds: that of the
        first one, until another one fails; or all.
        """
        if request.operation == "DELETE":
            emptied.set()
        elif request.operation == "PUT" and request.path.endswith(".changelog"):
            seen.append(request.path)
            if len(seen) == 1 and how != "a damaged store":
                os.kill(os.getpid(), signal.SIGINT)
            if len(seen) == 1 or how != "a damaged store":
                emptied.wait(5)
        return None

    monkeypatch.setattr(migrate, "_THREADS", 2)
    ours = signal.getsignal(signal.SIGINT)
    if how == "an interrupt":
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with server.faults(hold):
            with pytest.raises(MillpondError if how == "a damaged store" else KeyboardInterrupt):
                millpond.adopt(old.checkpoint, target)
            wait_until(lambda: not _copies(jvm), seconds=60, what="the copies to end")
    finally:
        signal.signal(signal.SIGINT, ours)
        for name in access:
            hadoop.unset(name)
    assert 0 < len(seen) <= (2 if how != "a damaged store" else 3), "those that were at work"
    assert [info.key for info in open_storage(target).list("")] == []


def _copies(jvm: Any) -> bool:
    """Whether a thread of the JVM copies a store."""
    dump = jvm.org.apache.spark.util.Utils.getThreadDump()
    return any("ProviderCopy" in one.stackTrace().toString() for one in dump)
