"""Python's state over the bulk transport equals that over Spark's: rows in their order, metrics,
and each byte in the store.
"""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from integration import python_state_cases
from integration.cases import (
    AVRO,
    EVENTS,
    NO_EMPTY_BATCHES,
    ODD_KEYS,
    Case,
    at,
    transform_with_state,
)
from integration.depth import deep
from integration.harness import EVERYTHING
from integration.jvm import IS_SPARK_4_2, ROCKSDB
from integration.state_programs import (
    Interpreter,
    Program,
    Variable,
    case,
    random_batches,
    random_program,
    scripted,
    variables,
)
from integration.state_values import POOLS, shown
from integration.transports import BULK, PROVIDER, SPARK, Leg, assert_same, play

SIDES = {
    "spark": (SPARK,),
    "bulk": (BULK,),
    "in-turn": (BULK, SPARK),
}
_TIMES = ("None", "ProcessingTime", "EventTime")
_FIRST = int(os.environ.get("MILLPOND_PROGRAMS_FIRST", "1"))
_SEEDS = int(os.environ.get("MILLPOND_PROGRAMS", "6" if EVERYTHING else "1"))


def _legs(tested: Case) -> list[Leg]:
    batches = max(len(batches) for _, batches in tested.inputs)
    legs = [Leg(files=tested.first, fail_at=tested.fail_at), Leg(files=tested.first)]
    if tested.later is None:
        return [*legs, Leg(files=batches)]
    return [*legs, Leg(files=batches - 1), Leg(files=batches, build=tested.later)]


_SHAPES = [shape for shape in python_state_cases.CASES if not shape.refused]
_ASIDE = ("collated-keys",)  # such keys do not travel in bulk
_QUICK = "pandas-event-time"


def _compared() -> list[Any]:
    """Return shapes and the names of the sides to compare. One with two sides is not deep."""
    (quick,) = [shape for shape in _SHAPES if shape.name == _QUICK]
    return [
        pytest.param(quick, ("spark", "in-turn"), id=f"{_QUICK}-on-two-sides"),
        *(pytest.param(s, tuple(SIDES), id=s.name, marks=pytest.mark.deep) for s in _SHAPES),
    ]


def _sides(names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {name: SIDES[name] for name in names}


@pytest.mark.parametrize(("shape", "names"), _compared())
def test_every_shape(
    spark: SparkSession, tmp_path: Path, shape: Case, names: tuple[str, ...]
) -> None:
    """A sink fails after its state was committed, and every restart may change the transport."""
    sides = play(spark, tmp_path, shape, _legs(shape), _sides(names))
    everything = "\n".join(row for rows in sides[0].rows.values() for row in rows)
    assert [text for text in shape.shows if text not in everything] == []
    aside = shape.name.endswith(_ASIDE) or (IS_SPARK_4_2 and shape.name.startswith("pandas"))
    assert_same(sides, aside=aside)


class Refusing(Interpreter):
    """Declares a value of a type."""

    def __init__(self, form: str, of: T.DataType) -> None:
        super().__init__(form, "None", ())
        self.of = of

    def init(self, handle: Any) -> None:
        handle.getValueState("v", T.StructType([T.StructField("v", self.of)]))


class Keyed(python_state_cases.Everything):
    """Shows its keys, all columns and types."""

    def out(self, *columns: Any) -> Any:
        return super().out(shown(columns[0]), *columns[1:])


@pytest.mark.deep
@pytest.mark.parametrize("form", ["row", "pandas"])
def test_decimals_and_bytes_as_keys(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """With timers that fire in the batch that registered them, and values that expire. Spark
    hands over keys of expired values as rows of two fields: these have three."""

    def build(i: list[DataFrame]) -> DataFrame:
        method = transform_with_state(i[0].groupBy("b", "s", "d"), form)
        processor = Keyed(form, "ProcessingTime")
        found: DataFrame = method(
            processor, "k string, what string, state string", "Update", "ProcessingTime"
        )
        return found

    tested = Case("odd-keys", build, ODD_KEYS, "update", 2, conf=NO_EMPTY_BATCHES)
    aside = IS_SPARK_4_2 and form == "pandas"
    sides = play(spark, tmp_path, tested, _legs(tested), SIDES)
    assert_same(sides, aside=aside)
    rocksdb = replace(tested, conf={**NO_EMPTY_BATCHES, PROVIDER: ROCKSDB})
    (peer,) = play(spark, tmp_path / "peer", rocksdb, _legs(tested), {"spark": (SPARK,)})
    assert {batch: sorted(rows) for batch, rows in peer.rows.items()} == {
        batch: sorted(rows) for batch, rows in sides[0].rows.items()
    }


@pytest.mark.deep
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.pyspark.udf.profiler", "perf"),
        ("spark.sql.execution.pyspark.binaryAsBytes", "false"),
    ],
)
def test_settings_that_want_sparks_own_worker(
    spark: SparkSession, tmp_path: Path, setting: str, value: str
) -> None:
    (shape,) = [shape for shape in _SHAPES if shape.name == "row-initial-state"]
    tested = replace(shape, conf={**shape.conf, setting: value})
    assert_same(play(spark, tmp_path, tested, _legs(shape), SIDES), aside=True)


