"""Files written by format version 1 stay readable for ever.

Where no compressor is involved, they are written the same.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from millpond.format.changelog import ChangelogReader
from millpond.format.format_file import decode_format, encode_format
from millpond.format.manifest import decode_manifest, encode_manifest
from millpond.query.index import decode_index, encode_index
from tests.conftest import Golden
from tests.examples import (
    COMPOSED,
    FORMAT,
    HEADER,
    MANIFEST,
    OLD_RECORDS,
    RECORDS,
    SAVEPOINT,
    changelog_bytes,
)

MANY = RECORDS * 30
OLD = OLD_RECORDS * 30


@pytest.fixture
def v1(repository: Path) -> Path:
    return repository / "tests/golden/v1"


@pytest.mark.parametrize("name", ["none", "lz4", "zstd", "repeats"])
def test_old_changelogs(v1: Path, name: str) -> None:
    """Nothing writes LZ4 or deletes of ranges any more. Files that have them stay readable."""
    path = v1 / f"{name}.changelog"
    with path.open("rb") as file:
        reader = ChangelogReader(file, name=path.name)
        assert (reader.header, list(reader)) == (HEADER, list(OLD))


def test_a_changelog(golden: Golden, v1: Path) -> None:
    path = v1 / "written.changelog"
    golden.check(path, changelog_bytes(HEADER, MANY, codec="none", block_bytes=4000))
    assert list(ChangelogReader(io.BytesIO(path.read_bytes()))) == list(MANY)


def test_a_changelog_whose_keys_repeat(golden: Golden, v1: Path) -> None:
    """The shim writes such changelogs of lists, and of a spilled batch. Their header has a flag."""
    path = v1 / "written-repeats.changelog"
    golden.check(path, changelog_bytes(HEADER, MANY, codec="none", block_bytes=4000, repeats=True))
    data, before = path.read_bytes(), (v1 / "written.changelog").read_bytes()
    assert data[6:8] == b"\1\0" and before[6:8] == b"\0\0", (
        "files from before the flag have the same records"
    )
    assert (
        list(ChangelogReader(io.BytesIO(data)))
        == list(ChangelogReader(io.BytesIO(before)))
        == list(MANY)
    )


def test_an_empty_changelog(golden: Golden, v1: Path) -> None:
    golden.check(v1 / "empty.changelog", changelog_bytes(HEADER, []))
    assert list(ChangelogReader(io.BytesIO((v1 / "empty.changelog").read_bytes()))) == []


def test_format_json(golden: Golden, v1: Path) -> None:
    golden.check(v1 / "format.json", encode_format(FORMAT))
    assert decode_format((v1 / "format.json").read_bytes()) == FORMAT


def test_manifest(golden: Golden, v1: Path) -> None:
    # This does not compare bytes: implementations of zlib differ in their output.
    if golden.rewrite:
        golden.check(v1 / "20.manifest", encode_manifest(MANIFEST))
    assert decode_manifest((v1 / "20.manifest").read_bytes()) == MANIFEST


def test_savepoint_json(golden: Golden, v1: Path) -> None:
    golden.check(v1 / "savepoint.json", encode_index(SAVEPOINT))
    assert decode_index((v1 / "savepoint.json").read_bytes()) == SAVEPOINT


def test_composed_manifest(golden: Golden, v1: Path) -> None:
    if golden.rewrite:
        golden.check(v1 / "22.manifest", encode_manifest(COMPOSED))
    assert decode_manifest((v1 / "22.manifest").read_bytes()) == COMPOSED
