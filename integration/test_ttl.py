"""Queries whose rows end by a time to live, beside a model with a clock, over failed batches, other
times to live, and what the commands make of such state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond
from integration.cases import EVENTS, events
from integration.clocked import START_MS, ClockedRuns
from integration.depth import deep
from integration.harness import millponds_own, short_conf
from integration.jvm import MILLPOND, ROCKSDB
from integration.provider import Timed
from integration.streams import Input, settings
from integration.ttl_model import Aged
from millpond.state.ages import AGE_BYTES

pytestmark = millponds_own


def dedup(source: DataFrame) -> DataFrame:
    """Return the first row of each key."""
    return source.select("k").dropDuplicates(["k"])


def count(source: DataFrame) -> DataFrame:
    """Return how many rows each key has."""
    return source.groupBy("k").agg(F.count("*").alias("n"))


def expected(shape: str, state: Aged[str, int], keys: Sequence[str], timed: Timed | None) -> Any:
    """Do a batch in the model, and return its output."""
    if shape == "dedup":
        new = [key for key in dict.fromkeys(keys) if key not in state.rows]
        for key in new:
            state.write(key, 0, timed)
        return sorted([key] for key in new)
    for key, rows in Counter(keys).items():
        state.write(key, state.values().get(key, 0) + rows, timed)
    shown = state.values() if shape == "complete" else dict.fromkeys(keys)
    return sorted([key, state.values()[key]] for key in shown)


SHAPES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "dedup": (dedup, "append"),
    "update": (count, "update"),
    "complete": (count, "complete"),
}


@dataclass
class Query:
    """A query of one shape in a Spark checkpoint, its clock and its model."""

    spark: SparkSession
    directory: Path
    shape: str
    format: int
    checkpoint: Path = field(init=False)
    model: Aged[str, int] = field(default_factory=Aged)
    now_ms: int = START_MS
    batch: int = 0

    def __post_init__(self) -> None:
        self.checkpoint = self.directory / "checkpoint"
        self.source = Input(self.directory / "input", EVENTS)
        self.runs = ClockedRuns(self.spark)

    def run(
        self,
        batches: Sequence[tuple[int, Sequence[str]]],
        ttl: str | None,
        ttl_ms: int | None,
        *,
        fails: bool = False,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Run batches: how many seconds pass before each, and its keys, such as "abc".

        Args:
            fails: let the sink fail after the first one, and the query begin again.
        """
        times, outputs, ended = {}, {}, {}
        for number, (passes_s, keys) in enumerate(batches, self.batch):
            self.source.add(events(*((key, 0, 1) for key in keys)))
            self.now_ms += passes_s * 1000
            times[number] = self.now_ms
            timed = None if ttl_ms is None else Timed(self.now_ms, ttl_ms)
            ended[number] = self.model.begin(timed)
            outputs[number] = expected(self.shape, self.model, keys, timed)
        build, mode = SHAPES[self.shape]
        options = {**({} if ttl is None else {"millpond.ttl": ttl}), **(conf or {})}
        settled = {"providerClass": MILLPOND, "checkpointFormatVersion": self.format, **options}
        self.runs.run(
            lambda: build(self.source.stream(self.spark)),
            mode,
            self.checkpoint,
            times,
            short_conf(settled),
            fails=fails,
        )
        last = self.batch + len(batches) - 1
        for number in range(self.batch, last + 1):
            assert sorted(self.runs.rows[number]) == outputs[number], f"batch {number}"
        assert self.runs.total(last) == len(self.model.rows)
        first = self.batch + (1 if fails else 0)  # the failed attempt told nobody
        for number in range(first, last + 1):
            assert self.runs.ended(number) == ended[number], f"batch {number}"
        self.batch = last + 1

    def stored(self, path: Path | None = None) -> dict[str, int]:
        """Return the state as the Python package reads it."""
        table = millpond.read_state(path or self.checkpoint)
        keys = [key["k"] for key in table.column("key").to_pylist()]
        values = [next(iter(value.values())) for value in table.column("value").to_pylist()]
        return {key: value or 0 for key, value in zip(keys, values, strict=True)}


@pytest.mark.parametrize(
    ("shape", "format"),
    [
        ("update", 2),
        deep(("dedup", 1)),
        deep(("dedup", 2)),
        deep(("update", 1)),
        deep(("complete", 1)),
        deep(("complete", 2)),
    ],
)
def test_rows_end(spark: SparkSession, tmp_path: Path, shape: str, format: int) -> None:
    """It is off, then on, shorter, and off again. The first batch of each run is repeated."""
    query = Query(spark, tmp_path, shape, format)
    query.run([(0, "aabc"), (3600, "ad")], None, None)
    assert query.stored() == query.model.values()
    # what is older than the option counts from its first batch on
    query.run([(3600, "be"), (30, "bf"), (29, "a"), (3, "ag")], "1min", 60_000, fails=True)
    assert query.stored() == query.model.values()
    query.run([(20, "h"), (12, "bh")], "30s", 30_000, fails=True)
    query.run([(3600, "hi"), (3600, "j")], None, None, fails=True)
    assert query.stored() == query.model.values()
    query.run([(5, "hk"), (61, "k")], "1min", 60_000)
    assert query.stored() == query.model.values()


