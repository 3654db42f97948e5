"""Every entry of an SST, as RocksDB wrote it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import rocksdict

from millpond.errors import FormatError, MillpondError, UnsupportedError
from millpond.format.sst_blocks import Block, data_blocks
from millpond.model.varint import decode_varint

GOLDEN = sorted(Path("tests/golden").rglob("*.sst"))
_COMPRESSIONS = ("none", "lz4", "zstd")


def written(
    directory: Path,
    compression: str,
    *,
    hash_index: bool = False,
    version: int = 5,
    levels: int = 1,
) -> bytes:
    """Return an SST with puts and deletions; some keys are long, some values large or empty."""
    options = rocksdict.Options(raw_mode=True)
    kind = getattr(rocksdict.DBCompressionType, compression)()
    options.set_compression_type(kind)
    options.set_disable_auto_compactions(True)
    table = rocksdict.BlockBasedOptions()
    table.set_format_version(version)
    if hash_index:
        table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    if levels == 2:
        table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        table.set_metadata_block_size(200)
    options.set_block_based_table_factory(table)
    db = rocksdict.Rdict(str(directory), options)
    for n in range(3000):
        db[key_of(n)] = value_of(n)
    for n in range(0, 3000, 7):
        del db[key_of(n)]
    db.flush()
    db.close()
    (path,) = directory.glob("*.sst")
    return path.read_bytes()


def blocks(data: bytes) -> Iterator[Block]:
    return data_blocks(lambda at, n: data[at : at + n], len(data), name="it")


def key_of(n: int) -> bytes:
    return n.to_bytes(4, "big") + b"k" * (n % 300)


def value_of(n: int) -> bytes:
    return b"" if n % 11 == 0 else bytes(f"value {n}", "ascii") * (1 if n % 50 else 3000)


@pytest.mark.parametrize("version", [3, 5, 6])
def test_an_index_of_two_levels(tmp_path: Path, version: int) -> None:
    def entries(levels: int) -> list[tuple[bytes, bytes]]:
        data = written(tmp_path / str(levels), "zstd", version=version, levels=levels)
        return [entry for block in blocks(data) for entry in block.entries]

    assert entries(2) == entries(1)


@pytest.mark.parametrize("version", [3, 5, 6])
@pytest.mark.parametrize("hash_index", [False, True])
@pytest.mark.parametrize("compression", _COMPRESSIONS)
def test_all_entries_with_deletions(
    tmp_path: Path, compression: str, hash_index: bool, version: int
) -> None:
    data = written(tmp_path / "db", compression, hash_index=hash_index, version=version)
    found = [entry for block in blocks(data) for entry in block.entries]
    assert [key for key, _ in found] == sorted({key_of(n) for n in range(3000)})
    assert dict(found) == {key_of(n): b"" if n % 7 == 0 else value_of(n) for n in range(3000)}


def test_a_compression_that_millpond_never_writes_is_refused() -> None:
    data = GOLDEN[0].read_bytes()
    with pytest.raises(UnsupportedError, match="compression 1"):
        list(blocks(data))


def test_an_index_that_ends_before_it_begins_is_no_file_without_rows(tmp_path: Path) -> None:
    """An erasure would have found no row of the key in such a file."""
    data = bytearray(written(tmp_path / "db", "none"))
    at, numbers = len(data) - 53 + 1, []
    for _ in range(4):
        number, at = decode_varint(bytes(data), at)
        numbers.append(number)
    end = numbers[2] + numbers[3]
    data[end - 4 : end] = (0x00FF_FFFF).to_bytes(4, "little")  # restarts
    with pytest.raises(FormatError, match="cannot be read"):
        list(blocks(bytes(data)))


def test_damage_is_an_error_and_never_another_one(tmp_path: Path) -> None:
    data = written(tmp_path / "db", "none")
    chance = random.Random(1)
    told = 0
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(3):
            broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        cut = bytes(broken)[: chance.choice([len(broken), chance.randrange(len(broken))])]
        try:
            list(blocks(cut))
        except MillpondError as e:
            assert isinstance(e, FormatError | UnsupportedError)
            told += 1
    assert told > 100
