"""Every line of the table in `docs/guides/changing.md`: what Spark does, and what Millpond does.

Each test saves a query, plans the changed job, restores the savepoint and starts that job.
"""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.cases import EVENTS, NO_EMPTY_BATCHES, Case
from integration.changed_jobs import conditions, saved
from integration.changes import CHANGES
from integration.changes.builds import (
    FIRST,
    OTHERS_FIRST,
    OTHERS_THEN,
    THEN,
    Change,
    distinct,
    distinct_counts,
)
from integration.depth import deep
from integration.harness import EVERYTHING
from integration.streams import Input, Run, finish, settings, start
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind, InvalidInputError, NotFoundError
from millpond.operations.output.copying import write_image

pytestmark = pytest.mark.spark

_QUICK = (
    "aggregates-changed-places",
    "source-new",
)


def _each() -> list[Any]:
    return [
        pytest.param(c, id=c.name)
        if EVERYTHING or c.name in _QUICK
        else pytest.param(*deep(c).values, id=c.name, marks=pytest.mark.deep)
        for c in CHANGES
    ]


def _go_on(spark: SparkSession, frame: DataFrame, run: Run, mode: str, conf: dict[str, str]) -> str:
    """Start the job. Return why Spark refuses it; "" if it ran to its end."""
    try:
        finish(start(spark, frame, run, output_mode=mode, conf=conf), run)
    except StreamingQueryException as e:
        return str(e)
    return ""


@pytest.mark.parametrize("change", _each())
def test_a_change(spark: SparkSession, tmp_path: Path, change: Change) -> None:
    before, after = change.mode
    case = Case(
        change.name,
        change.before,
        [(EVENTS, [FIRST, THEN]), (EVENTS, [OTHERS_FIRST, OTHERS_THEN])],
        before,
        conf={**NO_EMPTY_BATCHES, "spark.sql.shuffle.partitions": "1", **change.conf},
    )
    origin, inputs, conf = saved(spark, tmp_path, case, 1)

    def later() -> DataFrame:
        return change.after([source.stream(spark) for source in inputs])

    def job() -> Any:
        return later().writeStream.outputMode(after)

    with settings(spark, conf):
        report = savepoint.plan(origin, job)
    said = " ".join([*(op.reason for op in report.operators), *report.problems])
    warned = " ".join(text for op in report.operators for text in op.warnings)

    run = Run(tmp_path / "again")
    savepoint.restore(origin, run.checkpoint)
    failed = _go_on(spark, later(), run, after, conf)
    rows = sorted(itertools.chain(*run.rows.values()))
    print(f"{change.name}: {sorted(conditions(failed)) or failed[:80] or rows}; {said} {warned}")
    assert bool(failed) is bool(change.refused), failed or rows
    assert change.refused in failed
    assert set(change.rows) <= set(rows), rows
    moved = any(op.verdict == "moved" for op in report.operators)
    assert report.ok is not (moved or (bool(change.refused) and change.planned)), said
    assert bool(warned) is bool(change.warns) and change.warns in warned, warned

    if change.columns:
        for op in report.operators:
            for number, options in enumerate(op.column_options):
                edited = tmp_path / f"edited-{number}"
                command = ["savepoint", "edit", str(origin), str(edited), *shlex.split(options)]
                assert main(command) == 0
                origin = edited
    if change.helps is not None or change.columns:
        run = Run(tmp_path / "helped")
        with settings(spark, conf):
            made = savepoint.restore(origin, run.checkpoint, job=job, **(change.helps or {}))
            planned = {k: v for k, v in (change.helps or {}).items() if k != "offsets"}
            assert savepoint.plan(origin, job, **planned).ok
        assert dataclasses.asdict(made)["dry_run"] is False
        assert _go_on(spark, later(), run, after, conf) == ""
        rows = sorted(itertools.chain(*run.rows.values()))
        print("   then:", rows)
        assert list(change.then) == rows


