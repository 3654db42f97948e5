"""Repartitions, canonical savepoints, `edit`, and `diff`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millpond
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind, FormatError, MillpondError
from millpond.format import layout
from millpond.format.changelog import Op, Record
from millpond.model.ids import StoreId, VersionId
from millpond.operations.inspect import overview, verify
from millpond.storage import LocalStorage
from tests.checkpoints import CheckpointBuilder, version_id
from tests.conftest import Golden
from tests.examples import changelog_bytes
from tests.row_checkpoints import RowsBuilder, expected


@pytest.fixture(scope="module", params=[1, 2], ids=["checkpoint-format-1", "checkpoint-format-2"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CheckpointBuilder:
    return RowsBuilder(tmp_path_factory.mktemp("rows"), spark_format=request.param).build()


@pytest.fixture(params=["native", "canonical"])
def saved(request: pytest.FixtureRequest, built: CheckpointBuilder, tmp_path: Path) -> Path:
    report = savepoint.create(built.root, tmp_path / "saved", format=request.param)
    assert report.files > 0 and report.keys >= 8
    assert savepoint.verify(tmp_path / "saved").ok
    return tmp_path / "saved"


def content(path: Path) -> list[tuple[int, str]]:
    return sorted(
        (row["key"]["k"], row["value"]["n"]) for row in millpond.read_state(path).to_pylist()
    )


ALL = sorted((row["key"]["k"], row["value"]["n"]) for row in expected(6))


@pytest.mark.parametrize(("partitions", "groups"), [(1, 16), (16, 16), (3, 384)])
def test_partitions(
    built: CheckpointBuilder, saved: Path, tmp_path: Path, partitions: int, groups: int
) -> None:
    new = tmp_path / "new"
    report = savepoint.restore(saved, new, partitions=partitions)
    assert (report.partitions, report.max_parallelism) == (partitions, groups)
    assert content(new) == ALL
    storage = LocalStorage(str(new))
    assert verify(storage, "new").problems == []
    view = overview(storage, "new")
    assert (view.partitions, view.max_parallelism) == (partitions, groups)
    assert [store.partition for store in view.operators[0].stores] == list(range(partitions))
    assert sum(store.keys or 0 for store in view.operators[0].stores) == len(ALL)
    for batch in (4, 5):
        conf = json.loads((new / f"offsets/{batch}").read_text().split("\n")[1])["conf"]
        assert conf["spark.sql.shuffle.partitions"] == str(partitions)
    again = tmp_path / "again"
    savepoint.fork(new, again, partitions=2, max_parallelism=16)
    assert content(again) == ALL and savepoint.diff(built.root, again).equal


@pytest.mark.parametrize("name", ["*.changelog", "*.sst"])
def test_a_file_that_another_one_replaced(
    built: CheckpointBuilder, tmp_path: Path, name: str
) -> None:
    """The file is whole and has the right size, but another file was saved.

    Only the sum in the index tells.
    """
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, link=False)
    other = RowsBuilder(tmp_path / "other", spark_format=built.spark_format)
    other.value = lambda store, version: built.value(store, version + 1)  # type: ignore[method-assign]
    other.build()
    path = sorted((saved / "state/0/0").rglob(name))[-1]
    found = path.relative_to(saved) if name == "*.changelog" else Path("state/0/0/sst")
    choices = (
        [other.root / found] if name == "*.changelog" else sorted((other.root / found).iterdir())
    )
    (same,) = [c for c in choices if c.stat().st_size == path.stat().st_size][:1]
    path.write_bytes(same.read_bytes())
    for action in (
        lambda: millpond.read_state(saved),
        lambda: savepoint.restore(saved, tmp_path / "new", partitions=3),
        lambda: savepoint.restore(saved, tmp_path / "new"),
        lambda: savepoint.edit(saved, tmp_path / "new", function=lambda table: table),
    ):
        with pytest.raises(FormatError) as caught:
            action()
        assert path.name in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("partitions", [None, 3])
def test_backend(
    saved: Path, tmp_path: Path, partitions: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restore remembers the backend.

    Each copy of the query has the same backend, until somebody chooses another one.
    """
    made = [str(tmp_path / str(i)) for i in range(3)]
    more = [] if partitions is None else ["--partitions", str(partitions)]
    assert main(["savepoint", "restore", str(saved), made[0], "--backend", "heap", *more]) == 0
    savepoint.create(made[0], tmp_path / "again")
    reports = [
        savepoint.restore(tmp_path / "again", made[1]),
        savepoint.fork(made[0], made[2], backend="rocksdb", partitions=2),
    ]
    assert [report.backend for report in reports] == ["heap", "rocksdb"]
    assert [overview(LocalStorage(path), path).backend for path in made] == [
        "heap",
        "heap",
        "rocksdb",
    ]
    assert "\nbackend       heap\n" in capsys.readouterr().out
    assert main(["checkpoint", "show", made[0]]) == 0
    assert (
        "\nbackend            heap, unless the session sets the option\n" in capsys.readouterr().out
    )
    assert savepoint.restore(saved, tmp_path / "none").backend is None


