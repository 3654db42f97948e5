"""Every line of the table in `docs/guides/changing.md`: what Spark does, and what Millpond does.

Each test saves a query, plans the changed job, restores the savepoint and starts that job.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.cases import EVENTS, NO_EMPTY_BATCHES, Case
from integration.changed_jobs import conditions, saved
from integration.depth import deep
from integration.harness import EVERYTHING
from integration.job_changes import (
    CHANGES,
    FIRST,
    OTHERS_FIRST,
    OTHERS_THEN,
    THEN,
    Change,
)
from integration.streams import Run, finish, settings, start
from millpond import savepoint

pytestmark = pytest.mark.spark

_QUICK = (
    "operator-new-below",
    "operators-of-one-type-changed-places",
    "aggregates-changed-places",
    "key-new",
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

    if change.helps is not None:
        run = Run(tmp_path / "helped")
        with settings(spark, conf):
            made = savepoint.restore(origin, run.checkpoint, job=job, **change.helps)
            planned = {k: v for k, v in change.helps.items() if k != "offsets"}
            assert savepoint.plan(origin, job, **planned).ok
        assert dataclasses.asdict(made)["dry_run"] is False
        assert _go_on(spark, later(), run, after, conf) == ""
        rows = sorted(itertools.chain(*run.rows.values()))
        print("   then:", rows)
        assert list(change.then) == rows
