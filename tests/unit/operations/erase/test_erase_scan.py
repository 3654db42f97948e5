"""What an erasure reads of files."""

from __future__ import annotations

from pathlib import Path

import pytest
import rocksdict

from millpond.model.json_fields import ColumnFamily
from millpond.operations.erase.proof import Search
from millpond.operations.erase.scan import Found, changelog_blocks, sst_raw_blocks
from tests.erase_scenes import uncompressed
from tests.objects import NoWholeReads
from tests.row_checkpoints import HashedBuilder

FAMILY = ColumnFamily(id=0, name="default")


def test_a_large_file_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = HashedBuilder(tmp_path / "query").build(snapshots=(3,))
    elsewhere = NoWholeReads(built.storage)
    files = {"changelog": 0, "sst": 0}
    for info in built.storage.list("state/"):
        kind = info.key.rpartition(".")[2]
        if kind in files:
            files[kind] += 1
        if kind == "changelog":
            assert any(records for _, _, records in changelog_blocks(elsewhere, info.key))
        elif kind == "sst":
            entries = [entry for _, part in sst_raw_blocks(elsewhere, info, None) for entry in part]
            assert entries == [
                entry for _, part in sst_raw_blocks(built.storage, info, None) for entry in part
            ]
    assert all(files.values())


def test_what_is_looked_for_in_the_proof_has_an_end() -> None:
    """A part of a key may have millions of rows, and a value may have megabytes."""
    found = Found()
    for n in range(3000):
        value = b"%06d" % n * (1 if n % 500 else 100_000)
        found.add(b"\0\0\0\0%06d" % n, FAMILY, value)
    assert found.rows == 3000
    assert sum(map(len, found.keys | found.values)) < 200_000
    search = Search(found)
    search.look("a", b"... 000007 ...")
    search.look("b", b"... 002999 ...")
    assert search.proof().needles == 1000
    assert search.proof().elsewhere == (("a", 1),)
    few = Found()
    few.add(b"\0\0\0\0key", FAMILY, b"value" * 100_000)
    search = Search(few)
    search.look("a", b"... " + b"value" * 100_000)
    search.look("b", b"value" * 10)
    assert search.proof().needles == 2 and search.proof().elsewhere == (("a", 1),)
