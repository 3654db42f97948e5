"""A job with bootstrapped state gives the same batches as a job that read the history itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond
from integration.cases import NO_EMPTY_BATCHES, Case
from integration.harness import EVERYTHING
from integration.jvm import MILLPOND, ROCKSDB
from integration.shapes import SHAPES, named
from integration.streams import Input, Run, finish, settings, start
from millpond.cli.main import main
from millpond.config import PREFIX
from millpond.errors import ErrorKind, InvalidInputError, MillpondError
from millpond.operations.inspect import verify
from millpond.spark.job import parquet_frame
from millpond.spark.metadata import PROVIDER_KEY
from millpond.storage import open_storage

pytestmark = pytest.mark.spark

REPO = Path(__file__).resolve().parents[1]
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_ON_MILLPOND = {PROVIDER_KEY: MILLPOND}


def _cases() -> list[str]:
    """Return the shapes to test. With MILLPOND_SHAPES=all: every shape that Spark runs."""
    if EVERYTHING:
        return [case.name for case in SHAPES if not case.refused and case.later is None]
    return ["agg-window-append"]


def _conf(case: Case) -> dict[str, str]:
    return {
        PROVIDER_KEY: MILLPOND,
        _FORMAT: str(case.checkpoint_format),
        **case.conf,
        **case.candidate_conf,
    }


def _build(spark: SparkSession, case: Case, inputs: Sequence[Input]) -> DataFrame:
    return case.build([one.stream(spark) for one in inputs])


def _inputs(case: Case, directory: Path) -> list[Input]:
    return [Input(directory / str(i), schema) for i, (schema, _) in enumerate(case.inputs)]


def _add(inputs: Sequence[Input], case: Case, files: slice) -> None:
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for rows in batches[files]:
            source.add(rows)


def _history(spark: SparkSession, inputs: Sequence[Input]) -> dict[int, DataFrame]:
    return {
        i: spark.read.parquet(str(source.directory / "00000.parquet"))
        for i, source in enumerate(inputs)
    }


def _whole_and_alone(checkpoint: Path) -> None:
    assert verify(open_storage(str(checkpoint)), "x").problems == []
    assert os.listdir(checkpoint.parent) == [checkpoint.name], "files are left beside it"


@pytest.mark.parametrize("name", _cases())
def test_as_if_it_had_begun_with_the_history(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """The first file of each input is the history. The job reads the other files."""
    case = named(name)
    readings = 2 if name == "join-with-itself-v4" else 1  # of one source
    if readings > 1:
        case = replace(case, inputs=case.inputs[:1])
    whole, warm = Run(tmp_path / "whole"), Run(tmp_path / "of" / "warm")
    inputs, live = _inputs(case, tmp_path / "all"), _inputs(case, tmp_path / "live")
    # The whole job restarts after the history, as the warm job does. At a restart Spark remembers
    # only the least of several watermarks.
    for files, conf in (
        (slice(0, 1), _conf(case) | NO_EMPTY_BATCHES),
        (slice(1, None), _conf(case)),
    ):
        _add(inputs, case, files)
        finish(
            start(spark, _build(spark, case, inputs), whole, output_mode=case.mode, conf=conf),
            whole,
        )
    _add(live, case, slice(1, None))
    with settings(spark, _conf(case)):
        report = millpond.bootstrap(
            lambda: _build(spark, case, live).writeStream.outputMode(case.mode),
            warm.checkpoint,
            rows=_history(spark, inputs),
        )
    assert {source.rows for source in report.sources} == {
        readings * len(batches[0]) for _, batches in case.inputs
    }
    _whole_and_alone(warm.checkpoint)
    finish(
        start(spark, _build(spark, case, live), warm, output_mode=case.mode, conf=_conf(case)), warm
    )
    after = {batch: rows for batch, rows in whole.rows.items() if batch > 0}
    assert any(after.values()), "no rows came after the history, so the test proves nothing"
    assert warm.rows == after
    if not case.random_keys:
        assert warm.state == {batch: state for batch, state in whole.state.items() if batch > 0}
    assert verify(open_storage(str(warm.checkpoint)), "x").problems == []


def test_in_a_session_for_real_time_mode(spark: SparkSession, tmp_path: Path) -> None:
    """Such a session names no provider: the extension gives Millpond's to each query."""
    session, case = spark.newSession(), named("agg-update-odd-keys")
    session.conf.set(f"{PREFIX}realTime", "true")
    inputs, live = _inputs(case, tmp_path / "all"), _inputs(case, tmp_path / "live")
    _add(inputs, case, slice(0, 1))
    _add(live, case, slice(1, None))
    warm = tmp_path / "of" / "warm"
    with settings(session, _conf(case)):
        millpond.bootstrap(
            lambda: _build(session, case, live).writeStream.outputMode(case.mode),
            warm,
            rows=_history(session, inputs),
        )
        assert session.conf.get(PROVIDER_KEY, None) is None
    _whole_and_alone(warm)
    assert f'"{PROVIDER_KEY}":"{MILLPOND}"' in (warm / "offsets/0").read_text()


