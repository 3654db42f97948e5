"""A query that restarts with a setting of another Spark checkpoint format."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from integration.jvm import IS_SPARK_4_2, MILLPOND
from integration.streams import Input, Run, finish, settings, start
from millpond.operations.inspect import verify
from millpond.storage import open_storage

pytestmark = pytest.mark.spark

_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_KEYS = 6


@pytest.mark.parametrize(("begun", "asked"), [(2, 1), (1, 2)])
def test_a_query_keeps_its_checkpoint_format(
    spark: SparkSession, tmp_path: Path, begun: int, asked: int
) -> None:
    """Spark 4.3 takes the format from the commit log. Spark 4.2 takes it from the session.

    With Spark 4.2 Millpond refuses the batch before it commits anything. The query then goes on in
    its own format.
    """
    source = Input(tmp_path / "input", pa.schema([("k", pa.int32())]))
    run = Run(tmp_path / "query")

    def go(checkpoint_format: int, files: int) -> None:
        for _ in range(files):
            source.add([{"k": k} for k in range(_KEYS)])
        conf = {_FORMAT: str(checkpoint_format), _PROVIDER: MILLPOND}
        with settings(spark, conf):
            frame = source.stream(spark).groupBy("k").agg(F.count("*").alias("n"))
        finish(start(spark, frame, run, output_mode="update", conf=conf), run)

    go(begun, 2)
    if IS_SPARK_4_2:
        with pytest.raises(StreamingQueryException, match="MILLPOND_CHECKPOINT_FORMAT_CHANGED"):
            go(asked, 2)
        assert sorted(run.rows) == [0, 1]
    else:
        go(asked, 2)
    go(begun, 1)
    assert run.rows == {
        batch: [f"Row(k={k}, n={batch + 1})" for k in range(_KEYS)] for batch in range(5)
    }
    assert {path.read_text()[:2] for path in run.checkpoint.glob("commits/[0-9]*")} == {f"v{begun}"}
    assert verify(open_storage(str(run.checkpoint)), "query").problems == []
