"""A session that names Millpond's provider, but has no Millpond extension.

Spark would refuse `transformWithState` there, with an error that does not help. Millpond refuses
first, with an error that helps.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import millpond
from integration.depth import quick_first
from integration.jvm import LIGHT, MILLPOND
from integration.shapes import named
from integration.streams import Input, Run, finish, start
from millpond.errors import ConflictError, ErrorKind, InvalidInputError
from millpond.format import layout

_LINE = "spark.sql.extensions=org.apache.spark.sql.millpond.MillpondExtension"
_CONF = {"spark.sql.streaming.stateStore.providerClass": MILLPOND}


@pytest.fixture
def bare(spark: SparkSession) -> SparkSession:
    """Return a session without extensions, in the same JVM."""
    jvm: Any = spark._jvm
    shapes = jvm.org.apache.spark.sql.millpond.testing.StreamShapes
    session = SparkSession(
        spark.sparkContext, shapes.sessionWithoutExtensions(spark._jsparkSession)
    )
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


def _play(
    session: SparkSession, run: Run, shape: str = "agg-complete", conf: Mapping[str, str] = _CONF
) -> None:
    """Run a query over the first input of a shape to its end."""
    case = named(shape)
    source = Input(run.checkpoint.parent / "input", case.inputs[0][0])
    source.add(case.inputs[0][1][0])
    stream = case.build([source.stream(session)])
    finish(start(session, stream, run, output_mode=case.mode, conf=conf), run)


@pytest.mark.parametrize(
    "shape",
    quick_first(["pandas-event-time", "row-initial-state", "scala-event-time", "row-then-window"]),
)
def test_the_error_names_the_line_to_add(bare: SparkSession, tmp_path: Path, shape: str) -> None:
    with pytest.raises(StreamingQueryException) as error:
        _play(bare, Run(tmp_path / "checkpoint"), shape)
    assert "[MILLPOND_EXTENSION_MISSING]" in str(error.value)
    assert _LINE in str(error.value)


@pytest.mark.parametrize(
    ("option", "code", "said"),
    [
        ("spark.sql.streaming.stateStore.millpond.ttl", "EXTENSION_MISSING", _LINE),
        ("spark.millpond.ttl", "UNKNOWN_OPTION", "spark.sql.streaming.stateStore.millpond.ttl"),
    ],
)
def test_an_option_that_nothing_would_obey(
    bare: SparkSession, tmp_path: Path, option: str, code: str, said: str
) -> None:
    """A time to live needs the extension: without it nothing would end."""
    run = Run(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException) as error:
        _play(bare, run, conf=_CONF | {option: "1h"})
    assert f"[MILLPOND_{code}]" in str(error.value)
    assert said in str(error.value)
    assert not run.rows


def test_what_a_killed_fork_left_is_refused(bare: SparkSession, tmp_path: Path) -> None:
    """On object storage. Here its claim says so, too."""
    run = Run(tmp_path / "checkpoint")
    claim = run.checkpoint / layout.CLAIM_KEY
    claim.parent.mkdir(parents=True)
    claim.write_text("somebody")
    with pytest.raises(StreamingQueryException, match="MILLPOND_CHECKPOINT_UNFINISHED"):
        _play(bare, run)
    assert not run.rows


@pytest.mark.deep
def test_a_driver_without_python_refuses_it_too(tmp_path: Path) -> None:
    claim = tmp_path / "pond" / layout.CLAIM_KEY
    claim.parent.mkdir(parents=True)
    claim.write_text("somebody")
    text = _job(
        tmp_path,
        "millpond.configure(builder.master('local-cluster[1,1,1024]')"
        f".config('spark.sql.streaming.stateStore.millpond.storage.uri', 'file:{tmp_path}/states'),"
        " agent_driver_python='/nowhere/python')",
    )
    assert "[MILLPOND_CHECKPOINT_UNFINISHED]" in text, text[-4000:]
    assert "delete all that is below" in text and "Lost task" not in text


def test_other_queries_need_no_extension(bare: SparkSession, tmp_path: Path) -> None:
    run = Run(tmp_path / "checkpoint")
    _play(bare, run)
    assert len(run.rows[0]) == 5


def test_a_batch_query_may_use_the_operator(bare: SparkSession) -> None:
    case = named("row-no-time-odd-keys")
    schema, batches = case.inputs[0]
    bare.conf.set(*next(iter(_CONF.items())))
    frame = bare.createDataFrame(pa.Table.from_pylist(batches[0], schema=schema))
    assert len(case.build([frame]).collect()) > 5


def test_a_running_query_is_recognised(
    bare: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is idle, so nothing but its heartbeat tells that it runs."""
    case = named("agg-complete")
    source = Input(tmp_path / "input", case.inputs[0][0])
    source.add(case.inputs[0][1][0])
    run = Run(tmp_path / "checkpoint")
    bare.conf.set(*next(iter(_CONF.items())))
    frame = case.build([source.stream(bare)])
    query = (
        frame.writeStream.format("noop")
        .outputMode(case.mode)
        .option("checkpointLocation", str(run.checkpoint))
        .start()
    )
    try:
        query.processAllAvailable()
        with monkeypatch.context() as patch, pytest.raises(ConflictError) as refused:
            patch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
            millpond.rescale(run.checkpoint, 4)
        assert refused.value.kind is ErrorKind.QUERY_RUNNING
        assert str(query.runId) in str(refused.value)
    finally:
        query.stop()
    report = millpond.rescale(run.checkpoint, 4)
    assert any("spark.sql.extensions" in text for text in report.warnings)
    source.add(case.inputs[0][1][1])
    finish(
        start(bare, case.build([source.stream(bare)]), run, output_mode=case.mode, conf=_CONF), run
    )
    assert max(run.rows) == 2


