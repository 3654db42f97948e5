"""A copy of a stored file that is lost on this machine is no lost object.

A fork or a savepoint looked at the query again, and then told that its storage had lost the file.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import millpond
from millpond import savepoint
from millpond.errors import ErrorKind, FormatError, UnavailableError
from millpond.format.changelog import Op, Record
from millpond.model.ids import StoreId, VersionId
from millpond.operations.output.atomic_target import building
from millpond.operations.output.copying import write_image
from millpond.query.index import damaged, read_index
from millpond.query.whole import checkpoint_image
from millpond.state.canonical import CanonicalRows
from millpond.storage import LocalStorage, MemoryStorage
from millpond.store.entries import entries, open_version
from millpond.store.files import StoreFiles
from millpond.store.overlay import Overlay
from tests.checkpoints import CheckpointBuilder
from tests.row_checkpoints import RowsBuilder


class _Cleaned(MemoryStorage):
    """Somebody deletes each file that is fetched."""

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> None:
        super().get_to_file(key, local_path, link=link)
        os.unlink(local_path)


@pytest.fixture
def storage(tmp_path: Path) -> _Cleaned:
    built = CheckpointBuilder(tmp_path / "query").build(snapshots=())
    made = _Cleaned()
    for info in built.storage.list(""):
        made.put_bytes(info.key, built.storage.read(info.key))
    return made


def test_of_a_changelog_that_is_read(storage: _Cleaned) -> None:
    version = open_version(StoreFiles(storage, StoreId(0, 0), 1), VersionId(6))
    with pytest.raises(UnavailableError) as lost, entries(version) as found:
        list(found)
    assert lost.value.kind is ErrorKind.LOCAL_FILES_LOST


def test_of_changes_that_memory_did_not_hold(tmp_path: Path) -> None:
    """It was an INTERNAL error."""
    header = CheckpointBuilder(tmp_path / "query").header(StoreId(0, 0), 1)
    overlay = Overlay(str(tmp_path), 0)
    overlay.apply(header, [Record(Op.PUT, b"key", b"value")], name="x")
    (spilled,) = tmp_path.glob("changes-*")
    spilled.unlink()
    with pytest.raises(UnavailableError) as lost:
        list(overlay.chunks())
    assert lost.value.kind is ErrorKind.LOCAL_FILES_LOST


def test_of_a_file_that_is_copied(storage: _Cleaned, tmp_path: Path) -> None:
    image = checkpoint_image(storage, "name")
    with pytest.raises(UnavailableError) as lost, building(str(tmp_path / "new")) as target:
        write_image(image, storage, target, link=False, verify=False, damaged=damaged)
    assert lost.value.kind is ErrorKind.LOCAL_FILES_LOST


def test_of_a_table_that_is_read(tmp_path: Path) -> None:
    """The savepoint was called damaged: its table is whole. One that lacks a table was not, and
    `savepoint verify` ended there.
    """
    built = RowsBuilder(tmp_path / "query").build()
    savepoint.create(built.root, tmp_path / "saved", format="canonical")
    saved, made = LocalStorage(str(tmp_path / "saved")), _Cleaned()
    for info in saved.list(""):
        made.put_bytes(info.key, saved.read(info.key))
    index = read_index(made, "saved")
    rows = CanonicalRows(made, index)
    with pytest.raises(UnavailableError) as lost:
        for store in rows.stores():
            list(rows.rows(store))
    assert lost.value.kind is ErrorKind.LOCAL_FILES_LOST
    for table in index.tables:
        assert table.key is not None
        made.delete([table.key])
        with pytest.raises(FormatError, match="is not there") as damage:
            list(rows.table_rows(table))
        assert damage.value.kind is ErrorKind.SAVEPOINT_DAMAGED


def test_of_a_table_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = RowsBuilder(tmp_path / "query").build()
    savepoint.create(built.root, tmp_path / "saved", format="canonical")

    def failing(path: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("millpond.state.canonical.file_crc32", failing)
    with pytest.raises(UnavailableError, match="reading tables/0/") as failed:
        millpond.read_state(tmp_path / "saved")
    assert failed.value.kind is ErrorKind.STORAGE_UNAVAILABLE
