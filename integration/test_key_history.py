"""The history of a key shows each batch in which it changed, as `read_state` of each batch says."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millpond
from integration.depth import quick_first
from integration.jvm import MILLPOND
from integration.processes import wait_until
from integration.shapes import named
from integration.streams import Input, Run, finish, settings, start
from integration.test_lookup import _run
from millpond import savepoint, state
from millpond.cli.main import main
from millpond.errors import ErrorKind, InvalidInputError
from millpond.state.writing import plain

pytestmark = pytest.mark.spark
_CASES = [
    "agg-update-odd-keys",
    "sessions-append-ids",
    "scala-event-time-avro",
    "dedupe-watermark",
    "join-full-v4",
]


def by_key(place: Path, family: Any, batch: int) -> dict[str, list[Any]]:
    """Return the rows after a batch by their key, which is JSON."""
    chosen = {
        "operator": family.operator,
        "store": family.store,
        "column_family": family.column_family,
    }
    found: dict[str, list[Any]] = defaultdict(list)
    table = millpond.read_state(place, batch=batch, **chosen)
    for row in table.to_pylist(maps_as_pydicts=None):
        found[json.dumps(plain(row["key"]))].append({"key": row["key"], "value": row["value"]})
    return found


@pytest.mark.parametrize("name", quick_first(_CASES))
def test_each_change_of_each_key(spark: SparkSession, tmp_path: Path, name: str) -> None:
    place = _run(spark, name, tmp_path).checkpoint
    batches = sorted(int(p.name) for p in (place / "commits").iterdir() if p.name.isdecimal())
    checked = gone = 0
    for family in state.list(place, count=False).families:
        if family.internal:
            continue
        states = [by_key(place, family, batch) for batch in batches]
        keys = {text: rows[0]["key"] for found in states for text, rows in found.items()}
        for text, key in list(keys.items())[:12]:
            history = state.history(
                place,
                key=key,
                operator=family.operator,
                store=family.store,
                column_family=family.column_family,
            )
            assert history.batches == tuple(batches) and history.unreadable == ()
            expected: list[tuple[int, Any]] = []
            for batch, found in zip(batches, states, strict=True):
                rows = plain(found.get(text, []))
                if not expected or expected[-1][1] != rows:
                    expected.append((batch, rows))
            shown = [(change.batch, plain(list(change.after))) for change in history.changes]
            assert shown == expected
            for earlier, later in zip(history.changes, history.changes[1:], strict=False):
                assert plain(later.before) == plain(earlier.after)
                assert later.since_batch == later.batch - 1 and later.at_ms > 0
            gone += any(change.what == "gone" for change in history.changes)
            checked += 1
    assert checked >= 3
    assert gone or name not in ("sessions-append-ids", "dedupe-watermark")


@pytest.fixture(scope="module")
def counts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query of four batches, with a savepoint of each of the first two, which it has dropped."""
    work = tmp_path_factory.mktemp("counts")
    case = named("agg-complete")
    ((schema, batches),) = case.inputs
    source, run = Input(work / "input", schema), Run(work / "query")
    conf = {
        "spark.sql.streaming.stateStore.providerClass": MILLPOND,
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
        **case.conf,
    }
    for number in range(4):
        source.add(batches[number])
        frame = case.build([source.stream(spark)])
        finish(start(spark, frame, run, output_mode="update", conf=conf), run)
        if number < 2:
            savepoint.create(str(run.checkpoint), str(work / f"saved-{number}"))
    return work


def test_savepoints_show_what_is_not_retained(counts: Path) -> None:
    place, saved = counts / "query", [counts / "saved-0", counts / "saved-1"]
    row = millpond.read_state(place).to_pylist(maps_as_pydicts=None)[0]
    history = state.history(place, key=row["key"], savepoint=saved)
    assert {0, 1} <= set(history.batches)
    assert plain(history.changes[-1].after) == plain([{"key": row["key"], "value": row["value"]}])
    assert history.changes[0].batch == 0 and history.changes[0].savepoint == str(saved[0])
    # the savepoint alone
    (alone,) = state.history(saved[1], key=row["key"]).changes
    assert (alone.batch, alone.what in ("first seen", "absent")) == (1, True)


def test_the_command(counts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, saved = counts / "query", str(counts / "saved-0")
    row = millpond.read_state(place, limit=1).to_pylist(maps_as_pydicts=None)[0]
    key = row["key"]
    given = [str(place), *(f"--key={name}={value}" for name, value in key.items())]
    assert main(["state", "history", *given, "--savepoint", saved, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["changes"][0]["savepoint"] == saved
    assert told["changes"][-1]["after"] == plain([{"key": key, "value": row["value"]}])
    assert main(["state", "history", *given]) == 0
    said = capsys.readouterr()
    assert "first seen" in said.out and "batches were read" in said.err


def test_what_is_wrong_is_said(spark: SparkSession, counts: Path, tmp_path: Path) -> None:
    place = counts / "query"
    key = millpond.read_state(place).to_pylist(maps_as_pydicts=None)[0]["key"]
    with pytest.raises(InvalidInputError, match="needs all columns of the key"):
        state.history(place)
    with pytest.raises(InvalidInputError, match="is no savepoint"):
        state.history(place, key=key, savepoint=[place])
    other = _run(spark, "agg-complete", tmp_path).checkpoint
    savepoint.create(str(other), str(tmp_path / "saved"))
    with pytest.raises(InvalidInputError, match="of another query") as refused:
        state.history(place, key=key, savepoint=[tmp_path / "saved"])
    assert refused.value.kind is ErrorKind.INVALID_ARGUMENT


@pytest.mark.deep
def test_beside_a_running_query(spark: SparkSession, tmp_path: Path) -> None:
    """Batches that the query drops meanwhile are not there; nothing is called damaged."""
    conf = {
        "spark.sql.streaming.stateStore.providerClass": MILLPOND,
        "spark.sql.streaming.minBatchesToRetain": "3",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
        "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
        "spark.sql.shuffle.partitions": "2",
    }
    place = tmp_path / "running"
    seen: set[int] = set()
    with settings(spark, conf):
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 30).load()
        query = (
            numbers.selectExpr("value % 3 AS user")
            .groupBy("user")
            .count()
            .writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(place))
            .start()
        )
    try:
        wait_until(lambda: (place / "commits" / "3").exists(), seconds=60, what="batch 3")
        end = time.monotonic() + 60
        while len(seen) < 15 and time.monotonic() < end:
            history = state.history(place, key={"user": 1})
            assert history.unreadable == ()
            assert history.batches == tuple(range(history.batches[0], history.batches[-1] + 1))
            for change in history.changes:
                assert [row["value"]["count"] for row in change.after] == [10 * (change.batch + 1)]
            seen |= set(history.batches)
    finally:
        query.stop()
    assert len(seen) >= 15