class Timed(python_state_cases.Processor):
    """Keeps a time, in a variable whose schema is a text."""

    def init(self, handle: Any) -> None:
        self.at = handle.getValueState("at", "at timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        before = self.at.get()
        zone = dt.timezone(dt.timedelta(hours=5))
        self.at.update((dt.datetime(2024, 1, 1, 12, tzinfo=zone),))
        yield self.out(key[0], str(before), str(self.at.get()))


@pytest.mark.deep
@pytest.mark.parametrize("form", ["row", "pandas"])
def test_settings_that_change_what_a_schema_means(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Spark's state server has none of the session's settings. In bulk a `timestamp` was one
    without a zone, and had other bytes.
    """

    def build(i: list[DataFrame]) -> DataFrame:
        method = transform_with_state(i[0].groupBy("k"), form)
        output = "k string, what string, state string"
        found: DataFrame = method(Timed(form), output, "Update", "None")
        return found

    conf = {"spark.sql.timestampType": "TIMESTAMP_NTZ"}
    batch = [{"k": "a", "ts": at(0), "v": 1}]
    tested = Case("timed", build, [(EVENTS, [batch, batch])], "update", 2, conf=conf)
    sides = play(spark, tmp_path, tested, [Leg(files=1), Leg(files=2)], SIDES)
    assert_same(sides, aside=IS_SPARK_4_2 and form == "pandas")


def _all_values(variable: Variable) -> Program:
    """Return a program that writes each value of the variable's pool, and reads all of it."""
    count = len(POOLS[variable.value].values)
    name = variable.name
    if variable.kind == "value":
        return [step for i in range(count) for step in ([name, "update", i], [name, "get"])]
    if variable.kind == "list":
        every = list(range(count))
        return [[name, "put", every], [name, "appendList", every], [name, "appendValue", 0]]
    found: Program = []
    for i in range(max(count, len(POOLS[variable.key].values))):
        found += [[name, "updateValue", i, i], [name, "getValue", i], [name, "containsKey", i]]
    return [*found, [name, "keys"], [name, "values"], [name, "removeKey", 1]]


def _reads(variable: Variable) -> Program:
    read = {"value": "get", "list": "get", "map": "iterator"}[variable.kind]
    return [[variable.name, "exists"], [variable.name, read]]


_KINDS = ("value", "list", "map")


# Spark's Avro encoding refuses bytes and shorts, and a null in an array ends its state server.
_NO_AVRO = {"numbers", "nested", "unsure"}
# Python and the store do not agree on which of them are equal.
_NO_KEYS = {"floats", "collated", "nested", "whole", "unsure", "nested_whole", "deep_key"}
_TYPES = [pool for pool in POOLS if pool not in ("number", "nulls", "deep_floats")]


@pytest.mark.parametrize("encoding", ["unsaferow", *([deep("avro")] if EVERYTHING else [])])
@pytest.mark.parametrize("form", ["row", *([deep("pandas")] if EVERYTHING else [])])
@pytest.mark.parametrize(
    "names", [("spark", "bulk"), deep((tuple(SIDES),))], ids=["on-two-sides", "on-all-sides"]
)
def test_every_type(
    spark: SparkSession, tmp_path: Path, names: tuple[str, ...], form: str, encoding: str
) -> None:
    """Each value of each pool as a value, in a list, and in a map."""
    pools = [pool for pool in _TYPES if encoding != "avro" or pool not in _NO_AVRO]
    declared = tuple(
        Variable(kind, f"{pool}_{kind}", pool, key if kind == "map" else "")
        for pool, key in zip(pools, reversed(pools), strict=True)
        for kind in _KINDS
    )
    keys = [f"k{i}" for i in range(len(declared))]
    writes = {key: _all_values(variable) for key, variable in zip(keys, declared, strict=True)}
    reads = {key: _reads(variable) for key, variable in zip(keys, declared, strict=True)}
    processor = Interpreter(form, "None", declared)
    tested = case(
        "every-type",
        processor,
        scripted(writes, reads),
        conf=AVRO if encoding == "avro" else {},
    )
    sides = play(spark, tmp_path, tested, [Leg(files=1), Leg(files=2)], _sides(names))
    assert_same(sides)
    # The second batch reads all. Its calls are one for each variable of a task, and two for each
    # map whose keys only the store can compare.
    asked = 2 * sum(v.kind == "map" and v.key in _NO_KEYS for v in declared)
    (bulk,) = sides[1].custom[1]
    assert bulk["millpondPythonCalls"] == 2 * len(declared) + asked


@pytest.mark.deep
def test_nulls_in_arrays_and_maps_go_in_bulk(spark: SparkSession, tmp_path: Path) -> None:
    declared = tuple(
        Variable(kind, kind, "nulls", "text" if kind == "map" else "") for kind in _KINDS
    )
    writes: Program = [["value", "update", 0], ["map", "updateValue", 0, 0]]
    writes += [["list", "put", [0, 1]], ["list", "appendValue", 2]]
    reads = [step for variable in declared for step in _reads(variable)]
    tested = case(
        "nulls", Interpreter("row", "None", declared), scripted({"a": writes}, {"a": reads})
    )
    sides = play(spark, tmp_path, tested, [Leg(files=1), Leg(files=2)], SIDES)
    assert_same(sides)
    calls = [op["millpondPythonCalls"] for batch in (0, 1) for op in sides[1].custom[batch]]
    assert calls == [2 * len(declared)] * 2  # to declare the variables, in each of two tasks


@pytest.mark.parametrize("refused", [T.CharType(3), T.VarcharType(3)], ids=str)
def test_types_that_spark_has_no_encoder_for(spark: SparkSession, refused: T.DataType) -> None:
    """So no state has them, unless a setting of Spark's allows them."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    schema = T.StructType([T.StructField("v", refused)])
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_TYPE_FOR_ENCODER"):
        jvm.org.apache.spark.sql.Encoders.row(session.parseDataType(schema.json()))


@pytest.mark.deep
@pytest.mark.parametrize("refused", [T.VariantType(), T.DayTimeIntervalType()], ids=str)
def test_types_that_spark_refuses_in_state(
    spark: SparkSession, tmp_path: Path, refused: T.DataType
) -> None:
    tested = case("refused", Refusing("row", refused), scripted({"a": []}))
    leg = Leg(files=1, fails=f"Unexpected type {type(refused).__name__}")
    (side,) = play(spark, tmp_path, tested, [leg], {"spark": (SPARK,)})
    assert len(side.errors) == 1


def _random_case(seed: int) -> Case:
    """Return a query of random programs. Forms, times, formats and encodings take turns."""
    random = Random(seed)
    time, form = _TIMES[seed % 3], ("row", "pandas")[seed // 3 % 2]
    ttl = (None, 1500, 3_600_000) if time == "ProcessingTime" else (None,)
    avro = random.random() < 0.5
    pools = [pool for pool in _TYPES if not avro or pool not in _NO_AVRO]
    random.shuffle(pools)
    kinds = [random.choice(("value", "list", "map")) for _ in range(3)]
    declared = variables(["value", "list", "map", *kinds], pools, ttl)
    fired = tuple(random_program(random, declared, time, 6) for _ in range(5))
    batches = random_batches(random, declared, time, keys=40, batches=5)
    # of a key with several timers each is in another frame
    few = {"spark.sql.execution.arrow.maxRecordsPerBatch": "3"} if seed % 2 else {}
    return case(
        f"seed-{seed}",
        Interpreter(form, time, declared, fired),
        batches,
        1 + seed % 2,
        first=2,
        conf={**few, **(AVRO if avro else {})},
    )


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _SEEDS))
def test_random_programs(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Forty keys with random programs of state calls, batch after batch.

    `MILLPOND_PROGRAMS_FIRST=17 MILLPOND_PROGRAMS=1` runs seed 17 alone.
    """
    tested = _random_case(seed)
    legs = [Leg(files=2, fail_at=1), Leg(files=3), Leg(files=5)]
    assert_same(play(spark, tmp_path, tested, legs, SIDES))
