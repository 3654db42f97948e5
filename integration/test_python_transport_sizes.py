"""Large keys, lists, maps and results, several operators, and savepoints, on both transports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import millpond
from integration.cases import CLICKED, EVENTS, NO_EMPTY_BATCHES, Case, at, transform_with_state
from integration.depth import deep, quick_first
from integration.harness import EVERYTHING
from integration.jvm import IS_SPARK_4_2, MILLPOND
from integration.python_state_cases import Processor
from integration.state_programs import Interpreter, Program, Variable, case, scripted
from integration.streams import settings
from integration.transports import (
    BULK,
    PROVIDER,
    SPARK,
    Leg,
    assert_same,
    play,
    transport_conf,
)

_SIDES = {"spark": (SPARK,), "bulk": (BULK,)}
# How many entries of a list or a map one call brings.
_FEW = {"spark.sql.execution.arrow.transformWithStateInPySpark.maxStateRecordsPerBatch": "500"}
_DECLARED = (Variable("list", "list0", "long"), Variable("map", "map0", "text", "number"))


class Sums(Processor):
    """Sums the values of a key as they come, and yields a row in the middle of them."""

    every = 100  # rows; often enough for several sendings

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "v long, n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        total, count = self.sum.get() or (0, 0)
        for row in rows:
            values = row["v"].tolist() if self.form == "pandas" else [row["v"]]
            total, count = total + sum(values), count + len(values)
            if count % self.every == 0:
                self.sum.update((total, count))
                yield self.told(key, "so far")
        self.sum.update((total, count))
        yield self.told(key, "at the end")

    def told(self, key: Any, when: str) -> Any:
        """Return a row of output."""
        return self.out(key[0], str(self.sum.get()), when)


class Resident(Sums):
    """Tells how much memory its worker has on the way."""

    every = 100_000

    def told(self, key: Any, when: str) -> Any:
        """Return a row of output."""
        total, count = self.sum.get()
        (kib,) = re.findall(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())
        row = {"k": key[0], "n": count, "total": total, "kib": int(kib)}
        return pd.DataFrame([row]) if self.form == "pandas" else Row(**row)


class Flooding(Processor):
    """Yields much more than it gets at the first key, and one row at the others."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        assert [len(row["text"]) for row in rows] == [12_000_000]
        for _ in range(300 if key[1] == 0 else 1):
            yield Row(k=key[1], text="y" * 1_000_000)


