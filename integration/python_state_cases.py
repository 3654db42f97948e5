"""`transformWithState` from Python, each case in both forms: pandas frames and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

from integration.cases import (
    AVRO,
    CLICKED,
    NO_EMPTY_BATCHES,
    ODD_KEYS,
    Build,
    Case,
    of,
    transform_with_state,
)

BUDGET = "spark.sql.streaming.stateStore.millpond.memory.budget"
_OUTPUT = "k string, what string, state string"
_ONE = StructType([StructField("v", LongType())])
_KEY = StructType([StructField("k", LongType())])
_WITH_TEXT = StructType([StructField("v", LongType()), StructField("text", StringType())])
_HOUR_MS = 3_600_000
_STEP_MS = 1000


class Processor(StatefulProcessor):
    """The common part of both forms. `form`: `pandas` or `row`."""

    def __init__(self, form: str) -> None:
        self.form = form

    def init(self, handle: Any) -> None:
        self.handle = handle

    def values(self, rows: Iterable[Any]) -> list[int]:
        """Return the input's values, sorted."""
        if self.form == "pandas":
            return sorted(int(v) for frame in rows for v in frame["v"])
        return sorted(row["v"] for row in rows)

    def out(self, *columns: Any) -> Any:
        """Return one row of output: the key, the event, and the content of the state."""
        row = dict(zip(("k", "what", "state"), columns, strict=True))
        return pd.DataFrame([row]) if self.form == "pandas" else Row(**row)

    def close(self) -> None:
        return


class Everything(Processor):
    """Writes and removes every kind of state. Its output has the whole content of the state.

    In event time it registers and deletes timers. In processing time it also has state that
    expires. A time-out of an hour never ends in a test. A time-out of a millisecond ends before the
    next batch. A timer in the past fires in its own batch.
    """

    def __init__(self, form: str, time: str) -> None:
        super().__init__(form)
        self.time = time

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.count = handle.getValueState("count", _ONE)
        self.recent = handle.getListState("recent", _ONE)
        self.latest = handle.getMapState("latest", _KEY, _ONE)
        self.lasting: list[Any] = []
        if self.time == "ProcessingTime":
            for name, ttl_ms in (("kept", _HOUR_MS), ("brief", 1)):
                self.lasting.append(
                    handle.getValueState(f"{name}Value", _ONE, ttlDurationMs=ttl_ms)
                )
                self.lasting.append(handle.getListState(f"{name}List", _ONE, ttlDurationMs=ttl_ms))
                self.lasting.append(
                    handle.getMapState(f"{name}Map", _KEY, _ONE, ttlDurationMs=ttl_ms)
                )

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        before = self.state()
        values = self.values(rows)
        count = (self.count.get()[0] if self.count.exists() else 0) + len(values)
        self.count.update((count,))
        for v in values[:3]:
            self.recent.appendValue((v,))
            self.latest.updateValue((v % 7,), (v,))
            for i in range(0, len(self.lasting), 3):
                self.lasting[i].update((v,))
                self.lasting[i + 1].appendValue((v,))
                self.lasting[i + 2].updateValue((v % 3,), (v,))
        recent = [v[0] for v in self.recent.get()]
        if len(recent) > 4:
            self.recent.put([(v,) for v in recent[-2:]])
            self.recent.appendList([(-1,), (-2,)])
        if count % 3 == 0 and self.latest.containsKey((1,)):
            self.latest.removeKey((1,))
        if count % 4 == 0 and self.lasting:
            self.lasting[1].clear()
            self.lasting[2].clear()
        self.timers(timerValues)
        yield self.out(key[0], f"input, before: {before}", self.state())

    def timers(self, timerValues: Any) -> None:
        if self.time == "EventTime":
            watermark = timerValues.getCurrentWatermarkInMs()
            for timer in list(self.handle.listTimers()):
                if timer > watermark + 25 * _STEP_MS:
                    self.handle.deleteTimer(timer)
            self.handle.registerTimer(watermark + 20 * _STEP_MS)
            self.handle.registerTimer(watermark + 30 * _STEP_MS)
        if self.time == "ProcessingTime":
            now = timerValues.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(1)
            self.handle.registerTimer(now + 1)  # the next batch is later
            self.handle.registerTimer(2_000_000_000_000 + len(list(self.handle.listTimers())))
            for timer in list(self.handle.listTimers()):
                if timer == 2_000_000_000_002:
                    self.handle.deleteTimer(timer)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        if self.count.exists() and self.count.get()[0] % 2 == 0:
            self.latest.clear()
            self.count.clear()
        when = (
            f"fired at {fired}"
            if self.time == "EventTime"
            else "fired late"
            if fired == 1
            else "fired"
        )
        yield self.out(key[0], when, self.state())

    def state(self) -> str:
        found: list[Any] = [
            self.count.get(),
            list(self.recent.get()),
            sorted(self.latest.iterator()),
        ]
        for i in range(0, len(self.lasting), 3):
            found += [
                self.lasting[i].get(),
                list(self.lasting[i + 1].get()),
                sorted(self.lasting[i + 2].iterator()),
            ]
        timers = sum(1 for _ in self.handle.listTimers()) if self.time != "None" else 0
        return f"{[_plain(each) for each in found]}, {timers} timers"


