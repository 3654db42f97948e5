"""Changes of a job: the jobs before and after, what Spark does, and what Millpond does.

The table of `docs/guides/changing.md` has a line for each. `test_changing` runs them.
"""

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


def _by(*keys: str) -> Build:
    return lambda i: i[0].groupBy(*keys).count()


def _agg(*made: Callable[[], Column]) -> Build:
    return lambda i: i[0].groupBy("k").agg(*(make() for make in made))


def _n() -> Column:
    return F.count("*").alias("n")


def _sum() -> Column:
    return F.sum("v").alias("s")


def _max() -> Column:
    return F.max("v").alias("high")


def _min() -> Column:
    return F.min("v").alias("low")


def _cities(i: list[DataFrame]) -> DataFrame:
    """Return events whose `city` is the key of another event."""
    return i[0].withColumn("city", F.expr("CASE k WHEN 'c' THEN 'a' ELSE k END"))


def _late(i: list[DataFrame], delay: str = "10 seconds") -> DataFrame:
    return i[0].withWatermark("ts", delay)


def _windows(size: str, delay: str = "10 seconds") -> Build:
    return lambda i: (
        _late(i, delay)
        .groupBy(F.window("ts", size).alias("w"))
        .count()
        .selectExpr("date_format(w.start, 'ss') AS at", "count")
    )


def _sessions(gap: str) -> Build:
    return lambda i: (
        _late(i)
        .groupBy(F.session_window("ts", gap).alias("w"), "k")
        .count()
        .selectExpr("k", "date_format(w.end, 'ss') AS until", "count")
    )


_NEAR = "l.ts BETWEEN r.ts - INTERVAL 20 SECONDS AND r.ts + INTERVAL 20 SECONDS"
_NEARER = "l.ts BETWEEN r.ts - INTERVAL 2 SECONDS AND r.ts + INTERVAL 2 SECONDS"