class Leaving(Processor):
    """Reads one row of each key, and closes the others."""

    def init(self, handle: Any) -> None:
        self.times = handle.getValueState("times", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        def some() -> Iterator[Any]:
            yield from rows

        for _ in some():
            break
        times = (self.times.get() or (0,))[0] + 1
        self.times.update((times,))
        yield self.out(key[0], str(times), "left")


class Keeping(Leaving):
    """Reads some rows of each key, and then what is left of the rows of the key before."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.kept: Iterator[Any] = iter(())

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        own = self.count([next(rows)])
        before = self.count(self.kept)
        own += self.count(rows) if key[0] == "z" else 0
        self.kept = rows
        self.times.update((own,))
        yield self.out(key[0], f"{own} rows", f"{before} of the key before")

    def count(self, rows: Iterable[Any]) -> int:
        """Return how many rows there are."""
        return sum(len(row) if self.form == "pandas" else 1 for row in rows)


class Iterating(Processor):
    """Goes through a long list at the first timer of a key, and goes on at the second one."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.list = handle.getListState("list", "n long")
        self.kept: Iterator[Any] = iter(())

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        self.list.appendList([(n,) for n in range(1200)])
        for time_ms in (1, 2, 3):
            self.handle.registerTimer(time_ms)
        yield self.out(key[0], "input", str(len(self.values(rows))))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        when = expiredTimerInfo.getExpiryTimeInMs()
        if when == 1:
            self.kept = iter(self.list.get())
        found = [next(self.kept, None) for _ in range(700 if when < 3 else 1)]
        yield self.out(key[0], str(when), f"{found[:2]} to {found[-2:]}")


class Passing(Processor):
    """Passes rows on, each with how many of its key came so far."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        count = (self.count.get() or (0,))[0]
        for row in rows:
            for ts in row["ts"] if self.form == "pandas" else [row["ts"]]:
                count += 1
                self.count.update((count,))
                out = {"k": key[0], "at": ts, "v": count}
                yield pd.DataFrame([out]) if self.form == "pandas" else Row(**out)


def _sums(form: str, frame: DataFrame, mode: str = "Update", time: str = "None") -> DataFrame:
    method = transform_with_state(frame.groupBy("k"), form)
    found: DataFrame = method(Sums(form), "k string, what string, state string", mode, time)
    return found


class Calls(Processor):
    """Counts the rows of each call."""

    def init(self, handle: Any) -> None:
        self.seed = handle.getValueState("seed", "v long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.seed.update((1,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield self.out(key[0], str(self.seed.get()), str(sum(1 for _ in rows)))


@pytest.mark.deep
def test_a_call_for_a_key_with_many_rows_and_an_initial_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's worker calls the user's code again for each `maxRecordsPerBatch` rows of a key."""

    def build(i: list[DataFrame]) -> DataFrame:
        seeds = spark.createDataFrame([("large",), ("z",)], "k string").groupBy("k")
        many = i[0].selectExpr("k", "explode(sequence(1, v)) AS v").groupBy("k")
        output = "k string, what string, state string"
        return many.transformWithState(Calls("row"), output, "Update", "None", initialState=seeds)

    batch: list[dict[str, Any]] = [{"k": "large", "ts": at(0), "v": 7}]
    conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "3"}
    tested = Case("calls", build, [(EVENTS, [batch, batch])], "update", 1, conf=conf)
    spark_side, bulk = play(spark, tmp_path, tested, [Leg(files=1), Leg(files=2)], _SIDES)
    assert bulk.ran == [True, True]
    (once,) = bulk.rows[0]
    assert once == "Row(k='large', what='(1,)', state='7')"
    assert bulk.rows[1] == [once] == spark_side.rows[1]
    assert sum(int(re.findall(r"state='(\d+)'", row)[0]) for row in spark_side.rows[0]) == 7
    assert len(spark_side.rows[0]) > 1, "Spark calls once, too: the guide must not say otherwise"


@pytest.mark.skipif(not EVERYTHING, reason="long: with MILLPOND_SHAPES=all")
@pytest.mark.parametrize(
    ("form", "rows"),
    [deep(("row", 10_000_000)), deep(("row", 60_000)), deep(("pandas", 60_000))],
)
def test_a_key_with_many_rows(spark: SparkSession, tmp_path: Path, form: str, rows: int) -> None:
    def build(i: list[DataFrame]) -> DataFrame:
        # each row of the input becomes as many as its value says
        many = i[0].selectExpr("k", "explode(sequence(1, v)) AS v")
        return _sums(form, many)

    batches: list[list[dict[str, Any]]] = [
        [{"k": "large", "ts": at(0), "v": rows}, {"k": "small", "ts": at(0), "v": 3}],
        [{"k": key, "ts": at(1), "v": 20} for key in ("a", "large", "z")],
    ]
    tested = Case("large-key", build, [(EVENTS, batches)], "update", 2)
    assert_same(play(spark, tmp_path, tested, [Leg(files=2)], _SIDES))