_JOB = """
from pyspark.sql import SparkSession
numbers = SparkSession.builder.getOrCreate().readStream.format("rate-micro-batch").options(rowsPerBatch=20, numPartitions=1).load()
seen = numbers.withColumn("k", numbers.value % 30).dropDuplicates(["k"])
seen.writeStream.queryName("seen").format("parquet").option("checkpointLocation", "/nowhere").start({out!r}).awaitTermination()
"""


@pytest.mark.deep
def test_live_input_goes_on_after_the_offsets(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command runs it, from a script. The history has a narrower type and one more column."""
    (tmp_path / "job.py").write_text(_JOB.replace("{out!r}", repr(str(tmp_path / "out"))))
    history = spark.range(20).selectExpr(
        "id AS nobody_asked", "CAST(id AS INT) AS value", "TIMESTAMP '1970-01-01' AS timestamp"
    )
    history.write.parquet(str(tmp_path / "history"))
    numbers = (
        spark.readStream.format("rate-micro-batch").options(rowsPerBatch=20, numPartitions=1).load()
    )
    seen = numbers.withColumn("k", numbers.value % 30).dropDuplicates(["k"])
    whole, warm = Run(tmp_path / "whole"), Run(tmp_path / "of" / "warm")
    for _ in range(3):  # each run does one batch
        finish(start(spark, seen, whole, output_mode="append", conf=_ON_MILLPOND), whole)
    offset = json.loads((whole.checkpoint / "offsets/0").read_text().split("\n")[2])
    (tmp_path / "offsets.json").write_text(json.dumps({"0": offset}))

    arguments = [
        "savepoint",
        "bootstrap",
        "--job",
        f"{tmp_path}/job.py",
        "--rows",
        f"{tmp_path}/history",
        "--query",
        "seen",
    ]
    with settings(spark, _ON_MILLPOND | {"spark.sql.shuffle.partitions": "3"}):
        code = main(
            [*arguments, "--offsets", f"{tmp_path}/offsets.json", str(warm.checkpoint), "--json"]
        )
    report = json.loads(capsys.readouterr().out)
    assert (code, report["query"], report["partitions"]) == (0, "seen", 3)
    assert report["sources"] == [
        {"source": 0, "name": "rate-micro-batch", "rows": 20, "offset": offset}
    ]
    assert report["operators"] == [{"operator": 0, "name": "dedupe", "keys": 20}]
    _whole_and_alone(warm.checkpoint)
    for _ in range(2):
        finish(start(spark, seen, warm, output_mode="append", conf=_ON_MILLPOND), warm)
    assert [len(rows) for _, rows in sorted(whole.rows.items())] == [20, 10, 0]
    assert warm.rows == {batch: rows for batch, rows in whole.rows.items() if batch > 0}
    assert warm.state == {batch: state for batch, state in whole.state.items() if batch > 0}


@pytest.mark.deep
def test_state_in_place_of_what_the_rows_made(spark: SparkSession, tmp_path: Path) -> None:
    """Rows give one state variable of several. The history makes the others."""
    case = named("pandas-event-time")
    inputs, live = _inputs(case, tmp_path / "all"), _inputs(case, tmp_path / "live")
    _add(inputs, case, slice(0, 1))
    _add(live, case, slice(1, None))
    warm = Run(tmp_path / "of" / "warm")
    counts = [{"key": {"k": key}, "value": {"v": 1000}} for key in ("a", "c")]
    with settings(spark, _conf(case)):
        millpond.bootstrap(
            lambda: _build(spark, case, live).writeStream.outputMode(case.mode),
            warm.checkpoint,
            rows=_history(spark, inputs),
            state={"count": pa.Table.from_pylist(counts)},
        )
    _whole_and_alone(warm.checkpoint)
    found = millpond.read_state(warm.checkpoint, column_family="count")
    assert sorted(map(repr, found.select(["key", "value"]).to_pylist())) == sorted(
        map(repr, counts)
    )
    recent = millpond.read_state(warm.checkpoint, column_family="recent")
    assert {row["k"] for row in recent["key"].to_pylist()} == {
        row["k"] for row in case.inputs[0][1][0]
    }
    finish(
        start(spark, _build(spark, case, live), warm, output_mode=case.mode, conf=_conf(case)), warm
    )
    assert any("before" in row and "1000" in row for row in warm.rows[1]), warm.rows[1]


@pytest.mark.deep
def test_state_without_a_key(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet has no key of an aggregation over all rows."""
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    counted, warm = tmp_path / "counted.parquet", tmp_path / "of" / "warm"
    pq.write_table(pa.Table.from_pylist([{"value": {"count": 41}}]), counted)
    with settings(spark, _ON_MILLPOND):
        millpond.bootstrap(
            lambda: numbers.groupBy().count().writeStream.outputMode("update"),
            warm,
            state=pq.read_table(counted),
        )
    (row,) = millpond.read_state(warm).to_pylist()
    assert row == {"partition": 0, "key": {}, "value": {"count": 41}}
    _whole_and_alone(warm)


def test_bad_input_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    directory, target = tmp_path / "input", tmp_path / "of" / "warm"
    directory.mkdir()
    clicks = spark.readStream.schema("k string, v bigint, n struct<x: int>").parquet(str(directory))
    counts = clicks.groupBy("k").count()
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    both = clicks.select("v").union(numbers.select("value")).groupBy("v").count()
    rows = spark.sql("SELECT 'a' AS k, 1 AS v, named_struct('x', 1) AS n")
    fails = F.udf(lambda k: 1 // 0, "int")

    def refused(
        *expected: str,
        job: DataFrame = counts,
        kind: ErrorKind = ErrorKind.INVALID_ARGUMENT,
        **given: Any,
    ) -> None:
        with settings(spark, _ON_MILLPOND), pytest.raises(MillpondError) as caught:
            millpond.bootstrap(lambda: job.writeStream.outputMode("update"), target, **given)
        assert caught.value.kind is kind
        assert [
            text for text in expected if text not in f"{caught.value} {caught.value.hint}"
        ] == []
        assert not target.parent.exists(), "a refused call wrote something"

    refused("nothing to begin with")
    with settings(spark, _ON_MILLPOND), pytest.raises(MillpondError) as caught:
        millpond.bootstrap(lambda: counts, target, rows=rows)
    assert "OUTPUT_MODE" in str(caught.value) and 'outputMode("update")' in caught.value.hint
    (directory / "_no.parquet").write_text("rubbish")
    for path in (str(directory / "_no.parquet"), str(tmp_path / "nothing")):
        with pytest.raises(InvalidInputError, match="cannot be read as Parquet: \\["):
            parquet_frame(spark, path)
    refused(
        "v (missing)",
        "n (is STRUCT<y: INT NOT NULL>",
        "k STRING, v BIGINT",
        rows=spark.sql("SELECT 'a' AS k, named_struct('y', 1) AS n"),
    )
    refused("v (is DOUBLE, not BIGINT)", rows=rows.withColumn("v", F.lit(1.0)))
    refused("k (is BIGINT, not STRING)", rows=rows.withColumn("k", F.lit(1).cast("bigint")))
    refused(
        "timestamp (is TIMESTAMP_NTZ, not TIMESTAMP)",
        job=numbers.groupBy("value").count(),
        rows=spark.sql("SELECT 1L AS value, TIMESTAMP_NTZ'2026-01-31 12:00:00' AS timestamp"),
    )
    refused("a DataFrame or a pyarrow.Table", rows=[1])
    refused("streaming", rows=clicks)
    refused("no source 1", "0 FileSource", rows={1: rows})
    refused("say which", "1 rate-micro-batch", job=both, rows=rows)
    refused("no source 2", "numbers 0 to 1", job=both, offsets={2: {}})
    refused("reads files", job=both, offsets={0: {"logOffset": 3}})
    refused("no JSON", offsets={0: "{"})
    refused("is null", offsets={0: None})
    refused("columns key and value", state=pa.table({"key": [1]}))
    refused("no state is given", rows=rows, operator=0)
    # Only the batch shows these errors.
    refused("columns key and value", state=pa.table({"value": [{"count": 1}]}))
    refused("ZeroDivisionError", job=clicks.groupBy(fails("k")).count(), rows=rows)
    refused(
        "no column family 'other'", rows=rows, state={"other": pa.table({"key": [], "value": []})}
    )
    with pytest.raises(MillpondError) as caught, settings(spark, {PROVIDER_KEY: ROCKSDB}):
        millpond.bootstrap(lambda: counts, target, rows=rows)
    assert caught.value.kind is ErrorKind.FOREIGN_CHECKPOINT
    with settings(spark, _ON_MILLPOND):
        job = both.writeStream.outputMode("update").queryName("both")
        report = millpond.bootstrap(
            lambda: job, target, rows={0: rows}, offsets={1: 7}, dry_run=True
        )
    assert [(s.rows, s.offset) for s in report.sources] == [(-1, None), (None, 7)]
    assert [(o.name, o.keys) for o in report.operators] == [("stateStoreSave", -1)]
    assert not target.parent.exists()
    target.mkdir(parents=True)
    (target / "metadata").write_text("{}")
    with pytest.raises(MillpondError) as caught:
        millpond.bootstrap(lambda: counts, target, rows=rows)
    assert caught.value.kind is ErrorKind.TARGET_NOT_EMPTY
    assert os.listdir(target) == ["metadata"]


@pytest.mark.skipif(not EVERYTHING, reason="a JVM each time: with MILLPOND_SHAPES=all")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A kill leaves nothing at the target, or a complete target. The next run succeeds.

    The next run leaves nothing beside the target.
    """
    (tmp_path / "job.py").write_text(_JOB.replace("{out!r}", repr(str(tmp_path / "out"))))
    (tmp_path / "offsets.json").write_text('{"0": {"offset": 20, "timestamp": 1}}')
    target = tmp_path / "of" / "warm"
    command = [
        sys.executable,
        "-m",
        "millpond.cli.main",
        "savepoint",
        "bootstrap",
        "--job",
        f"{tmp_path}/job.py",
    ]
    command += ["--offsets", f"{tmp_path}/offsets.json", str(target)]
    environment = {**os.environ, "PYTHONPATH": str(REPO / "python/src")}
    left = 0
    for delay_s in (4 + 1.0 * i for i in range(16)):
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            time.sleep(delay_s)
            os.killpg(process.pid, signal.SIGKILL)
            ended = process.wait() == 0
        left += any(target.parent.glob(".warm.staging-*")) if target.parent.exists() else 0
        if target.exists() or ended:
            break
    assert left, "no kill came in the middle, so the test proves nothing"
    if target.exists():
        assert verify(open_storage(str(target)), "x").problems == []
        shutil.rmtree(target)
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    _whole_and_alone(target)
