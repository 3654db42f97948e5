"""Names that a file system hardly takes, of places and of column families."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from millpond import savepoint
from millpond.errors import ErrorKind
from millpond.format import table_names
from millpond.format.sealed import seal
from millpond.model.ids import StoreId
from millpond.operations.inspect import verify
from millpond.query.index import decode_index, encode_index, read_index
from millpond.storage import LocalStorage
from tests.checkpoints import CheckpointBuilder
from tests.refusals import refused
from tests.row_checkpoints import RowsBuilder


def test_a_name_that_is_too_long_for_a_file(tmp_path: Path) -> None:
    """A state variable of 29 CJK letters had no table: its name has 261 bytes when encoded."""
    family = "状" * 29
    built = RowsBuilder(tmp_path / "query", family=family).build()
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, format="canonical")
    assert savepoint.verify(saved).ok
    savepoint.restore(saved, tmp_path / "new")
    savepoint.create(tmp_path / "new", tmp_path / "again", format="canonical")
    assert savepoint.diff(saved, tmp_path / "again").equal
    index = read_index(LocalStorage(str(saved)), "saved")
    assert {table.family.name for table in index.tables} == {family}

    # So it was written to object storages, which take the name.
    written = encode_index(index).partition(b"\n")[2]
    short = table_names.table_key(StoreId(0, 0), family).split("/")[3]
    body = json.loads(written.replace(short.encode(), quote(family).encode()))
    old = decode_index(seal("savepoint", body))
    assert [table.key for table in old.tables] == [
        f"tables/0/default/{quote(family)}/{partition}.parquet" for partition in (0, 1)
    ]
    body["tables"][0]["key"] = "tables/0/default/x/0.parquet"
    body["files"].append({"key": "tables/0/default/x/0.parquet", "size_bytes": 0, "crc32": 0})
    refused(ErrorKind.UNSAFE_PATH, decode_index, seal("savepoint", body))


@pytest.mark.parametrize(
    "name", ["ä" * 120, "状" * 71, "a" * 255, "\udce9" * 255], ids=["ä", "状", "a", "no text"]
)
def test_a_name_that_has_no_room_for_more(
    built: CheckpointBuilder, tmp_path: Path, name: str
) -> None:
    """Beside it is a hidden one with 42 bytes more: it could be neither written nor deleted."""
    saved = tmp_path / "places" / name
    savepoint.create(built.root, saved)
    savepoint.restore(saved, tmp_path / "new" / name)
    assert verify(LocalStorage(str(tmp_path / "new" / name)), "new").ok
    savepoint.delete(saved)
    assert list((tmp_path / "places").iterdir()) == []


@pytest.mark.parametrize("name", ["ä" * 120, "a" * 255], ids=["ä", "a"])
def test_what_a_killed_writer_of_a_long_name_left(
    built: CheckpointBuilder, tmp_path: Path, name: str
) -> None:
    place = tmp_path / "places"
    (place / f".{name[: 200 // len(name[0].encode())]}.staging-{'0' * 32}" / "state").mkdir(
        parents=True
    )
    savepoint.create(built.root, place / name)
    assert [path.name for path in place.iterdir()] == [name]
