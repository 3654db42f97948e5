"""A copy of a stored file that is lost on this machine is no lost object.

A fork or a savepoint looked at the query again, and then told that its storage had lost the file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millpond.errors import ErrorKind, UnavailableError
from millpond.format.changelog import Op, Record
from millpond.model.ids import StoreId, VersionId
from millpond.operations.output.atomic_target import building
from millpond.operations.output.copying import write_image
from millpond.query.index import damaged
from millpond.query.whole import checkpoint_image
from millpond.storage import MemoryStorage
from millpond.store.entries import entries, open_version
from millpond.store.files import StoreFiles
from millpond.store.overlay import Overlay
from tests.checkpoints import CheckpointBuilder


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