@pytest.mark.deep
def test_a_day_of_new_keys(spark: SparkSession, tmp_path: Path) -> None:
    """The results are those of the model, and the state stays flat."""
    query = Query(spark, tmp_path, "dedup", 2)
    random = Random(3)
    batches = []
    for number in range(96):
        new = [f"{number}-{i}" for i in range(200)]
        # of the last six hours: some have ended
        since = range(max(0, number - 24), number + 1)
        old = [f"{random.choice(since)}-{random.randrange(200)}" for _ in range(50)]
        batches.append((900, new + old))
    for first in range(0, 96, 32):  # a restart, and a batch that is repeated
        query.run(batches[first : first + 32], "4h", 4 * 3600 * 1000, fails=True)
    late = [query.runs.total(number) for number in range(40, 96)]
    assert max(late) < 1.1 * min(late)
    assert sum(map(query.runs.ended, query.runs.operators)) > 10_000


def test_commands_keep_ages(spark: SparkSession, tmp_path: Path) -> None:
    """A savepoint as tables that is edited, a restore to other partitions, and a rescale."""
    query = Query(spark, tmp_path, "update", 2)
    query.run([(0, "ab"), (30, "bc"), (10, "d")], "1min", 60_000)
    saved = tmp_path / "saved"
    millpond.savepoint.create(query.checkpoint, saved, format="canonical")
    assert query.stored(saved) == query.model.values()
    edited = tmp_path / "edited"
    millpond.savepoint.edit(saved, edited, operator=0, function=_more)
    query.model.rows = {key: (value + 1, age) for key, (value, age) in query.model.rows.items()}
    assert query.stored(edited) == query.model.values()
    query.checkpoint = tmp_path / "restored"
    millpond.savepoint.restore(edited, query.checkpoint, partitions=3)
    # `a` has ended, and nothing else
    query.run([(21, "e")], "1min", 60_000)
    millpond.rescale(query.checkpoint, partitions=6)
    query.batch += 1  # the rescale's own
    # `b` and `c` end by the ages that they had before all that
    query.run([(30, "b")], "1min", 60_000)
    assert query.stored() == query.model.values()


def _more(rows: Any) -> Any:
    values = rows.column("value")
    more = pc.add(values.field(0), 1)
    changed = pa.StructArray.from_arrays([more], fields=list(values.type))
    return pa.RecordBatch.from_arrays([rows.column("key"), changed], names=["key", "value"])


def test_rows_of_another_store_count_from_the_first_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They had no age there."""
    query = Query(spark, tmp_path, "update", 2)
    query.run([(0, "abc"), (3600, "a")], None, None, conf={"providerClass": ROCKSDB})
    adopted = tmp_path / "adopted"
    millpond.adopt(query.checkpoint, adopted)
    query.checkpoint = adopted
    query.run([(3600, "ad"), (30, "b"), (31, "e")], "1min", 60_000, fails=True)
    assert query.stored() == query.model.values()
    assert sorted(query.model.values()) == ["b", "e"]


@pytest.mark.deep
def test_rows_that_come_and_go_end_by_their_last_write(spark: SparkSession, tmp_path: Path) -> None:
    """A row that each batch writes stays, and one that ended begins anew, over many steps."""
    query = Query(spark, tmp_path, "update", 1)
    batches = [(20, "a" + "b" * (number % 2) + "c" * (number % 5 == 0)) for number in range(16)]
    query.run(batches, "1min", 60_000)
    assert query.model.values()["a"] == 16
    assert query.model.values()["c"] == 1
    query.run([(59, "d"), (1, "d")], "1min", 60_000, fails=True)
    assert query.stored() == query.model.values()


def test_release_takes_ages_off(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own store goes on with what was there."""
    query = Query(spark, tmp_path, "update", 1)
    query.run([(0, "ab"), (30, "bc"), (35, "d")], "1min", 60_000)
    released = tmp_path / "released"
    millpond.release(query.checkpoint, released, provider="rocksdb")
    with settings(spark, short_conf({"providerClass": ROCKSDB})):
        rows = spark.read.format("statestore").load(str(released)).collect()
    assert {row.key.k: row.value[0] for row in rows} == query.model.values()


@dataclass(frozen=True)
class Refused:
    """A setting that cannot be meant, and what its error says."""

    name: str
    conf: Mapping[str, str]
    says: Sequence[str]
    build: Callable[[DataFrame], DataFrame] = dedup
    mode: str = "append"
    trigger: Mapping[str, Any] = field(default_factory=lambda: {"availableNow": True})
    spark: Mapping[str, str] = field(default_factory=dict)


def _window(source: DataFrame) -> DataFrame:
    return source.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 minute")).count()


