"""`savepoint plan` says of every job what Spark then does with it, and most of all of
`transformWithState`.

Each test saves a query, plans a job, restores the savepoint and starts that job. The plan must
refuse what Spark refuses, with Spark's error condition, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from integration.cases import (
    AVRO,
    CLICKS,
    EVENTS,
    NO_EMPTY_BATCHES,
    Case,
    events,
    transform_with_state,
)
from integration.changed_jobs import CONF, conditions, what_spark_does
from integration.changed_jobs import saved as save
from integration.changes.table import PROCESSOR
from integration.depth import deep, quick_first
from integration.harness import EVERYTHING
from integration.python_state_cases import Processor
from integration.shapes import SHAPES, named
from integration.streams import Input, Run, finish, settings, start
from millpond import erase, savepoint
from millpond.operations import migrate
from millpond.operations.inspect import overview, verify
from millpond.storage import LocalStorage

pytestmark = pytest.mark.spark

_STATEFUL = [case for case in SHAPES if case.operator.startswith("transformWithState")]
_SAMPLE = ["agg-update-odd-keys", "scala-then-window"]
_DEEP_SAMPLE = ["row-event-time", "pandas-processing-time", "row-initial-state"]


def _names() -> list[Any]:
    """Return the names of the shapes that Spark runs, without MILLPOND_SHAPES=all an eighth
    of them. All but a sample are deep.
    """
    names = [case.name for case in SHAPES if not case.refused or case.later is not None]
    if EVERYTHING:
        return names
    more = dict.fromkeys([*_DEEP_SAMPLE, *names[::8]])
    return [*_SAMPLE, *(deep(n) for n in more if n not in _SAMPLE)]


@pytest.mark.parametrize("name", _names())
def test_the_job_as_it_is(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The plan of an unchanged job restores each operator, and the job goes on."""
    case = named(name)
    saved, inputs, conf = save(spark, tmp_path, case, case.first)

    def build() -> DataFrame:
        return case.build([source.stream(spark) for source in inputs])

    with settings(spark, conf):
        report = savepoint.plan(saved, lambda: build().writeStream.outputMode(case.mode))
    assert report.operators
    assert [(op.verdict, op.reason, op.warnings) for op in report.operators] == [
        ("restored", "", ()) for _ in report.operators
    ]
    assert report.problems == ()
    refused, run = what_spark_does(spark, saved, tmp_path, build, case.mode, conf)
    assert not refused and run.rows  # a limit that is reached writes no row


