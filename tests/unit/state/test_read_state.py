"""Reads of state from Spark checkpoints that were built without a JVM.

They go through the functions and through the command.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millpond
from millpond import savepoint
from millpond.cli.arguments import Parser, add_family
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError
from millpond.model.ids import StoreId
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Struct
from millpond.state.selection import Choice
from tests.checkpoints import CheckpointBuilder
from tests.row_checkpoints import RowsBuilder, expected


@pytest.fixture(scope="module", params=[1, 2], ids=["checkpoint-format-1", "checkpoint-format-2"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CheckpointBuilder:
    return RowsBuilder(tmp_path_factory.mktemp("state"), spark_format=request.param).build()


@pytest.mark.parametrize("batch", [None, 0, 2, 3, 4])
def test_the_state_after_each_batch(built: CheckpointBuilder, batch: int | None) -> None:
    """The state comes from a snapshot alone, from changelogs alone, or from both."""
    found = millpond.read_state(built.root, batch=batch)
    found.validate(full=True)
    assert found.to_pylist() == expected(6 if batch is None else batch + 1)


def test_of_a_savepoint(built: CheckpointBuilder, tmp_path: Path) -> None:
    savepoint.create(built.root, tmp_path / "saved", batch=4)
    assert millpond.read_state(tmp_path / "saved").to_pylist() == expected(5)
    assert (
        millpond.read_state(tmp_path / "saved", operator="stateStoreSave", store="default").num_rows
        == 8
    )


def test_keys(built: CheckpointBuilder) -> None:
    def found(keys: Any) -> list[int]:
        return [key["k"] for key in millpond.read_state(built.root, keys=keys)["key"].to_pylist()]

    assert found({"k": 5}) == [5]
    assert found([{"k": 105}, {"k": 2}, {"k": 77}]) == [2, 105]
    assert found({"k": None}) == found({"k": 77}) == found([]) == []
    assert found(pa.table({"k": [104, 1, 3]})) == [1, 104]
    assert found(pa.table({"k": pa.array([], pa.int64())})) == []


def test_raw_bytes(built: CheckpointBuilder) -> None:
    row = millpond.read_state(built.root, keys={"k": 1}, raw=True).to_pylist()[0]
    store = StoreId(0, 0)
    assert (row["key_bytes"], row["value_bytes"]) == (
        built.key(store, 1)[4:],
        built.value(store, 1),
    )


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"operator": 3}, ErrorKind.OPERATOR_UNKNOWN, "0 (stateStoreSave)"),
        ({"operator": "dedupe"}, ErrorKind.OPERATOR_UNKNOWN, "no operator 'dedupe'"),
        ({"store": "left"}, ErrorKind.INVALID_ARGUMENT, "no store 'left'; there are: default"),
        ({"column_family": "x"}, ErrorKind.INVALID_ARGUMENT, "no column family 'x'"),
        ({"keys": {"x": 1}}, ErrorKind.INVALID_ARGUMENT, "there are: k"),
        ({"keys": {"k": "one"}}, ErrorKind.INVALID_ARGUMENT, "which 'one' is not"),
        ({"keys": {"k.x": 1}}, ErrorKind.INVALID_ARGUMENT, "no key column 'k.x'"),
        ({"batch": 17}, ErrorKind.BATCH_NOT_COMMITTED, "the last one is 5"),
    ],
)
def test_what_is_not_there(
    built: CheckpointBuilder, options: dict[str, Any], kind: ErrorKind, text: str
) -> None:
    with pytest.raises(MillpondError) as caught:
        millpond.read_state(built.root, **options)
    assert caught.value.kind is kind and text in str(caught.value)


def test_rows_that_do_not_fit_the_schema(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "x").build()
    with pytest.raises(MillpondError) as caught:
        millpond.read_state(built.root)
    assert caught.value.kind is ErrorKind.CHANGELOG_DAMAGED


# ---- the command ---------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(built: CheckpointBuilder, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["state", "read", str(built.root), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_formats(run: Run, tmp_path: Path, built: CheckpointBuilder) -> None:
    assert run("--key", "k=5") == (0, "partition  key.k  value.n\n        0      5  of 6\n", "")
    assert run("--key", "k=5", "--format", "csv") == (0, "partition,key.k,value.n\n0,5,of 6\n", "")
    code, out, _ = run("--format", "json")
    assert code == 0 and [json.loads(line) for line in out.splitlines()] == expected(6)
    path = tmp_path / "state.parquet"
    code, out, err = run("--format", "parquet", "--output", str(path))
    assert (code, out, err) == (0, "", f"millpond: 8 rows written to {path}\n")
    assert pq.read_table(path).equals(millpond.read_state(built.root))
    for form in ("csv", "json", "table"):
        assert run("--format", form, "--output", str(tmp_path / form))[0] == 0
        assert (tmp_path / form).read_text() == run("--format", form)[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["csv", "json", "state.parquet", "table"]


def test_limits(run: Run) -> None:
    assert len(run("--limit", "3")[1].splitlines()) == 4
    assert len(run("--limit", "3", "--format", "json")[1].splitlines()) == 3
    assert run("--limit", "0", "--format", "csv")[1] == "partition,key.k,value.n\n"


def test_wrong_arguments(run: Run, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    for wrong in (
        ["--format", "parquet"],
        ["--key", "k"],
        ["--output", str(tmp_path / "there")],
        ["--limit", "-1"],
        ["--output", str(tmp_path / "no/where")],
    ):
        code, out, err = run(*wrong)
        assert code in (1, 2) and out == "" and err
    assert [p.name for p in tmp_path.iterdir()] == ["there"] and (
        tmp_path / "there"
    ).read_text() == "x"


def test_the_list_says_how_to_read(
    built: CheckpointBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["state", "list", str(built.root)]) == 0
    text = capsys.readouterr().out
    assert "stateStoreSave  8 rows" in text
    assert "key   k long" in text and "value n string" in text
    (line,) = [line for line in text.splitlines() if "millpond state read" in line]
    assert main(line.split()[2:]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 8
    assert main(["state", "list", str(built.root), "--no-count", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["families"][0]["rows"] == -1
    assert millpond.state.list(built.root, batch=1).families[0].rows == 4


@pytest.mark.parametrize("name", ["-x", "--", "--help"])
def test_names_that_begin_with_a_dash_are_no_options(
    built: CheckpointBuilder,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a list says how to read is taken by the command, whatever is named how."""
    schema = FamilySchema(name=name, key=Struct(()), value=Struct(()), kind="point")
    parser = Parser()
    add_family(parser)
    told = Choice(operator=0, name="o", store="-a b", schema=schema).arguments()
    taken = parser.parse_args(shlex.split(told))
    assert (taken.operator, taken.store, taken.column_family) == ("0", "-a b", name)
    where = ["state", "read", str(built.root), "--format", "csv"]
    assert main([*where, f"--column-family={name}"]) == 2
    assert f"no column family {name!r}; there are: default" in capsys.readouterr().err
    (tmp_path / "-job").symlink_to(built.root)
    monkeypatch.chdir(tmp_path)
    assert main(["state", "list", "--", "-job"]) == 0
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if "millpond state read" in line]
    assert main(shlex.split(line)[2:]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 8


def test_two_batches_of_one_query(
    built: CheckpointBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["savepoint", "diff", str(built.root), "--batch", "1", "--batch", "3"]
    assert main([*command, "--rows"]) == 1
    lines = capsys.readouterr().out.splitlines()
    counts = ["0", "stateStoreSave", "default", "default", "2", "0", "2", "2"]
    assert lines[1].split() == counts
    assert sorted(lines[2:]) == [
        'added    0 default: {"k":104}  {"n":"of 4"}',
        'added    0 default: {"k":4}  {"n":"of 4"}',
        'changed  0 default: {"k":102}  {"n":"of 2"} -> {"n":"of 3"}',
        'changed  0 default: {"k":2}  {"n":"of 2"} -> {"n":"of 3"}',
    ]
    report = savepoint.diff(built.root, batches=(3, 1), rows=True)
    assert report.rows is not None and report.batches == (3, 1)
    assert sorted(row.change for row in report.rows) == ["changed", "changed", "removed", "removed"]
    assert main(command[:-2]) == 2
    assert "--batch 3 --batch 7" in capsys.readouterr().err
