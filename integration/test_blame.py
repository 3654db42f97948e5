"""`millpond state blame` names the batch that last changed a row, as all batches' states say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millpond
from integration.test_erase import Query, committed, whole_state
from integration.test_lookup import _run
from millpond import savepoint, state
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError
from millpond.state.writing import plain

pytestmark = pytest.mark.spark
_CASES = ["agg-update-odd-keys", "sessions-append-ids", "scala-event-time-avro", "join-full-v4"]


@pytest.mark.deep
@pytest.mark.parametrize("name", _CASES)
def test_each_row(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The batch is the one in which the value became what it is, or a later one that wrote it."""
    place = _run(spark, name, tmp_path).checkpoint
    batches = committed(place)
    states = whole_state(place, batches)
    checked = exact = 0
    for family in state.list(place, count=False).families:
        where = (family.operator, family.store, family.column_family)
        states_of = [by_key(states[(batch, *where)]) for batch in batches]
        for count in range(1, len(batches) + 1):
            by_batch, newest = states_of[:count], batches[count - 1]
            table = state.blame(
                place,
                operator=family.operator,
                store=family.store,
                column_family=family.column_family,
                batch=newest,
            )
            found = table.to_pylist(maps_as_pydicts=None)
            assert {json.dumps(plain(row["key"])) for row in found} == set(by_batch[-1])
            for row in found:
                key = json.dumps(plain(row["key"]))
                changed = max(
                    batch
                    for at, batch in enumerate(batches[:count])
                    if by_batch[at].get(key) != (by_batch[at - 1].get(key) if at else None)
                )
                assert changed <= row["not_after"] <= newest
                if row["batch"] is not None:
                    assert changed <= row["batch"] == row["not_after"]
                    assert row["began"] is not None
                    exact += row["batch"] == changed
                checked += 1
    assert checked > 5 and exact > 2


def by_key(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(json.dumps(row["key"]), []).append(json.dumps(row["value"]))
    return found


@pytest.mark.deep
def test_what_is_not_kept_is_not_known(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Query(spark, tmp_path)
    place = query.run(3)
    rows = state.blame(place).to_pylist()
    assert len(rows) == 41 and {row["batch"] for row in rows} == {2}
    assert {row["batch"] for row in state.blame(place, batch=1).to_pylist()} == {1}
    for form in ("native", "canonical"):
        savepoint.create(str(place), str(tmp_path / form), format=form)
    rows = state.blame(tmp_path / "native").to_pylist()
    assert len(rows) == 41 and {row["not_after"] for row in rows} == {2}
    with pytest.raises(MillpondError) as refused:
        state.blame(tmp_path / "canonical")
    assert refused.value.kind is ErrorKind.UNSUPPORTED
    millpond.rescale(place, 3)
    rows = state.blame(place).to_pylist()
    assert len(rows) == 41 and {row["batch"] for row in rows} == {None}
    assert {row["not_after"] for row in rows} == {3}, "the rescale is a batch"
    assert main(["state", "blame", str(place), "--key", "k=name-1"]) == 0
    assert "name-1" in capsys.readouterr().out
    assert main(["state", "blame", str(place), "--json", "--limit", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 2 and set(lines[0]) == {
        "partition",
        "key",
        "batch",
        "began",
        "not_after",
    }
    assert main(["state", "blame", str(place), "--key", "k=nobody"]) == 0
    assert "no such row" in capsys.readouterr().err
    assert main(["state", "blame", str(place), "--key", "name=x"]) == 2
