"""`millpond serve` beside a running query: each answer is what `read_state` has for the batch that
it names, and new batches come into the answers as the query commits them.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import millpond
from integration.cases import EVENTS, events
from integration.depth import quick_first
from integration.jvm import MILLPOND
from integration.shapes import named
from integration.streams import Input, Run, finish, settings, start
from tests.unit.cli.test_serve import Running, serving

pytestmark = pytest.mark.spark
_STATE = "spark.sql.streaming.stateStore."
_CONF = {
    f"{_STATE}providerClass": MILLPOND,
    f"{_STATE}maintenanceInterval": "300ms",
    "spark.sql.streaming.minBatchesToRetain": "10",
    f"{_STATE}minDeltasForSnapshot": "2",
}
_USERS = [f"user-{number}" for number in range(40)]
_DEADLINE_S = 60.0
_AHEAD = 4  # batches


@contextmanager
def _querying(
    spark: SparkSession, work: Path, checkpoint_format: int, turns: Semaphore
) -> Iterator[Run]:
    """Run a query beside the block: it counts rows of users, a batch for each of the turns."""
    run = Run(work / "checkpoint")
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 30).load()
    users = source.selectExpr(f"concat('user-', value * value % {len(_USERS)}) AS user", "value")
    counts = users.groupBy("user").agg({"value": "sum"})
    conf = {**_CONF, f"{_STATE}checkpointFormatVersion": str(checkpoint_format)}

    def one(rows: DataFrame, _batch: int) -> None:
        turns.acquire()
        rows.write.format("noop").mode("overwrite").save()

    with settings(spark, conf):
        query = (
            counts.writeStream.foreachBatch(one)
            .outputMode("update")
            .option("checkpointLocation", str(run.checkpoint))
            .start()
        )
    try:
        end = time.monotonic() + _DEADLINE_S
        while not list((run.checkpoint / "commits").glob("[0-9]*")):
            assert query.isActive, query.exception()
            assert time.monotonic() < end
        yield run
        assert query.isActive, query.exception()
    finally:
        turns.release(1000)
        query.stop()


def _looked_up(running: Running) -> dict[str, Any]:
    told: dict[str, Any] = running.ask("/v1/lookup", {"keys": [{"user": u} for u in _USERS]})
    return told


@pytest.mark.parametrize("checkpoint_format", quick_first([2, 1]))
def test_beside_a_running_query(
    spark: SparkSession, tmp_path: Path, checkpoint_format: int
) -> None:
    compared: list[int] = []
    # Spark keeps ten batches. The query is never so far ahead of the server that it removes what is
    # read here.
    turns, allowed = Semaphore(1), 0
    with (
        _querying(spark, tmp_path, checkpoint_format, turns) as run,
        serving(run.checkpoint, "--poll-ms", "50") as running,
    ):
        end = time.monotonic() + _DEADLINE_S
        while len(compared) < 8:
            assert time.monotonic() < end
            turns.release(_AHEAD)
            allowed += _AHEAD
            told = _looked_up(running)
            # What is read afterwards, in another way, is the same.
            rows = millpond.read_state(run.checkpoint, batch=told["batch"]).to_pylist()
            by_user = {row["key"]["user"]: row for row in rows}
            assert told["rows"] == [by_user[u] for u in _USERS if u in by_user]
            assert told["rows_per_key"] == [int(u in by_user) for u in _USERS]
            offsets = (run.checkpoint / "offsets" / str(told["batch"])).read_text().split("\n")
            assert told["batch_time_ms"] == json.loads(offsets[1])["batchTimestampMs"]
            if told["batch"] not in compared:
                compared.append(told["batch"])
            while _looked_up(running)["batch"] < allowed:
                assert time.monotonic() < end
        assert compared == sorted(compared)  # it never goes back
        assert running.ask("/healthz")["status"] == "ok"
        last = max(compared)
    with serving(run.checkpoint) as running:  # the query has stopped
        told = _looked_up(running)
        assert told["batch"] >= last
        rows = millpond.read_state(run.checkpoint).to_pylist()
        assert sorted(told["rows"], key=repr) == sorted(rows, key=repr)


@pytest.mark.parametrize(
    "name", quick_first(["sessions-append-ids", "join-full-v4", "row-processing-time"], 2)
)
def test_every_table_of_a_query(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """All keys that an answer has can be sent back; the first columns of a key find them, too."""
    case = named(name)
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for batch in batches[:4]:
            source.add(batch)
    run = Run(tmp_path / "run")
    conf = {
        f"{_STATE}providerClass": MILLPOND,
        f"{_STATE}checkpointFormatVersion": str(case.checkpoint_format),
        **case.conf,
    }
    frame = case.build([source.stream(spark) for source in inputs])
    finish(start(spark, frame, run, output_mode=case.mode, conf=conf), run)
    checked = 0
    with serving(run.checkpoint) as running:
        for table in running.ask("/v1/tables")["tables"]:
            place = {n: table[n] for n in ("operator", "store", "column_family")}
            rows = millpond.read_state(run.checkpoint, **place).to_pylist()
            if not rows:
                continue
            found = _of_keys(running, place, rows)
            keys = [json.loads(text) for text in {json.dumps(r["key"]): 0 for r in found}]
            answer = running.ask("/v1/lookup", {**place, "keys": keys})
            assert sorted(map(repr, answer["rows"])) == sorted(map(repr, found))
            assert len(found) == len(rows)
            assert sum(answer["rows_per_key"]) == len(rows)
            if table["prefix"]:
                first = [{n: key[n] for n in table["prefix"]} for key in keys]
                few = [json.loads(text) for text in {json.dumps(key): 0 for key in first}]
                answer = running.ask("/v1/lookup", {**place, "keys": few})
                assert sorted(map(repr, answer["rows"])) == sorted(map(repr, found))
            checked += 1
    assert checked > 0


def _of_keys(running: Running, place: dict[str, Any], rows: list[dict[str, Any]]) -> list[Any]:
    """Return the rows of a table as JSON has them, by `millpond state read`'s own writer."""
    import pyarrow as pa

    from millpond.state.writing import json_rows

    return json_rows(pa.Table.from_pylist(rows).to_batches())


