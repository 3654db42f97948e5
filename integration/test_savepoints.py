"""A query that goes on from a savepoint writes the same batches as the saved query.

The tests make the savepoint in the middle of a micro-batch of the running query. They move it, and
restore it, also with other numbers of partitions.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.cases import CLICKED, Case, Rows, events
from integration.depth import quick_first
from integration.harness import EVERYTHING
from integration.jvm import MILLPOND
from integration.shapes import SHAPES, named
from integration.streams import Input, Run, finish, start
from millpond import savepoint
from millpond.errors import UnsupportedError
from millpond.operations.inspect import verify
from millpond.storage import open_storage

pytestmark = pytest.mark.spark

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
# Name, format of the savepoint, and number of restored partitions (None: two, as before). The
# shapes have plain state in both formats, state in scan order, four stores, column families with
# their own schemas, timers, one partition, two operators.
_CASES = [
    ("agg-window-append", "native", None),
    ("agg-update-odd-keys", "canonical", 3),
    ("sessions-append-ids", "native", 4),
    ("join-left", "canonical", None),
    ("join-filtered-v4", "native", 3),
    ("scala-event-time", "canonical", 5),
    ("global-update-ids", "native", 4),
    ("dedupe-then-window", "canonical", 1),
]


def _cases() -> list[Any]:
    """Return the cases to test.

    With MILLPOND_SHAPES=all: every shape that Spark runs. They alternate between the formats, and
    between more and fewer partitions.
    """
    if not EVERYTHING:
        return quick_first(_CASES, 2)
    runs = [case for case in SHAPES if not case.refused and case.later is None]
    return [
        (
            case.name,
            ("native", "canonical")[i % 2],
            None if case.unscalable else (None, 3, 4, 1, 5)[i % 5],
        )
        for i, case in enumerate(runs)
    ]


def _conf(case: Case) -> dict[str, str]:
    return {
        _PROVIDER: MILLPOND,
        _FORMAT: str(case.checkpoint_format),
        **case.conf,
        **case.candidate_conf,
    }


def _frame(spark: SparkSession, case: Case, inputs: list[Input]) -> DataFrame:
    return case.build([source.stream(spark) for source in inputs])


def _after(found: Mapping[int, Any], batch: int) -> dict[int, Any]:
    return {number: value for number, value in found.items() if number > batch}


@pytest.mark.parametrize(("name", "form", "partitions"), _cases())
def test_goes_on_from_a_savepoint_as_if_nothing_had_been(
    spark: SparkSession, tmp_path: Path, name: str, form: str, partitions: int | None
) -> None:
    case = named(name)
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for batch in batches:
            source.add(batch)
    whole, again = Run(tmp_path / "whole"), Run(tmp_path / "again")
    saved_at = 1 if name.startswith("global-limit") else 3  # the limit is not yet reached at 1
    other = tmp_path / "other"

    def during(batch: int) -> None:
        if batch == saved_at:
            savepoint.create(whole.checkpoint, tmp_path / "saved", format=form)
            savepoint.create(
                whole.checkpoint, other, format="native" if form == "canonical" else "canonical"
            )

    query = start(
        spark,
        _frame(spark, case, inputs),
        whole,
        output_mode=case.mode,
        conf=_conf(case),
        during=during,
    )
    finish(query, whole)
    image = savepoint.show(tmp_path / "saved").index.image
    assert (image.batch, image.planned_batch) == (saved_at - 1, saved_at)
    assert savepoint.verify(tmp_path / "saved").ok
    assert savepoint.diff(tmp_path / "saved", other).equal, "both formats must have the same state"
    _edits_that_change_nothing(tmp_path / "saved", tmp_path)
    if form == "canonical":
        _tables_are_what_spark_reads(spark, whole, tmp_path / "saved", image.batch)

    shutil.move(tmp_path / "saved", tmp_path / "moved")
    backend = "heap" if form == "native" else None  # the state does not depend on the backend
    report = savepoint.restore(
        tmp_path / "moved", again.checkpoint, partitions=partitions, backend=backend
    )
    shutil.rmtree(tmp_path / "moved")
    finish(
        start(spark, _frame(spark, case, inputs), again, output_mode=case.mode, conf=_conf(case)),
        again,
    )
    assert any(_after(whole.rows, image.batch).values()), (
        "no rows came after the savepoint, so the test proves nothing"
    )
    assert again.rows == _after(whole.rows, image.batch)
    if case.operator.startswith("transformWithState") and partitions is not None:
        # With other partitions numRowsUpdated of pandas-no-time-odd-keys differs. It differs in
        # Spark's own stores too. numRowsTotal does not differ.
        assert _totals(again.state) == _totals(_after(whole.state, image.batch))
    elif not case.random_keys:
        assert again.state == _after(whole.state, image.batch)
    assert str(report.query_id) in (again.checkpoint / "metadata").read_text()
    for run in (whole, again):
        assert verify(open_storage(str(run.checkpoint)), "x").problems == []


def _totals(state: Mapping[int, Any]) -> dict[int, list[int]]:
    return {number: [op["numRowsTotal"] for op in operators] for number, operators in state.items()}


def _families(saved: Path) -> list[tuple[int, str, str]]:
    """Return operator, store and name of the column families that have rows."""
    return sorted(
        (f.operator, f.store, f.column_family) for f in savepoint.diff(saved, saved).families
    )


def _edits_that_change_nothing(saved: Path, work: Path) -> None:
    """Check that an edit without a change gives the bytes that Spark wrote.

    The edit decodes and encodes all rows. It makes the families that follow from them anew.
    """
    for operator, store, family in _families(saved):
        try:
            chosen: dict[str, Any] = {"operator": operator, "store": store, "column_family": family}
            savepoint.edit(saved, work / "edited", function=lambda rows: rows, **chosen)
        except UnsupportedError as e:
            assert "follow from" in str(e)
            continue
        assert savepoint.diff(saved, work / "edited").equal, (operator, store, family)
        shutil.rmtree(work / "edited")


def _tables_are_what_spark_reads(spark: SparkSession, run: Run, saved: Path, batch: int) -> None:
    """Check that Spark reads the same keys and values from the tables as from the query's state."""
    plain = [
        table
        for table in savepoint.show(saved).index.tables
        if table.key is not None and table.family.name == "default"
    ]
    for operator, store in sorted({(table.store.operator, table.store.name) for table in plain}):
        state = spark.read.format("statestore").options(
            batchId=batch, operatorId=operator, storeName=store
        )
        tables = spark.read.parquet(str(saved / f"tables/{operator}/{store}/default"))
        columns = [
            name for name in ("key", "value") if name in tables.columns
        ]  # a global aggregation has no key
        known = state.load(str(run.checkpoint)).select(*columns).collect()
        found = tables.select(*columns).collect()
        assert sorted(map(repr, found)) == sorted(map(repr, known))