def test_a_mapping_is_confirmed_or_said_by_hand(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is written until somebody says which operator is which."""
    case = Case("", distinct("k", "v"), [(EVENTS, [FIRST, THEN])], "append", conf=NO_EMPTY_BATCHES)
    origin, inputs, conf = saved(spark, tmp_path, case, 1)

    def job() -> Any:
        return distinct_counts([inputs[0].stream(spark)]).writeStream.outputMode("update")

    def twice() -> Any:
        frame = inputs[0].stream(spark).dropDuplicates(["k", "v"])
        return frame.selectExpr("k", "v + 1 AS v").dropDuplicates(["k", "v"]).writeStream

    asked: list[tuple[tuple[int | None, int | None, str], ...]] = []

    def answer(meant: bool) -> Callable[[tuple[savepoint.OperatorVerdict, ...]], bool]:
        def confirm(found: tuple[savepoint.OperatorVerdict, ...]) -> bool:
            asked.append(tuple((one.saved_as, one.operator, one.verdict) for one in found))
            return meant

        return confirm

    new = tmp_path / "new"
    with settings(spark, conf):
        for given in (False, answer(False)):
            with pytest.raises(InvalidInputError, match="operators moved") as e:
                savepoint.restore(
                    origin, new, job=job, allow_new_operator=True, match_operators=given
                )
            assert e.value.kind is ErrorKind.OPERATOR_UNKNOWN
            assert "operator 0 (dedupe) of the saved query is operator 1 of the job" in str(e.value)
            assert "--match-operators" in e.value.hint and "--map-operator 0=1" in e.value.hint
        report = savepoint.restore(
            origin,
            new,
            job=job,
            allow_new_operator=True,
            match_operators=answer(True),
            dry_run=True,
        )
        assert (report.operators, report.new_operators) == (((0, 1),), (0,))
        assert asked == [((None, 0, "new"), (0, 1, "moved"))] * 2
        # Two of one shape, and one is new: nothing says which.
        with pytest.raises(InvalidInputError, match="say which with --map-operator 0=NEW"):
            savepoint.restore(origin, new, job=twice, allow_new_operator=True, match_operators=True)
        for number in (0, 1):
            mapped = savepoint.restore(
                origin,
                new,
                job=twice,
                allow_new_operator=True,
                map_operators={0: number},
                dry_run=True,
            )
            assert (mapped.operators, mapped.new_operators) == (((0, number),), (1 - number,))
        with pytest.raises(InvalidInputError, match="without a job"):
            savepoint.restore(origin, new, match_operators=True)
    assert not new.exists()


def test_a_fork_that_looks_again_runs_the_job_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that runs collects a file before it is pinned. The job may write somewhere itself."""
    case = Case("", distinct("k", "v"), [(EVENTS, [FIRST, THEN])], "append", conf=NO_EMPTY_BATCHES)
    origin, inputs, conf = saved(spark, tmp_path, case, 1)
    ran, asked, written = [], [], []

    def job() -> Any:
        ran.append(True)
        return distinct_counts([inputs[0].stream(spark)]).writeStream.outputMode("update")

    def confirm(found: tuple[savepoint.OperatorVerdict, ...]) -> bool:
        asked.append(found)
        return True

    def collected_at_first(*given: Any, **more: Any) -> Any:
        written.append(True)
        if len(written) == 1:
            raise NotFoundError("it was collected")
        return write_image(*given, **more)

    savepoint.restore(origin, tmp_path / "query")
    monkeypatch.setattr("millpond.operations.savepoint.restore.write_image", collected_at_first)
    with settings(spark, conf):
        report = savepoint.fork(
            tmp_path / "query",
            tmp_path / "new",
            job=job,
            allow_new_operator=True,
            match_operators=confirm,
        )
    assert (report.operators, report.new_operators) == (((0, 1),), (0,))
    assert [len(each) for each in (written, ran, asked)] == [2, 1, 1]


def test_a_job_that_spark_refuses_is_not_restored(spark: SparkSession, tmp_path: Path) -> None:
    """With a job, `restore` and `fork` compare schemas as `plan` does, and warn as it does."""
    changes = {change.name: change for change in CHANGES}
    refused, warned = changes["aggregate-new"], changes["aggregates-changed-places"]
    for change in (refused, warned):
        case = Case("", change.before, [(EVENTS, [FIRST, THEN])], "update", conf=NO_EMPTY_BATCHES)
        work = tmp_path / change.name
        origin, inputs, conf = saved(spark, work, case, 1)

        def job_of(change: Change, source: Input) -> Callable[[], Any]:
            return lambda: change.after([source.stream(spark)]).writeStream.outputMode("update")

        job = job_of(change, inputs[0])
        with settings(spark, conf):
            for make, of in ((savepoint.restore, origin), (savepoint.fork, work / "run")):
                if change is refused:
                    with pytest.raises(InvalidInputError, match="value: \\+ sum long") as e:
                        make(of, work / "new", job=job)
                    assert e.value.kind is ErrorKind.INVALID_ARGUMENT
                    assert not (work / "new").exists()
                else:
                    report = make(of, work / "new", job=job, dry_run=True)
                    (text,) = report.warnings
                    assert text.startswith("operator 0 (stateStoreSave): value: max, min have")
