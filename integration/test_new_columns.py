"""A job whose values have other columns than the savepoint: `plan` names the options, `restore`
gives the state those columns, and the query goes on.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.cases import AVRO, NO_EMPTY_BATCHES
from integration.harness import EVERYTHING
from integration.jvm import MILLPOND
from integration.python_state_cases import Processor
from integration.streams import Input, Run, finish, settings, start
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import UnsupportedError
from millpond.operations.inspect import verify
from millpond.storage import open_storage

pytestmark = pytest.mark.spark

_SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("ts", pa.timestamp("us", "UTC"))])
_BEFORE = [("a", 1), ("b", 2), ("a", 3)]
_AFTER = [("a", 10), ("c", 5)]
_CONF = {
    "spark.sql.streaming.stateStore.providerClass": MILLPOND,
    "spark.sql.shuffle.partitions": "2",
    **NO_EMPTY_BATCHES,
}

Build = Callable[[Sequence[DataFrame]], DataFrame]


@dataclass(frozen=True)
class Change:
    """A saved job, and the job that goes on."""

    name: str
    before: Build
    after: Build
    expected: list[str]  # what the later batch gives
    options: str  # what `plan` says
    mode: str = "update"
    inputs: int = 1
    conf: dict[str, str] = field(default_factory=dict)


def _grouped(*aggregates: str) -> Build:
    return lambda inputs: inputs[0].groupBy("k").agg(*map(F.expr, aggregates))


def _sessions(*aggregates: str) -> Build:
    return lambda inputs: (
        inputs[0]
        .withWatermark("ts", "1 hour")
        .groupBy(F.session_window("ts", "10 minutes").alias("w"), "k")
        .agg(*map(F.expr, aggregates))
        .drop("w")
    )


def _joined(how: str, *more: str) -> Build:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        left = inputs[0].withWatermark("ts", "1 hour").selectExpr("k", "n", "ts", *more)
        right = inputs[1].withWatermark("ts", "1 hour").selectExpr("k", "ts", "n as m")
        return left.join(right, ["k", "ts"], how).drop("ts")

    return build


class _Counting(Processor):
    """Counts rows of a key in a value, a list and a map, each with the fields of `fields`."""

    def __init__(self, fields: str, ttl_ms: int | None) -> None:
        super().__init__("row")
        self.fields, self.ttl_ms = fields, ttl_ms

    def init(self, handle: Any) -> None:
        super().init(handle)
        more = {} if self.ttl_ms is None else {"ttlDurationMs": self.ttl_ms}
        self.value = handle.getValueState("value", self.fields, **more)
        self.list = handle.getListState("list", self.fields, **more)
        self.map = handle.getMapState("map", "key long", self.fields, **more)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        count = len(self.values(rows))
        before = (
            tuple(self.value.get() or ()),
            [tuple(one) for one in self.list.get()],
            [tuple(one) for _, one in self.map.iterator()],
        )
        row = tuple(count + i for i, _ in enumerate(self.fields.split(",")))
        self.value.update(row)
        self.list.appendValue(row)
        self.list.appendValue(row)
        self.map.updateValue((count,), row)
        yield self.out(key[0], "before", str(before))


def _transformed(fields: str, ttl_ms: int | None = None) -> Build:
    return lambda inputs: (
        inputs[0]
        .select("k", F.col("n").cast("long").alias("v"), "ts")
        .groupBy("k")
        .transformWithState(
            _Counting(fields, ttl_ms),
            "k string, what string, state string",
            "Update",
            "None" if ttl_ms is None else "ProcessingTime",
        )
        .drop("what")
    )


def _latest(fields: str, texts: str) -> Build:
    def latest(key: Any, frames: Any, state: Any) -> Any:
        rows = sum(len(frame) for frame in frames)
        before = state.getOption
        state.update((rows,) + (0,) * fields.count(","))
        yield pd.DataFrame({"k": [key[0]], "before": [str(before)]})

    return lambda inputs: (
        inputs[0].groupBy("k").applyInPandasWithState(latest, texts, fields, "update", "NoTimeout")
    )


_JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_NEVER = 3_600_000

_CHANGES = [
    Change(
        "aggregates-added",
        _grouped("count(*) as rows"),
        _grouped(
            "count(*) as rows",
            "max(n) as max",
            "avg(n) as avg",
            "sum(n) as sum",
            "collect_list(n) as all",
            "approx_count_distinct(n) as different",
            "sum(cast(n as decimal(10, 2))) as euro",
        ),
        [
            "Row(k='a', rows=3, max=10, avg=10.0, sum=10, all=[10], different=1,"
            " euro=Decimal('10.00'))",
            "Row(k='c', rows=1, max=5, avg=5.0, sum=5, all=[5], different=1, euro=Decimal('5.00'))",
        ],
        "--add-column max:integer --add-column sum:double=0.0",
    ),
    Change(
        "aggregate-added-in-the-middle",
        _grouped("sum(n) as once", "sum(n * 2) as twice"),
        _grouped("sum(n) as once", "max(n) as max", "sum(n * 2) as twice"),
        ["Row(k='a', once=14, max=10, twice=28)", "Row(k='c', once=5, max=5, twice=10)"],
        "--add-column max:integer --column-order sum,max,sum_2",
    ),
    Change(
        "aggregates-dropped",
        _grouped("count(*) as rows", "max(n) as max", "sum(n) as sum"),
        _grouped("sum(n) as sum"),
        ["Row(k='a', sum=14)", "Row(k='c', sum=5)"],
        "--drop-column count --drop-column max",
    ),
    Change(
        "wider",
        _grouped("max(n) as max", "sum(cast(n as decimal(10, 2))) as euro"),
        _grouped("max(cast(n as long)) as max", "sum(cast(n as decimal(12, 3))) as euro"),
        [
            "Row(k='a', max=10, euro=Decimal('14.000'))",
            "Row(k='c', max=5, euro=Decimal('5.000'))",
        ],
        "--change-column max:long --change-column 'sum:decimal(22,3)'",
    ),
    Change(
        "session-window",
        _sessions("count(*) as rows"),
        _sessions("count(*) as rows", "sum(n) as sum"),
        [
            "Row(k='a', rows=3, sum=10)",
            "Row(k='b', rows=1, sum=None)",
            "Row(k='c', rows=1, sum=5)",
        ],
        "--add-column sum:long",
        mode="complete",
    ),
    *(
        Change(
            f"join-{how}-{version}",
            _joined(how),
            _joined(how, "n + 1 as more"),
            [
                "Row(k='a', n=1, more=None, m=10)",
                "Row(k='a', n=10, more=11, m=1)",
                "Row(k='a', n=10, more=11, m=10)",
                "Row(k='a', n=10, more=11, m=3)",
                "Row(k='a', n=3, more=None, m=10)",
                "Row(k='c', n=5, more=6, m=5)",
            ],
            "--add-column more:integer",
            mode="append",
            inputs=2,
            conf={_JOIN_FORMAT: version},
        )
        for how in ("inner", "left_outer")
        for version in ("2", "3", "4")
    ),
    *(
        Change(
            f"transform-with-state{'-ttl' if ttl_ms else ''}",
            _transformed("v long", ttl_ms),
            _transformed("v long, w long", ttl_ms),
            [
                "Row(k='a', state='((2, None), [(2, None), (2, None)], [(2, None)])')",
                "Row(k='c', state='((), [], [])')",
            ],
            "--add-column value.w:long" if ttl_ms else "--add-column w:long",
            conf={"spark.sql.streaming.stateStore.providerClass": MILLPOND},
        )
        for ttl_ms in (None, _NEVER)
    ),
    Change(
        "pandas",
        _latest("v long", "k string, before string"),
        _latest("v long, w long", "k string, before string"),
        ["Row(k='a', before='(2, None)')", "Row(k='c', before='None')"],
        "--add-column groupState.w:long",
    ),
]
_QUICK = {"aggregates-added", "join-left_outer-2"}


def _named(changes: Sequence[Change]) -> list[Any]:
    return [
        pytest.param(
            change,
            id=change.name,
            marks=[] if EVERYTHING or change.name in _QUICK else [pytest.mark.deep],
        )
        for change in changes
    ]


def _rows(pairs: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    time = datetime(2026, 1, 1, 12)
    return [{"k": k, "n": n, "ts": time} for k, n in pairs]


def _saved(spark: SparkSession, work: Path, change: Change) -> list[Input]:
    """Run the first job, and save it in `work/saved`."""
    inputs = [Input(work / f"input-{i}", _SCHEMA) for i in range(change.inputs)]
    for source in inputs:
        source.add(_rows(_BEFORE))
    run = Run(work / "query")
    frame = change.before([source.stream(spark) for source in inputs])
    finish(start(spark, frame, run, output_mode=change.mode, conf=_CONF | change.conf), run)
    savepoint.create(run.checkpoint, work / "saved")
    return inputs


def _plan(
    spark: SparkSession, saved: Path, inputs: Sequence[Input], change: Change
) -> savepoint.PlanReport:
    with settings(spark, _CONF | change.conf):
        return savepoint.plan(
            saved,
            lambda: change.after(
                [source.stream(spark) for source in inputs]
            ).writeStream.outputMode(change.mode),
        )


@pytest.mark.parametrize("change", _named(_CHANGES))
def test_the_query_goes_on(
    spark: SparkSession,
    tmp_path: Path,
    change: Change,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The options that `plan` names make Spark take the state. Old values are as they were."""
    inputs = _saved(spark, tmp_path, change)
    planned = _plan(spark, tmp_path / "saved", inputs, change)
    assert not planned.ok
    found = [options for op in planned.operators for options in op.column_options]
    assert any(change.options in options for options in found), found
    assumes = change.name == "aggregates-added"  # it has another `count`, of an average
    assert any("right if all new" in w for op in planned.operators for w in op.warnings) == assumes
    saved = tmp_path / "saved"
    for number, options in enumerate(found[1:]):  # a call each: they change other column families
        edited = tmp_path / f"edited-{number}"
        words = ["savepoint", "edit", str(saved), str(edited), *shlex.split(options)]
        assert main(words) == 0, capsys.readouterr().err
        saved = edited
    again = Run(tmp_path / "again")
    words = ["savepoint", "restore", str(saved), str(again.checkpoint), "--json"]
    capsys.readouterr()
    assert main([*words, *shlex.split(found[0])]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["origin"] == str(saved)
    for source in inputs:
        source.add(_rows(_AFTER))
    frame = change.after([source.stream(spark) for source in inputs])
    conf = _CONF | change.conf
    finish(start(spark, frame, again, output_mode=change.mode, conf=conf), again)
    assert sorted(again.rows[max(again.rows)]) == sorted(change.expected)
    assert verify(open_storage(str(again.checkpoint)), "it").ok


def _refused_by_plan(
    spark: SparkSession, work: Path, before: Build, after: Build
) -> savepoint.OperatorVerdict:
    change = Change("refused", before, after, [], "")
    inputs = _saved(spark, work, change)
    planned = _plan(spark, work / "saved", inputs, change)
    assert not planned.ok
    (told,) = planned.operators
    return told


@pytest.mark.parametrize(
    "operator", ["groupBy", pytest.param("dropDuplicates", marks=pytest.mark.deep)]
)
def test_a_new_key_is_refused_with_advice(
    spark: SparkSession, tmp_path: Path, operator: str
) -> None:
    """No option helps: `plan` says what does."""

    def grouped(*keys: str) -> Build:
        if operator == "groupBy":
            return lambda inputs: inputs[0].groupBy(*keys).count()
        return lambda inputs: inputs[0].dropDuplicates([*keys]).select("k")

    told = _refused_by_plan(spark, tmp_path, grouped("k"), grouped("k", "n"))
    assert told.column_options == () and "millpond savepoint bootstrap" in told.reason


def test_columns_of_one_name_get_no_options(spark: SparkSession, tmp_path: Path) -> None:
    """An average has a `count` too: a guess would give it what `count(*)` has counted."""
    told = _refused_by_plan(
        spark,
        tmp_path,
        _grouped("count(1) as all"),
        _grouped("avg(n) as mean", "count(1) as all"),
    )
    assert told.column_options == ()
    assert "count: 1 in the state, 2 in the job" in told.reason


@pytest.mark.deep
def test_a_type_that_cannot_change(spark: SparkSession, tmp_path: Path) -> None:
    """Text becomes no number: there are no options, and the differing column is named."""
    told = _refused_by_plan(
        spark,
        tmp_path,
        _grouped("max(k || n) as max"),
        _grouped("max(n) as max"),
    )
    assert told.column_options == ()
    assert [str(column) for column in told.columns] == ["value: max string -> integer"]


def test_a_function_fills_new_columns(spark: SparkSession, tmp_path: Path) -> None:
    """It gets rows with the new columns. So an average goes on from a sum and a count."""
    change = Change(
        "average",
        _grouped("sum(n) as sum", "count(*) as count"),
        _grouped("sum(n) as sum", "count(*) as count", "avg(n) as avg"),
        [
            "Row(k='a', sum=14, count=3, avg=4.666666666666667)",
            "Row(k='c', sum=5, count=1, avg=5.0)",
        ],
        "",
    )
    inputs = _saved(spark, tmp_path, change)

    def fill(rows: pa.RecordBatch) -> pa.RecordBatch:
        key, value = rows.column("key"), rows.column("value")
        assert value.type.names == ["sum", "count", "sum_2", "count_2"]
        total, count = value.field("sum"), value.field("count")
        filled = pa.StructArray.from_arrays(
            [total, count, total.cast(pa.float64()), count], names=value.type.names
        )
        return pa.RecordBatch.from_arrays([key, filled], names=["key", "value"])

    columns = savepoint.ColumnChanges(add={"sum_2": ("double", 0.0), "count_2": ("long", 0)})
    report = savepoint.edit(tmp_path / "saved", tmp_path / "edited", columns=columns, function=fill)
    assert report.columns == ("sum", "count", "sum_2", "count_2")
    assert report.rows_before == report.rows_after == 2
    assert _plan(spark, tmp_path / "edited", inputs, change).ok
    again = Run(tmp_path / "again")
    savepoint.restore(tmp_path / "edited", again.checkpoint)
    for source in inputs:
        source.add(_rows(_AFTER))
    frame = change.after([source.stream(spark) for source in inputs])
    finish(start(spark, frame, again, output_mode="update", conf=_CONF), again)
    assert sorted(again.rows[max(again.rows)]) == change.expected


@pytest.mark.deep
def test_avro_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Spark gives state in Avro its new columns itself: `plan` is content, `edit` refuses."""
    build, later = _transformed("v long"), _transformed("v long, w long")
    change = Change("avro", build, later, [], "", conf=AVRO)
    inputs = _saved(spark, tmp_path, change)
    assert _plan(spark, tmp_path / "saved", inputs, change).ok
    columns = savepoint.ColumnChanges(add={"w": ("long", None)})
    with pytest.raises(UnsupportedError, match="Start the changed job"):
        savepoint.edit(
            tmp_path / "saved", tmp_path / "edited", columns=columns, column_family="value"
        )
    assert not (tmp_path / "edited").exists()


def test_wrong_changes_are_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each says what is wrong and what to do, and writes nothing."""
    change = Change("refused", _grouped("max(n) as max"), _grouped("max(n) as max"), [], "")
    _saved(spark, tmp_path, change)
    for options, message in {
        "--add-column x": "Write --add-column NAME:TYPE=VALUE, such as total:long=0",
        "--add-column x:number=0": "'number' is no type of a column",
        "--add-column x:long=zero": "column 'x': the value is no int64",
        "--add-column max:long": "two columns would be called 'max'",
        "--drop-column k": "column 'k' is part of the key",
        "--drop-column y": "values have no column 'y'; they have: max",
        "--drop-column max": "no column would be left",
        "--change-column max:date": "cannot become date",
        "--column-order max,y": "the order names max, y; the columns are max",
        "": "nothing is to be changed",
    }.items():
        place = [str(tmp_path / "saved"), str(tmp_path / "new")]
        for command in ("edit", "restore") if options else ("edit",):
            words = ["savepoint", command, *place, *options.split()]
            assert main(words) == 2
            assert message in capsys.readouterr().err
            assert not (tmp_path / "new").exists()
