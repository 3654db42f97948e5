"""A look-up of a key returns the rows that `read_state` has for it: of each operator, in a running
query's checkpoint, in a savepoint, after a rescale, and of an earlier batch.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millpond
from integration.cases import EVENTS, events
from integration.depth import quick_first
from integration.jvm import MILLPOND
from integration.shapes import named
from integration.streams import Input, Run, finish, start
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.format import layout, spark_names
from millpond.storage import LocalStorage, open_storage
from millpond.storage.place import place_record
from tests.s3_server import s3_server

pytestmark = pytest.mark.spark
_STATE = "spark.sql.streaming.stateStore."
_CASES = [
    "agg-update-odd-keys",
    "join-left",
    "scala-event-time-avro",
    "row-processing-time",
    "sessions-append-ids",
    "dedupe-watermark",
    "global-update",
    "join-full-v4",
]


def _run(spark: SparkSession, name: str, work: Path) -> Run:
    """Run some batches of a case, with snapshots in between."""
    case = named(name)
    inputs = [Input(work / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for batch in batches[:5]:
            source.add(batch)
    run = Run(work / "run")
    conf = {
        f"{_STATE}providerClass": MILLPOND,
        f"{_STATE}checkpointFormatVersion": str(case.checkpoint_format),
        **case.conf,
    }
    frame = case.build([source.stream(spark) for source in inputs])
    finish(start(spark, frame, run, output_mode=case.mode, conf=conf), run)
    return run


def _check(place: Path, batch: int | None = None) -> int:
    """Look up each key of each column family. Return how many there were."""
    count = 0
    for family in millpond.state.list(place, batch=batch, count=False).families:
        chosen: dict[str, Any] = {
            "operator": family.operator,
            "store": family.store,
            "column_family": family.column_family,
            "batch": batch,
        }
        table = millpond.read_state(place, **chosen).to_pylist(maps_as_pydicts=None)
        by_key = defaultdict[str, list[dict[str, Any]]](list)
        for row in table:
            by_key[repr(row["key"])].append(row)
        with millpond.lookup(place, **chosen) as state:
            for rows in by_key.values():
                assert repr(state.get(rows[0]["key"])) == repr(rows), family
                count += 1
            together = state.table([rows[0]["key"] for rows in by_key.values()])
            every = [row for rows in by_key.values() for row in rows]
            assert repr(together.to_pylist(maps_as_pydicts=None)) == repr(every), family
    return count


@pytest.mark.parametrize("name", quick_first(_CASES))
def test_each_key_is_found(spark: SparkSession, tmp_path: Path, name: str) -> None:
    run = _run(spark, name, tmp_path)
    assert _check(run.checkpoint) > 0
    assert _check(run.checkpoint, max(run.rows) - 1) > 0
    savepoint.create(run.checkpoint, tmp_path / "saved")
    assert _check(tmp_path / "saved") > 0
    if name not in ("global-update",):
        millpond.rescale(run.checkpoint, 4)
        assert _check(run.checkpoint) > 0


def test_odd_numbers_are_found_and_erased_as_spark_groups_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """NaN is like NaN, and -0.0 like 0.0."""
    place = _run(spark, "agg-update-odd-keys", tmp_path).checkpoint
    rows = millpond.read_state(place).to_pylist()
    with millpond.lookup(place) as state:
        for row in rows:
            key = row["key"]
            (found,) = millpond.read_state(place, keys=key).to_pylist()
            assert repr(found) == repr(row)
            if key["f"] == 0.0:
                (found,) = state.get(key | {"f": -0.0})
                assert repr(found) == repr(row)
    odd = [row["key"] for row in rows if row["key"]["f"] != row["key"]["f"]]
    assert odd, "no key has a NaN, so the test proves nothing"
    for key in odd:
        (done,) = millpond.erase([place], key=key).places
        assert done.rows == 1
    left = millpond.read_state(place).to_pylist()
    assert sorted(map(repr, left)) == sorted(repr(r) for r in rows if r["key"] not in odd)


def test_bytes_of_a_key_are_given_as_they_are_shown(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(_run(spark, "dedupe-update-odd-keys-ids", tmp_path).checkpoint)
    assert main(["state", "read", place, "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row in rows:
        given = [f"{n}={v}" for n, v in row["key"].items() if isinstance(v, str)]
        keys = [part for one in given for part in ("--key", one)]
        assert main(["state", "read", place, "--format", "json", *keys]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert row in found, keys


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "family"), [("row-collated-keys", "sum"), ("scala-typed-key", "seen")]
)
def test_keys_that_lie_by_something_else_are_not_looked_up(
    spark: SparkSession, tmp_path: Path, name: str, family: str
) -> None:
    """Spark's schema does not tell by what it placed a key. Some lie where their bytes do not
    say.
    """
    place = _run(spark, name, tmp_path).checkpoint
    found = 0
    rows = millpond.read_state(place, column_family=family).to_pylist()
    for row in rows:
        with millpond.lookup(place, column_family=family) as state:
            try:
                assert repr(state.get(row["key"])) == repr([row])
                found += 1
            except UnsupportedError as e:
                assert "where a key lies is not known" in str(e) and "state read" in e.hint
    assert found < len(rows), "the test proves nothing"


# In short: `tests/unit/state/test_lookup_requests.py`.
@pytest.mark.deep
@pytest.mark.parametrize("name", ["agg-update-odd-keys", "join-full-v4", "scala-event-time-avro"])
def test_each_key_is_found_on_s3(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """There a reader fetches the SSTs that can hold the key alone. After a rescale a store consists
    of parts of others.
    """
    run = _run(spark, name, tmp_path)
    # No copy of the folder: Spark's maintenance may still write a snapshot.
    millpond.fork(run.checkpoint, tmp_path / "rescaled")
    millpond.rescale(tmp_path / "rescaled", 4)
    with s3_server() as server:
        for variable, value in server.environment().items():
            monkeypatch.setenv(variable, value)
        for place in (run.checkpoint, tmp_path / "rescaled"):
            uri = f"s3://{server.bucket()}/states/q"
            local, remote = LocalStorage(str(place), fsync=False), open_storage(uri)
            for info in list(local.list("")):
                if not spark_names.is_sparks(info.key):
                    remote.put_bytes(info.key, local.read(info.key))
                    local.delete([info.key])
            local.put_bytes(layout.STORAGE_KEY, place_record(uri))
            server.log.clear()
            assert _check(place) > 0
            read = [r.path for r in server.log if r.operation == "GET"]
            assert any(path.endswith(".manifest") for path in read)
            assert any(path.endswith(".sst") for path in read)


@pytest.mark.parametrize(
    ("name", "family", "first"),
    quick_first(
        [
            ("sessions-append-ids", {}, 1),
            ("join-full-v4", {"column_family": "left-keyWithTsToValues"}, 1),
        ]
    ),
)
def test_the_first_columns_of_a_key_find_all_keys_with_them(
    spark: SparkSession, tmp_path: Path, name: str, family: dict[str, Any], first: int
) -> None:
    run = _run(spark, name, tmp_path)
    rows = millpond.read_state(run.checkpoint, **family, join_names=True).to_pylist()
    names = list(rows[0]["key"])
    with millpond.lookup(run.checkpoint, **family) as state:
        for row in rows:
            wanted = {n: row["key"][n] for n in names[:first]}
            same = [r for r in rows if all(r["key"][n] == wanted[n] for n in wanted)]
            found = state.get(wanted)
            assert [list(r["value"].values()) for r in found] == [
                list(r["value"].values()) for r in same
            ]
        with pytest.raises(InvalidInputError, match="all columns of the key") as caught:
            state.get({names[-1]: rows[0]["key"][names[-1]]})
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT
    assert f", or {names[0]} alone" in caught.value.message


def test_the_command(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Input(tmp_path / "input", EVENTS)
    source.add(events(("a", 1.0, 1), ("b", 1.0, 2), ("a", 2.0, 3)))
    run = Run(tmp_path / "run")
    frame = source.stream(spark).groupBy("k").count()
    conf = {f"{_STATE}providerClass": MILLPOND}
    finish(start(spark, frame, run, output_mode="update", conf=conf), run)
    place = str(run.checkpoint)
    assert main(["state", "get", place, "--key", "k=a", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["key"], row["value"]) == ({"k": "a"}, {"count": 2})
    assert main(["state", "get", place, "--key", "k=a"]) == 0
    assert "key.k" in capsys.readouterr().out
    assert main(["state", "get", place, "--key", "k=nobody"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "after batch 0 the state has no such key" in said.err
    for wrong, told in (
        (["--key", "no=1"], "there are: k"),
        (["--key", "k"], "COLUMN=VALUE"),
        ([], "all columns of the key (k string)"),
        (["--key", "k=a", "--batch", "99"], "99"),
    ):
        assert main(["state", "get", place, *wrong]) != 0
        assert told in capsys.readouterr().err


def test_tables_have_no_index(spark: SparkSession, tmp_path: Path) -> None:
    run = _run(spark, "dedupe-watermark", tmp_path)
    savepoint.create(run.checkpoint, tmp_path / "saved", format="canonical")
    with pytest.raises(UnsupportedError, match="no index of keys") as caught:
        millpond.lookup(tmp_path / "saved")
    assert "millpond state read --key" in caught.value.hint


@pytest.mark.parametrize("name", quick_first(["join-full-v3", "join-left", "join-odd-keys-v3"]))
def test_the_key_of_a_join_finds_all_of_its_rows(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """In the state formats 2 and 3 a row is kept by the key and a number."""
    run = _run(spark, name, tmp_path)
    savepoint.create(run.checkpoint, tmp_path / "saved")
    most = _check_sides(run.checkpoint, None)
    assert most > 1, "no key has several rows"
    assert _check_sides(tmp_path / "saved", None) == most
    _check_sides(run.checkpoint, max(run.rows) - 1)
    millpond.rescale(run.checkpoint, 4)
    assert _check_sides(run.checkpoint, None) == most


def _check_sides(place: Path, batch: int | None) -> int:
    """Look up the rows of both sides by the join's key alone. Return the most rows of a key."""
    sizes = []
    families: list[dict[str, Any]] = [
        {"operator": f.operator, "store": f.store, "column_family": f.column_family, "batch": batch}
        for f in millpond.state.list(place, batch=batch, count=False).families
        if (f.store + f.column_family).find("-keyWithIndexToValue") >= 0
    ]
    assert len(families) == 2
    for chosen in families:
        by_key = defaultdict[str, list[dict[str, Any]]](list)
        for row in millpond.read_state(place, **chosen).to_pylist(maps_as_pydicts=None):
            by_key[repr({n: v for n, v in row["key"].items() if n != "index"})].append(row)
        keys = []
        with millpond.lookup(place, **chosen) as state:
            for rows in by_key.values():
                rows.sort(key=lambda row: row["key"]["index"])
                keys.append({n: v for n, v in rows[0]["key"].items() if n != "index"})
                assert repr(state.get(keys[-1])) == repr(rows)
                assert repr(state.get(rows[-1]["key"])) == repr(rows[-1:])
            # By the names of the join's inputs, as `state list` shows them.
            named_rows = millpond.read_state(place, **chosen, join_names=True).to_pylist()
            key = {n: v for n, v in named_rows[0]["key"].items() if n != "index"}
            same = [r for r in named_rows if {n: r["key"][n] for n in key} == key]
            assert len(state.get(key)) == len(same)
            assert millpond.read_state(place, **chosen, keys=key).num_rows == len(same)
            assert millpond.state.blame(place, **chosen, keys=key).num_rows == len(same)
            with pytest.raises(InvalidInputError, match="all columns of the key") as caught:
                state.get({"index": 0})
            assert f", or {next(iter(key))}" in caught.value.message
            together = state.table([*keys, *keys]).to_pylist(maps_as_pydicts=None)
            every = [row for rows in by_key.values() for row in rows]
            assert repr(together) == repr([*every, *every])
        sizes += [len(rows) for rows in by_key.values()]
    return max(sizes)