class Seeded(Processor):
    """Sums per key. It starts from the sums of an initial state."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.sum = handle.getValueState("sum", _ONE)
        self.seeds = handle.getListState("seeds", _ONE)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        seed = int(initialState["v"].iloc[0]) if self.form == "pandas" else initialState["v"]
        self.sum.update((seed,))
        self.seeds.appendValue((seed,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        total = (self.sum.get()[0] if self.sum.exists() else 0) + sum(self.values(rows))
        self.sum.update((total,))
        yield self.out(key[0], f"seeds {_plain(list(self.seeds.get()))}", str(total))


class Dropping(Processor):
    """Has two variables at first, and later drops one."""

    def __init__(self, form: str, drop: bool) -> None:
        super().__init__(form)
        self.drop = drop

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.kept = handle.getValueState("kept", _ONE)
        if self.drop:
            handle.deleteIfExists("dropped")
            handle.deleteIfExists("never")
        else:
            self.dropped = handle.getMapState("dropped", _KEY, _ONE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        values = self.values(rows)
        self.kept.update(((self.kept.get()[0] if self.kept.exists() else 0) + len(values),))
        if not self.drop:
            for v in values:
                self.dropped.updateValue((v,), (v,))
        yield self.out(key[0], "dropped" if self.drop else "both", str(self.kept.get()[0]))


class Evolving(Processor):
    """Has a value that gets one more field."""

    def __init__(self, form: str, schema: StructType) -> None:
        super().__init__(form)
        self.schema = schema

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.value = handle.getValueState("value", self.schema)
        self.list = handle.getListState("list", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        old = tuple(self.value.get()) if self.value.exists() else None
        more = () if len(self.schema) == 1 else (f"text {key[0]}",)
        for v in self.values(rows):
            self.value.update((v, *more))
            self.list.appendValue((v, *more))
        yield self.out(key[0], str(old), str(_plain(list(self.list.get()))))


class Emitting(Processor):
    """Emits rows with their own event time, for the next operator."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.count = handle.getValueState("count", _ONE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        found = list(rows)
        times = (
            [t for frame in found for t in frame["ts"]]
            if self.form == "pandas"
            else [row["ts"] for row in found]
        )
        count = (self.count.get()[0] if self.count.exists() else 0) + len(times)
        self.count.update((count,))
        if self.form == "pandas":
            yield pd.DataFrame({"k": [key[0]], "at": [max(times)], "n": [count]})
        else:
            yield Row(k=key[0], at=max(times), n=count)


def _plain(value: Any) -> Any:
    """Return rows as tuples. The two forms of the API return different types."""
    if isinstance(value, (list, tuple)):
        return (
            type(value)(map(_plain, value))
            if type(value) in (list, tuple)
            else tuple(map(_plain, value))
        )
    return value


def _states(
    processor: Processor, time: str, mode: str = "Update", **more: Any
) -> Callable[..., DataFrame]:
    """Return a function that applies `processor` to a grouped stream."""

    def apply(grouped: Any, output: str = _OUTPUT) -> DataFrame:
        method = transform_with_state(grouped, processor.form)
        found: DataFrame = method(processor, output, mode, time, **more)
        return found

    return apply


