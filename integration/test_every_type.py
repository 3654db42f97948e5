"""Every command on state of rare types, and on state with several column families.

The result of each command must go on like the query itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.cases import Case
from integration.depth import quick_first
from integration.jvm import MILLPOND
from integration.shapes import named
from integration.streams import Input, Run, finish, settings, start
from millpond import read_state, rescale, savepoint
from millpond.operations import migrate
from millpond.operations.inspect import verify
from millpond.operations.migrate.plan import PROVIDERS, ROCKSDB
from millpond.storage import open_storage

pytestmark = pytest.mark.spark

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_KEPT = {"spark.sql.preserveCharVarcharTypeInfo": "true"}
_POINT = "unhex(concat('0101000000000000000000F03F', lpad(hex(n), 16, '0')))"
_BATCHES = [
    [{"k": f"key {k}", "n": 10 * batch + k} for k in range(batch, batch + 5)] for batch in range(5)
]
_HOUR_MS = 3_600_000
_AT = 2  # all commands act at this batch
# Name, the expression that makes a value of the type, and the session's settings.
TYPES: list[tuple[str, str, dict[str, str]]] = [
    ("geometry", f"ST_GeomFromWKB({_POINT})", {"spark.sql.geospatial.enabled": "true"}),
    ("variant", """parse_json(concat('{"n": [', n, ', "x"]}'))""", {}),
    ("geography", f"ST_GeogFromWKB({_POINT})", {"spark.sql.geospatial.enabled": "true"}),
    ("char", "cast(n as char(12))", _KEPT),
    ("varchar", "cast(n as varchar(12))", _KEPT),
    ("time", "make_time(n % 24, n % 60, 1.5)", {"spark.sql.timeType.enabled": "true"}),
]
# Each value lives an hour or a millisecond. The tests use Spark checkpoint format 2. In format 1
# Spark's own store keeps a batch's first attempt on a local disk. That attempt has other times.
EXPIRING = ["scala-processing-time-avro", "row-processing-time"]
FAMILIES = ["scala-event-time-avro", "scala-no-time", "join-filtered-v4"]


def _of_type(expression: str) -> Callable[[list[DataFrame]], DataFrame]:
    return lambda streams: (
        streams[0].groupBy("k").agg(F.expr(f"first({expression})").alias("v"), F.count("*"))
    )


@pytest.mark.parametrize(
    ("name", "expression", "conf"), quick_first(TYPES, 0), ids=[name for name, _, _ in TYPES]
)
@pytest.mark.parametrize("checkpoint_format", [1])
def test_type(
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    expression: str,
    conf: dict[str, str],
    checkpoint_format: int,
) -> None:
    source = Input(tmp_path / "input", pa.schema([("k", pa.string()), ("n", pa.int32())]))
    for batch in _BATCHES:
        source.add(batch)
    case = Case(name, _of_type(expression), [], "update", checkpoint_format, conf=conf)
    assert _goes_through_everything(spark, case, [source], tmp_path)


@pytest.mark.parametrize("name", quick_first(FAMILIES, 0))
def test_column_families(spark: SparkSession, tmp_path: Path, name: str) -> None:
    case = named(name)
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for batch in batches:
            source.add(batch)
    assert _goes_through_everything(spark, case, inputs, tmp_path)


@pytest.mark.parametrize("name", quick_first(EXPIRING, 0))
def test_state_that_expires(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """After each command the same values expire in the next batch as in Spark's own store.

    The batch before has a time of two hours ago.
    """
    case = replace(named(name), checkpoint_format=2)
    source = Input(tmp_path / "input", case.inputs[0][0])
    for batch in case.inputs[0][1]:
        source.add(batch)
    conf = {_FORMAT: str(case.checkpoint_format), **case.conf, _PROVIDER: PROVIDERS[ROCKSDB]}
    sparks = Run(tmp_path / "sparks")
    for fail_at in (_AT, None):
        with settings(spark, conf):
            frame = case.build([source.stream(spark)])
        query = start(spark, frame, sparks, output_mode=case.mode, conf=conf, fail_at=fail_at)
        finish(query, sparks, fails=fail_at is not None)
        if fail_at is not None:
            _long_ago(sparks.checkpoint / f"offsets/{fail_at}", 2 * _HOUR_MS)
    migrate.adopt(sparks.checkpoint, tmp_path / "whole", batch=_AT)
    kept = (
        read_state(tmp_path / "whole", operator=0, column_family="keptValue")
        .column("value")
        .to_pylist()
    )
    now_ms = time.time() * 1000
    assert (
        min(v["ttlExpirationMs"] for v in kept) < now_ms < max(v["ttlExpirationMs"] for v in kept)
    )
    assert _goes_through_everything(spark, case, [source], tmp_path, sparks)


def _long_ago(entry: Path, ms: int) -> None:
    """Move the time of a begun batch back."""
    lines = entry.read_text().split("\n")
    metadata = json.loads(lines[1])
    metadata["batchTimestampMs"] -= ms
    entry.write_text("\n".join([lines[0], json.dumps(metadata), *lines[2:]]))
    (entry.parent / f".{entry.name}.crc").unlink()


def _totals(run: Run) -> dict[int, list[int]]:
    """Return the number of rows of each operator after each batch."""
    return {
        batch: [operator["numRowsTotal"] for operator in found]
        for batch, found in run.state.items()
    }


def _newest(run: Run) -> dict[str, str]:
    """Return the last row of each key."""
    return {row.partition(",")[0]: row for _, rows in sorted(run.rows.items()) for row in rows}


def _goes_through_everything(
    spark: SparkSession, case: Case, inputs: list[Input], work: Path, known: Run | None = None
) -> bool:
    """Run every command on the query in `work / "whole"`, and compare the results.

    Args:
        known: the right output of the batches after `_AT`; None: the output of that query.
    """

    def run(name: str, provider: str = MILLPOND) -> Run:
        made = Run(work / name)
        conf = {_FORMAT: str(case.checkpoint_format), **case.conf, _PROVIDER: provider}
        with settings(spark, conf):
            frame = case.build([source.stream(spark) for source in inputs])
        finish(start(spark, frame, made, output_mode=case.mode, conf=conf), made)
        return made

    whole = run("whole")
    known = known or whole
    after = {batch: rows for batch, rows in known.rows.items() if batch > _AT}
    assert {batch: rows for batch, rows in whole.rows.items() if batch > _AT} == after
    assert any(after.values()), "no rows come after, so the test proves nothing"
    query, saved, tables = whole.checkpoint, work / "saved", work / "tables"
    savepoint.create(query, saved, batch=_AT)
    savepoint.create(query, tables, batch=_AT, format="canonical")
    assert savepoint.verify(saved).ok and savepoint.verify(tables).ok
    assert savepoint.diff(saved, tables).equal
    first = savepoint.diff(saved, saved).families
    for number, family in enumerate(f for f in first if not f.column_family.startswith("$")):
        chosen: dict[str, Any] = {
            "operator": family.operator,
            "store": family.store,
            "column_family": family.column_family,
        }
        assert (
            len(read_state(query, batch=_AT, **chosen)) >= family.same
        )  # a row for each value of a list
        if "-" not in family.column_family:  # families of a join depend on each other
            savepoint.edit(tables, work / f"edited-{number}", function=lambda rows: rows, **chosen)
            assert savepoint.diff(saved, work / f"edited-{number}").equal
    savepoint.restore(saved, work / "restored", partitions=3)
    savepoint.restore(tables, work / "of-tables", partitions=5)
    savepoint.fork(query, work / "forked", batch=_AT)
    savepoint.fork(query, work / "skipped", batch=_AT)
    rescale(work / "skipped", 4, skip_uncommitted=True)
    for pattern in ("offsets", "sources/*"):
        for planned in (work / "forked").glob(f"{pattern}/{_AT + 1}"):
            planned.unlink()  # as if the query stopped between two batches
    rescale(work / "forked", 8)
    migrate.release(query, work / "released", provider="rocksdb", batch=_AT)
    for name in ("restored", "of-tables", "forked"):
        assert verify(open_storage(str(work / name)), name).problems == []
    for name in ("restored", "of-tables", "forked", "released"):
        made = run(name, PROVIDERS[ROCKSDB] if name == "released" else MILLPOND)
        late = 1 if name == "forked" else 0  # the rescale takes one batch number
        assert {batch - late: rows for batch, rows in made.rows.items()} == after, name
        assert {batch - late: found for batch, found in _totals(made).items()}.items() <= _totals(
            known
        ).items(), name
    skipped = run(
        "skipped"
    )  # the next batch reads the input of the skipped batch, and all newer input
    assert min(skipped.rows) == _AT + 3 and len(skipped.rows) < len(after) + 1
    if case.inputs == []:
        assert _newest(skipped) == _newest(Run(query, after))
    return True
