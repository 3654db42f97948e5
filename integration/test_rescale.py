"""Every operator goes on after a rescale.

Each batch equals that of the same query on Spark's own store, without a rescale.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import millpond
from integration.cases import CLICKED, Case, transform_with_state
from integration.depth import quick_first
from integration.jvm import IS_SPARK_4_2, MILLPOND, ROCKSDB
from integration.processes import wait_until
from integration.python_state_cases import Seeded
from integration.shapes import SHAPES, named
from integration.state_digests import rescale_and_compare
from integration.streams import Input, Run, count_numbers, finish, settings, start
from millpond.config import PREFIX
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout
from millpond.operations.inspect import overview, verify
from millpond.operations.rescale import rescale, undo
from millpond.spark.heartbeats import read_asked
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import Storage, open_storage

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_BACKEND = "spark.sql.streaming.stateStore.millpond.backend"
_PARTITIONS = "spark.sql.shuffle.partitions"
_TRANSPORT = "spark.sql.streaming.stateStore.millpond.python.transport"
_MIN_DELTAS = "spark.sql.streaming.stateStore.minDeltasForSnapshot"
_ON_RESTART = "spark.sql.streaming.stateStore.millpond.rescale.onRestart"

# The chain begins with 2 partitions. A file of input comes between two rescales. The rescales to 6
# and 5 hash every row anew. The others change only metadata.
CHAIN = (4, 6, 3, 1, 5, 2)
# A longer chain. It has several rescales between two files of input.
WHOLE_CHAIN = (4, 8, 2, 6, 5, 200, 1)

# Each shape has another kind of state. MILLPOND_RESCALE_ALL=rocksdb or heap runs all shapes, on
# that backend.
ALL = os.environ.get("MILLPOND_RESCALE_ALL", "")
SAMPLE = {
    "sessions-append": "heap",
    "join-full": "rocksdb",
    "global-update-ids": "rocksdb",
    "join-inner-v4": "rocksdb",
    "row-event-time": "heap",
}


def _cases() -> list[Any]:
    cases = [
        c
        for c in SHAPES
        if not c.refused and not c.unscalable and c.later is None and not c.random_keys
    ]
    return cases if ALL else quick_first(named(name) for name in SAMPLE)


@pytest.mark.spark
@pytest.mark.parametrize("case", _cases(), ids=lambda c: c.name)
def test_operator_goes_on_after_rescales(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    files = max(len(batches) for _, batches in case.inputs)
    shared = {**case.conf, _FORMAT: str(case.checkpoint_format)}
    reference, candidate = Run(tmp_path / "reference"), Run(tmp_path / "candidate")
    backend = {_BACKEND: ALL or SAMPLE[case.name]}
    sides = [
        (reference, {_PROVIDER: ROCKSDB, _CHANGELOG: "true", **shared}),
        (candidate, {_PROVIDER: MILLPOND, **shared, **backend, **case.candidate_conf}),
    ]
    chain = list(WHOLE_CHAIN if ALL else CHAIN)
    a_time = -(-len(chain) // max(1, files - 1))
    for number in range(files):
        for source, (_, batches) in zip(inputs, case.inputs, strict=True):
            for batch in batches[number : number + 1]:
                source.add(batch)
        queries = [
            start(
                spark,
                case.build([i.stream(spark) for i in inputs]),
                run,
                output_mode=case.mode,
                conf=conf,
                actions=case.actions,
            )
            for run, conf in sides
        ]
        for query, (run, _) in zip(queries, sides, strict=True):
            finish(query, run)
        for partitions in chain[:a_time]:
            rescale_and_compare(candidate.checkpoint, partitions)
        del chain[:a_time]
    assert any(reference.rows.values()), "the query wrote no rows, so the test proves nothing"
    for number, (found, expected) in enumerate(
        zip(candidate.rows.values(), reference.rows.values(), strict=True)
    ):
        assert sorted(set(found) ^ set(expected)) == [], f"batch {number} of the reference"
        assert found == expected
    assert _totals(candidate) == _totals(reference)
    assert verify(open_storage(str(candidate.checkpoint)), str(candidate.checkpoint)).problems == []


def _totals(run: Run) -> list[list[int]]:
    return [[op["numRowsTotal"] for op in operators] for operators in run.state.values()]


@pytest.mark.spark
@pytest.mark.parametrize(
    "name", quick_first(["scala-typed-key", "row-collated-keys", "scala-reordered-key"])
)
def test_keys_that_lie_by_something_else_stay_where_they_are(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """In one partition no key was in a wrong one, so the state was rescaled. Then Spark looked for
    keys where their bytes did not put them.
    """
    case, run = named(name), Run(tmp_path / "run")
    ((schema, batches),) = case.inputs
    source = Input(tmp_path / "input", schema)
    source.add(batches[0])
    shared = {**case.conf, _FORMAT: str(case.checkpoint_format)}
    conf = {_PROVIDER: MILLPOND, **shared, _PARTITIONS: "1"}
    build = case.build([source.stream(spark)])
    finish(start(spark, build, run, output_mode=case.mode, conf=conf), run)
    assert _partitions(run.checkpoint) == 1 and any(run.rows.values())
    with pytest.raises(MillpondError, match="or with a collation") as caught:
        rescale(open_storage(str(run.checkpoint)), "it", 4)
    assert caught.value.kind is ErrorKind.STORE_UNSCALABLE


class _OfTimes(Seeded):
    """Sums of times. It shows a time as text."""

    def out(self, *columns: Any) -> Any:
        return super().out(str(columns[0]), *columns[1:])


# The workers are in UTC.
@pytest.mark.spark
@pytest.mark.parametrize("transport", ["bulk", pytest.param("spark", marks=pytest.mark.deep)])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_times_as_keys_stay_where_they_are_in_another_zone(
    spark: SparkSession, tmp_path: Path, zone: str, transport: str
) -> None:
    """With pandas Spark keeps the state under the times that clocks of the workers would show. In
    one partition no key was in a wrong one: after a rescale all began anew.
    """
    ((schema, batches),) = CLICKED
    run, source = Run(tmp_path / "run"), Input(tmp_path / "input", schema)
    conf = {_PROVIDER: MILLPOND, _TRANSPORT: transport, "spark.sql.session.timeZone": zone}

    def batch(partitions: int) -> dict[str, int]:
        """Run the first file once more. Return the sums by key."""
        source.add(batches[0])
        method = transform_with_state(source.stream(spark).groupBy("ts"), "pandas")
        output = "k string, what string, state string"
        query = start(
            spark,
            method(_OfTimes("pandas"), output, "Update", "None"),
            run,
            output_mode="update",
            conf={**conf, _PARTITIONS: str(partitions)},
        )
        finish(query, run)
        text = "\n".join(run.rows[max(run.rows)])
        return {k: int(n) for k, n in re.findall(r"k='(.*?)'.* state='(.*?)'", text)}

    first = batch(1)
    assert _partitions(run.checkpoint) == 1 and len(first) == 5
    if zone != "UTC":
        with pytest.raises(MillpondError, match="by times of another time zone") as caught:
            rescale(open_storage(str(run.checkpoint)), "it", 4)
        assert caught.value.kind is ErrorKind.STORE_UNSCALABLE
    else:
        rescale(open_storage(str(run.checkpoint)), "it", 4)
        assert batch(4) == {k: 2 * n for k, n in first.items()}


_DAY = dt.date(1582, 10, 10)
_NAMED = pa.struct([("Name", pa.string())])
_SCALED = [
    # form, transport, type of the grouping column, its values, whether they lie by their bytes
    ("pandas", "bulk", pa.float64(), [1.5, None, 2.5], False),
    ("pandas", "bulk", pa.float64(), [1.5, 0.0, 2.5], True),
    ("pandas", "spark", pa.int64(), [1, None, 2], False),
    ("pandas", "spark", pa.int64(), [1, 0, 2], True),
    ("pandas", "bulk", pa.int64(), [1, None, 2], not IS_SPARK_4_2),
    ("row", "bulk", pa.float64(), [1.5, None, 2.5], True),
    ("row", "spark", pa.int32(), [1, None, 2], True),
    ("row", "spark", _NAMED, [{"Name": "a"}, {"Name": None}], False),
    ("row", "bulk", _NAMED, [{"Name": "a"}, {"Name": None}], True),
    ("row", "bulk", pa.date32(), [_DAY, dt.date(2024, 2, 29)], False),
    ("row", "bulk", pa.date32(), [dt.date(1, 1, 1), None], True),
]


@pytest.mark.spark
@pytest.mark.parametrize(("form", "transport", "of", "keys", "alike"), quick_first(_SCALED, 2))
def test_keys_that_spark_makes_of_others_stay_where_they_are(
    spark: SparkSession,
    tmp_path: Path,
    form: str,
    transport: str,
    of: pa.DataType,
    keys: list[Any],
    alike: bool,
) -> None:
    """With pandas a NULL among floats becomes NaN, and Spark keeps the state under that. It placed
    the rows by the NULL. In one partition no key was in a wrong one: after a rescale it began anew.
    """
    run = Run(tmp_path / "run")
    source = Input(tmp_path / "input", pa.schema([("k", of), ("v", pa.int64())]))
    source.add([{"k": k, "v": 1} for k in keys])
    method = transform_with_state(source.stream(spark).groupBy("k"), form)
    build = method(_OfTimes(form), "k string, what string, state string", "Update", "None")
    conf = {_PROVIDER: MILLPOND, _TRANSPORT: transport, _PARTITIONS: "1"}
    finish(start(spark, build, run, output_mode="update", conf=conf), run)
    assert len(run.rows[0]) > 1
    if alike:
        assert millpond.rescale(run.checkpoint, 4).partitions == 4
    else:
        with pytest.raises(MillpondError, match="may be in any partition") as caught:
            millpond.rescale(run.checkpoint, 4)
        assert caught.value.kind is ErrorKind.STORE_UNSCALABLE


# ---- rescales of a running query, and killed rescales


def _partitions(checkpoint: Path) -> int | None:
    return read_spark_metadata(open_storage(str(checkpoint)), batches=(), operators=()).partitions


@pytest.mark.spark
def test_an_edited_number_of_partitions_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run(partitions: int, **more: str) -> None:
        count_numbers(
            spark, checkpoint, available_now=True, conf={_PARTITIONS: str(partitions), **more}
        ).awaitTermination()

    run(2)
    assert overview(open_storage(str(checkpoint)), "it").asked_partitions is None
    run(4)
    view = overview(open_storage(str(checkpoint)), "it")
    assert (view.partitions, view.asked_partitions, view.asked_refused) == (2, 4, "")
    run(2)
    assert overview(open_storage(str(checkpoint)), "it").asked_partitions is None, (
        "the user set the old number again"
    )
    # With the option, the start rescales: first by metadata alone, then by a hash of every row.
    for partitions in (4, 3):
        run(partitions, **{_ON_RESTART: "true"})
        assert _partitions(checkpoint) == partitions
    # A refused rescale leaves the query on its partitions.
    run(5, **{_ON_RESTART: "true", f"{PREFIX}maxParallelism": "384"})
    view = overview(open_storage(str(checkpoint)), "it")
    assert (view.partitions, view.asked_partitions) == (
        3,
        5,
    ) and "MAX_PARALLELISM_INVALID" in view.asked_refused
    with settings(spark, {_PROVIDER: MILLPOND}):
        rows = spark.read.format("statestore").load(str(checkpoint)).select("value.count").collect()
    assert sum(row["count"] for row in rows) == 600
    assert verify(open_storage(str(checkpoint)), "it").problems == []


@pytest.mark.spark
def test_partitions_are_put_together_from_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    """The new partitions come from snapshots and the changelogs above them.

    Until the next snapshot, stores read some rows from the old files. With so many key groups the
    files do not have the key count of each. So the stores count keys.
    """
    checkpoint = tmp_path / "checkpoint"
    storage, root = open_storage(str(checkpoint)), str(checkpoint)
    conf = {_PROVIDER: MILLPOND, _PARTITIONS: "6", _MIN_DELTAS: "1", _BACKEND: ALL or "rocksdb"}
    conf[f"{PREFIX}maxParallelism"] = "12288"

    def run() -> int:
        with settings(spark, conf):
            numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 500).load()
            counts = (
                numbers.withColumn("key", numbers.value % 700).groupBy("key").count().writeStream
            )
            counts = counts.outputMode("update").format("noop").option("checkpointLocation", root)
            query = counts.trigger(availableNow=True).start()
            query.awaitTermination()
        assert query.lastProgress is not None
        batch, partitions = query.lastProgress.batchId, _partitions(checkpoint)
        # The snapshot is of the version that the batch began with. After a rescale that is the
        # rescale's version.
        made = f"state/0/*/{batch}.manifest"
        wait_until(
            lambda: batch == 0 or len(list(checkpoint.glob(made))) == partitions,
            seconds=30,
            what=made,
        )
        found: int = query.lastProgress.stateOperators[0].numRowsTotal
        return found

    def rows() -> list[tuple[int, int]]:
        with settings(spark, conf):
            state = (
                spark.read.format("statestore")
                .load(root)
                .select("key.key", "value.count")
                .collect()
            )
        return sorted((row[0], row[1]) for row in state)

    run(), run()
    expected = [(key, 2 if key < 300 else 1) for key in range(700)]
    assert rows() == expected
    for partitions in (2, 12):
        assert rescale(storage, root, partitions).way == "composed"
        assert rows() == expected
        for _ in range(2):
            assert run() == 700
        assert sum(count for _, count in rows()) == sum(count for _, count in expected) + 1_000
        expected = rows()
        assert verify(storage, root).problems == []


@pytest.mark.spark
def test_a_running_query_is_rescaled(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run() -> StreamingQuery:
        return count_numbers(spark, checkpoint, available_now=False)

    query = run()
    wait_until(lambda: query.lastProgress is not None, seconds=60, what="a batch")
    before = _partitions(checkpoint)
    assert before is not None
    for partitions in (2 * before, 2 * before + 1):
        done = millpond.rescale_query(run, query, partitions=partitions)
        try:
            assert done.refused is None and done.report is not None, done.refused
            assert done.query.runId != query.runId and not query.isActive
            assert done.query.isActive and _partitions(checkpoint) == partitions
            assert done.gap_ms < 60_000
        finally:
            query = done.query
    query.stop()
    assert query.exception() is None


@pytest.mark.spark
def test_spark_starts_no_query_that_is_half_way(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    count_numbers(spark, checkpoint, available_now=True).awaitTermination()
    storage = open_storage(str(checkpoint))
    killed = _Killed(storage)
    with pytest.raises(_Kill):
        rescale(killed, "it", 4)
    with pytest.raises(StreamingQueryException, match=r"(?i)repartition"):
        count_numbers(spark, checkpoint, available_now=True).awaitTermination()
    assert undo(storage, "it")
    count_numbers(spark, checkpoint, available_now=True).awaitTermination()
    assert millpond.rescale(checkpoint, 4).partitions == 4
    count_numbers(spark, checkpoint, available_now=True).awaitTermination()
    with settings(spark, {_PROVIDER: MILLPOND}):
        rows = spark.read.format("statestore").load(str(checkpoint)).select("value.count").collect()
    assert sum(row["count"] for row in rows) == 300


@pytest.mark.spark
def test_a_start_tells_that_it_cannot_end_a_rescale(spark: SparkSession, tmp_path: Path) -> None:
    """The offset log has the number that the job asks for, so nothing was said of what it met."""
    checkpoint = tmp_path / "checkpoint"

    def run(partitions: int) -> None:
        conf = {_PARTITIONS: str(partitions), _ON_RESTART: "true"}
        count_numbers(spark, checkpoint, available_now=True, conf=conf).awaitTermination()

    run(2)
    storage = open_storage(str(checkpoint))
    with pytest.raises(_Kill):
        rescale(_Killed(storage), "it", 4)
    journal = storage.read(layout.RESCALE_JOURNAL_KEY)
    storage.put_bytes(layout.RESCALE_JOURNAL_KEY, journal[:-9])
    with pytest.raises(StreamingQueryException):
        run(4)
    asked = read_asked(storage)
    assert asked is not None and asked.partitions == 4
    assert layout.RESCALE_JOURNAL_KEY in asked.refused
    storage.put_bytes(layout.RESCALE_JOURNAL_KEY, journal)
    run(4)
    asked = read_asked(storage)
    assert asked is not None and asked.refused == ""
    assert _partitions(checkpoint) == 4 and verify(storage, "it").problems == []


class _Kill(Exception):
    pass


class _Killed:
    """A storage that kills the command when it writes to the commit log."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        if key.startswith("commits/"):
            raise _Kill
        self._storage.put_bytes(key, data, if_absent=if_absent)