def _join(source: DataFrame) -> DataFrame:
    return source.join(source.withColumnRenamed("v", "w"), ["k", "ts"])


def _outer_join(source: DataFrame) -> DataFrame:
    marked = source.withWatermark("ts", "1 hour")
    return marked.join(marked.withColumnRenamed("v", "w"), ["k", "ts"], "left")


def _sessions(source: DataFrame) -> DataFrame:
    marked = source.withWatermark("ts", "1 hour")
    return marked.groupBy(F.session_window("ts", "1 minute"), "k").count()


def _within(source: DataFrame) -> DataFrame:
    return source.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["k"])


REFUSED = [
    Refused("zero", {"ttl": "0s"}, ["'0s'", "not above zero"]),
    Refused("negative", {"ttl": "-1h"}, ["'-1h'", "not above zero"]),
    Refused("below-a-second", {"ttl": "999ms"}, ["'999ms'", "below a second"]),
    Refused("too-long", {"ttl": "99999999999999999999d"}, ["above 100 years"]),
    Refused("no-time", {"ttl": "soon"}, ["'soon'", "which is no time", "24h"]),
    Refused("no-unit", {"ttl": "60"}, ["'60'", "which is no time"]),
    Refused("no-list", {"ttl.operators": "1h"}, ["'1h'", "no operator with a time"]),
    Refused("unknown", {"ttl.operators": "7=1h"}, ["names the operator 7", "0 (dedupe)"]),
    Refused("unknown-name", {"ttl.operators": "join=1h"}, ["operator join", "0 (dedupe)"]),
    Refused("twice", {"ttl.operators": "0=1h,0=2h"}, ["names 0 twice"]),
    Refused(
        "shorter-than-the-trigger",
        {"ttl": "30s"},
        ["shorter than the query's trigger of 60000 ms"],
        trigger={"processingTime": "1 minute"},
    ),
    Refused("append", {"ttl": "1h"}, ["(stateStoreSave)", "never come out", "0=off"], _window),
    Refused(
        "outer-join",
        {"ttl": "1h"},
        ["(symmetricHashJoin)", "left outer join", "without a match", "never come out", "0=off"],
        _outer_join,
    ),
    Refused(
        "join-in-one-store",
        {"ttl": "1h"},
        ["(symmetricHashJoin)", "the format 3", "join.stateFormatVersion", "0=off"],
        _join,
        spark={"spark.sql.streaming.join.stateFormatVersion": "3"},
    ),
    Refused("sessions", {"ttl": "1h"}, ["the watermark ends its rows"], _sessions),
    Refused("within", {"ttl.operators": "0=1h"}, ["the watermark ends its rows"], _within),
    Refused(
        "limit",
        {"ttl": "1h"},
        ["(globalLimit)", "more rows would pass"],
        lambda source: source.select("k").limit(3),
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused_at_the_start(spark: SparkSession, tmp_path: Path, case: Refused) -> None:
    source = Input(tmp_path / "input", EVENTS)
    source.add(events(("a", 0, 1)))
    conf = {"providerClass": MILLPOND, **{f"millpond.{k}": v for k, v in case.conf.items()}}
    with settings(spark, {**short_conf(conf), **case.spark}):
        writer = case.build(source.stream(spark)).writeStream.outputMode(case.mode).format("noop")
        query = (
            writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**case.trigger)
            .start()
        )
        try:
            with pytest.raises(StreamingQueryException) as error:
                query.awaitTermination(60)
        finally:
            query.stop()
    text = str(error.value)
    assert "[MILLPOND_INVALID_OPTION]" in text
    assert [part for part in case.says if part not in text] == []
    assert not list((tmp_path / "checkpoint").glob("state/0/*/*.changelog"))


def test_an_operator_that_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """The join stays as it is, and the operator above it has a time to live."""
    source = Input(tmp_path / "input", EVENTS)
    for keys in ("ab", "bc"):
        source.add(events(*((key, 0, 1) for key in keys)))

    def build(stream: DataFrame) -> DataFrame:
        return _join(stream).groupBy("k").count()

    conf = {
        "providerClass": MILLPOND,
        "millpond.ttl": "1h",
        "millpond.ttl.operators": "symmetricHashJoin=off, stateStoreSave=2h",
    }
    with settings(spark, short_conf(conf)):
        writer = build(source.stream(spark)).writeStream.outputMode("update").format("noop")
        checkpoint = tmp_path / "checkpoint"
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
    assert _ages(checkpoint, "stateStoreSave") == [AGE_BYTES] * 3
    left = "left-keyWithIndexToValue"
    assert _ages(checkpoint, "symmetricHashJoin", left) == [0] * 4


def _ages(checkpoint: Path, operator: str, store: str | None = None) -> list[int]:
    """Return how many bytes each value of an operator has behind its row."""
    table = millpond.read_state(checkpoint, operator=operator, store=store, raw=True)
    return [(len(value) - 1) % 8 for value in table.column("value_bytes").to_pylist()]