@pytest.mark.parametrize("form", ["row", deep("pandas")])
def test_the_rows_of_a_large_key_are_closed(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """The rows that came later were taken for those of another key."""

    def build(i: list[DataFrame]) -> DataFrame:
        many = i[0].selectExpr("k", "explode(sequence(1, v)) AS v")
        method = transform_with_state(many.groupBy("k"), form)
        found: DataFrame = method(
            Leaving(form), "k string, what string, state string", "Update", "None"
        )
        return found

    batches: list[list[dict[str, Any]]] = [
        [
            {"k": key, "ts": at(0), "v": rows}
            for key, rows in (("a", 3), ("large", 25_000), ("z", 2))
        ]
    ]
    tested = Case("left-rows", build, [(EVENTS, batches)], "update", 1)
    assert_same(play(spark, tmp_path, tested, [Leg(files=1)], _SIDES))


@pytest.mark.deep
@pytest.mark.parametrize("form", ["row", "pandas"])
def test_the_rows_of_a_key_are_kept_until_the_next_one(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """They are over by then. They gave what was left of them, and then the next key's rows."""

    def build(i: list[DataFrame]) -> DataFrame:
        many = i[0].selectExpr("k", "explode(sequence(1, v)) AS v")
        method = transform_with_state(many.groupBy("k"), form)
        output = "k string, what string, state string"
        found: DataFrame = method(Keeping(form), output, "Update", "None")
        return found

    keys = (("a", 3), ("large", 25_000), ("much", 25_000), ("z", 25_000))
    rows = [{"k": key, "ts": at(0), "v": count} for key, count in keys]
    conf = {"spark.sql.shuffle.partitions": "1"}
    tested = Case("kept-rows", build, [(EVENTS, [rows])], "update", 1, conf=conf)
    sides = play(spark, tmp_path, tested, [Leg(files=1)], _SIDES)
    assert sum(", state='0 of the key before'" in row for row in sides[0].rows[0]) == len(keys)
    assert_same(sides)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="it tells resident memory")
@pytest.mark.parametrize("form", [deep("row"), deep("pandas")])
def test_memory_does_not_grow_with_the_rows_of_a_key(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """The rows of the one key would take 100 MiB as Python's objects."""
    if IS_SPARK_4_2 and form == "pandas":
        pytest.skip("Spark's own transport runs it")
    rows = 1_000_000
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    method = transform_with_state(source.selectExpr("'all' AS k", "value AS v").groupBy("k"), form)
    counted = method(Resident(form), "k string, n long, total long, kib long", "Update", "None")
    found: list[Any] = []

    def sink(batch: DataFrame, _: int) -> None:
        found.extend(batch.collect())

    conf = {PROVIDER: MILLPOND, **transport_conf(BULK)}
    with settings(spark, conf):
        writer = counted.writeStream.outputMode("update").foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(tmp_path / "counted"))
        query = writer.trigger(availableNow=True).start()
    ended = query.awaitTermination(180)
    query.stop()
    assert ended
    (metrics,) = query.recentProgress[0]["stateOperators"]
    assert metrics["customMetrics"]["millpondPythonSentBytes"] > 8 * rows
    ends = [*range(100_000, rows + 1, 100_000), rows]
    assert [row.n for row in found] == ends
    assert found[-1].total == rows * (rows - 1) // 2
    first, *others = [row.kib for row in found]
    assert max(others) - first < 24 * 1024


def _large(entries: int) -> tuple[Program, Program]:
    part = list(range(7)) * (entries // 70)
    writes: Program = [["list0", "appendList", part] for _ in range(10)]
    writes += [["map0", "updateValue", i, i] for i in range(min(entries, 20_000))]
    reads: Program = [
        ["open", 0, "list0", "get"],
        ["open", 1, "map0", "iterator"],
        ["next", 0, 150],
        ["next", 1, 150],
        ["list0", "appendValue", 1],
        ["map0", "removeKey", 3],
        ["map0", "updateValue", 5, 6],
        ["map0", "getValue", 5],
        ["yield"],
        ["drain", 0],
        ["drain", 1],
        ["open", 0, "map0", "keys"],
        ["drain", 0],
        ["open", 0, "map0", "values"],
        ["drain", 0],
        ["list0", "clear"],
        ["list0", "exists"],
    ]
    return writes, reads


@pytest.mark.parametrize("entries", [3_500, *([deep(1_000_000)] if EVERYTHING else [])])
def test_large_lists_and_maps(spark: SparkSession, tmp_path: Path, entries: int) -> None:
    """Their entries come from the store when they are asked for, also while they change."""
    writes, reads = _large(entries)
    small: Program = [["list0", "appendValue", 1], ["map0", "updateValue", 1, 1]]
    batches = scripted(
        {"a": small, "large": writes, "z": small}, {"a": reads, "large": reads, "z": small}
    )
    tested = case("large", Interpreter("row", "None", _DECLARED), batches)
    assert_same(play(spark, tmp_path, tested, [Leg(files=2)], _SIDES))


@pytest.mark.deep
@pytest.mark.parametrize("form", ["row", "pandas"])
def test_a_list_that_is_gone_through_beyond_a_timer(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Spark forgets what was read of a list after each timer. In bulk it stayed, with a copy of the
    list each, until another key came.
    """

    def build(i: list[DataFrame]) -> DataFrame:
        method = transform_with_state(i[0].groupBy("k"), form)
        output = "k string, what string, state string"
        found: DataFrame = method(Iterating(form), output, "Update", "ProcessingTime")
        return found

    batch: list[dict[str, Any]] = [{"k": "a", "ts": at(0), "v": 1}]
    conf = {**NO_EMPTY_BATCHES, **_FEW}
    tested = Case("gone-through", build, [(EVENTS, [batch])], "update", 1, conf=conf)
    assert_same(play(spark, tmp_path, tested, [Leg(files=1)], _SIDES))


@pytest.mark.deep
def test_a_map_that_is_left_in_the_middle(spark: SparkSession, tmp_path: Path) -> None:
    """Its scan stayed open until the end of the batch, and each write kept the row before it."""
    large: Program = [["map0", "updateValue", i, 0] for i in range(1500)]
    left: Program = [["open", 0, "map0", "iterator"], ["next", 0, 1]]
    writes: Program = [["map0", "updateValue", 0, 4]] * 4000  # 1,500 bytes each
    used = []
    for name, reads in (("left", left), ("not-begun", [])):
        tested = case(
            name,
            Interpreter("row", "None", (Variable("map", "map0", "text", "number"),)),
            scripted({"a": large}, {"a": reads, **dict.fromkeys(("b", "c", "d"), writes)}),
            conf={"spark.sql.shuffle.partitions": "1", **_FEW},
        )
        legs = [Leg(files=2)]
        (side,) = play(spark, tmp_path / name, tested, legs, {"bulk": (BULK,)})
        assert side.ran == [True]
        used.append(side.custom[1][0]["millpondMemoryBytes"])
    assert used[0] < used[1] + (6 << 20), used


@pytest.mark.skipif(not EVERYTHING, reason="long: with MILLPOND_SHAPES=all")
@pytest.mark.parametrize("form", [deep("row"), deep("pandas")])
def test_a_key_yields_many_rows(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """State is read and written between them."""
    program: Program = [["list0", "appendValue", 1], ["many", 12_000], ["list0", "get"]]
    program += [["yield"], ["list0", "appendValue", 2], ["many", 3], ["list0", "get"]]
    batches = scripted({"a": program, "b": [], "c": program}, {"a": program, "b": []})
    tested = case("many-results", Interpreter(form, "None", _DECLARED), batches)
    assert_same(play(spark, tmp_path, tested, [Leg(files=2)], _SIDES))


@pytest.mark.deep
def test_results_go_on_while_the_next_rows_wait(spark: SparkSession, tmp_path: Path) -> None:
    """The next frame is larger than the socket's buffers, and the first key yields 300 MB."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    large = source.selectExpr("1 AS one", "value AS k", "repeat('x', 12000000) AS text")
    flooded = large.groupBy("one", "k").transformWithState(
        Flooding("row"), "k long, text string", "Update", "None"
    )
    found: list[Any] = []

    def sink(batch: DataFrame, _: int) -> None:
        found.extend(batch.selectExpr("count(*)", "sum(length(text))").collect())

    conf = {"spark.sql.streaming.stateStore.providerClass": MILLPOND, **transport_conf(BULK)}
    with settings(spark, conf):
        writer = flooded.writeStream.outputMode("update").foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(tmp_path / "flood"))
        query = writer.trigger(availableNow=True).start()
    ended = query.awaitTermination(90)
    query.stop()
    assert ended
    assert [tuple(row) for row in found] == [(302, 300_000_000 + 2 * 1_000_000)]


@pytest.mark.parametrize("window", quick_first([False, True]), ids=["column", "window"])
def test_rows_that_come_too_late(spark: SparkSession, tmp_path: Path, window: bool) -> None:
    """Both transports drop the same rows, and keep those without a time."""

    def build(i: list[DataFrame]) -> DataFrame:
        rows = i[0].withWatermark("ts", "1 second")
        if window:
            rows = rows.withColumn("ts", F.window("ts", "10 seconds"))
        return _sums("row", rows, "Append", "EventTime")

    def row(key: str, seconds: int | None, value: int) -> dict[str, Any]:
        return {"k": key, "ts": None if seconds is None else at(seconds), "v": value}

    batches = [
        [row("a", 50, 1), row("b", None, 2)],
        [row("a", 20, 4), row("a", 49, 8), row("b", 50, 16), row("c", None, 32)],
        [row("a", 10, 64), row("b", 100, 128), row("c", 48, 256)],
    ]
    tested = Case("late", build, [(EVENTS, batches)], "append", 2, conf=NO_EMPTY_BATCHES)
    sides = play(spark, tmp_path, tested, [Leg(files=3)], _SIDES)
    dropped = [op["numRowsDroppedByWatermark"] for ops in sides[0].state.values() for op in ops]
    assert sum(dropped) > 0, "no row came too late"
    assert_same(sides)


@pytest.mark.deep
@pytest.mark.parametrize("forms", [("row", "pandas"), ("row", "row")], ids="-".join)
def test_one_operator_on_top_of_another(
    spark: SparkSession, tmp_path: Path, forms: tuple[str, str]
) -> None:
    """Both run in the same task: they have the same keys, so there is no shuffle between them."""

    def build(i: list[DataFrame]) -> DataFrame:
        schema = "k string, at timestamp, v long"
        first = Passing(forms[0])
        watermarked = i[0].withWatermark("ts", "10 seconds")
        method = transform_with_state(watermarked.groupBy("k"), forms[0])
        passed = method(first, schema, "Append", "EventTime", eventTimeColumnName="at")
        return _sums(forms[1], passed, "Append", "EventTime")

    tested = Case("chained", build, CLICKED, "append", 2, conf=NO_EMPTY_BATCHES)
    assert_same(play(spark, tmp_path, tested, [Leg(files=3, fail_at=1), Leg(files=6)], _SIDES))


@pytest.mark.deep
def test_several_operators(spark: SparkSession, tmp_path: Path) -> None:
    """Two in one query, in both forms."""

    def build(i: list[DataFrame]) -> DataFrame:
        first, second = _sums("row", i[0]), _sums("pandas", i[0].where("v % 2 = 0"))
        return first.unionByName(second)

    tested = Case("several", build, CLICKED, "update", 2, conf=NO_EMPTY_BATCHES)
    assert_same(play(spark, tmp_path, tested, [Leg(files=3, fail_at=1), Leg(files=6)], _SIDES))


@pytest.mark.deep
def test_a_savepoint_goes_on_with_the_other_transport(spark: SparkSession, tmp_path: Path) -> None:
    """It does not know which one made it."""

    def build(i: list[DataFrame]) -> DataFrame:
        return _sums("row", i[0])

    tested = Case("saved", build, CLICKED, "update", 2, conf=NO_EMPTY_BATCHES)
    whole = [Leg(files=3), Leg(files=6)]
    sides = {"spark": (SPARK,), "from-spark": (SPARK, BULK), "from-bulk": (BULK, SPARK)}

    def restored(side: Any) -> None:
        saved = millpond.savepoint.create(str(side.checkpoint), str(tmp_path / f"{side.name}-save"))
        side.checkpoint.rename(side.root / "before")
        millpond.savepoint.restore(saved.savepoint, str(side.checkpoint))

    assert_same(play(spark, tmp_path, tested, whole, sides, between=restored))
