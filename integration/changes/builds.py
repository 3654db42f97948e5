"""What the changes of a job are made of: their inputs, the queries, and words that come again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from integration.cases import NO_EMPTY_BATCHES, Build, events

FIRST = events(("a", 1, 5), ("b", 2, 2), ("a", 3, 1))
THEN = events(("a", 12, 3), ("c", 13, 4), ("b", 40, 2))
OTHERS_FIRST = events(("a", 2, 100), ("b", 3, 101))
OTHERS_THEN = events(("c", 14, 102), ("a", 15, 103), ("b", 41, 104))

NOT_THE_OPERATORS = "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
OTHER_KEY = "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"
OTHER_VALUE = "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"


@dataclass(frozen=True)
class Change:
    """A line of the guide's table, and the two jobs that prove it."""

    name: str
    what: str
    spark: str  # what Spark does
    millpond: str  # what Millpond does
    before: Build
    after: Build
    mode: tuple[str, str] = ("update", "update")
    refused: str = ""  # Spark's error condition, or a part of its text
    rows: tuple[str, ...] = ()  # that the changed job must write, if it runs
    warns: str = ""  # what `plan` must say although Spark starts the job
    planned: bool = True  # whether `plan` can know that Spark refuses the job
    # Options of `restore` with which the changed job goes on, and all rows that it then writes.
    helps: Mapping[str, Any] | None = None
    columns: bool = False  # the same with the options for columns that `plan` names
    then: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)


def by(*keys: str) -> Build:
    return lambda i: i[0].groupBy(*keys).count()


def agg(*made: Callable[[], Column]) -> Build:
    return lambda i: i[0].groupBy("k").agg(*(make() for make in made))


def number() -> Column:
    return F.count("*").alias("n")


def total() -> Column:
    return F.sum("v").alias("s")


def highest() -> Column:
    return F.max("v").alias("high")


def lowest() -> Column:
    return F.min("v").alias("low")


def cities(i: list[DataFrame]) -> DataFrame:
    """Return events whose `city` is the key of another event."""
    return i[0].withColumn("city", F.expr("CASE k WHEN 'c' THEN 'a' ELSE k END"))


def late(i: list[DataFrame], delay: str = "10 seconds") -> DataFrame:
    return i[0].withWatermark("ts", delay)


def windows(size: str, delay: str = "10 seconds") -> Build:
    return lambda i: (
        late(i, delay)
        .groupBy(F.window("ts", size).alias("w"))
        .count()
        .selectExpr("date_format(w.start, 'ss') AS at", "count")
    )


def sessions(gap: str) -> Build:
    return lambda i: (
        late(i)
        .groupBy(F.session_window("ts", gap).alias("w"), "k")
        .count()
        .selectExpr("k", "date_format(w.end, 'ss') AS until", "count")
    )


NEAR = "l.ts BETWEEN r.ts - INTERVAL 20 SECONDS AND r.ts + INTERVAL 20 SECONDS"
NEARER = "l.ts BETWEEN r.ts - INTERVAL 2 SECONDS AND r.ts + INTERVAL 2 SECONDS"


def join(condition: str, how: str = "inner", *more: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        left = i[0].withWatermark("ts", "10 seconds").select("k", "ts", *more).alias("l")
        right = i[1].withWatermark("ts", "10 seconds").alias("r")
        return left.join(right, F.expr(condition), how).select("l.k", F.col("r.v").alias("other"))

    return build


def distinct(*columns: str) -> Build:
    return lambda i: cities(i).dropDuplicates([*columns]).select("k", "v")


def distinct_counts(i: list[DataFrame]) -> DataFrame:
    return i[0].dropDuplicates(["k", "v"]).groupBy("k").count()


def both_distinct(*columns: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        frame = i[0].withColumn("upper", F.upper("k"))
        for column in columns:
            frame = frame.dropDuplicates([column])
        return frame.select("k", "v")

    return build


def counted_state(schema: str, step: int = 1, timeout: str = "NoTimeout") -> Build:
    """Return a job with `applyInPandasWithState`: its state counts, in steps of `step`."""
    kinds = [part.split()[1] for part in schema.split(", ")]

    def count(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        old = tuple(state.get) if state.exists else (0,) * len(kinds)
        rows = sum(len(frame) for frame in frames)
        state.update(tuple((one or 0) + step * rows for one in old))
        yield pd.DataFrame([{"k": key[0], "n": str(tuple(state.get))}])

    return lambda i: (
        i[0]
        .groupBy("k")
        .applyInPandasWithState(count, "k string, n string", schema, "update", timeout)
    )


def numbers(i: list[DataFrame]) -> DataFrame:
    reader = i[0].sparkSession.readStream.format("rate-micro-batch").option("rowsPerBatch", 2)
    return reader.load().selectExpr("string(value) AS k").groupBy("k").count()


REFUSES_VALUE = f"refuses: `{OTHER_VALUE}`"
REFUSES_KEY = f"refuses: `{OTHER_KEY}`"
REFUSES = f"refuses: `{NOT_THE_OPERATORS}`"
SHOWS = "`plan` refuses it, and shows the columns"
COLUMNS = (
    "`plan` refuses it, and prints the options of `edit` and `restore` that"
    " [change the columns](savepoints.md#other-columns-in-values)"
)
WARNS = "`plan` and `restore --job` warn: they compare names"
ANEW = "`--drop-operator 0 --allow-new-operator` starts the operator with empty state"
MATCHED = "`restore --job` finds it by name and columns: `--match-operators`"
EMPTY_BATCHES = dict.fromkeys(NO_EMPTY_BATCHES, "true")
DROP_AND_NEW = {"drop_operators": [0], "allow_new_operator": True}
APPEND = ("append", "append")
