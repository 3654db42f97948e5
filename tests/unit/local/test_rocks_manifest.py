"""A RocksDB database opens without the SSTs that its edited manifest removes, and has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rocksdict

from millpond.local import rocks, rocks_manifest
from millpond.local.rocks_manifest import without_files

_BLOCK = 32 * 1024


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A database of 120 SSTs, each with a key of its own; its manifest has several blocks."""
    root = tmp_path_factory.mktemp("rocks")
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_disable_auto_compactions(True)
    db = rocksdict.Rdict(str(root / "db"), options)
    for number in range(120):
        db[b"%03d-" % number + b"k" * 300] = b"v%d" % number
        db.flush()
    rocksdict.Checkpoint(db).create_checkpoint(str(root / "copy"))
    files = sorted(db.live_files(), key=lambda file: bytes(file["start_key"]))
    db.close()
    return root / "copy", files


@pytest.mark.parametrize("kept", [0, 1, 7, 60, 119, 120])
def test_files_are_removed(
    built: tuple[Path, list[dict[str, Any]]], tmp_path: Path, kept: int
) -> None:
    source, files = built
    names = [str(file["name"]).lstrip("/") for file in files]
    (manifest,) = source.glob("MANIFEST-*")
    assert manifest.stat().st_size > _BLOCK
    removed = [(int(files[n]["level"]), int(names[n].partition(".")[0])) for n in range(kept, 120)]
    for name in (*names[:kept], "CURRENT"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    (tmp_path / manifest.name).write_bytes(without_files(manifest.read_bytes(), removed))
    found = list(rocks.scan(str(tmp_path), name="the copy"))
    assert found == [(b"%03d-" % n + b"k" * 300, b"v%d" % n) for n in range(kept)]


@pytest.mark.parametrize("left", [*range(15), 100])
def test_a_change_goes_on_in_the_next_block(
    built: tuple[Path, list[dict[str, Any]]], tmp_path: Path, left: int
) -> None:
    """The log has `left` bytes in its last block: a change does not fit there."""
    source, files = built
    names = [str(file["name"]).lstrip("/") for file in files]
    (manifest,) = source.glob("MANIFEST-*")
    content = manifest.read_bytes()
    content += _ignored(-len(content) % _BLOCK, len(content))
    content += _ignored(_BLOCK - left, len(content))
    assert -len(content) % _BLOCK == left
    for name in (names[-1], "CURRENT"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    removed = [(0, int(name.partition(".")[0])) for name in names[:-1]]
    (tmp_path / manifest.name).write_bytes(without_files(content, removed))
    assert len(list(rocks.scan(str(tmp_path), name="the copy"))) == 1


def _ignored(size: int, position: int) -> bytes:
    """Return a record of `size` bytes that changes nothing."""
    body = size - 7 - 2 - 3
    # RocksDB skips a tag with this bit. Its length follows, here in three bytes, and its bytes.
    length = bytes([body & 0x7F | 0x80, body >> 7 & 0x7F | 0x80, body >> 14])
    return rocks_manifest._records(b"\x81\x40" + length + bytes(body), position)
