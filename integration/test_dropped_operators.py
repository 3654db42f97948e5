"""A job whose first batch failed, and that then lost an operator.

The files of that operator are no damage of the others.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.depth import quick_first
from integration.jvm import MILLPOND
from integration.streams import Input, Run, finish, start
from millpond import read_state, savepoint
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout
from millpond.operations.inspect import verify
from millpond.storage import open_storage

pytestmark = pytest.mark.spark

_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_CONF = {
    "spark.sql.streaming.stateStore.providerClass": MILLPOND,
    "spark.sql.shuffle.partitions": "2",
}


@pytest.mark.parametrize("checkpoint_format", quick_first([2, 1]))
def test_an_operator_whose_first_batch_failed_is_dropped(
    spark: SparkSession, tmp_path: Path, checkpoint_format: int
) -> None:
    conf = {**_CONF, _FORMAT: str(checkpoint_format)}
    source = Input(tmp_path / "input", pa.schema([("k", pa.string()), ("n", pa.int32())]))
    for batch in range(3):
        source.add([{"k": f"k{n}", "n": n} for n in range(batch, batch + 4)])
    query = Run(tmp_path / "query")
    root = query.checkpoint
    both = source.stream(spark).dropDuplicates(["k", "n"]).groupBy("k").count()
    finish(start(spark, both, query, output_mode="update", conf=conf, fail_at=0), query, fails=True)
    one = source.stream(spark).groupBy("k").count()
    finish(start(spark, one, query, output_mode="update", conf=conf), query)

    problems = verify(open_storage(str(root)), "it").problems
    assert "state/1" in {p.file for p in problems} and all(
        "move state/1" in p.hint for p in problems[:1]
    )
    if checkpoint_format == 2:  # the commit log names the operators
        assert len(problems) == 1 and read_state(root, operator=0).num_rows == 6
        savepoint.create(root, tmp_path / "saved")
        savepoint.restore(tmp_path / "saved", tmp_path / "restored", partitions=3)
        assert verify(open_storage(str(tmp_path / "restored")), "it").ok
    else:
        with pytest.raises(MillpondError, match="a job that was changed") as e:
            savepoint.create(root, tmp_path / "saved")
        assert (
            e.value.kind is ErrorKind.CHANGELOG_MISSING
            and layout.operator_record_key(1) in e.value.hint
        )

    source.add([{"k": "k9", "n": 1}])
    with pytest.raises(
        StreamingQueryException, match="STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
    ):
        finish(start(spark, one, query, output_mode="update", conf=conf), query)
    (root / "state/1").rename(tmp_path / "state of 1")  # as the hint says
    (root / layout.operator_record_key(1)).unlink(missing_ok=True)
    assert verify(open_storage(str(root)), "it").ok
    restored = [Run(tmp_path / "restored")] if checkpoint_format == 2 else []
    for run in (query, *restored):
        finish(start(spark, one, run, output_mode="update", conf=conf), run)
        assert run.rows[3] == ["Row(k='k9', count=1)"]
    assert savepoint.create(root, tmp_path / "saved anew").batch == 3
