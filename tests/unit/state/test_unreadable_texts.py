"""Texts that are no UTF-8, as `cast(value as string)` of any bytes makes them, and times that
Python has no type for: whatever shows rows shows them all the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millpond
from millpond import savepoint
from millpond.cli.main import main
from millpond.model.ids import StoreId
from millpond.rows.encode import encode_rows
from millpond.rows.readable import readable, readable_rows
from millpond.spark.types import Atom, Field, Struct
from tests.row_checkpoints import HashedBuilder

_RAW = Struct((Field("n", Atom("binary")),))
_SHOWN = "\\xffn"


class _Builder(HashedBuilder):
    """The value of version 2 is no UTF-8."""

    def value(self, store: StoreId, version: int) -> bytes:
        text = b"\xffn" if version == 2 else b"of %d" % version
        return b"\0" + bytes(encode_rows(pa.array([{"n": text}]), _RAW).to_pylist()[0])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> _Builder:
    made = _Builder(tmp_path_factory.mktemp("texts") / "query", spark_format=2)
    made.build(batches=2, snapshots=())
    return made


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_read(built: _Builder, capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert main(["state", "read", str(built.root), "--format", form]) == 0
    told = capsys.readouterr().out.replace("\\\\", "\\")  # as JSON writes one
    assert told.count(_SHOWN) == 2 and told.count("of 1") == 2


def _of_version_2(built: _Builder) -> dict[str, Any]:
    return {"k": built._number(StoreId(0, 0), 2)}


def test_look_ups(built: _Builder, capsys: pytest.CaptureFixture[str]) -> None:
    key = _of_version_2(built)
    with millpond.lookup(built.root) as state:
        assert [row["value"] for row in state.get(key)] == [{"n": _SHOWN}]
    told = millpond.state.history(built.root, key=key).to_json()
    assert [change["after"][0]["value"] for change in told["changes"] if change["after"]] == [
        {"n": _SHOWN}
    ]
    assert main(["state", "get", str(built.root), "--key", f"k={key['k']}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == {"n": _SHOWN}


def test_a_time_that_python_lacks() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([-800_000, None], pa.date32())], names=["d"])
    assert readable_rows([batch]) == [{"d": "-0221-09-04"}, {"d": None}]


def test_what_differs(built: _Builder) -> None:
    report = savepoint.diff(built.root, batches=(0, 1), rows=True)
    assert report.rows is not None
    assert {row.after["n"] for row in report.rows} == {_SHOWN}


def test_an_edit_keeps_the_bytes(built: _Builder, tmp_path: Path) -> None:
    savepoint.create(built.root, tmp_path / "saved")

    def same(rows: Any) -> Any:
        return rows

    savepoint.edit(tmp_path / "saved", tmp_path / "edited", function=same)
    assert savepoint.diff(tmp_path / "saved", tmp_path / "edited").equal


def test_texts_inside() -> None:
    bad = pa.array([b"a", b"\xc3(", b"b"], pa.binary()).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), bad)
    assert readable(lists).to_pylist() == [["a"], ["\\xc3(", "b"]]
    assert readable(bad.slice(2)).to_pylist() == ["b"]
    nulls = pa.array([None, "\0x", "ü"])
    assert readable(nulls) is nulls
