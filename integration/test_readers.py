"""Spark's `statestore` and `state-metadata` sources over Millpond's state.

They return the same rows as over the state of the same query in Spark's RocksDB store. They also
work from another application while the query runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from integration.cases import CLICKS, EVENTS, VIEWS
from integration.depth import quick_first
from integration.harness import short_conf
from integration.jvm import IS_SPARK_4_2, MILLPOND, REPO, ROCKSDB
from integration.processes import wait_until
from integration.python_state_cases import Everything
from integration.streams import Input

BATCHES = len(CLICKS)
SNAPSHOT_AFTER = 4  # batches; then the test waits for a snapshot
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_KEY_COLUMNS = ("key", "user_map_key")
_RESULT_COLUMNS = (
    "value",
    "single_value",
    "list_element",
    "user_map_value",
    "list_value",
    "map_value",
)


@dataclass(frozen=True)
class Query:
    """A query, and the options of Spark's sources for its state."""

    name: str
    build: Callable[[list[DataFrame]], DataFrame]
    output_mode: str
    inputs: int = 1
    checkpoint_format: int = 1
    conf: Mapping[str, str] = field(default_factory=dict)
    selections: tuple[Mapping[str, str], ...] = ({},)  # which part of the state
    fed: tuple[Mapping[str, str], ...] = ({},)  # parts that have a change feed
    # Whether the query writes each key once per batch. Then the feeds are equal record by record.
    exact_feed: bool = True
    store: str = ""  # folder, below the partition's, of the store whose snapshots the test awaits


def counts(inputs: list[DataFrame]) -> DataFrame:
    """Return counts in windows of 10 seconds by key. Rows may be 10 seconds late."""
    late = inputs[0].withWatermark("ts", "10 seconds")
    return late.groupBy(F.window("ts", "10 seconds"), "k").agg(
        F.count("*").alias("n"), F.sum("v").alias("s")
    )


def _joined(inputs: list[DataFrame]) -> DataFrame:
    clicks = inputs[0].withWatermark("ts", "10 seconds").alias("c")
    views = inputs[1].withWatermark("ts", "10 seconds").alias("w")
    near = F.expr(
        "c.k = w.k AND w.ts BETWEEN c.ts - INTERVAL 5 SECONDS AND c.ts + INTERVAL 5 SECONDS"
    )
    return clicks.join(views, near, "left_outer").select("c.k", "c.v", F.col("w.v").alias("w"))


def _transformed(inputs: list[DataFrame]) -> DataFrame:
    rows = inputs[0].withWatermark("ts", "1 seconds").na.fill({"k": "none"})
    output = "k string, what string, state string"
    return rows.groupBy("k").transformWithStateInPandas(
        Everything("pandas", "EventTime"), output, "Update", "EventTime"
    )


_VARIABLES = tuple({"stateVarName": name} for name in ("count", "recent", "latest"))
_UNFLATTENED = tuple(
    {"stateVarName": n, "flattenCollectionTypes": "false"} for n in ("recent", "latest")
)
QUERIES = [
    Query("counts-format2", counts, "append", checkpoint_format=2),
    Query(
        "join",
        _joined,
        "append",
        inputs=2,
        selections=(
            {"joinSide": "left"},
            {"joinSide": "right"},
            {"storeName": "left-keyToNumValues"},
            {"storeName": "right-keyWithIndexToValue"},
        ),
        fed=({"storeName": "left-keyToNumValues"}, {"storeName": "left-keyWithIndexToValue"}),
        exact_feed=False,
        store="left-keyToNumValues",
    ),
    Query("counts", counts, "update", selections=({}, {"operatorId": "0"})),
    Query(
        "timers",
        _transformed,
        "update",
        checkpoint_format=2,
        selections=(*_VARIABLES, *_UNFLATTENED, {"readRegisteredTimers": "true"}),
        fed=_VARIABLES,
        exact_feed=False,
    ),
]


@dataclass(frozen=True)
class Written:
    """A Spark checkpoint, and the batch of a snapshot of its partition 0."""

    checkpoint: Path
    snapshot_batch: int


def _start(
    spark: SparkSession, query: Query, provider: str, inputs: list[Input], checkpoint: Path
) -> StreamingQuery:
    conf = {
        **short_conf(
            {
                "providerClass": provider,
                "rocksdb.changelogCheckpointing.enabled": True,
            }
        ),
        **query.conf,
    }
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        frame = query.build([i.stream(spark) for i in inputs])
        writer = frame.writeStream.outputMode(query.output_mode).option(
            "checkpointLocation", str(checkpoint)
        )
        return writer.format("noop").start()
    finally:
        for name in conf:
            spark.conf.unset(name)


