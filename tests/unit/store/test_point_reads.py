"""Single entries are those that a scan of the whole store yields."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import ErrorKind, FormatError
from millpond.model.ids import StoreId, VersionId
from millpond.store.entries import entries, open_version
from millpond.store.files import StoreFiles
from millpond.store.point_reads import PointReader
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
