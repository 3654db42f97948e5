"""Rows of a state variable that a later job has no more: Spark keeps them, and its newest schema
does not describe them.
"""

from __future__ import annotations

import os
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

import millpond
from millpond import savepoint
from millpond.format import layout, table_names
from millpond.query.index import encode_index, read_index
from millpond.storage import LocalStorage
from tests.checkpoints import CheckpointBuilder
from tests.row_checkpoints import RowsBuilder


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    return RowsBuilder(tmp_path / "query").build()


def _drop(saved: Path) -> None:
    """Give the rows of a canonical savepoint to a column family that no schema describes."""
    index = read_index(LocalStorage(str(saved)), "saved")
    tables, files = [], dict(index.files)
    for table in index.tables:
        assert table.key is not None
        key = table_names.table_key(table.store, "dropped")
        (saved / key).parent.mkdir(exist_ok=True)
        os.rename(saved / table.key, saved / key)
        files[key] = replace(files.pop(table.key), key=key)
        family = replace(table.family, name="dropped")
        tables.append(replace(table, family=family, key=key))
    changed = replace(index, files=files, tables=tuple(tables))
    (saved / layout.SAVEPOINT_KEY).write_bytes(encode_index(changed))


def test_a_diff_shows_their_bytes(built: CheckpointBuilder, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for saved, batch in ((before, 4), (after, 5)):
        savepoint.create(built.root, saved, batch=batch, format="canonical")
    raw = millpond.read_state(after, raw=True).to_pylist()
    texts = {b64encode(row["key_bytes"]).decode(): row["value_bytes"] for row in raw}
    _drop(after)
    rows = savepoint.diff(before, after, rows=True).rows or ()
    added = {row.key: row.after for row in rows if row.column_family == "dropped"}
    assert added == {key: b64encode(value).decode() for key, value in texts.items()}
    removed = [row.key["k"] for row in rows if row.column_family == "default"]
    assert sorted(removed) == sorted(row["key"]["k"] for row in raw)

    _drop(before)
    changed = savepoint.diff(before, after, rows=True)
    assert [(f.column_family, f.changed, f.same) for f in changed.families] == [("dropped", 2, 6)]
    assert {row.key for row in changed.rows or ()} < set(texts)
    assert all(row.change == "changed" for row in changed.rows or ())