def test_forks_do_not_touch_each_other(spark: SparkSession, tmp_path: Path) -> None:
    """Two forks of a stopped query, and the query itself, go on with the same input."""
    case = named("agg-update-odd-keys")
    schema, batches = case.inputs[0]
    first = Input(tmp_path / "input", schema)
    for rows in batches[:2]:
        first.add(rows)
    run = Run(tmp_path / "run")
    finish(
        start(spark, _frame(spark, case, [first]), run, output_mode=case.mode, conf=_conf(case)),
        run,
    )
    reports = [savepoint.fork(run.checkpoint, tmp_path / name) for name in ("one", "two")]
    state = savepoint.show(_saved(run, tmp_path)).index.state_bytes(0)
    assert all(report.bytes_linked == state for report in reports), "a fork must link all state"

    def go_on(name: str, source: Input) -> Run:
        forked = Run(tmp_path / name)
        finish(
            start(
                spark,
                _frame(spark, case, [source]),
                forked,
                output_mode=case.mode,
                conf=_conf(case),
            ),
            forked,
        )
        return forked

    for rows in batches[3:]:
        first.add(rows)
    one = go_on("one", first)
    origin = go_on("run", first)
    two = go_on("two", first)
    assert one.rows and origin.rows == one.rows == two.rows
    # The savepoint is older than this input. So a query restored from it begins where they began.
    savepoint.restore(tmp_path / "saved", tmp_path / "three", offsets="drop")
    three = go_on("three", first)
    assert min(three.rows) == min(one.rows) and three.rows != one.rows, (
        "without offsets the query must read all input again, with the state"
    )


