"""Reports as HTML of a notebook, as Arrow and as pandas."""

from __future__ import annotations

import datetime as dt
import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millpond import checkpoint, savepoint
from millpond.checkpoint import BatchProgress, History, OperatorProgress
from millpond.errors import ErrorKind, UnsupportedError
from millpond.operations.notebook import Notebook
from tests.row_checkpoints import RowsBuilder

_PLAIN = {"div", "p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}
_HOSTILE = "<script>alert('&\"1')</script>"


class Page(HTMLParser):
    """HTML taken apart. It must be plain: well nested, without script, link, picture or colour."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[list[list[str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _PLAIN
        for name, value in attrs:
            assert name in ("style", "scope")
            assert value is not None and "url" not in value
            assert "color" not in value and "background" not in value
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._open and self._open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def facts(self) -> dict[str, str]:
        return {name: value for name, value in self.tables[0]}  # noqa: C416


def page(report: Notebook) -> Page:
    return Page(report._repr_html_())


def _agree(report: Notebook, shown: list[list[str]]) -> None:
    """The HTML, Arrow and pandas have the same rows."""
    table = report.to_arrow()
    table.validate(full=True)
    assert shown[0] == [name.replace("_", " ") for name in table.column_names]
    assert [[_said(value) for value in row.values()] for row in table.to_pylist()] == shown[1:]
    frame = report.to_pandas()
    assert list(frame.columns) == table.column_names and len(frame) == table.num_rows
    assert pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False).equals(table)


def _said(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S UTC")
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def test_a_checkpoint(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / _HOSTILE.replace("/", "|"), partitions=4).build()
    shown = checkpoint.show(built.root)
    found = page(shown)
    assert f"Spark checkpoint {built.root}" in found.texts
    assert found.facts()["committed batches"] == "0 to 5"
    assert found.facts()["partitions"] == "4"
    _agree(shown, found.tables[-1])
    rows = shown.to_arrow().to_pylist()
    assert [row["partition"] for row in rows] == [0, 1, 2, 3]
    stores = shown.to_json()["operators"][0]["stores"]
    assert [row["sst_bytes"] for row in rows] == [store["sst_bytes"] for store in stores]
    assert {row["newest_snapshot"] for row in rows} == {5}
    assert {row["name"] for row in rows} == {"stateStoreSave"}


def test_what_is_wrong_is_shown(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query").build()
    damaged = next((tmp_path / "query").rglob("*.manifest"))
    damaged.write_bytes(b"{")
    shown = checkpoint.show(built.root)
    assert shown.problems
    found = page(shown)
    assert "Problems:" in found.texts
    assert set(shown.problems) <= set(found.texts)


def test_a_savepoint(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query", partitions=2).build()
    savepoint.create(built.root, tmp_path / "saved" / "one", batch=3)
    savepoint.create(built.root, tmp_path / "saved" / "two")
    index = tmp_path / "saved" / "two" / "savepoint.json"
    shown = savepoint.show(tmp_path / "saved" / "one")
    found = page(shown)
    assert found.facts()["batch"] == "3" and found.facts()["format"] == "native"
    _agree(shown, found.tables[-1])
    assert [row["version"] for row in shown.to_arrow().to_pylist()] == [4, 4]
    index.write_text(json.dumps({"what": _HOSTILE}))
    listed = savepoint.list(tmp_path / "saved")
    found = page(listed)
    assert len(listed.unreadable) == 1 and "Problems:" in found.texts
    _agree(listed, found.tables[-1])
    assert listed.to_arrow()["batch"].to_pylist() == [3]


def _batch(number: int, operators: int = 2) -> BatchProgress:
    operator = OperatorProgress(
        name=_HOSTILE,
        rows=10,
        rows_updated=number,
        rows_removed=2,
        rows_late=0,
        memory_bytes=1000,
        update_ms=1,
        removal_ms=1,
        commit_ms=5,
        partitions=4,
        stores=4,
    )
    return BatchProgress(
        batch=number,
        run_id="run",
        at_ms=1_700_000_000_000 + number,
        duration_ms=1234,
        phases={"walCommit": 3},
        input_rows=5000,
        output_rows=None,
        watermark=_HOSTILE if number else None,
        operators=(operator,) * operators,
    )


def test_the_history() -> None:
    told = History(
        checkpoint=_HOSTILE,
        batches=tuple(_batch(n) for n in range(3)),
        problems=(f"{_HOSTILE} is damaged",),
    )
    found = page(told)
    assert {f"Last batches of {_HOSTILE}", f"{_HOSTILE} is damaged"} <= set(found.texts)
    _agree(told, found.tables[-1])
    rows = told.to_arrow().to_pylist()
    assert [row["updated_rows"] for row in rows] == [0, 2, 4]
    assert rows[0]["began"] == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.timezone.utc)
    assert {row["output_rows"] for row in rows} == {None}


def test_of_a_long_table_the_newest_rows_are_shown() -> None:
    told = History(checkpoint="c", batches=tuple(_batch(n) for n in range(250)), problems=())
    found = page(told)
    assert [row[0] for row in found.tables[-1][1:]] == [str(n) for n in range(150, 250)]
    assert "250 batches; the last 100, to_pandas() has all" in found.texts
    assert told.to_arrow().num_rows == len(told.to_pandas()) == 250


def test_without_rows() -> None:
    told = History(checkpoint="c", batches=(), problems=())
    assert "0 batches" in page(told).texts and page(told).tables == []
    assert told.to_arrow().num_rows == 0 and "began" in told.to_pandas().columns


def test_a_time_that_is_none() -> None:
    late = BatchProgress(
        batch=1,
        run_id="",
        at_ms=10**17,
        duration_ms=0,
        phases={},
        input_rows=0,
        output_rows=0,
        watermark=None,
        operators=(),
    )
    assert f"{10**17:,} ms" in page(History(checkpoint="c", batches=(late,), problems=())).texts


def test_pandas_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    told = History(checkpoint="c", batches=(_batch(1),), problems=())
    assert told.to_arrow().num_rows == 1
    with pytest.raises(UnsupportedError, match="pandas") as caught:
        told.to_pandas()
    assert caught.value.kind is ErrorKind.UNSUPPORTED and "pip install pandas" in caught.value.hint