def test_with_other_changes(saved: Path, tmp_path: Path) -> None:
    savepoint.restore(saved, tmp_path / "new", partitions=4, map_operators={0: 2}, offsets="drop")
    assert content(tmp_path / "new") == ALL
    assert [path.name for path in (tmp_path / "new/state").iterdir()] == ["2"]
    savepoint.restore(saved, tmp_path / "empty", drop_operators=[0])
    assert not (tmp_path / "empty/state").exists()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"partitions": 0}, ErrorKind.INVALID_ARGUMENT),
        ({"partitions": 70_000}, ErrorKind.MAX_PARALLELISM_INVALID),
        ({"partitions": 4, "max_parallelism": 6}, ErrorKind.MAX_PARALLELISM_INVALID),
        ({"backend": "hdfs"}, ErrorKind.INVALID_ARGUMENT),
    ],
)
def test_refused(saved: Path, tmp_path: Path, options: dict[str, Any], kind: ErrorKind) -> None:
    with pytest.raises(MillpondError) as caught:
        savepoint.restore(saved, tmp_path / "new", **options)
    assert caught.value.kind is kind and not (tmp_path / "new").exists()


class Adopted(RowsBuilder):
    """Both stores wait for the query's first batch, and one has a key in the wrong partition."""

    def header(self, store: StoreId, version: int) -> Any:
        why = ("1 is in partition 1 of 2: Spark did not place it", "? may be: start the query once")
        reason = f"a key of key group {why[store.partition == 0]}"
        made = super().header(store, version)
        return replace(made, key_groups=replace(made.key_groups, scalable=False, reason=reason))


def test_a_misplaced_key_is_told_before_what_is_not_known_yet(tmp_path: Path) -> None:
    """The reason of the first store went to all, and the query's first batch would have cleared
    it.
    """
    made = Adopted(tmp_path / "query").build(3, ())
    savepoint.create(made.root, tmp_path / "saved", format="canonical")
    savepoint.restore(tmp_path / "saved", tmp_path / "new")
    (operator,) = overview(LocalStorage(str(tmp_path / "new")), "new").operators
    reasons = {store.unscalable_reason for store in operator.stores}
    assert reasons == {"a key of key group 1 is in partition 1 of 2: Spark did not place it"}


def test_tables_of_a_canonical_savepoint(built: CheckpointBuilder, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, format="canonical")
    index = savepoint.show(saved).index
    assert [(t.store.partition, t.family.name, t.rows, t.scalable) for t in index.tables] == [
        (partition, "default", 4, True) for partition in (0, 1)
    ]
    found: list[dict[str, Any]] = []
    for table in index.tables:
        assert table.key == f"tables/0/default/default/{table.store.partition}.parquet"
        found += pq.read_table(saved / table.key).to_pylist()
    assert sorted((row["key"]["k"], row["value"]["n"]) for row in found) == ALL
    raw = millpond.read_state(built.root, raw=True).to_pylist()
    assert [(r["key_bytes"], r["value_bytes"]) for r in found] == [
        (r["key_bytes"], r["value_bytes"]) for r in raw
    ]
    groups = built.groups
    assert {row["key_group"] for row in found} == {
        groups.group(groups.slot_ranges(p, 2)[0][0]) for p in (0, 1)
    }
    assert not any(path.suffix in (".sst", ".changelog", ".manifest") for path in saved.rglob("*"))
    assert millpond.read_state(saved).to_pylist() == expected(6)
    with pytest.raises(MillpondError) as caught:
        millpond.read_state(saved, batch=2)
    assert caught.value.kind is ErrorKind.BATCH_NOT_COMMITTED


class AllDeleted(RowsBuilder):
    """Version 1 adds a key. Version 2 deletes it."""

    def changelogs(self, store: StoreId, versions: int) -> None:
        for version, op in ((1, Op.PUT), (2, Op.DELETE)):
            record = Record(op, self.key(store, 1), self.value(store, 1) if op is Op.PUT else None)
            key = layout.changelog_key(
                store, VersionId(version, version_id(store, version)), self.spark_format
            )
            self.storage.put_bytes(key, changelog_bytes(self.header(store, version), [record]))