def test_a_fork_of_the_oldest_batch_that_spark_keeps(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads the entry before the last one at a start, and has purged it."""
    case = named("agg-update-odd-keys")
    schema, batches = case.inputs[0]
    source = Input(tmp_path / "input", schema)

    def go_on(name: str) -> Run:
        run = Run(tmp_path / name)
        frame = _frame(spark, case, [source])
        finish(start(spark, frame, run, output_mode=case.mode, conf=_conf(case)), run)
        return run

    for rows in batches[:2]:
        source.add(rows)
        run = go_on("run")
    last = max(run.rows)
    assert last > 0
    for batch in range(last):
        for file in (run.checkpoint / "offsets").glob(f"*{batch}*"):
            file.unlink()
    savepoint.fork(run.checkpoint, tmp_path / "again", batch=last, offsets="drop")
    assert min(go_on("again").rows) == last + 1


def test_a_source_that_is_read_twice_before_another(spark: SparkSession, tmp_path: Path) -> None:
    """The offset log has a line for each place of a source, and Spark one folder for each source.

    So the folder of the second source has a smaller number than its line.
    """
    schema = pa.schema([("k", pa.string())])
    twice, other = Input(tmp_path / "twice", schema), Input(tmp_path / "other", schema)
    twice.add([{"k": "twice"}])
    for n in range(4):
        other.add([{"k": f"other{n}"}])

    def go_on(name: str) -> Run:
        run = Run(tmp_path / name)
        first, second = twice.stream(spark), other.stream(spark)
        frame = first.union(first).union(second).groupBy("k").count()
        conf = {"spark.sql.streaming.stateStore.providerClass": MILLPOND}
        finish(start(spark, frame, run, output_mode="update", conf=conf), run)
        return run

    run = go_on("run")
    last = max(run.rows)
    lines = (run.checkpoint / f"offsets/{last}").read_text().splitlines()[2:]
    assert lines == [*['{"logOffset":0}'] * 2, '{"logOffset":3}']
    assert {path.name for path in (run.checkpoint / "sources").iterdir()} == {"0", "1"}
    savepoint.fork(run.checkpoint, tmp_path / "again")
    assert sorted(
        path.name for path in (tmp_path / "again/sources/1").iterdir() if path.name.isdigit()
    ) == ["0", "1", "2", "3"]
    other.add([{"k": "other9"}])
    again = go_on("again")
    assert [again.rows[batch] for batch in sorted(again.rows)] == [["Row(k='other9', count=1)"]]


@pytest.mark.parametrize("names", [False, True])
def test_v2_of_the_offset_log_has_no_order(
    spark: SparkSession, tmp_path: Path, names: bool
) -> None:
    """Each source's own log is cut at that source's offset, whatever the place of its line.

    Spark writes the lines of two sources in reverse order. With names, they name the folders.
    """
    schema = pa.schema([("k", pa.string())])
    called = ["few", "many"] if names else ["0", "1"]
    few, many = Input(tmp_path / "few", schema), Input(tmp_path / "many", schema)
    few.add([{"k": "few0"}])
    for n in range(3):
        many.add([{"k": f"many{n}"}])
    conf = {
        "spark.sql.streaming.stateStore.providerClass": MILLPOND,
        "spark.sql.streaming.offsetLog.formatVersion": "2",
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": str(names).lower(),
    }

    def stream(source: Input, name: str) -> DataFrame:
        reader = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1)
        return (reader.name(name) if names else reader).parquet(str(source.directory))

    def go_on(name: str) -> Run:
        run = Run(tmp_path / name)
        for key, value in conf.items():  # Spark takes names while it makes the frame
            spark.conf.set(key, value)
        try:
            frame = stream(few, called[0]).union(stream(many, called[1])).groupBy("k").count()
            finish(start(spark, frame, run, output_mode="update", conf=conf), run)
        finally:
            for key in conf:
                spark.conf.unset(key)
        return run

    run = go_on("run")
    lines = (run.checkpoint / "offsets/2").read_text().splitlines()
    assert lines[0] == "v2" and {line.partition(":")[0] for line in lines[2:]} == {*called}
    savepoint.fork(run.checkpoint, tmp_path / "again", batch=0)  # batch 1 is begun: 0 and 1
    kept = [
        sorted(p.name for p in (tmp_path / "again/sources" / n).iterdir() if p.name.isdigit())
        for n in called
    ]
    assert kept == [["0"], ["0", "1"]]
    few.add([{"k": "few9"}])
    again = go_on("again")
    found = [row for batch in sorted(again.rows) for row in again.rows[batch]]
    assert sorted(found) == [f"Row(k='{k}', count=1)" for k in ("few9", "many1", "many2")]
    savepoint.fork(run.checkpoint, tmp_path / "anew", offsets="drop")
    anew = go_on("anew")
    found = [row for batch in sorted(anew.rows) for row in anew.rows[batch]]
    assert "Row(k='few0', count=2)" in found and "Row(k='many2', count=2)" in found


def _saved(run: Run, tmp_path: Path) -> Path:
    savepoint.create(run.checkpoint, tmp_path / "saved")
    return tmp_path / "saved"


def test_operator_that_another_job_numbers_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    """The new job has one of two operators. Spark gives it the number of the other."""
    case = named("dedupe-then-window")
    schema, batches = CLICKED[0]
    source = Input(tmp_path / "input", schema)
    for rows in batches[:2]:
        source.add(rows)
    run = Run(tmp_path / "run")
    finish(
        start(spark, _frame(spark, case, [source]), run, output_mode=case.mode, conf=_conf(case)),
        run,
    )
    saved = _saved(run, tmp_path)
    numbers = {op.name: op.operator for op in savepoint.show(saved).index.image.operators}
    dedupe = next(number for name, number in numbers.items() if name.startswith("dedupe"))
    other = next(number for number in numbers.values() if number != dedupe)
    assert dedupe != 0, "the operator must get another number, or the test proves nothing"
    alone = Run(tmp_path / "alone")
    savepoint.restore(saved, alone.checkpoint, map_operators={dedupe: 0}, drop_operators=[other])
    # These rows are above the watermark. The state has two of them.
    source.add(events(("a", 11, 7), ("c", 14, 8), ("fresh", 12, 9)))
    deduped = source.stream(spark).withWatermark("ts", "10 seconds").dropDuplicates(["k", "ts"])
    finish(start(spark, deduped, alone, output_mode="append", conf=_conf(case)), alone)
    assert ["fresh" in row for rows in alone.rows.values() for row in rows] == [True]


def test_plan_of_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """A plan gives Spark's verdict on a job, before a restore.

    The job is the same, or changed, or without an operator, or a script.
    """
    case = named("dedupe-then-window")
    schema, batches = CLICKED[0]
    source = Input(tmp_path / "input", schema)
    source.add(batches[0])
    run = Run(tmp_path / "run")
    finish(
        start(spark, _frame(spark, case, [source]), run, output_mode=case.mode, conf=_conf(case)),
        run,
    )
    saved = _saved(run, tmp_path)
    names = {op.name: op.operator for op in savepoint.show(saved).index.image.operators}
    dedupe, window = names["dedupe"], names["stateStoreSave"]

    def deduped() -> DataFrame:
        return source.stream(spark).withWatermark("ts", "10 seconds").dropDuplicates(["k", "ts"])

    def said(job: Any, **given: Any) -> dict[str, str]:
        report = savepoint.plan(saved, job, **given)
        assert report.ok == all(op.verdict != "refused" for op in report.operators)
        return {op.name: f"{op.verdict} {op.reason}".strip() for op in reversed(report.operators)}

    assert said(lambda: _frame(spark, case, [source])) == {
        "dedupe": "restored",
        "stateStoreSave": "restored",
    }
    other = said(
        lambda: (
            deduped()
            .withColumn("v", F.lit("a"))
            .groupBy(F.window("ts", "10 seconds"))
            .agg(F.max("v"))
        )
    )
    assert other["dedupe"] == "restored"
    assert other["stateStoreSave"].startswith("refused") and "SCHEMA" in other["stateStoreSave"]
    text = (
        deduped()
        .withColumn("v", F.lit("a"))
        .groupBy(F.window("ts", "10 seconds"), "k")
        .agg(F.max("v").alias("v"))
    )
    (refused,) = [
        op for op in savepoint.plan(saved, lambda: text).operators if op.name == "stateStoreSave"
    ]
    assert {"value: - count long", "value: + max string"} <= {
        str(column) for column in refused.columns
    }
    assert f"--map-operator {dedupe}=0" in said(deduped)["dedupe"], "the hint has another number"
    changes: dict[str, Any] = {"map_operators": {dedupe: 0}, "drop_operators": [window]}
    assert said(deduped, **changes) == {"dedupe": "mapped", "stateStoreSave": "dropped"}

    script = tmp_path / "job.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "rows = spark.readStream.schema('k string, ts timestamp, v"
        f" long').parquet({str(source.directory)!r})\n"
        "rows = rows.withWatermark('ts', '10 seconds').dropDuplicates(['k', 'ts'])\n"
        "query = rows.writeStream.queryName('it').option('checkpointLocation',"
        " '/nowhere').format('noop').start()\n"
        "query.awaitTermination()\n"
        "spark.streams.awaitAnyTermination()\n"
    )
    report = savepoint.plan(saved, script, query="it", **changes)
    assert (report.ok, report.query) == (True, "it")
    assert list(spark.streams.active) == []


# These have numbered rows, lists of rows by time, and lists, TTL and timers with Avro.
_FORGETFUL = ["join-left", "join-full-v4", "scala-processing-time-avro"]
_ALL_FORGETFUL = [
    *_FORGETFUL,
    *(
        "agg-window-append",
        "sessions-append-ids",
        "dedupe-then-join",
        "join-full",
        "join-full-v3",
        "join-left-v4",
        "join-semi-v4",
    ),
    *(
        "pandas-state-append-ids",
        "pandas-event-time",
        "pandas-processing-time",
        "row-event-time",
        "scala-event-time",
        "scala-processing-time",
        "row-collated-keys",
    ),
]
_KEY_OF = [("a", 0), ("b", 1), ("c", 2)]  # key c decides the watermark, with and without key a
_SECONDS = (0, 6, 12, 18, 50, 90)  # of each batch


def _clicks(batches: range, keys: str) -> list[Rows]:
    return [
        events(*((k, _SECONDS[n] + t, 10 * n + t) for k, t in _KEY_OF if k in keys))
        for n in batches
    ]


@pytest.mark.parametrize("name", _ALL_FORGETFUL if EVERYTHING else quick_first(_FORGETFUL, 0))
def test_state_without_a_key_is_that_of_a_query_that_never_saw_it(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """`edit` removes a key from every column family of an operator, and nothing else."""
    case = named(name)
    real = [Input(tmp_path / f"real-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    known = [Input(tmp_path / f"known-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    first, model, edited = (
        Run(tmp_path / "first"),
        Run(tmp_path / "model"),
        Run(tmp_path / "edited"),
    )

    def go(inputs: list[Input], run: Run) -> None:
        finish(
            start(spark, _frame(spark, case, inputs), run, output_mode=case.mode, conf=_conf(case)),
            run,
        )

    for inputs, keys in ((real, "abc"), (known, "bc")):
        for source in inputs:
            for rows in _clicks(range(2), keys):
                source.add(rows)
    go(real, first)
    saved = _saved(first, tmp_path)
    removed = 0
    for number, (operator, store, family) in enumerate(_families(saved)):
        chosen: dict[str, Any] = {"operator": operator, "store": store, "column_family": family}
        try:
            report = savepoint.edit(
                saved, tmp_path / f"without-{number}", function=_without("a"), **chosen
            )
        except UnsupportedError:
            continue  # this family follows from another
        removed += report.rows_before - report.rows_after
        saved = tmp_path / f"without-{number}"
    assert removed >= len(real)
    savepoint.restore(saved, edited.checkpoint)
    go(known, model)
    for source in (*real, *known):
        for rows in _clicks(range(2, len(_SECONDS)), "abc"):
            source.add(rows)
    go(real, edited)
    go(known, model)
    assert edited.rows and any(edited.rows.values())
    assert edited.rows == _after(model.rows, min(edited.rows) - 1)
    assert _totals(edited.state) == _totals(_after(model.state, min(edited.rows) - 1))


def _without(key: str) -> Any:
    def leaves(value: Any) -> list[Any]:
        return (
            [leaf for inner in value.values() for leaf in leaves(inner)]
            if isinstance(value, dict)
            else [value]
        )

    def keeps(found: Any) -> bool:
        return key not in [leaf.lower() for leaf in leaves(found) if isinstance(leaf, str)]

    return lambda rows: rows.filter(pa.array(map(keeps, rows.column("key").to_pylist())))
