"""A job with a stateful operator that the savepoint does not have: the operator starts empty."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.cases import Case
from integration.depth import deep, quick_first
from integration.harness import EVERYTHING
from integration.jvm import MILLPOND
from integration.shapes import SHAPES, named
from integration.streams import Input, Run, finish, settings, start
from millpond import rescale, savepoint
from millpond.errors import ErrorKind, InvalidInputError
from millpond.operations.inspect import verify
from millpond.storage import open_storage

pytestmark = pytest.mark.spark

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32())])
_BEFORE, _BETWEEN, _AFTER = [0, 1, 2, 2], [2, 3, 3], [3, 9]
# The other cases are deep.
_QUICK = {("canonical", 3, 2)}


def _conf(checkpoint_format: int) -> dict[str, str]:
    return {_PROVIDER: MILLPOND, _FORMAT: str(checkpoint_format)}


def _counts(source: Input, spark: SparkSession) -> DataFrame:
    return source.stream(spark).groupBy("k").count()


def _distinct_counts(source: Input, spark: SparkSession) -> DataFrame:
    return source.stream(spark).dropDuplicates(["k", "n"]).groupBy("k").count()


def _key(number: int) -> str:
    return f"k{number % 3}"


def _rows(numbers: list[int]) -> list[dict[str, Any]]:
    return [{"k": _key(n), "n": n} for n in numbers]


@pytest.mark.parametrize(
    ("how", "partitions", "checkpoint_format"),
    [
        case if case in _QUICK else pytest.param(*case, marks=pytest.mark.deep)
        for case in itertools.product(("native", "canonical", "fork"), (None, 3), (1, 2))
    ],
)
def test_below_an_operator_that_is_restored(
    spark: SparkSession,
    tmp_path: Path,
    checkpoint_format: int,
    partitions: int | None,
    how: str,
) -> None:
    """The new operator knows no earlier row, the other goes on. The tools work on their result."""
    conf = _conf(checkpoint_format)
    source = Input(tmp_path / "input", _SCHEMA)
    source.add(_rows(_BEFORE))
    query = Run(tmp_path / "query")
    finish(start(spark, _counts(source, spark), query, output_mode="update", conf=conf), query)
    form = "canonical" if how == "canonical" else "native"
    savepoint.create(query.checkpoint, tmp_path / "saved", format=form)

    def job() -> Any:
        return _distinct_counts(source, spark).writeStream.outputMode("update")

    again = Run(tmp_path / "again")
    with settings(spark, conf):
        planned = savepoint.plan(tmp_path / "saved", job)
        saved_as = next(op.operator for op in planned.operators if op.name == "stateStoreSave")
        assert saved_as is not None
        mapped = {0: saved_as} if saved_as else {}
        assert not planned.ok
        assert "--allow-new-operator" in " ".join(op.reason for op in planned.operators)
        allowed = savepoint.plan(
            tmp_path / "saved", job, map_operators=mapped, allow_new_operator=True
        )
        assert allowed.ok and sorted(
            (op.name, op.verdict) for op in allowed.operators if op.name == "dedupe"
        ) == [("dedupe", "new")]
        make, origin = (
            (savepoint.fork, query.checkpoint)
            if how == "fork"
            else (savepoint.restore, tmp_path / "saved")
        )
        report = make(
            origin,
            again.checkpoint,
            map_operators=mapped,
            partitions=partitions,
            allow_new_operator=True,
            job=job,
        )
    assert report.new_operators == (1 - saved_as,)
    assert verify(open_storage(str(again.checkpoint)), "it").ok

    def go_on(run: Run) -> list[str]:
        frame = _distinct_counts(source, spark)
        finish(start(spark, frame, run, output_mode="update", conf=conf), run)
        return run.rows[max(run.rows)]

    counts = Counter(map(_key, _BEFORE))

    def expected(new: set[int]) -> list[str]:
        counts.update(map(_key, new))
        return sorted(f"Row(k='{k}', count={counts[k]})" for k in set(map(_key, new)))

    source.add(_rows(_BETWEEN))
    assert go_on(again) == expected(set(_BETWEEN))
    moved = Run(tmp_path / "moved")
    savepoint.create(again.checkpoint, tmp_path / "saved again", format="canonical")
    savepoint.restore(tmp_path / "saved again", moved.checkpoint)
    rescale(again.checkpoint, 4 if partitions is None else 6)
    source.add(_rows(_AFTER))
    last = expected(set(_AFTER) - set(_BETWEEN))
    for run in (again, moved):
        assert go_on(run) == last
        assert verify(open_storage(str(run.checkpoint)), "it").ok


def _inputs(work: Path, case: Case, files: slice) -> list[Input]:
    """Return sources that have those files of the case."""
    found = []
    for i, (schema, batches) in enumerate(case.inputs):
        found.append(Input(work / f"input-{i}", schema))
        for rows in batches[files]:
            found[-1].add(rows)
    return found


def _conf_of(case: Case) -> dict[str, str]:
    return {**_conf(case.checkpoint_format), **case.conf, **case.candidate_conf}


def _forked(
    spark: SparkSession, work: Path, case: Case, again: Run
) -> tuple[Callable[[], DataFrame], savepoint.RestoreReport]:
    """Run a stateless query over the first input of a case, and fork it for the case itself.

    Return the case over the later input, and the report of the fork.
    """
    conf = _conf_of(case)
    sources = _inputs(work, case, slice(0, case.first))

    def stateless() -> DataFrame:
        frames = [source.stream(spark).selectExpr("1 AS one") for source in sources]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        return whole

    query = Run(work / "query")
    finish(start(spark, stateless(), query, output_mode="append", conf=conf), query)
    for source, (_, batches) in zip(sources, case.inputs, strict=True):
        for rows in batches[case.first :]:
            source.add(rows)

    def build() -> DataFrame:
        return case.build([source.stream(spark) for source in sources])

    with settings(spark, conf):
        report = savepoint.fork(
            query.checkpoint,
            again.checkpoint,
            allow_new_operator=True,
            job=lambda: build().writeStream.outputMode(case.mode),
        )
    return build, report


# Spark starts the others in no way: binary inequality, and Avro for an aggregate.
_RUN = [case for case in SHAPES if not case.refused or case.later is not None]
_QUICK_SHAPES = ["agg-update-odd-keys"]
_SAMPLE = [*_QUICK_SHAPES, "sessions-append-ids", "row-event-time"]


@pytest.mark.parametrize(
    "name",
    [
        c.name if c.name in _QUICK_SHAPES else deep(c.name)
        for c in _RUN
        if EVERYTHING or c.name in _SAMPLE
    ],
)
def test_a_stateless_query_gets_operators(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Each shape of query goes on from a stateless one as it would start over the later input. A
    few run here, all with MILLPOND_SHAPES=all.

    Spark reads an initial state in batch 0 alone: there the restore warns, and the results differ.
    """
    case = named(name)
    conf = _conf_of(case)
    again, fresh = Run(tmp_path / "again"), Run(tmp_path / "fresh")
    build, report = _forked(spark, tmp_path, case, again)
    assert report.new_operators
    assert verify(open_storage(str(again.checkpoint)), "it").ok
    finish(start(spark, build(), again, output_mode=case.mode, conf=conf), again)
    later = _inputs(tmp_path / "later", case, slice(case.first, None))
    frame = case.build([source.stream(spark) for source in later])
    finish(start(spark, frame, fresh, output_mode=case.mode, conf=conf), fresh)
    assert any(fresh.rows.values())
    seeded = name.endswith("-initial-state")
    assert (list(again.rows.values()) != list(fresh.rows.values())) is seeded
    assert not seeded or "initial state" in " ".join(report.warnings)
    assert verify(open_storage(str(again.checkpoint)), "it").ok