@pytest.mark.parametrize(
    "name", quick_first(case.name for case in reversed(_STATEFUL) if case.later is not None)
)
def test_the_changed_job_of_a_shape(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """A field more, or a variable less, with and without Avro: the plan says what Spark does."""
    case = named(name)
    saved, inputs, conf = save(spark, tmp_path, case, case.first)

    def later() -> DataFrame:
        assert case.later is not None
        return case.later([source.stream(spark) for source in inputs])

    with settings(spark, conf):
        report = savepoint.plan(saved, lambda: later().writeStream.outputMode(case.mode))
    refused, _ = what_spark_does(spark, saved, tmp_path, later, case.mode, conf)
    assert report.ok is not bool(refused)
    assert bool(case.refused) is bool(refused)
    if refused:
        reason = " ".join(op.reason for op in report.operators)
        assert case.refused in reason and conditions(reason) & refused


def _row(**fields: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


_LONG, _INT, _TEXT = LongType(), IntegerType(), StringType()
_ONE_LONG = _row(v=_LONG)


@dataclass(frozen=True)
class Variable:
    """A state variable: what the processor asks for."""

    kind: str  # value, list or map
    value: StructType = _ONE_LONG
    key: StructType = _ONE_LONG
    ttl_ms: int | None = None


class Changeable(Processor):
    """Writes each of its variables. Its output has what they held before."""

    def __init__(self, form: str, variables: Mapping[str, Variable]) -> None:
        super().__init__(form)
        self.variables = dict(variables)

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.state: dict[str, Any] = {}
        for name, of in self.variables.items():
            more = {} if of.ttl_ms is None else {"ttlDurationMs": of.ttl_ms}
            if of.kind == "map":
                self.state[name] = handle.getMapState(name, of.key, of.value, **more)
            elif of.kind == "list":
                self.state[name] = handle.getListState(name, of.value, **more)
            else:
                self.state[name] = handle.getValueState(name, of.value, **more)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        count = len(self.values(rows))
        for name, of in self.variables.items():
            row = tuple(
                "text" if field.dataType == _TEXT else count + 1000 * i
                for i, field in enumerate(of.value.fields)
            )
            if of.kind == "map":
                old = [tuple(k) for k, _ in self.state[name].iterator()]
                self.state[name].updateValue(tuple(count for _ in of.key.fields), row)
            elif of.kind == "list":
                old = [tuple(v) for v in self.state[name].get()]
                self.state[name].appendValue(row)
            else:
                found = self.state[name].get()
                old = [] if found is None else [tuple(found)]
                self.state[name].update(row)
            yield self.out(str(key[0]), name, str(old))


@dataclass(frozen=True)
class Change:
    """A saved job, and the job that goes on."""

    name: str
    before: Mapping[str, Variable]
    after: Mapping[str, Variable]
    time: tuple[str, str] = ("None", "None")
    key: tuple[str, str] = ("k", "k")
    mode: tuple[str, str] = ("Update", "Update")
    avro: bool = False
    shows: str = ""  # what the output must hold of the saved state
    warns: str = ""  # what the plan must say although Spark starts the job


_HOUR_MS = 3_600_000
_V = Variable("value")
_TWO = Variable("value", _row(v=_LONG, w=_LONG))
_RENAMED = Variable("value", _row(renamed=_LONG))
_TURNED = Variable("value", _row(w=_LONG, v=_LONG))
_GONE = "state variable more: the job has it no more"
_PROCESSING = ("ProcessingTime", "ProcessingTime")


def _both(name: str, before: Variable, after: Variable) -> list[Change]:
    return [
        Change(f"{name}{'-avro' if avro else ''}", {"it": before}, {"it": after}, avro=avro)
        for avro in (False, True)
    ]


_CHANGES = [
    *_both("field-added", _V, _TWO),
    *_both("field-dropped", _TWO, _V),
    Change(
        "field-renamed",
        {"it": _V},
        {"it": _RENAMED},
        shows="[(2,)]",
        warns="state variable it: value: v is renamed in the job",
    ),
    Change(
        "field-renamed-avro",
        {"it": _V},
        {"it": _RENAMED},
        avro=True,
        shows="[(None,)]",
        warns="renamed begins as null, and the values of v are lost",
    ),
    Change(
        "map-field-renamed",
        {"it": Variable("map")},
        {"it": Variable("map", key=_row(renamed=_LONG))},
        warns="state variable it: key: ",
    ),
    *_both("field-wider", Variable("value", _row(v=_INT)), _V),
    *_both("field-narrower", _V, Variable("value", _row(v=_INT))),
    *_both("field-of-another-type", _V, Variable("value", _row(v=_TEXT))),
    # Without Avro the fields have each other's values: Spark does not compare their names.
    Change(
        "fields-in-another-order",
        {"it": _TWO},
        {"it": _TURNED},
        shows="[(2, 1002)]",
        warns="state variable it: value: v, w have changed places",
    ),
    Change(
        "fields-in-another-order-avro",
        {"it": _TWO},
        {"it": _TURNED},
        avro=True,
        shows="[(1002, 2)]",
    ),
    *_both("list-field-added", Variable("list"), Variable("list", _row(v=_LONG, w=_LONG))),
    *_both("map-value-added", Variable("map"), Variable("map", _row(v=_LONG, w=_LONG))),
    *_both("map-key-wider", Variable("map", key=_row(v=_INT)), Variable("map", key=_row(v=_LONG))),
    *_both("value-to-list", _V, Variable("list")),
    Change("variable-added", {"it": _V}, {"it": _V, "more": Variable("map")}),
    Change("variable-added-avro", {"it": _V}, {"it": _V, "more": Variable("map")}, avro=True),
    Change("variable-dropped", {"it": _V, "more": Variable("list")}, {"it": _V}, warns=_GONE),
    Change(
        "variable-dropped-avro",
        {"it": _V, "more": Variable("list")},
        {"it": _V},
        avro=True,
        warns=_GONE,
    ),
    Change("variable-renamed", {"it": _V}, {"other": _V}, shows="[]", warns="deleteIfExists('it')"),
    Change("ttl-added", {"it": _V}, {"it": Variable("value", ttl_ms=_HOUR_MS)}, _PROCESSING),
    Change("ttl-dropped", {"it": Variable("value", ttl_ms=_HOUR_MS)}, {"it": _V}, _PROCESSING),
    Change("timers-added", {"it": _V}, {"it": _V}, ("None", "EventTime")),
    Change("timers-dropped", {"it": _V}, {"it": _V}, ("EventTime", "None")),
    Change("timers-of-another-time", {"it": _V}, {"it": _V}, ("EventTime", "ProcessingTime")),
    Change("another-key", {"it": _V}, {"it": _V}, key=("k", "v")),
    Change("more-keys", {"it": _V}, {"it": _V}, key=("k", "k v")),
    Change("another-output-mode", {"it": _V}, {"it": _V}, mode=("Update", "Append")),
]
_QUICK = ("row-field-added",)


def _changes() -> list[Any]:
    """Return form and change. All changes but one are deep."""
    found = []
    for form in ("row", "pandas"):
        for change in _CHANGES:
            name = f"{form}-{change.name}"
            marks = () if EVERYTHING or name in _QUICK else (pytest.mark.deep,)
            found.append(pytest.param(form, change, id=name, marks=marks))
    return found


def _job(form: str, change: Change, later: bool) -> Callable[[list[DataFrame]], DataFrame]:
    n = int(later)

    def build(inputs: list[DataFrame]) -> DataFrame:
        grouped = inputs[0].withWatermark("ts", "10 seconds").groupBy(*change.key[n].split())
        processor = Changeable(form, change.after if later else change.before)
        method = transform_with_state(grouped, form)
        frame: DataFrame = method(
            processor, "k string, what string, state string", change.mode[n], change.time[n]
        )
        return frame

    return build


Saved = tuple[Path, list[Input], dict[str, str]]


@pytest.fixture(scope="module")
def saved_once(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Change], Saved]:
    """Return a function that runs and saves the job of a change. Equal jobs run once."""
    known: dict[str, Saved] = {}

    def saved_job(form: str, change: Change) -> Saved:
        first = (change.time[0], change.key[0], change.mode[0], change.avro)
        name = f"{form} {change.before} {first}"
        if name not in known:
            conf = {**CONF, **NO_EMPTY_BATCHES, "spark.sql.shuffle.partitions": "1"}
            case = Case(
                name,
                _job(form, change, later=False),
                [(EVENTS, CLICKS[:2])],
                change.mode[0].lower(),
                conf={**conf, **(AVRO if change.avro else {})},
            )
            known[name] = save(spark, tmp_path_factory.mktemp("saved"), case, 1)
        return known[name]

    return saved_job


@pytest.mark.parametrize(("form", "change"), _changes())
def test_a_change(
    spark: SparkSession,
    tmp_path: Path,
    saved_once: Callable[[str, Change], Saved],
    form: str,
    change: Change,
) -> None:
    """The plan of a changed job refuses what Spark refuses, for the same reason, and no more."""
    saved, inputs, conf = saved_once(form, change)
    after, mode = _job(form, change, later=True), change.mode[1].lower()

    def later() -> DataFrame:
        return after([source.stream(spark) for source in inputs])

    with settings(spark, conf):
        report = savepoint.plan(saved, lambda: later().writeStream.outputMode(mode))
    refused, run = what_spark_does(spark, saved, tmp_path, later, mode, conf)
    reason = " ".join(op.reason for op in report.operators)
    said = f"planned: {reason or 'restored'}; Spark: {sorted(refused) or 'ran'}"
    print(f"{form}-{change.name}: {said}")
    assert report.ok is not bool(refused), said
    warned = " ".join(text for op in report.operators for text in op.warnings)
    line = PROCESSOR.get(change.name)
    if line is not None:
        assert line.refused in refused if line.refused else not refused
    if refused:
        assert conditions(reason) & refused, said
    else:
        assert bool(warned) is bool(change.warns) and change.warns in warned, warned
        assert any(run.rows.values())
        assert change.shows in str(run.rows), str(run.rows)


class Deleting(Changeable):
    """Deletes state variables that it has no more."""

    def __init__(self, form: str, variables: Mapping[str, Variable], gone: tuple[str, ...]) -> None:
        super().__init__(form, variables)
        self.gone = gone

    def init(self, handle: Any) -> None:
        super().init(handle)
        for name in self.gone:
            handle.deleteIfExists(name)


@pytest.mark.deep
@pytest.mark.parametrize(("deleted", "kept"), [((), "[(1,)]"), (("more",), "[]")])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_a_variable_that_comes_back(
    spark: SparkSession, tmp_path: Path, checkpoint_format: int, deleted: tuple[str, ...], kept: str
) -> None:
    """Spark keeps the rows of a variable that a job has no more, as the plan says."""
    both = {"it": _V, "more": Variable("list")}
    conf = {
        **CONF,
        **NO_EMPTY_BATCHES,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": str(checkpoint_format),
    }
    source, run = Input(tmp_path / "input", EVENTS), Run(tmp_path / "run")
    for variables, gone in ((both, ()), ({"it": _V}, deleted), (both, ())):
        source.add(events(("a", 1, 1)))
        processor = Deleting("row", variables, gone)
        frame = (
            source.stream(spark)
            .groupBy("k")
            .transformWithState(processor, "k string, what string, state string", "Update", "None")
        )
        finish(start(spark, frame, run, output_mode="update", conf=conf), run)
    assert f"Row(k='a', what='more', state='{kept}')" in run.rows[2]
    assert "Row(k='a', what='it', state='[(1,)]')" in run.rows[2]


def test_sources_that_the_offset_log_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """Spark starts a job with another number of sources if its log has the second form."""
    conf = {**CONF, **NO_EMPTY_BATCHES, "spark.sql.streaming.offsetLog.formatVersion": "2"}
    inputs = [Input(tmp_path / name, EVENTS) for name in ("first", "second", "third")]
    for source in inputs:
        source.add(events(("a", 1, 1)))

    def counts(number: int) -> DataFrame:
        first, *others = [source.stream(spark) for source in inputs[:number]]
        return reduce(DataFrame.union, others, first).groupBy("k").count()

    def writer(number: int) -> Any:
        return counts(number).writeStream.outputMode("update")

    run, saved, new = Run(tmp_path / "run"), tmp_path / "saved", tmp_path / "new"
    finish(start(spark, counts(2), run, output_mode="update", conf=conf), run)
    savepoint.create(run.checkpoint, saved)
    for number in (2, 1, 3):
        job = partial(writer, number)
        with settings(spark, conf):
            report = savepoint.plan(saved, job)
            made = savepoint.restore(saved, new, job=job, dry_run=True)
            dropped = savepoint.restore(saved, new, job=job, offsets="drop", dry_run=True)
        told = f"the job reads {number} sources, the saved query 2: Spark starts it"
        assert report.ok and report.problems == ()
        assert any(told in text for text in report.warnings) is (number != 2)
        assert any(told in text for text in made.warnings) is (number != 2)
        assert not any(told in text for text in dropped.warnings)
        build = partial(counts, number)
        work = tmp_path / str(number)
        refused, _ = what_spark_does(spark, saved, work, build, "update", conf)
        assert not refused


@pytest.mark.deep
@pytest.mark.parametrize("ttl_ms", [None, _HOUR_MS], ids=["forever", "ttl"])
@pytest.mark.parametrize("encoding", ["unsaferow", "AVRO"])  # Spark takes both cases
def test_rows_of_a_variable_that_a_job_has_no_more_are_state(
    spark: SparkSession, tmp_path: Path, encoding: str, ttl_ms: int | None
) -> None:
    """The commands know their columns, though Spark's newest schema does not describe them. Its
    metadata does not say any more which of the variables is a map.
    """
    conf = {
        **CONF,
        **NO_EMPTY_BATCHES,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.encodingFormat": encoding,
    }
    source, run = Input(tmp_path / "input", EVENTS), Run(tmp_path / "run")
    gone = {kind: Variable(kind, ttl_ms=ttl_ms) for kind in ("list", "map", "value")}
    every = {"it": _V, **gone}

    def batch(run: Run, variables: dict[str, Variable]) -> None:
        source.add(events(("a", 1, 1), ("b", 2, 2)))
        frame = (
            source.stream(spark)
            .groupBy("k")
            .transformWithState(
                Changeable("row", variables),
                "k string, what string, state string",
                "Update",
                "None" if ttl_ms is None else "ProcessingTime",
            )
        )
        finish(start(spark, frame, run, output_mode="update", conf=conf), run)

    for variables in (every, every, {"it": _V}):
        batch(run, variables)
    before, saved, tables = tmp_path / "before", tmp_path / "saved", tmp_path / "tables"
    savepoint.create(run.checkpoint, before, batch=0)
    savepoint.create(run.checkpoint, saved)
    savepoint.create(run.checkpoint, tables, format="canonical")
    rows = [r for r in savepoint.diff(before, saved, rows=True).rows or () if r.store == "default"]
    changed = {r.key["k"]: len(r.after) for r in rows if r.column_family == "list"}
    assert changed == {"a": 2, "b": 2}
    (path, *_) = sorted(tables.glob("tables/0/default/list/*.parquet"))
    assert {"key", "value"} < set(pq.read_table(path).column_names)
    wider = tmp_path / "wider"
    savepoint.restore(saved, wider, partitions=3)
    assert savepoint.diff(tables, wider).equal
    assert verify(LocalStorage(str(wider)), "wider").problems == []
    released, back = tmp_path / "released", tmp_path / "back"
    migrate.release(run.checkpoint, released, provider="rocksdb")
    migrate.adopt(released, back)
    assert savepoint.diff(saved, back).equal
    batch(Run(back), {"it": _V})  # its tasks tell by what Spark places the keys
    shown = overview(LocalStorage(str(back)), "back").operators[0].stores
    assert [store.unscalable_reason for store in shown if not store.scalable] == []
    for place in (saved, wider):
        erase([place], key={"k": "a"})
        left = savepoint.diff(place, tables)
        halved = {f.column_family for f in left.families if f.added == f.same}
        assert {*every} <= halved
        assert ttl_ms is None or {f"$ttl_{name}" for name in gone} <= halved
