"""Queries that go on from a savepoint give, batch for batch, what the query that was saved gives.

The savepoint is taken while the query runs, in the middle of a micro-batch; it is moved before it is restored, on other numbers of
partitions too.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.cases import CLICKED, Case, events
from integration.jvm import MILLPOND
from integration.shapes import named
from integration.streams import Input, Run, finish, start
from millpond import savepoint
from millpond.inspection import verify
from millpond.storage import open_storage

pytestmark = pytest.mark.spark

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
# Plain state in both formats, state in scan order, four stores, column families with schemas of their own, timers, one partition, two
# operators; each with the format of the savepoint and the number of partitions of what is restored (None: two, as before).
CASES = [
    ("agg-window-append", "native", None),
    ("agg-update-odd-keys", "canonical", 3),
    ("sessions-append-ids", "native", 4),
    ("join-left", "canonical", None),
    ("join-filtered-v4", "native", 3),
    ("scala-event-time", "canonical", 5),
    ("global-update-ids", "native", 4),
    ("dedupe-then-window", "canonical", 1),
]


def _conf(case: Case) -> dict[str, str]:
    return {_PROVIDER: MILLPOND, _FORMAT: str(case.checkpoint_format), **case.conf}


def _frame(spark: SparkSession, case: Case, inputs: list[Input]) -> DataFrame:
    return case.build([source.stream(spark) for source in inputs])


def _after(found: Mapping[int, Any], batch: int) -> dict[int, Any]:
    return {number: value for number, value in found.items() if number > batch}


@pytest.mark.parametrize(("name", "form", "partitions"), CASES)
def test_goes_on_from_a_savepoint_as_if_nothing_had_been(
    spark: SparkSession, tmp_path: Path, name: str, form: str, partitions: int | None
) -> None:
    case = named(name)
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for batch in batches:
            source.add(batch)
    whole, again = Run(tmp_path / "whole"), Run(tmp_path / "again")
    saved_at = 3

    def during(batch: int) -> None:
        if batch == saved_at:
            savepoint.create(whole.checkpoint, tmp_path / "saved", format=form)

    query = start(spark, _frame(spark, case, inputs), whole, output_mode=case.mode, conf=_conf(case), during=during)
    finish(query, whole)
    image = savepoint.show(tmp_path / "saved").index.image
    assert (image.batch, image.planned_batch) == (saved_at - 1, saved_at)
    assert savepoint.verify(tmp_path / "saved").ok

    shutil.move(tmp_path / "saved", tmp_path / "moved")
    report = savepoint.restore(tmp_path / "moved", again.checkpoint, partitions=partitions)
    shutil.rmtree(tmp_path / "moved")
    finish(start(spark, _frame(spark, case, inputs), again, output_mode=case.mode, conf=_conf(case)), again)
    assert any(_after(whole.rows, image.batch).values()), "nothing came after the savepoint: it proves nothing"
    assert again.rows == _after(whole.rows, image.batch)
    if not case.random_keys:
        assert again.state == _after(whole.state, image.batch)
    assert str(report.query_id) in (again.checkpoint / "metadata").read_text()
    for run in (whole, again):
        assert verify(open_storage(str(run.checkpoint)), "x").problems == []


def test_forks_do_not_touch_each_other(spark: SparkSession, tmp_path: Path) -> None:
    """A stopped query, forked twice: once with other input, once with its own."""
    case = named("agg-update-odd-keys")
    schema, batches = case.inputs[0]
    first = Input(tmp_path / "input", schema)
    for rows in batches[:2]:
        first.add(rows)
    run = Run(tmp_path / "run")
    finish(start(spark, _frame(spark, case, [first]), run, output_mode=case.mode, conf=_conf(case)), run)
    reports = [savepoint.fork(run.checkpoint, tmp_path / name) for name in ("one", "two")]
    state = sum(op.size_bytes for op in savepoint.show(_saved(run, tmp_path)).index.image.operators)
    assert all(report.bytes_linked == state for report in reports), "no bytes of state are moved"

    def go_on(name: str, source: Input) -> Run:
        forked = Run(tmp_path / name)
        finish(start(spark, _frame(spark, case, [source]), forked, output_mode=case.mode, conf=_conf(case)), forked)
        return forked

    for rows in batches[3:]:
        first.add(rows)
    one = go_on("one", first)
    origin = go_on("run", first)
    two = go_on("two", first)
    assert one.rows and origin.rows == one.rows == two.rows
    # The savepoint was made before: a fork of it begins where they began.
    savepoint.restore(tmp_path / "saved", tmp_path / "three", offsets="drop")
    three = go_on("three", first)
    assert min(three.rows) == min(one.rows) and three.rows != one.rows, "it reads all input again, with the state"


def _saved(run: Run, tmp_path: Path) -> Path:
    savepoint.create(run.checkpoint, tmp_path / "saved")
    return tmp_path / "saved"


def test_operator_that_another_job_numbers_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    """Of two operators the new job has one, and Spark gives it the number of the other."""
    case = named("dedupe-then-window")
    schema, batches = CLICKED[0]
    source = Input(tmp_path / "input", schema)
    for rows in batches[:2]:
        source.add(rows)
    run = Run(tmp_path / "run")
    finish(start(spark, _frame(spark, case, [source]), run, output_mode=case.mode, conf=_conf(case)), run)
    saved = _saved(run, tmp_path)
    numbers = {op.name: op.operator for op in savepoint.show(saved).index.image.operators}
    dedupe = next(number for name, number in numbers.items() if name.startswith("dedupe"))
    other = next(number for number in numbers.values() if number != dedupe)
    assert dedupe != 0, "the case is there for an operator that gets another number"
    alone = Run(tmp_path / "alone")
    savepoint.restore(saved, alone.checkpoint, map_operators={dedupe: 0}, drop_operators=[other])
    # Above the watermark; two that are in the state, and one that is not.
    source.add(events(("a", 11, 7), ("c", 14, 8), ("fresh", 12, 9)))
    deduped = source.stream(spark).withWatermark("ts", "10 seconds").dropDuplicates(["k", "ts"])
    finish(start(spark, deduped, alone, output_mode="append", conf=_conf(case)), alone)
    assert ["fresh" in row for rows in alone.rows.values() for row in rows] == [True]
