"""Joins of two streams whose rows end by a time to live, beside a model with a clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond
from integration.cases import EVENTS, NO_EMPTY_BATCHES, events
from integration.clocked import START_MS, ClockedRuns
from integration.depth import deep
from integration.harness import millponds_own, short_conf
from integration.jvm import MILLPOND, ROCKSDB
from integration.provider import Timed
from integration.streams import Input
from integration.ttl_join_model import Event, JoinModel
from integration.ttl_model import age_of

pytestmark = millponds_own

_SIDES = ("left", "right")

Batch = tuple[int, Sequence[Event], Sequence[Event]]
"""How many seconds pass before it, and the rows of both sides."""


def keyed(frame: DataFrame, columns: int) -> DataFrame:
    """Return the frame with join keys of several types."""
    keys: list[Column] = [
        F.struct(F.col("k").alias("x"), F.length("k").alias("y")),
        F.concat(F.lit("1234567890123.0"), F.length("k").cast("string")).cast("decimal(30,4)"),
        F.col("k").cast("binary"),
        *(F.concat("k", F.lit(i)) for i in range(3, columns)),
    ]
    return frame.select("*", *(key.alias(f"key{i}") for i, key in enumerate(keys)))


def joined(left: DataFrame, right: DataFrame, model: JoinModel, columns: int) -> DataFrame:
    """Return the join that the model describes."""
    left, right = keyed(left, columns).alias("l"), keyed(right, columns).alias("r")
    if model.timed_by_events:
        left = left.withWatermark("ts", "300 seconds")
        right = right.withWatermark("ts", "300 seconds")
    condition = F.lit(True)
    for i in range(columns):
        condition &= F.col(f"l.key{i}") == F.col(f"r.key{i}")
    if model.timed_by_events:
        hour = F.expr("interval 1 hour")
        condition &= F.col("l.ts") >= F.col("r.ts") - hour
        condition &= F.col("l.ts") <= F.col("r.ts") + hour
    if model.kind == "left_semi":
        condition &= F.col("l.v") >= -F.col("r.v")  # always: keep `v` in the right rows
    both = left.join(right, condition, model.kind)
    if model.kind == "left_semi":
        return both.select("l.k", "l.v")
    return both.select("l.k", "l.v", F.col("r.v").alias("w"))


@dataclass
class Join:
    """A join in a Spark checkpoint, its clock and its model."""

    spark: SparkSession
    directory: Path
    model: JoinModel
    format: int = 2
    columns: int = 3
    checkpoint: Path = field(init=False)
    now_ms: int = START_MS
    batch: int = 0

    def __post_init__(self) -> None:
        self.checkpoint = self.directory / "checkpoint"
        self.inputs = [Input(self.directory / side, EVENTS) for side in _SIDES]
        self.runs = ClockedRuns(self.spark)

    def run(
        self,
        batches: Sequence[Batch],
        ttl_s: int | None,
        *,
        fails: bool = False,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Run batches and compare them and the state after the last one with the model.

        Args:
            fails: let the sink fail after the first one, and the query begin again.
        """
        times, outputs, ended, total = {}, {}, {}, {}
        self.model.restart()
        for number, (passes_s, *inputs) in enumerate(batches, self.batch):
            for source, rows in zip(self.inputs, inputs, strict=True):
                source.add(events(*rows))
            self.now_ms += passes_s * 1000
            times[number] = self.now_ms
            timed = None if ttl_s is None else Timed(self.now_ms, ttl_s * 1000)
            ended[number] = self.model.begin(timed)
            outputs[number] = self.model.batch(inputs, timed)
            total[number] = sum(len(self.model.rows(side)) for side in (0, 1))
        options = {**({} if ttl_s is None else {"millpond.ttl": f"{ttl_s}s"}), **(conf or {})}
        settled = {"providerClass": MILLPOND, "checkpointFormatVersion": self.format, **options}
        self.runs.run(
            self._frame,
            "append",
            self.checkpoint,
            times,
            short_conf(settled) | NO_EMPTY_BATCHES,
            fails=fails,
        )
        first = self.batch + (1 if fails else 0)  # the failed attempt told nobody what ended
        for number in times:
            assert sorted(self.runs.rows[number], key=repr) == outputs[number], f"batch {number}"
            assert self.runs.total(number) == total[number], f"batch {number}"
            assert number < first or self.runs.ended(number) == ended[number], f"batch {number}"
        self.batch += len(batches)
        if options.get("providerClass", MILLPOND) == MILLPOND:
            self.check_state()

    def _frame(self) -> DataFrame:
        left, right = (source.stream(self.spark) for source in self.inputs)
        return joined(left, right, self.model, self.columns)

    def check_state(self, path: Path | None = None) -> None:
        """Compare the state, as the Python package reads it, with the model: rows and ages, and
        that the indexes of each key are those below its count.
        """
        path = path or self.checkpoint
        for here, side in enumerate(_SIDES):
            counts, rows = f"{side}-keyToNumValues", f"{side}-keyWithIndexToValue"
            table = millpond.read_state(path, operator=0, store=rows)
            values = [value["v"] for value in table.column("value").to_pylist()]
            assert sorted(values) == sorted(event[2] for event in self.model.rows(here)), side
            indexes = defaultdict(list)
            for key in table.column("key").to_pylist():
                index = key.pop("index")
                indexes[repr(key)].append(index)
            table = millpond.read_state(path, operator=0, store=counts)
            keys = [repr(key) for key in table.column("key").to_pylist()]
            below = [list(range(n["value"])) for n in table.column("value").to_pylist()]
            assert {key: sorted(found) for key, found in indexes.items()} == dict(
                zip(keys, below, strict=True)
            ), side
            assert self.ages(path, rows) == self.model.ages(here), side
            assert set(self.ages(path, counts)) <= {None}

    @staticmethod
    def ages(path: Path, store: str) -> list[int | None]:
        """Return the ages of a store's rows, sorted."""
        table = millpond.read_state(path, operator=0, store=store, raw=True)
        ages = map(age_of, table.column("value_bytes").to_pylist())
        return sorted(ages, key=lambda age: age or 0)