def _snapshots(store: Path) -> list[int]:
    """Return the versions that have a snapshot, of either provider."""
    found = [re.match(r"([0-9]+)(_.*)?\.(manifest|zip)$", path.name) for path in store.iterdir()]
    return sorted(int(m[1]) for m in found if m)


def _write(spark: SparkSession, query: Query, provider: str, folder: Path) -> Written:
    """Run the query batch by batch. In the middle, wait for a snapshot."""
    inputs = [Input(folder / f"input-{i}", EVENTS) for i in range(query.inputs)]
    checkpoint = folder / "checkpoint"
    store = checkpoint / "state" / "0" / "0" / query.store
    running = _start(spark, query, provider, inputs, checkpoint)
    try:
        for batch in range(BATCHES):
            for given, target in zip((CLICKS, VIEWS), inputs, strict=False):
                target.add(given[batch])
            running.processAllAvailable()
            if batch + 1 == SNAPSHOT_AFTER:
                wait_until(
                    lambda: bool(_snapshots(store)), seconds=60, what=f"a snapshot in {store}"
                )
    finally:
        running.stop()
    return Written(checkpoint, _snapshots(store)[0] - 1)


@pytest.fixture(scope="module", params=quick_first(QUERIES, 1), ids=lambda q: q.name)
def written(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Query, dict[str, Written]]]:
    """Return the query, and its Spark checkpoints by provider."""
    query: Query = request.param
    folder = tmp_path_factory.mktemp(query.name)
    # Spark's own store reads ids only in a session with this setting.
    spark.conf.set(_FORMAT, str(query.checkpoint_format))
    yield (
        query,
        {p: _write(spark, query, p, folder / p.rsplit(".", 1)[1]) for p in (MILLPOND, ROCKSDB)},
    )
    spark.conf.unset(_FORMAT)


def _read(spark: SparkSession, checkpoint: Path, options: Mapping[str, str]) -> list[Row]:
    reader = spark.read.format("statestore")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(checkpoint)).collect()


def _sorted(rows: list[Row]) -> list[str]:
    return sorted(map(str, rows))


def _last_batch(checkpoint: Path) -> int:
    return max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())


def test_state_at_a_batch(spark: SparkSession, written: tuple[Query, dict[str, Written]]) -> None:
    query, by_provider = written
    last = _last_batch(by_provider[ROCKSDB].checkpoint)
    assert last == _last_batch(by_provider[MILLPOND].checkpoint) and last >= BATCHES - 1
    seen = 0
    for selection in query.selections:
        for batch in (None, 1, SNAPSHOT_AFTER):  # None: the last one
            options = {**selection, **({} if batch is None else {"batchId": str(batch)})}
            ours, theirs = (
                _sorted(_read(spark, by_provider[p].checkpoint, options))
                for p in (MILLPOND, ROCKSDB)
            )
            assert ours == theirs, options
            seen += len(ours)
    assert seen > 10


def test_state_replayed_from_a_snapshot(
    spark: SparkSession, written: tuple[Query, dict[str, Written]]
) -> None:
    """With `snapshotStartBatchId` the state of a partition comes from that snapshot and changelogs.

    It equals the state without that option.
    """
    query, by_provider = written
    last = _last_batch(by_provider[ROCKSDB].checkpoint)
    for selection in query.selections:
        if "joinSide" in selection:
            continue  # the join's four stores may have snapshots of different batches
        results = {}
        for provider, w in by_provider.items():
            replay = {
                "snapshotStartBatchId": str(w.snapshot_batch),
                "snapshotPartitionId": "0",
                "batchId": str(last),
            }
            if selection.get("storeName", query.store or "default") != (query.store or "default"):
                continue
            plain = [
                r
                for r in _read(spark, w.checkpoint, {**selection, "batchId": str(last)})
                if r["partition_id"] == 0
            ]
            results[provider] = _sorted(_read(spark, w.checkpoint, {**selection, **replay}))
            assert results[provider] == _sorted(plain), (provider, selection)
        assert results.get(MILLPOND) == results.get(ROCKSDB)