_JOB = """
import sys
import millpond
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", "1")
builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "600m")
builder = builder.config("spark.driver.extraJavaOptions", sys.argv[3])
exec(sys.argv[2])
spark = builder.getOrCreate()
numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
counts = numbers.groupBy("value").count().writeStream.outputMode("update").format("noop")
query = counts.option("checkpointLocation", sys.argv[1]).trigger(availableNow=True).start()
query.awaitTermination(60)
"""


def _job(tmp_path: Path, configured: str) -> str:
    """Run a job in a Spark of its own. Return what its user sees on the terminal."""
    (tmp_path / "job.py").write_text(_JOB)
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "pond"), configured, LIGHT]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr


@pytest.mark.deep
def test_the_user_is_warned(tmp_path: Path) -> None:
    text = _job(
        tmp_path,
        f"builder.config('spark.jars', millpond.jar()).config(*{next(iter(_CONF.items()))})",
    )
    assert "Traceback" not in text
    warned = [line for line in text.splitlines() if "WARN WithoutExtension" in line]
    assert len(warned) == 1 and _LINE in warned[0], text[-4000:]


@pytest.mark.deep
def test_a_wrong_interpreter_ends_the_query_at_its_start(tmp_path: Path) -> None:
    """In local mode too, and not by tasks that fail."""
    text = _job(tmp_path, "millpond.configure(builder, agent_python='/nowhere/python')")
    assert "[MILLPOND_AGENT_NOT_STARTED]" in text and "/nowhere/python" in text
    assert "Job aborted" not in text and "Lost task" not in text


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.streaming.stateStore.milpond.gc.graceMs",
        "spark.sql.streaming.statestore.millpond.gc.graceMs",
        "spark.millpond.gc.graceMs",
    ],
)
def test_a_prefix_that_is_misspelt(spark: SparkSession, tmp_path: Path, name: str) -> None:
    with pytest.raises(StreamingQueryException) as error:
        _play(spark, Run(tmp_path / "checkpoint"), conf=_CONF | {name: "60000"})
    assert "MILLPOND_UNKNOWN_OPTION" in str(error.value)
    assert "spark.sql.streaming.stateStore.millpond.gc.graceMs" in str(error.value)
    with pytest.raises(InvalidInputError, match=name):
        millpond.configure(SparkSession.Builder().config(name, "60000"))