_NOT_RUN = quick_first(["sessions-append-ids", "join-full-v4", "row-event-time"])


@pytest.mark.parametrize("name", _NOT_RUN)
def test_copies_of_a_checkpoint_that_has_not_run(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """No column family of the new operator was known. So a canonical savepoint lacked its stores,
    and stores on other partitions had one whose keys are not found as the job finds them.
    """
    case = named(name)
    again = Run(tmp_path / "again")
    build, _ = _forked(spark, tmp_path, case, again)
    savepoint.create(again.checkpoint, tmp_path / "saved", format="canonical")
    assert savepoint.verify(tmp_path / "saved").ok
    forked, restored = Run(tmp_path / "forked"), Run(tmp_path / "restored")
    savepoint.fork(again.checkpoint, forked.checkpoint, partitions=3)
    savepoint.restore(tmp_path / "saved", restored.checkpoint)
    for run in (again, forked, restored):
        finish(start(spark, build(), run, output_mode=case.mode, conf=_conf_of(case)), run)
        assert verify(open_storage(str(run.checkpoint)), "it").ok
    assert any(again.rows.values()) and again.rows == forked.rows == restored.rows


def test_an_operator_of_the_savepoint_that_the_job_lacks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The restore says which line helps, and writes nothing."""
    conf = _conf(2)
    source = Input(tmp_path / "input", _SCHEMA)
    source.add(_rows(_BEFORE))
    query, new = Run(tmp_path / "query"), tmp_path / "new"
    frame = _distinct_counts(source, spark)
    finish(start(spark, frame, query, output_mode="update", conf=conf), query)

    def job() -> Any:
        return _counts(source, spark).writeStream.outputMode("update")

    with settings(spark, conf), pytest.raises(InvalidInputError) as e:
        savepoint.fork(query.checkpoint, new, allow_new_operator=True, job=job)
    assert e.value.kind is ErrorKind.OPERATOR_UNKNOWN
    assert "--drop-operator" in str(e.value) and not new.exists()
    with pytest.raises(InvalidInputError, match="without a job"):
        savepoint.fork(query.checkpoint, new, allow_new_operator=True)