def _net(feed: list[Row]) -> dict[tuple[int, int, str], list[str]]:
    """Return the values of each changed (batch, partition, key) after its batch.

    feed: all changes from the first batch on.
    """
    state: dict[tuple[int, str], list[str]] = {}
    changed: dict[tuple[int, int, str], list[str]] = {}
    for batch in sorted({row["batch_id"] for row in feed}):
        before = {place: list(values) for place, values in state.items()}
        for row in feed:
            if row["batch_id"] != batch:
                continue
            place = (row["partition_id"], str([row[c] for c in _KEY_COLUMNS if c in row]))
            value = str([row[c] for c in _RESULT_COLUMNS if c in row])
            if row["change_type"] == "delete":
                state[place] = []
            elif row["change_type"] == "append":
                state.setdefault(place, []).append(value)
            else:
                assert row["change_type"] == "update"
                state[place] = [value]
        changed |= {
            (batch, *place): list(values)
            for place, values in state.items()
            if values != before.get(place, [])
        }
    return changed


def test_change_feed(spark: SparkSession, written: tuple[Query, dict[str, Written]]) -> None:
    """Feeds are equal record by record. A changelog holds net changes.

    So if a query writes a key twice in a batch, only the key's final values are equal.
    """
    query, by_provider = written
    last = _last_batch(by_provider[ROCKSDB].checkpoint)
    for selection in query.fed:
        feeds = {}
        for provider, w in by_provider.items():
            options = {
                **selection,
                "readChangeFeed": "true",
                "changeStartBatchId": "0",
                "changeEndBatchId": str(last),
            }
            feeds[provider] = _read(spark, w.checkpoint, options)
            part = {**options, "changeStartBatchId": "1", "changeEndBatchId": "2"}
            some = _sorted(_read(spark, w.checkpoint, part))
            assert some == _sorted([r for r in feeds[provider] if r["batch_id"] in (1, 2)])
        ours, theirs = _net(feeds[MILLPOND]), _net(feeds[ROCKSDB])
        if IS_SPARK_4_2:
            # Its feed of RocksDB's store has only the first of the values that a batch appended.
            ours = {at: [v for v in ours[at] if v in theirs[at]] for at in ours if at in theirs}
        assert ours == theirs != {}, selection
        if query.exact_feed:
            assert _sorted(feeds[MILLPOND]) == _sorted(feeds[ROCKSDB])
    if query.name == "counts-format2":
        assert {row["change_type"] for row in feeds[MILLPOND]} == {"update", "delete"}


def test_state_metadata(spark: SparkSession, written: tuple[Query, dict[str, Written]]) -> None:
    _, by_provider = written
    tables = []
    for w in by_provider.values():
        table = spark.read.format("state-metadata").load(str(w.checkpoint))
        columns = [
            "operatorId",
            "operatorName",
            "stateStoreName",
            "numPartitions",
            "minBatchId",
            "maxBatchId",
        ]
        tables.append(_sorted(table.select(*columns, "_numColsPrefixKey").collect()))
    assert tables[0] == tables[1] != []


@pytest.mark.deep
def test_another_application_reads_while_the_query_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The reader has its own JVM and agent. The query commits, snapshots and collects meanwhile."""
    # The query keeps all versions, because the reader may be slow.
    keep = {"spark.sql.streaming.minBatchesToRetain": "300"}
    query = Query("counts", counts, "update", conf=keep)
    source = Input(tmp_path / "input", EVENTS)
    checkpoint = tmp_path / "checkpoint"
    running = _start(spark, query, MILLPOND, [source], checkpoint)
    try:
        for batch in range(3):
            source.add(CLICKS[batch])
            running.processAllAvailable()
        first_run = _last_batch(checkpoint)
        feed = {
            "readChangeFeed": "true",
            "changeStartBatchId": "0",
            "changeEndBatchId": str(first_run),
        }
        readings: list[dict[str, str]] = [
            *({"batchId": str(b)} for b in range(first_run + 1)),
            feed,
        ]
        local = tmp_path / "local"
        local.mkdir()
        arguments = [str(checkpoint), str(local), json.dumps(readings)]
        with (tmp_path / "child.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "integration.reader_child", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=REPO,
                env={**os.environ, "PYTHONPATH": str(REPO)},
            )
        try:
            added = 0
            while child.poll() is None and added < 200:
                source.add(CLICKS[added % BATCHES])
                running.processAllAvailable()
                added += 1
            output, _ = child.communicate(timeout=120)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        assert child.returncode == 0, (tmp_path / "child.log").read_text()[-3000:]
        assert running.isActive and added >= 1
        found: list[Any] = json.loads(output.splitlines()[-1])
        for options, rows in zip(readings, found, strict=True):
            assert rows == _sorted(_read(spark, checkpoint, options)) != [], options
    finally:
        running.stop()