@pytest.mark.parametrize("checkpoint_format", quick_first([1, 2]))
def test_a_rescale_is_followed(spark: SparkSession, tmp_path: Path, checkpoint_format: int) -> None:
    source = Input(tmp_path / "input", EVENTS)
    names = [f"k{number}" for number in range(30)]
    for batch in range(3):
        source.add(events(*((name, 1.0, batch) for name in names[batch:])))
    run = Run(tmp_path / "run")
    conf = {**_CONF, f"{_STATE}checkpointFormatVersion": str(checkpoint_format)}
    frame = source.stream(spark).groupBy("k").count()
    finish(start(spark, frame, run, output_mode="update", conf=conf), run)
    keys = {"keys": [{"k": name} for name in names]}
    with serving(run.checkpoint, "--poll-ms", "50") as running:
        before = running.ask("/v1/lookup", keys)
        partitions = 2 * (1 + max(row["partition"] for row in before["rows"]))
        millpond.rescale(run.checkpoint, partitions)
        end = time.monotonic() + _DEADLINE_S
        while (after := running.ask("/v1/lookup", keys))["batch"] == before["batch"]:
            assert time.monotonic() < end
        rows = millpond.read_state(run.checkpoint, batch=after["batch"]).to_pylist()
        assert sorted(after["rows"], key=repr) == sorted(rows, key=repr)
        assert [row["value"] for row in after["rows"]] == [r["value"] for r in before["rows"]]
        assert max(row["partition"] for row in after["rows"]) >= partitions // 2


def test_a_wrong_key(spark: SparkSession, tmp_path: Path) -> None:
    source = Input(tmp_path / "input", EVENTS)
    source.add(events(("a", 1.0, 1), ("b", 1.0, 2)))
    run = Run(tmp_path / "run")
    frame = source.stream(spark).groupBy("k", "v").count()
    finish(start(spark, frame, run, output_mode="update", conf=_CONF), run)
    with serving(run.checkpoint) as running:
        with pytest.raises(urllib.error.HTTPError) as caught:
            running.ask("/v1/lookup", {"keys": [{"k": "a", "v": "many"}]})
        told = json.load(caught.value)["error"]
        assert (caught.value.code, told["code"]) == (400, "INVALID_ARGUMENT")
        assert "A key here is: k string, v long" in told["hint"]
