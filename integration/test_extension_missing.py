"""A session that names Millpond's provider, but has no Millpond extension.

Spark would refuse `transformWithState` there, with an error that does not help. Millpond refuses
first, with an error that helps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.depth import quick_first
from integration.jvm import MILLPOND
from integration.shapes import named
from integration.streams import Input, Run, finish, start

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


@pytest.mark.parametrize(
    "shape",
    quick_first(["pandas-event-time", "row-initial-state", "scala-event-time", "row-then-window"]),
)
def test_the_error_names_the_line_to_add(bare: SparkSession, tmp_path: Path, shape: str) -> None:
    case = named(shape)
    source = Input(tmp_path / "input", case.inputs[0][0])
    source.add(case.inputs[0][1][0])
    run = Run(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException) as error:
        finish(
            start(bare, case.build([source.stream(bare)]), run, output_mode=case.mode, conf=_CONF),
            run,
        )
    assert "[MILLPOND_EXTENSION_MISSING]" in str(error.value)
    assert _LINE in str(error.value)


def test_other_queries_need_no_extension(bare: SparkSession, tmp_path: Path) -> None:
    case = named("agg-complete")
    source = Input(tmp_path / "input", case.inputs[0][0])
    source.add(case.inputs[0][1][0])
    run = Run(tmp_path / "checkpoint")
    finish(
        start(bare, case.build([source.stream(bare)]), run, output_mode=case.mode, conf=_CONF), run
    )
    assert len(run.rows[0]) == 5


def test_a_batch_query_may_use_the_operator(bare: SparkSession) -> None:
    case = named("row-no-time-odd-keys")
    schema, batches = case.inputs[0]
    bare.conf.set(*next(iter(_CONF.items())))
    frame = bare.createDataFrame(pa.Table.from_pylist(batches[0], schema=schema))
    assert len(case.build([frame]).collect()) > 5
