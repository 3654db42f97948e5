"""Single entries are those that a scan of the whole store yields."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from millpond.errors import ErrorKind, FormatError, UnavailableError
from millpond.format import layout
from millpond.model.ids import StoreId, VersionId
from millpond.rows.chunks import pair_bytes
from millpond.storage import MemoryStorage
from millpond.store import point_reads
from millpond.store.entries import entries, open_version, parts_of
from millpond.store.files import StoreFiles
from millpond.store.partial_database import PartialDatabase
from millpond.store.point_reads import Most, PointReader
from tests.checkpoints import CheckpointBuilder, version_id


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("version", [1, 3, 6])
def test_each_entry_is_found(tmp_path: Path, spark_format: int, version: int) -> None:
    built = CheckpointBuilder(tmp_path / "query", spark_format=spark_format).build()
    store = StoreId(0, 0)
    target = VersionId(version, version_id(store, version) if spark_format == 2 else "")
    opened = open_version(StoreFiles(built.storage, store, spark_format), target)
    with entries(opened) as found:
        every = list(found)
    assert every
    reader = PointReader(opened)
    try:
        for key, value in every:
            assert reader.get(key) == value
            assert reader.get(key + b"\0") is None
            for size in range(len(key) + 1):
                prefix = key[:size]
                assert reader.starting_with(prefix) == [e for e in every if e[0][:size] == prefix]
    finally:
        reader.close()


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "query").build()
    for sst in (tmp_path / "query").rglob("*.sst"):
        data = bytearray(sst.read_bytes())
        data[: len(data) // 2] = bytes(len(data) // 2)
        sst.write_bytes(bytes(data))
    store = StoreId(0, 0)
    opened = open_version(StoreFiles(built.storage, store, 1), VersionId(6))
    with pytest.raises(FormatError) as caught:
        reader = PointReader(opened)
        try:
            reader.starting_with(b"")
        finally:
            reader.close()
    assert caught.value.kind is ErrorKind.SST_DAMAGED


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_reader_goes_on_to_later_versions(tmp_path: Path, spark_format: int) -> None:
    built = CheckpointBuilder(tmp_path / "query", spark_format=spark_format).build()
    store = StoreId(0, 0)

    def at(version: int) -> VersionId:
        return VersionId(version, version_id(store, version) if spark_format == 2 else "")

    def files() -> StoreFiles:
        return StoreFiles(built.storage, store, spark_format)

    first = PointReader(open_version(files(), at(1)))
    open_readers = [first]
    for version in (2, 4, 6):
        later = open_readers[-1].advanced(files(), at(version))
        assert later is not None
        open_readers.append(later)
    assert first.advanced(files(), at(1)) is None
    # Each goes on with its own version, whichever of the others is closed.
    open_readers.pop(1).close()
    for reader, version in zip(open_readers, (1, 4, 6), strict=True):
        with entries(open_version(files(), at(version))) as found:
            assert reader.starting_with(b"") == list(found)
        assert reader.version.families == open_version(files(), at(version)).families
        reader.close()


def test_a_reader_does_not_go_on_over_a_gap_or_to_another_attempt(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "query", spark_format=2).build()
    store = StoreId(0, 0)
    files = StoreFiles(built.storage, store, 2)
    reader = PointReader(open_version(files, VersionId(2, version_id(store, 2))))
    assert reader.advanced(files, VersionId(6, version_id(StoreId(0, 1), 6))) is None
    built.storage.delete([layout.changelog_key(store, VersionId(3, version_id(store, 3)), 2)])
    assert reader.advanced(files, VersionId(6, version_id(store, 6))) is None
    reader.close()


@pytest.mark.parametrize("most", ["_MOST_CHANGES", "_MOST_BYTES"])
def test_a_reader_with_many_changes_gives_way_to_a_newer_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    built = CheckpointBuilder(tmp_path / "query", spark_format=2).build(snapshots=(3, 5))
    store = StoreId(0, 0)
    files = StoreFiles(built.storage, store, 2)
    reader = PointReader(open_version(files, VersionId(4, version_id(store, 4))))
    monkeypatch.setattr(point_reads, most, 0)
    assert reader.advanced(files, VersionId(6, version_id(store, 6))) is None
    reader.close()
    last = PointReader(open_version(files, VersionId(5, version_id(store, 5))))
    later = last.advanced(files, VersionId(6, version_id(store, 6)))
    assert later is not None  # there is no newer snapshot
    later.close()
    last.close()


class _Remote(MemoryStorage):
    """Counts what is read of SSTs."""

    ssts = 0

    def read(self, key: str) -> bytes:
        self.ssts += key.endswith(".sst")
        return super().read(key)


def test_an_sst_that_could_not_be_opened_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local disk was full for a moment. Then a key in the SST counted as absent for as long as
    the reader was open: the database in use had never heard of the file.
    """
    built = CheckpointBuilder(tmp_path / "query").build(snapshots=(3, 5))
    storage, store = _Remote(), StoreId(0, 0)
    for info in built.storage.list(""):
        storage.put_bytes(info.key, built.storage.read(info.key))
    opened = open_version(StoreFiles(storage, store, 1), VersionId(5))
    reader = PointReader(opened, whole=False)
    assert reader.get(built.key(store, 1)) == built.value(store, 1)
    assert storage.ssts == 1

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for step in ("link", "mkdir"):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, refuse)
            with pytest.raises(UnavailableError) as caught:
                reader.get(built.key(store, 5))
            assert caught.value.kind is ErrorKind.LOCAL_DISK_FULL
        assert reader.get(built.key(store, 2)) == built.value(store, 2)
    assert reader.get(built.key(store, 5)) == built.value(store, 5)
    assert [key for key, _ in reader.starting_with(b"")] == [
        built.key(store, version) for version in range(1, 6)
    ]
    assert storage.ssts == 2, "what was fetched is kept"
    reader.close()


def test_a_scan_fetches_ssts_when_it_comes_to_them(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "query").build(40, snapshots=(3, 5, 9, 17, 20, 31, 38))
    storage, store = _Remote(), StoreId(0, 0)
    for info in built.storage.list(""):
        storage.put_bytes(info.key, built.storage.read(info.key))
    files = StoreFiles(built.storage, store, 1), StoreFiles(storage, store, 1)
    local, remote = (open_version(some, VersionId(40)) for some in files)
    with entries(local) as found:
        every = list(found)
    with entries(remote, few=True) as found:
        assert list(found) == every
    assert storage.ssts == 7
    (part,) = parts_of(remote)
    database = PartialDatabase(storage, part, str(tmp_path / "part"), name="it")
    storage.ssts, fetched = 0, list[int]()
    for entry in database.scan():
        assert entry in every
        fetched.append(storage.ssts)
    assert fetched == sorted(fetched) and list(dict.fromkeys(fetched)) == [1, 2, 4, 7]
    database.close()


def test_a_limit_ends_a_search(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "query").build(batches=20, snapshots=(3, 15))
    opened = open_version(StoreFiles(built.storage, StoreId(0, 0), 1), VersionId(20))
    reader = PointReader(opened)
    every = reader.starting_with(b"")
    for limit in range(25):
        found = reader.starting_with(b"", Most(limit, 10**9))
        assert found == every if limit >= len(every) else len(found) > limit
    for limit in range(0, 2000, 10):
        found = reader.starting_with(b"", Most(1000, limit))
        assert found == every if limit >= pair_bytes(every) else pair_bytes(found) > limit
    reader.close()