def batch(passes_s: int, left: str, right: str, first: int = 0) -> Batch:
    """Return a batch with a row for each letter."""
    return (
        passes_s,
        [(key, 0, first + i) for i, key in enumerate(left)],
        [(key, 0, first + 100 + i) for i, key in enumerate(right)],
    )


@pytest.mark.deep
@pytest.mark.parametrize(
    ("kind", "format"), [("inner", 2), ("inner", 1), ("left_semi", 1), ("left_semi", 2)]
)
def test_rows_of_a_join_end(spark: SparkSession, tmp_path: Path, kind: str, format: int) -> None:
    """It is off, then on, shorter, and off again. The first batch of each run is repeated."""
    # Spark demands a watermark for a left semi join. Here no row is older than it.
    join = Join(spark, tmp_path, JoinModel(kind, kind == "left_semi"), format)
    join.run([batch(0, "aaabc", "d"), batch(3600, "ad", "ce", 10)], None)
    # what is older than the option counts from its first batch on
    join.run(
        [
            batch(3600, "ab", "f", 20),
            batch(30, "aag", "bg", 30),
            batch(31, "a", "aceh", 40),  # what came without an age ends
            batch(30, "a", "abg", 50),  # in the middle of its key
        ],
        60,
        fails=True,
    )
    join.run([batch(20, "h", "ab", 60), batch(12, "bh", "ah", 70)], 30, fails=True)
    join.run([batch(3600, "hi", "ab", 80)], None, fails=True)
    join.run([batch(5, "hk", "ki", 90), batch(61, "k", "hk", 200)], 60)


@pytest.mark.deep
def test_keys_of_more_columns_than_a_word_has_bits(spark: SparkSession, tmp_path: Path) -> None:
    """The key with its index has a longer set of null bits than the key of the count."""
    join = Join(spark, tmp_path, JoinModel(), columns=64)
    join.run([batch(0, "aab", "c"), batch(40, "a", "", 10), batch(21, "", "abc", 20)], 60)
    assert join.runs.ended(2) == 4


def _random_batches(random: Random, number: int) -> list[Batch]:
    batches: list[Batch] = []
    for n in range(number):
        left, right = (
            [
                (key, 1200 * n + 600 * random.randrange(-3, 6), 100 * n + i)
                for i, key in enumerate(random.choices("abcd", k=random.randrange(1, 6)))
            ]
            for _ in _SIDES
        )
        batches.append((random.choice([5, 20, 20, 61]), left, right))
    return batches


@pytest.mark.parametrize(("kind", "format"), [("inner", 2), deep(("left_semi", 1))])
def test_the_watermark_and_the_time_to_live_end_rows(
    spark: SparkSession, tmp_path: Path, kind: str, format: int
) -> None:
    """Both end rows from the middle of a key; a restart in between."""
    join = Join(spark, tmp_path, JoinModel(kind, timed_by_events=True), format)
    batches = _random_batches(Random(7), 14)
    join.run(batches[:7], 60)
    join.run(batches[7:], 60, fails=True)
    assert sum(map(join.runs.ended, join.runs.operators)) > 10


@pytest.mark.deep
def test_commands_keep_the_ages_of_a_join(spark: SparkSession, tmp_path: Path) -> None:
    """A savepoint as tables, a restore to other partitions, a rescale, and a release."""
    join = Join(spark, tmp_path, JoinModel())
    join.run([batch(0, "aab", "c"), batch(30, "abc", "d", 10), batch(10, "d", "e", 20)], 60)
    saved = tmp_path / "saved"
    millpond.savepoint.create(join.checkpoint, saved, format="canonical")
    join.check_state(saved)
    join.checkpoint = tmp_path / "restored"
    millpond.savepoint.restore(saved, join.checkpoint, partitions=3)
    join.run([batch(21, "e", "f", 30)], 60)
    assert join.runs.ended(3) == 3  # of `a` the first two: the third one moved
    millpond.rescale(join.checkpoint, partitions=6)
    join.batch += 1  # the rescale's own
    join.run([batch(10, "", "abd", 40)], 60)
    released = tmp_path / "released"
    millpond.release(join.checkpoint, released, provider="rocksdb")
    join.checkpoint = released
    join.run([batch(3600, "ab", "abcdef", 50)], None, conf={"providerClass": ROCKSDB})