def _join(condition: str, how: str = "inner", *more: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        left = i[0].withWatermark("ts", "10 seconds").select("k", "ts", *more).alias("l")
        right = i[1].withWatermark("ts", "10 seconds").alias("r")
        return left.join(right, F.expr(condition), how).select("l.k", F.col("r.v").alias("other"))

    return build


def distinct(*columns: str) -> Build:
    return lambda i: _cities(i).dropDuplicates([*columns]).select("k", "v")


def distinct_counts(i: list[DataFrame]) -> DataFrame:
    return i[0].dropDuplicates(["k", "v"]).groupBy("k").count()


def _both_distinct(*columns: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        frame = i[0].withColumn("upper", F.upper("k"))
        for column in columns:
            frame = frame.dropDuplicates([column])
        return frame.select("k", "v")

    return build


def _state(schema: str, step: int = 1, timeout: str = "NoTimeout") -> Build:
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


def _numbers(i: list[DataFrame]) -> DataFrame:
    reader = i[0].sparkSession.readStream.format("rate-micro-batch").option("rowsPerBatch", 2)
    return reader.load().selectExpr("string(value) AS k").groupBy("k").count()


_REFUSES_VALUE = f"refuses: `{OTHER_VALUE}`"
_REFUSES_KEY = f"refuses: `{OTHER_KEY}`"
_REFUSES = f"refuses: `{NOT_THE_OPERATORS}`"
_SHOWS = "`plan` refuses it, and shows the columns"
_COLUMNS = (
    "`plan` refuses it, and prints the options of `edit` and `restore` that"
    " [change the columns](savepoints.md#other-columns-in-values)"
)
_WARNS = "`plan` and `restore --job` warn: they compare names"
_ANEW = "`--drop-operator 0 --allow-new-operator` starts the operator with empty state"
_MATCHED = "`restore --job` finds it by name and columns: `--match-operators`"
_EMPTY_BATCHES = dict.fromkeys(NO_EMPTY_BATCHES, "true")
_DROP_AND_NEW = {"drop_operators": [0], "allow_new_operator": True}
_APPEND = ("append", "append")

CHANGES = [
    # operators
    Change(
        "operator-new-above",
        "A new stateful operator near the source",
        _REFUSES,
        "`--allow-new-operator` starts it empty",
        _by("k"),
        distinct_counts,
        refused=NOT_THE_OPERATORS,
        helps={"allow_new_operator": True},
        then=("Row(k='a', count=3)", "Row(k='b', count=2)", "Row(k='c', count=1)"),
    ),
    Change(
        "operator-new-below",
        "A new stateful operator near the sink: the numbers of the others move",
        _REFUSES,
        f"{_MATCHED}, with `--allow-new-operator` for the new one",
        distinct("k", "v"),
        distinct_counts,
        ("append", "update"),
        refused=NOT_THE_OPERATORS,
        helps={"allow_new_operator": True, "match_operators": True},
        # b with value 2 is no new row
        then=("Row(k='a', count=1)", "Row(k='c', count=1)"),
    ),
    Change(
        "operator-new-between",
        "A new stateful operator between two others",
        _REFUSES,
        "the same",
        distinct_counts,
        lambda i: i[0].dropDuplicates(["k", "v"]).dropDuplicates(["v"]).groupBy("k").count(),
        refused=NOT_THE_OPERATORS,
        helps={"allow_new_operator": True, "match_operators": True},
        then=("Row(k='a', count=3)", "Row(k='c', count=1)"),
    ),
    Change(
        "operator-dropped-above",
        "A stateful operator dropped, the highest number",
        _REFUSES,
        "`--drop-operator`",
        distinct_counts,
        _by("k"),
        refused=NOT_THE_OPERATORS,
        helps={"drop_operators": [1]},
        then=("Row(k='a', count=3)", "Row(k='b', count=2)", "Row(k='c', count=1)"),
    ),
    Change(
        "operator-dropped-below",
        "A stateful operator dropped, the numbers of the others move",
        _REFUSES,
        f"`--drop-operator`; {_MATCHED}",
        distinct_counts,
        distinct("k", "v"),
        ("update", "append"),
        refused=NOT_THE_OPERATORS,
        helps={"drop_operators": [0], "match_operators": True},
        then=("Row(k='a', v=3)", "Row(k='c', v=4)"),
    ),
    Change(
        "operator-last-dropped",
        "The last stateful operator dropped",
        _REFUSES,
        "`--drop-operator`",
        distinct("k"),
        lambda i: i[0].select("k", "v"),
        _APPEND,
        refused=NOT_THE_OPERATORS,
        helps={"drop_operators": [0]},
        then=("Row(k='a', v=3)", "Row(k='b', v=2)", "Row(k='c', v=4)"),
    ),
    Change(
        "operators-changed-places",
        "Two operators of one kind change places",
        _REFUSES_KEY,
        _MATCHED,
        _both_distinct("k", "v"),
        _both_distinct("v", "k"),
        _APPEND,
        refused=OTHER_KEY,
        helps={"match_operators": True},
        then=("Row(k='c', v=4)",),
    ),
    Change(
        "operators-of-one-type-changed-places",
        "The same, where their keys are of one type",
        "**starts, each with the state of the other**",
        f"{_MATCHED}. `plan` refuses to start it as it is",
        _both_distinct("k", "upper"),
        _both_distinct("upper", "k"),
        _APPEND,
        rows=("Row(k='a', v=3)", "Row(k='b', v=2)", "Row(k='c', v=4)"),  # c alone is new
        helps={"match_operators": True},
        then=("Row(k='c', v=4)",),
    ),
    # aggregates
    Change(
        "aggregate-new",
        "A new aggregate",
        _REFUSES_VALUE,
        _COLUMNS,
        _agg(_n),
        _agg(_n, _sum),
        refused=OTHER_VALUE,
        columns=True,
        then=("Row(k='a', n=3, s=3)", "Row(k='b', n=2, s=2)", "Row(k='c', n=1, s=4)"),
    ),
    Change(
        "aggregate-dropped",
        "An aggregate dropped",
        _REFUSES_VALUE,
        _COLUMNS,
        _agg(_n, _sum),
        _agg(_n),
        refused=OTHER_VALUE,
        columns=True,
        then=("Row(k='a', n=3)", "Row(k='b', n=2)", "Row(k='c', n=1)"),
    ),
    Change(
        "aggregate-wider",
        "An aggregate of a wider type: `max` of an `int`, then of a `long`",
        _REFUSES_VALUE,
        _COLUMNS,
        _agg(lambda: F.max(F.col("v").cast("int")).alias("high")),
        _agg(_max),
        refused=OTHER_VALUE,
        columns=True,
        then=("Row(k='a', high=5)", "Row(k='b', high=2)", "Row(k='c', high=4)"),
    ),
    Change(
        "aggregate-narrower",
        "An aggregate of a narrower type",
        _REFUSES_VALUE,
        _COLUMNS,
        _agg(_max),
        _agg(lambda: F.max(F.col("v").cast("int")).alias("high")),
        refused=OTHER_VALUE,
        columns=True,
        then=("Row(k='a', high=5)", "Row(k='b', high=2)", "Row(k='c', high=4)"),
    ),
    Change(
        "aggregate-wider-sum",
        "The same for `sum` of an `int`, whose state is a `long` anyway",
        "goes on",
        "nothing to do",
        _agg(lambda: F.sum(F.col("v").cast("int")).alias("s")),
        _agg(_sum),
        rows=("Row(k='a', s=9)",),
    ),
    Change(
        "aggregate-renamed",
        "Another name for the result of an aggregate",
        "goes on",
        "nothing to do",
        _agg(_sum),
        _agg(lambda: F.sum("v").alias("total")),
        rows=("Row(k='a', total=9)",),
    ),
    Change(
        "aggregate-of-another-kind",
        "Another aggregate whose state has the same type: `min`, then `max`",
        "**starts: goes on with the old values**",
        _WARNS,
        _agg(_min),
        _agg(_max),
        rows=("Row(k='a', high=3)",),  # 5 would be right
        warns="min is max in the job",
    ),
    Change(
        "aggregate-of-another-column",
        "The same aggregate of another column",
        "**starts: goes on with the old values**",
        "nothing: the state of both is the same to see. Drop it:"
        " `--drop-operator 0 --allow-new-operator`",
        _agg(_sum),
        _agg(lambda: F.sum(F.col("v") * 100).alias("s")),
        rows=("Row(k='a', s=306)",),
    ),
    Change(
        "aggregates-changed-places",
        "Two aggregates of one type change places",
        "**starts: each has the values of the other**",
        _WARNS,
        _agg(_min, _max),
        _agg(_max, _min),
        rows=("Row(k='a', high=3, low=3)",),  # 5 and 1 would be right
        warns="value: max, min have changed places",
    ),
    Change(
        "struct-field-new",
        "A field more in a struct that is aggregated",
        _REFUSES_VALUE,
        _COLUMNS,
        _agg(lambda: F.max(F.struct("v"))),
        _agg(lambda: F.max(F.struct("v", "k")).alias("m")),
        refused=OTHER_VALUE,
        columns=True,
        then=(
            "Row(k='a', m=Row(v=5, k=None))",
            "Row(k='b', m=Row(v=2, k='b'))",
            "Row(k='c', m=Row(v=4, k='c'))",
        ),
    ),
    Change(
        "struct-field-renamed",
        "Another name for a field of it",
        "goes on with the old values",
        _WARNS,
        _agg(lambda: F.max(F.struct("v")).alias("m")),
        _agg(lambda: F.max(F.struct(F.col("v").alias("w"))).alias("m")),
        rows=("Row(k='a', m=Row(w=5))",),
        warns="max.v is max.w",
    ),
    # keys
    Change(
        "key-new",
        "A column more in `groupBy`",
        _REFUSES_KEY,
        f"{_SHOWS}. The old rows do not say the new column: {_ANEW}; `bootstrap` fills it from"
        " history",
        _by("k"),
        _by("k", "v"),
        refused=OTHER_KEY,
        helps=_DROP_AND_NEW,
        then=(
            "Row(k='a', v=3, count=1)",
            "Row(k='b', v=2, count=1)",
            "Row(k='c', v=4, count=1)",
        ),
    ),
    Change(
        "key-dropped",
        "A column less in `groupBy`",
        _REFUSES_KEY,
        "the same; `savepoint edit` on a savepoint of an aggregate per key can add up rows first",
        _by("k", "v"),
        _by("k"),
        refused=OTHER_KEY,
        helps=_DROP_AND_NEW,
        then=("Row(k='a', count=1)", "Row(k='b', count=1)", "Row(k='c', count=1)"),
    ),
    Change(
        "key-of-another-type",
        "Another column of another type in `groupBy`",
        _REFUSES_KEY,
        f"{_SHOWS}; {_ANEW}",
        _by("k"),
        _by("v"),
        refused=OTHER_KEY,
        helps=_DROP_AND_NEW,
        then=("Row(v=2, count=1)", "Row(v=3, count=1)", "Row(v=4, count=1)"),
    ),
    Change(
        "key-of-the-same-type",
        "Another column of the same type in `groupBy`",
        "**starts: adds to what keys of the old column counted**",
        f"{_WARNS}; {_ANEW}",
        _by("k"),
        lambda i: _cities(i).groupBy("city").count(),
        rows=("Row(city='a', count=4)",),  # 2 would be right
        warns="key: k is city in the job",
        helps=_DROP_AND_NEW,
        then=("Row(city='a', count=2)", "Row(city='b', count=1)"),
    ),
    Change(
        "keys-changed-places",
        "Columns of `groupBy` in another order",
        "**starts: takes each for the other**",
        _WARNS,
        lambda i: _cities(i).groupBy("k", "city").count(),
        lambda i: _cities(i).groupBy("city", "k").count(),
        rows=("Row(city='a', k='a', count=3)", "Row(city='a', k='c', count=1)"),
        warns="key: city, k have changed places",
    ),
    # event time
    Change(
        "window-size",
        "Another size of windows",
        "**starts: old and new windows that begin at one time are different rows**, each counts"
        " its part",
        "nothing: a size is no part of the schema",
        _windows("10 seconds"),
        _windows("20 seconds"),
        rows=("Row(at='00', count=2)", "Row(at='40', count=1)"),
    ),
    Change(
        "session-gap",
        "Another gap of sessions",
        "goes on: old sessions keep their end until an event joins them",
        "nothing to do",
        _sessions("5 seconds"),
        _sessions("15 seconds"),
        _APPEND,
        rows=("Row(k='a', until='08', count=2)", "Row(k='a', until='27', count=1)"),
        conf=_EMPTY_BATCHES,
    ),
    Change(
        "session-to-window",
        "Windows in place of sessions",
        _REFUSES,
        f"`plan` refuses it; {_ANEW}",
        _sessions("5 seconds"),
        _windows("10 seconds"),
        _APPEND,
        refused=NOT_THE_OPERATORS,
        helps=_DROP_AND_NEW,
    ),
    Change(
        "watermark-longer",
        "A longer delay of the watermark",
        "goes on: the watermark that was reached stays, and waits",
        "nothing to do",
        _windows("10 seconds"),
        _windows("10 seconds", "60 seconds"),
        rows=("Row(at='10', count=2)", "Row(at='40', count=1)"),
    ),
    Change(
        "watermark-shorter",
        "A shorter delay of the watermark",
        "goes on: more rows are late from the next batch on",
        "nothing to do",
        _windows("10 seconds", "60 seconds"),
        _windows("10 seconds", "1 second"),
        rows=("Row(at='10', count=2)", "Row(at='40', count=1)"),
    ),
    Change(
        "watermark-new",
        "A watermark for an aggregation that had none",
        "goes on: windows from before it are closed, too",
        "nothing to do",
        lambda i: (
            i[0]
            .groupBy(F.window("ts", "10 seconds").alias("w"))
            .count()
            .selectExpr("date_format(w.start, 'ss') AS at", "count")
        ),
        _windows("10 seconds"),
        rows=("Row(at='10', count=2)", "Row(at='40', count=1)"),
    ),
    # joins
    Change(
        "join-key-of-another-type",
        "Another key of a join",
        _REFUSES_KEY,
        f"{_SHOWS}; {_ANEW}",
        _join(f"l.k = r.k AND {_NEAR}"),
        _join(f"l.ts = r.ts AND {_NEAR}"),
        _APPEND,
        refused=OTHER_KEY,
        helps=_DROP_AND_NEW,
    ),
    Change(
        "join-key-new",
        "One more key of a join",
        _REFUSES_KEY,
        f"{_SHOWS}; {_ANEW}",
        _join(f"l.k = r.k AND {_NEAR}", "inner", "v"),
        _join(f"l.k = r.k AND l.v = r.v AND {_NEAR}", "inner", "v"),
        _APPEND,
        refused=OTHER_KEY,
        helps=_DROP_AND_NEW,
    ),
    Change(
        "join-key-of-the-same-type",
        "Another key of a join, of the same type",
        "**starts: old rows are found by their old key**",
        "nothing: Spark does not record what a join's key is called",
        _join(f"l.k = r.k AND {_NEAR}"),
        _join(f"CASE l.k WHEN 'c' THEN 'a' ELSE l.k END = r.k AND {_NEAR}"),
        _APPEND,
        rows=("Row(k='c', other=100)",),
    ),
    Change(
        "join-inner-to-outer",
        "Another type of a join: inner, then left outer",
        "goes on: rows without a partner come out when they expire, those of before, too",
        "nothing to do",
        _join(f"l.k = r.k AND l.v + 97 > r.v AND {_NEAR}", "inner", "v"),
        _join(f"l.k = r.k AND l.v + 97 > r.v AND {_NEAR}", "left_outer", "v"),
        _APPEND,
        rows=("Row(k='a', other=None)", "Row(k='b', other=None)"),
        conf=_EMPTY_BATCHES,
    ),
    Change(
        "join-outer-to-inner",
        "The other way round",
        "goes on",
        "nothing to do",
        _join(f"l.k = r.k AND {_NEAR}", "left_outer"),
        _join(f"l.k = r.k AND {_NEAR}"),
        _APPEND,
        rows=("Row(k='a', other=100)", "Row(k='c', other=102)"),
    ),
    Change(
        "join-interval",
        "Another interval of a join",
        "goes on: what expired by the old one is gone",
        "nothing to do",
        _join(f"l.k = r.k AND {_NEARER}"),
        _join(f"l.k = r.k AND {_NEAR}"),
        _APPEND,
        rows=("Row(k='c', other=102)",),
    ),
    Change(
        "join-column-new",
        "A column more on a side of a join",
        _REFUSES_VALUE,
        _COLUMNS,
        _join(f"l.k = r.k AND {_NEAR}"),
        _join(f"l.k = r.k AND l.v < r.v AND {_NEAR}", "inner", "v"),
        _APPEND,
        refused=OTHER_VALUE,
        columns=True,
        then=(
            "Row(k='a', other=100)",
            *["Row(k='a', other=103)"] * 3,
            "Row(k='b', other=104)",
            "Row(k='c', other=102)",
        ),
    ),
    # dropDuplicates
    Change(
        "duplicates-by-more",
        "A column more in `dropDuplicates`",
        _REFUSES_KEY,
        f"{_SHOWS}; {_ANEW}",
        distinct("k"),
        distinct("k", "v"),
        _APPEND,
        refused=OTHER_KEY,
        helps=_DROP_AND_NEW,
        then=("Row(k='a', v=3)", "Row(k='b', v=2)", "Row(k='c', v=4)"),
    ),
    Change(
        "duplicates-by-another",
        "Another column of the same type in `dropDuplicates`",
        "**starts: compares it with the old column's values**",
        f"{_WARNS}; {_ANEW}",
        distinct("k"),
        distinct("city"),
        _APPEND,
        rows=(),
        warns="key: k is city in the job",
        helps=_DROP_AND_NEW,
        then=("Row(k='a', v=3)", "Row(k='b', v=2)"),
    ),
    Change(
        "duplicates-within-watermark",
        "`dropDuplicatesWithinWatermark` in place of `dropDuplicates`",
        _REFUSES,
        f"`plan` refuses it; {_ANEW}",
        lambda i: _late(i).dropDuplicates(["k"]).select("k", "v"),
        lambda i: _late(i).dropDuplicatesWithinWatermark(["k"]).select("k", "v"),
        _APPEND,
        refused=NOT_THE_OPERATORS,
        helps=_DROP_AND_NEW,
        then=("Row(k='a', v=3)", "Row(k='b', v=2)", "Row(k='c', v=4)"),
    ),
    # arbitrary state
    Change(
        "function-code",
        "Other code in the function of `applyInPandasWithState`",
        "goes on: the new code finds what the old one kept",
        "nothing to do",
        _state("n long"),
        _state("n long", step=10),
        rows=("Row(k='a', n='(12,)')", "Row(k='c', n='(10,)')"),
    ),
    Change(
        "function-field-new",
        "A field more in its state",
        _REFUSES_VALUE,
        _COLUMNS,
        _state("n long"),
        _state("n long, m long"),
        refused=OTHER_VALUE,
        columns=True,
        then=("Row(k='a', n='(3, 1)')", "Row(k='b', n='(2, 1)')", "Row(k='c', n='(1, 1)')"),
    ),
    Change(
        "function-field-dropped",
        "A field less in its state",
        _REFUSES_VALUE,
        _COLUMNS,
        _state("n long, m long"),
        _state("n long"),
        refused=OTHER_VALUE,
        columns=True,
        then=("Row(k='a', n='(3,)')", "Row(k='b', n='(2,)')", "Row(k='c', n='(1,)')"),
    ),
    Change(
        "function-field-renamed",
        "Another name for a field of it",
        "goes on with the old values",
        _WARNS,
        _state("n long"),
        _state("m long"),
        rows=("Row(k='a', n='(3,)')",),
        warns="groupState.n is groupState.m",
    ),
    Change(
        "function-field-wider",
        "A wider type of a field of it",
        _REFUSES_VALUE,
        _COLUMNS,
        _state("n int"),
        _state("n long"),
        refused=OTHER_VALUE,
        columns=True,
        then=("Row(k='a', n='(3,)')", "Row(k='b', n='(2,)')", "Row(k='c', n='(1,)')"),
    ),
    Change(
        "function-timeout",
        "A timeout where there was none",
        _REFUSES_VALUE,
        _SHOWS,
        _state("n long"),
        _state("n long", timeout="ProcessingTimeTimeout"),
        refused=OTHER_VALUE,
        conf=NO_EMPTY_BATCHES,
    ),
    # the rest of the query
    Change(
        "filter",
        "Another filter or projection that leaves keys and aggregates alone",
        "goes on",
        "nothing to do",
        _by("k"),
        lambda i: i[0].where("v > 3").groupBy("k").count(),
        rows=("Row(k='c', count=1)",),
    ),
    Change(
        "mode-update-to-complete",
        "Another output mode: update, then complete",
        "goes on",
        "nothing to do",
        _by("k"),
        _by("k"),
        ("update", "complete"),
        rows=("Row(k='a', count=3)", "Row(k='b', count=2)", "Row(k='c', count=1)"),
    ),
    Change(
        "mode-append-to-update",
        "Another output mode: append, then update",
        "goes on",
        "nothing to do",
        _windows("10 seconds"),
        _windows("10 seconds"),
        ("append", "update"),
        rows=("Row(at='10', count=2)", "Row(at='40', count=1)"),
    ),
    Change(
        "source-new",
        "One more source",
        "refuses: `There are [1] sources in the checkpoint offsets`",
        "`plan` refuses it. Stop the query and start a new one, warm:"
        " [`bootstrap`](savepoints.md#start-warm)",
        _by("k"),
        lambda i: i[0].union(i[1]).groupBy("k").count(),
        refused="There are [1] sources in the checkpoint offsets",
    ),
    Change(
        "source-dropped",
        "One source less",
        "refuses: `There are [2] sources in the checkpoint offsets`",
        "the same",
        lambda i: i[0].union(i[1]).groupBy("k").count(),
        _by("k"),
        refused="There are [2] sources in the checkpoint offsets",
    ),
    Change(
        "source-of-another-kind",
        "A source of another kind",
        "refuses: the offset is not one of its own",
        "`restore --offsets drop`: the new source begins at its start, with the old state",
        _by("k"),
        _numbers,
        refused="No usable value for offset",
        planned=False,
    ),
    Change(
        "source-elsewhere",
        "A file source that reads another directory",
        "refuses: `Wrong basePath`",
        "`restore --offsets drop`: the new source begins at its start, with the old state",
        _by("k"),
        lambda i: i[1].groupBy("k").count(),
        refused="Wrong basePath",
        planned=False,
        helps={"offsets": "drop"},
        then=(
            "Row(k='a', count=3)",
            "Row(k='a', count=4)",
            "Row(k='b', count=2)",
            "Row(k='b', count=3)",
            "Row(k='c', count=1)",
        ),
    ),
]
