"""A RocksDB database opens without the SSTs that its edited manifest removes, and has the rest. A
manifest tells the keys of SSTs that are gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rocksdict

from millpond.local import rocks, rocks_manifest
from millpond.local.rocks_manifest import key_bounds, without_files

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


def test_bounds_of_all_files_that_there_ever_were(
    built: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Over several blocks; also of files that a compaction has removed or moved."""
    source, _ = built
    (manifest,) = source.glob("MANIFEST-*")
    content = manifest.read_bytes()
    assert key_bounds(content) == {b"%03d-" % n + b"k" * 300 for n in range(120)}
    for left in (*range(15), 100):
        padded = content + _ignored(-len(content) % _BLOCK, len(content))
        padded += _ignored(_BLOCK - left, len(padded))
        assert key_bounds(without_files(padded, [(0, 9)])) == key_bounds(content)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    db = rocksdict.Rdict(str(tmp_path / "db"), options)
    for keys in ((b"gone-1", b"gone-3"), (b"gone-2", b"kept-1"), (b"kept-2",)):
        for key in keys:
            db[key] = b"v"
        db.flush()
    for n in (1, 2, 3):
        del db[b"gone-%d" % n]
    db.flush()
    db.compact_range(None, None)
    assert all(bytes(file["start_key"]) >= b"kept-1" for file in db.live_files())
    rocksdict.Checkpoint(db).create_checkpoint(str(tmp_path / "copy"))
    db.close()
    (manifest,) = (tmp_path / "copy").glob("MANIFEST-*")
    found = key_bounds(manifest.read_bytes())
    assert found == {b"gone-1", b"gone-2", b"gone-3", b"kept-1", b"kept-2"}


@pytest.mark.parametrize("cut", [1, 3, 7, 8, 20, 100])
def test_a_damaged_manifest_is_told(built: tuple[Path, list[dict[str, Any]]], cut: int) -> None:
    (manifest,) = built[0].glob("MANIFEST-*")
    content = manifest.read_bytes()
    with pytest.raises(ValueError, match="record"):
        key_bounds(content[:-cut])
    edit = rocks_manifest._records(b"\x63", len(content))  # a change of kind 99
    with pytest.raises(ValueError, match="a change of kind 99"):
        key_bounds(content + edit)
    with pytest.raises(ValueError, match="a record ends early"):
        key_bounds(content + rocks_manifest._records(b"\x67\x00", len(content)))
    with pytest.raises(ValueError, match="a text leads out"):
        key_bounds(content + rocks_manifest._records(b"\x01\x09x", len(content)))


def _ignored(size: int, position: int) -> bytes:
    """Return a record of `size` bytes that changes nothing."""
    body = size - 7 - 2 - 3
    # RocksDB skips a tag with this bit. Its length follows, here in three bytes, and its bytes.
    length = bytes([body & 0x7F | 0x80, body >> 7 & 0x7F | 0x80, body >> 14])
    return rocks_manifest._records(b"\x81\x40" + length + bytes(body), position)