def _everything(form: str, time: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        return _states(Everything(form, time), time)(
            i[0].withWatermark("ts", "10 seconds").groupBy("k")
        )

    return build


def _plainly(processor: Processor) -> Build:
    return lambda i: _states(processor, "None")(i[0].groupBy("k"))


def _odd_keys(form: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        return _states(Everything(form, "None"), "None")(i[0].groupBy("s", "d", "b", "n"))

    return build


def _seeded(form: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        seeds = i[0].sparkSession.createDataFrame(
            [("a", 1000), ("zz", 5), (None, 7)], "k string, v long"
        )
        return _states(Seeded(form), "None", initialState=seeds.groupBy("k"))(i[0].groupBy("k"))

    return build


def _chained(form: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        grouped = i[0].withWatermark("ts", "10 seconds").groupBy("k")
        states = _states(Emitting(form), "EventTime", "Append", eventTimeColumnName="at")
        return (
            states(grouped, "k string, at timestamp, n long")
            .groupBy(F.window("at", "10 seconds").alias("w"))
            .agg(F.sum("n").alias("n"), F.collect_set("k").alias("keys"))
        )

    return build


def _collated(form: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        spelt = F.when(F.col("v") % 2 == 0, F.upper("k")).otherwise(F.col("k"))
        return _states(Seeded(form), "None")(
            i[0].withColumn("k", F.collate(spelt, "UTF8_LCASE")).groupBy("k")
        )

    return build


_TIMERS = (
    {"stateVarName": "recent"},
    {"stateVarName": "latest"},
    {"readRegisteredTimers": "true", "batchId": "2"},
)
_EXPIRING = tuple({"stateVarName": name} for name in ("keptValue", "keptList", "keptMap"))


def _cases(form: str, api: str) -> list[Case]:
    """Return the cases of one form.

    Formats, encodings and settings alternate between the forms. So every kind of state meets all
    of them.
    """
    pandas = form == "pandas"
    one, two = (1, 2) if pandas else (2, 1)
    event, processing = _everything(form, "EventTime"), _everything(form, "ProcessingTime")
    timed = {} if pandas else AVRO
    lasting = {**NO_EMPTY_BATCHES, **({} if timed else AVRO)}
    small = {BUDGET: "1m"}
    odd = _odd_keys(form)
    added, plain = _plainly(Evolving(form, _WITH_TEXT)), _plainly(Evolving(form, _ONE))
    both, dropped = _plainly(Dropping(form, drop=False)), _plainly(Dropping(form, drop=True))
    grown, late = ("(6, None)", "text a"), ("fired late", "'fired'")
    kept = ({"stateVarName": "kept"},)

    def case(
        name: str, build: Build, checkpoint_format: int, mode: str = "update", **more: Any
    ) -> Case:
        inputs = more.pop("inputs", CLICKED)
        runs = 3 if "later" in more else 2
        return Case(f"{form}-{name}", build, inputs, mode, checkpoint_format, runs=runs, **more)

    cases = [
        *of(
            f"{api}: state and timers by event time",
            case(
                "event-time", event, one, fail_at=2, conf=timed, shows=("fired at",), reads=_TIMERS
            ),
        ),
        *of(
            f"{api}: state with TTL and timers by processing time",
            case(
                "processing-time",
                processing,
                two,
                conf=lasting,
                candidate_conf=small,
                shows=late,
                reads=_EXPIRING,
            ),
        ),
        *of(
            f"{api}: state without time",
            case("no-time-odd-keys", odd, two, inputs=ODD_KEYS, fail_at=0, candidate_conf=small),
        ),
        *of(f"{api}: initial state", case("initial-state", _seeded(form), two, shows=("1000",))),
        *of(
            f"{api}: deleteIfExists",
            case("delete-if-exists", both, one, later=dropped, shows=("dropped",), reads=kept),
        ),
        *of(
            f"{api}: in a chain with another stateful operator",
            case("then-window", _chained(form), two, "append"),
        ),
        *of(
            f"{api}: a field more in the value, with Avro",
            case("evolution", plain, one, conf=AVRO, later=added, shows=grown),
        ),
    ]
    if pandas:
        changed = "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
        refused = case("evolution-refused", plain, two, later=added, refused=changed)
        return [*cases, *of(f"{api}: a field more in the value, without Avro", refused)]
    # Spark's schema of this state says string, without the collation. Its shuffle placed the keys
    # by the collation.
    collated = replace(
        case("collated-keys", _collated(form), one), unscalable="Spark did not place it by the key"
    )
    return [*cases, *of(f"{api}: keys with a collation", collated)]


CASES = [
    *_cases("pandas", "transformWithStateInPandas"),
    *_cases("row", "transformWithState in Python"),
]