@pytest.mark.parametrize("snapshots", [(), (1,)])
def test_state_without_a_row(tmp_path: Path, snapshots: tuple[int, ...]) -> None:
    built = AllDeleted(tmp_path / "job").build(batches=2, snapshots=snapshots)
    savepoint.create(built.root, tmp_path / "saved", format="canonical")
    assert (
        savepoint.verify(tmp_path / "saved").ok
        and savepoint.diff(built.root, tmp_path / "saved").equal
    )
    savepoint.restore(tmp_path / "saved", tmp_path / "new", partitions=3)
    assert content(built.root) == content(tmp_path / "saved") == content(tmp_path / "new") == []


def test_damaged_table(built: CheckpointBuilder, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, format="canonical")
    path = saved / "tables/0/default/default/1.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    report = savepoint.verify(saved)
    assert {problem.file for problem in report.problems} == {"tables/0/default/default/1.parquet"}
    with pytest.raises(MillpondError) as caught:
        savepoint.restore(saved, tmp_path / "new")
    assert caught.value.kind is ErrorKind.SAVEPOINT_DAMAGED
    assert sorted(p.name for p in tmp_path.iterdir()) == ["saved"]


def test_diff(
    built: CheckpointBuilder, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert savepoint.diff(saved, built.root).equal
    savepoint.create(built.root, tmp_path / "older", batch=3)
    report = savepoint.diff(tmp_path / "older", saved)
    (family,) = report.families
    # In each partition version 5 adds a key, and version 6 writes the key of version 5 again.
    assert (family.added, family.removed, family.changed, family.same) == (2, 0, 0, 6)
    savepoint.create(built.root, tmp_path / "oldest", batch=1, format="canonical")
    (family,) = savepoint.diff(saved, tmp_path / "oldest").families
    assert (family.added, family.removed, family.changed, family.same) == (0, 4, 2, 2)
    assert main(["savepoint", "diff", str(saved), str(built.root)]) == 0
    capsys.readouterr()
    assert main(["savepoint", "diff", "--json", str(tmp_path / "older"), str(saved)]) == 1
    assert json.loads(capsys.readouterr().out) == report.to_json()
    assert main(["savepoint", "diff", str(saved), str(tmp_path / "nothing")]) == 2


# ---- edit ----------------------------------------------------------------------------------------


def test_edit(saved: Path, tmp_path: Path) -> None:
    """An edit leaves rows out, changes values and changes keys.

    The new savepoint shows that, and so does a restore of it.
    """

    def change(rows: Any) -> Any:
        found = [row for row in rows.to_pylist() if row["key"]["k"] != 1]
        for row in found:
            row["value"]["n"] += "!"
            row["key"]["k"] += 1000
        return pa.RecordBatch.from_pylist(found, schema=rows.schema) if found else None

    report = savepoint.edit(saved, tmp_path / "edited", function=change)
    expect = sorted((k + 1000, n + "!") for k, n in ALL if k != 1)
    assert (report.operator, report.rows_before, report.rows_after) == (0, len(ALL), len(expect))
    assert savepoint.verify(tmp_path / "edited").ok and content(tmp_path / "edited") == expect
    for partitions in (None, 3):
        new = tmp_path / f"new-{partitions}"
        savepoint.restore(tmp_path / "edited", new, partitions=partitions)
        assert content(new) == expect
        # The new keys lie where Spark will look for them, whatever groups the old ones had.
        assert verify(LocalStorage(str(new)), "new").problems == []
    assert content(saved) == ALL


def test_edit_with_a_table(saved: Path, tmp_path: Path) -> None:
    rows = [{"key": {"k": k}, "value": {"n": f"n{k}"}} for k in range(300)]
    report = savepoint.edit(
        saved, tmp_path / "edited", table=pa.Table.from_pylist(rows), operator="stateStoreSave"
    )
    assert (report.rows_before, report.rows_after) == (len(ALL), 300)
    savepoint.restore(tmp_path / "edited", tmp_path / "new")
    assert content(tmp_path / "new") == [(k, f"n{k}") for k in range(300)]
    assert savepoint.show(tmp_path / "edited").index.image.operators[0].keys == 300
    savepoint.edit(
        tmp_path / "edited", tmp_path / "emptied", function=lambda rows: rows.slice(0, 0)
    )
    assert content(tmp_path / "emptied") == []
    (family,) = savepoint.diff(tmp_path / "edited", tmp_path / "emptied").families
    assert (family.removed, family.same) == (300, 0)


def test_edit_from_the_command_line(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, script = str(tmp_path / "edited"), tmp_path / "change.py"
    script.write_text("def change(rows):\n    return rows.slice(0, 1)\n")
    assert (
        main(
            [
                "savepoint",
                "edit",
                str(saved),
                new,
                "--function",
                f"{script}:change",
                "--dry-run",
                "--json",
            ]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert (report["rows_before"], report["rows_after"], report["dry_run"]) == (
        len(ALL),
        2,
        True,
    ), "each batch has one row"
    assert not Path(new).exists()
    pq.write_table(
        pa.Table.from_pylist([{"key": {"k": 5}, "value": {"n": "five"}}]), tmp_path / "rows.parquet"
    )
    command = ["savepoint", "edit", str(saved), new, "--operator", "0"]
    assert main([*command, "--table", str(tmp_path / "rows.parquet")]) == 0
    assert content(Path(new)) == [(5, "five")] and "8, now 1" in capsys.readouterr().out
    other = str(tmp_path / "other")
    for wrong in ("nothing.py:change", f"{script}:nothing", str(script)):
        assert main(["savepoint", "edit", str(saved), other, "--function", wrong]) == 2
    assert main(["savepoint", "edit", str(saved), other, "--table", str(script)]) == 2
    assert not Path(other).exists()


def test_edits_that_are_refused(saved: Path, tmp_path: Path) -> None:
    same = pa.Table.from_pylist([{"key": {"k": 1}, "value": {"n": "a"}}] * 2)
    wrong: list[dict[str, Any]] = [
        {},
        {"function": lambda rows: rows, "table": same},
        {"table": same},
        {"table": pa.table({"key": [1]})},
        {"table": pa.Table.from_pylist([{"key": {"k": "x"}, "value": {"n": "a"}}])},
        {"table": pa.Table.from_pylist([{"key": {"k": 1}, "value": None}])},
        {"function": lambda rows: rows.select(["key"])},
        {"table": pa.Table.from_pylist([{"key": {"k": 1}, "value": {"n": "a", "of": "nobody"}}])},
        {"table": pa.Table.from_pylist([{"key": {"k": 1.5}, "value": {"n": "a"}}])},
        {"function": lambda rows: rows.to_pydict()},
        {"function": lambda rows: rows.to_pylist()},
        {"function": lambda rows: [rows.to_pylist()]},
        {"function": lambda rows: "rows"},
        {"function": lambda rows: [[rows]]},
    ]
    for options in wrong:
        with pytest.raises(MillpondError) as caught:
            savepoint.edit(saved, tmp_path / "edited", **options)
        assert caught.value.kind is ErrorKind.INVALID_ARGUMENT
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_what_a_function_may_return(saved: Path, tmp_path: Path) -> None:
    def some_of_pandas(rows: Any) -> Any:
        frame = rows.to_pandas()
        frame["value"] = [{"n": value["n"].upper()} for value in frame["value"]]
        return frame

    ways: dict[str, Any] = {
        "pandas": some_of_pandas,
        "batches": lambda rows: iter([rows.slice(0, 1), rows.slice(1)]),
        "a table": lambda rows: pa.Table.from_batches([rows]),
        "nothing": lambda rows: None,
    }
    for name, function in ways.items():
        savepoint.edit(saved, tmp_path / name, function=function)
    assert content(tmp_path / "pandas") == [(k, n.upper()) for k, n in ALL]
    assert content(tmp_path / "batches") == content(tmp_path / "a table") == ALL
    assert content(tmp_path / "nothing") == []


_CHANGES = """
import pandas

def wrong(rows):
    return rows.to_pandas()[["key", "valu"]]

def later(rows):
    yield rows
    raise RuntimeError

def frames(rows):
    frame = rows.to_pandas()
    yield frame[:1]
    yield pandas.DataFrame(frame[1:])

def series(rows):
    return rows.to_pandas()["value"]
"""


def test_a_fault_of_the_users_function_is_told_as_theirs(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "change.py"
    file.write_text(_CHANGES)

    def edit(function: str) -> tuple[int, str]:
        command = ["savepoint", "edit", str(saved), str(tmp_path / "new"), "--dry-run"]
        code = main([*command, "--function", f"{file}:{function}"])
        return code, capsys.readouterr().err

    code, text = edit("wrong")
    assert code == 2 and "INTERNAL" not in text
    assert "USER_CODE_FAILED: your function wrong raised KeyError: " in text
    assert "'valu'" in text.splitlines()[0].replace('"', "'")
    assert " in line 5 of change.py\n" in text and "MILLPOND_DEBUG=1" in text
    code, text = edit("later")
    assert code == 2 and "your function later raised RuntimeError in line 9 of change.py" in text
    assert edit("frames")[0] == 0, "frames of pandas are rows"
    code, text = edit("series")
    assert code == 2 and "Series where rows are wanted" in text
    file.write_text("def wrong(rows:\n")
    code, text = edit("wrong")
    assert code == 2 and "your file raised SyntaxError" in text and "line 1 of change.py" in text


@pytest.mark.parametrize("form", ["native", "canonical"])
def test_savepoints_of_the_first_release_open(
    golden: Golden, repository: Path, tmp_path: Path, form: str
) -> None:
    """Nothing writes these files anew: a savepoint of today opens in every later release."""
    place = repository / "tests/golden/v1" / f"savepoint-{form}"
    if golden.rewrite and not place.exists():
        savepoint.create(
            RowsBuilder(tmp_path / "built", spark_format=2).build().root,
            place,
            format=form,
            link=False,
        )
    assert savepoint.verify(place).ok
    assert millpond.read_state(place).to_pylist() == expected(6)
    for partitions in (2, 3):
        savepoint.restore(place, tmp_path / str(partitions), partitions=partitions)
        assert content(tmp_path / str(partitions)) == ALL
        assert verify(LocalStorage(str(tmp_path / str(partitions))), "x").ok


# ---- after a rescale -----------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("spark_format", [1, 2])
def test_after_a_rescale(tmp_path: Path, spark_format: int, partitions: int) -> None:
    """The manifests name files of other partitions.

    The savepoint takes these files and their pins too.
    """
    built = RowsBuilder(tmp_path / "job", spark_format=spark_format).build()
    millpond.rescale(str(built.root), partitions=partitions)
    assert content(built.root) == ALL
    savepoint.create(built.root, tmp_path / "saved")
    assert savepoint.verify(tmp_path / "saved").problems == []
    savepoint.create(built.root, tmp_path / "tables", format="canonical")
    for name in ("saved", "tables"):
        assert content(tmp_path / name) == ALL
        for wanted in (None, 3):
            new = tmp_path / f"{name}-{wanted}"
            savepoint.restore(tmp_path / name, new, partitions=wanted, map_operators={0: 1})
            assert content(new) == ALL
            assert verify(LocalStorage(str(new)), "new").problems == []
    assert savepoint.diff(built.root, tmp_path / "saved").equal
    pins = list((tmp_path / "saved-None/millpond/pins").glob("*.json"))
    assert pins and all(pin.name.startswith("rescale-1-") for pin in pins)
    named = {key for pin in pins for key in json.loads(pin.read_text())["changelogs"]}
    assert named and all(
        key.startswith("state/1/") and (tmp_path / "saved-None" / key).is_file() for key in named
    )


def test_progress(built: CheckpointBuilder, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    savepoint.create(built.root, tmp_path / "tables", format="canonical", progress=progress)
    actions: list[Callable[[], object]] = [
        lambda: savepoint.verify(tmp_path / "tables", progress=progress),
        lambda: savepoint.restore(tmp_path / "tables", tmp_path / "restored", progress=progress),
        lambda: savepoint.create(tmp_path / "restored", tmp_path / "native", progress=progress),
    ]
    for action in actions:
        assert (
            len(told) > 1
            and told[-1][0] == told[-1][1]
            and all(done <= total for done, total in told)
        )
        told.clear()
        action()
    assert told[-1][0] == told[-1][1]


# ---- opened by others ----------------------------------------------------------------------------


def _pandas(directory: Path) -> list[tuple[int, str]]:
    import pandas as pd

    frame = pd.read_parquet(directory)
    return [(row["k"], value["n"]) for row, value in zip(frame["key"], frame["value"], strict=True)]


def _duckdb(directory: Path) -> list[tuple[int, str]]:
    import duckdb

    query = (
        f"SELECT key.k, value.n FROM read_parquet('{directory}/*.parquet') WHERE"
        " octet_length(key_bytes) > 0"
    )
    return [tuple(row) for row in duckdb.sql(query).fetchall()]


def _polars(directory: Path) -> list[tuple[int, str]]:
    import polars

    frame = polars.read_parquet(f"{directory}/*.parquet")
    columns = polars.col("key").struct.field("k"), polars.col("value").struct.field("n")
    return [tuple(row) for row in frame.select(*columns).rows()]


@pytest.mark.parametrize("read", [_pandas, _duckdb, _polars])
def test_tables_are_read_by(read: Callable[[Path], list[tuple[int, str]]], tmp_path: Path) -> None:
    savepoint.create(
        RowsBuilder(tmp_path / "job").build().root, tmp_path / "tables", format="canonical"
    )
    assert sorted(read(tmp_path / "tables/tables/0/default/default")) == ALL
