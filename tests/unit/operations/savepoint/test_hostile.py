"""Savepoints from a stranger.

A restore takes only the parts of a savepoint from one, and nothing else.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond import savepoint
from millpond.errors import ErrorKind, FormatError, InternalError
from millpond.format import layout
from millpond.format.sealed import seal
from millpond.operations.output.atomic_target import building
from millpond.operations.output.copying import write_image
from millpond.query.from_savepoint import savepoint_image
from millpond.query.image import StoredFile
from millpond.query.index import damaged, decode_index
from millpond.storage import LocalStorage
from millpond.storage.place import place_record
from tests.checkpoints import CheckpointBuilder
from tests.refusals import refused
from tests.row_checkpoints import RowsBuilder

SST = "state/0/0/sst/" + "0" * 32 + ".sst"

# These keys lie in a Spark checkpoint too, or look like a part of one.
STRANGE = [
    layout.STORAGE_KEY,
    layout.RESCALE_JOURNAL_KEY,
    layout.ASKED_KEY,
    layout.CLAIM_KEY,
    layout.rescale_pin_key(0, 5),
    layout.pin_key("reader-1"),
    layout.scratch_key("x"),
    "millpond/gc/0.json",
    "millpond/gc/0.condemned-1.json",
    "millpond/running/1.json",
    "millpond/owner.json",
    "millpond/format.json/x",
    "metadata/x",
    "offsets/3",
    "offsets/7",
    "offsets/x",
    "offsets/5/x",
    "offsets/.5.crc",
    "commits/4",
    "commits/6",
    "sources/0",
    "sources/0/.1.crc",
    "state/x",
    "state/0/x",
    "state/0/0/x",
    "state/0/0/.staging-" + "0" * 32,
    "state/0/0/sst/.staging-" + "0" * 32,
    "state/0/0/sst/x.sst",
    "state/0/0/6.changelog.crc",
    "state/0/0/1.delta",
    "state/0/0/1.zip",
    "state/0/_metadata/x",
    "state/0/_metadata/v2/x",
    "state/0/_metadata/v2/1/x",
    "state/0/_stateSchema/default",
    "state/0/_stateSchema/a/b/c",
    "state/0/0/_metadata/x",
    "state/00/0/1.changelog",
    "other",
]
OF_A_NATIVE_ONE = ["state/0/0/1.changelog", "state/0/0/1.manifest", SST]
TABLES = ["tables/0/default/default/9.parquet", "tables/x"]
OUTSIDE = ["../x", "/etc/passwd", "state/../../x", "state//0", "a\\b", "a\0b", "", "."]


@pytest.fixture(scope="module", params=[1, 2], ids=["checkpoint-format-1", "checkpoint-format-2"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CheckpointBuilder:
    return RowsBuilder(tmp_path_factory.mktemp("rows"), spark_format=request.param).build()


@pytest.fixture(params=["native", "canonical"])
def saved(request: pytest.FixtureRequest, built: CheckpointBuilder, tmp_path: Path) -> Path:
    savepoint.create(built.root, tmp_path / "saved", format=request.param, link=False)
    return tmp_path / "saved"


def index_of(saved: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(
        (saved / layout.SAVEPOINT_KEY).read_bytes().partition(b"\n")[2]
    )
    return value


def with_file(saved: Path, key: str, data: bytes = b"") -> None:
    """Add one file to the index, with the right size and sum."""
    body = index_of(saved)
    body["files"].append({"key": key, "size_bytes": len(data), "crc32": zlib.crc32(data)})
    (saved / layout.SAVEPOINT_KEY).write_bytes(seal("savepoint", body))


def test_what_is_no_part_of_a_savepoint(saved: Path, tmp_path: Path) -> None:
    index = (saved / layout.SAVEPOINT_KEY).read_bytes()
    for key in STRANGE:
        path = saved / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            path.write_bytes(b"")
        except OSError:
            # A file is in the place of its directory, or a directory in the place of the file. Then
            # only the index names it.
            pass
        with_file(saved, key)
        for partitions in (None, 4):
            e = refused(
                ErrorKind.UNSAFE_PATH,
                savepoint.restore,
                saved,
                tmp_path / "new",
                partitions=partitions,
            )
            assert key in str(e) and "savepoint" in e.hint
        refused(ErrorKind.UNSAFE_PATH, savepoint.verify, saved)
        assert [path.name for path in tmp_path.iterdir()] == ["saved"]
        (saved / layout.SAVEPOINT_KEY).write_bytes(index)
    savepoint.restore(saved, tmp_path / "new")
    made = {
        path.relative_to(tmp_path / "new").as_posix()
        for path in (tmp_path / "new").rglob("*")
        if path.is_file()
    }
    assert not made & set(STRANGE), "the restore does not take a file that only lies there"


def test_paths_outside(saved: Path, tmp_path: Path) -> None:
    index = (saved / layout.SAVEPOINT_KEY).read_bytes()
    for key in OUTSIDE:
        with_file(saved, key)
        refused(ErrorKind.UNSAFE_PATH, savepoint.restore, saved, tmp_path / "new")
        (saved / layout.SAVEPOINT_KEY).write_bytes(index)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_each_format_has_files_of_its_own(built: CheckpointBuilder, tmp_path: Path) -> None:
    for format, keys in (("native", TABLES), ("canonical", OF_A_NATIVE_ONE + TABLES)):
        for number, key in enumerate(keys):
            saved = tmp_path / f"{format}-{number}"
            savepoint.create(built.root, saved, format=format, link=False)
            with_file(saved, key)
            refused(ErrorKind.UNSAFE_PATH, savepoint.restore, saved, tmp_path / "new")


def test_a_table_in_another_file(built: CheckpointBuilder, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, format="canonical", link=False)
    body = index_of(saved)
    first, second = body["tables"][:2]
    first["key"] = second["key"]
    (saved / layout.SAVEPOINT_KEY).write_bytes(seal("savepoint", body))
    refused(ErrorKind.UNSAFE_PATH, savepoint.restore, saved, tmp_path / "new")


@pytest.mark.parametrize(
    "which", ["metadata", "commits/5", "millpond/format.json", ".sst", ".changelog", ".parquet"]
)
def test_symbolic_links(saved: Path, tmp_path: Path, which: str) -> None:
    """A restore must not read the target of a link, even if the index describes it right."""
    found = [
        path for path in saved.rglob("*") if path.is_file() and path.as_posix().endswith(which)
    ]
    of_the_other = {"native": (".parquet",), "canonical": (".sst", ".changelog")}
    if which in of_the_other[index_of(saved)["format"]]:
        assert not found
        return
    path = found[0]
    outside = tmp_path / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    e = refused(ErrorKind.UNSAFE_PATH, savepoint.restore, saved, tmp_path / "new")
    assert "link" in str(e)
    assert [problem.kind for problem in savepoint.verify(saved).problems][:1] == ["UNSAFE_PATH"]
    assert not (tmp_path / "new").exists()


def test_directories_that_are_symbolic_links(saved: Path, tmp_path: Path) -> None:
    (saved / "offsets").rename(tmp_path / "outside")
    (saved / "offsets").symlink_to(tmp_path / "outside")
    refused(ErrorKind.SAVEPOINT_DAMAGED, savepoint.restore, saved, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_place_of_the_state_beside_the_index_counts_for_nothing(
    saved: Path, tmp_path: Path
) -> None:
    """No command looks for the state of a savepoint elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    rows = millpond.read_state(saved)
    (saved / layout.STORAGE_KEY).write_bytes(place_record(str(elsewhere)))
    assert millpond.read_state(saved).num_rows == rows.num_rows
    assert savepoint.diff(saved, saved).equal
    savepoint.edit(saved, tmp_path / "edited", table=rows.select(["key", "value"]))
    savepoint.restore(saved, tmp_path / "new")
    if (saved / "state/0/0/sst").exists():
        savepoint.fork(saved, tmp_path / "forked")
    assert not elsewhere.exists() and not (tmp_path / "new" / layout.STORAGE_KEY).exists()


def test_whatever_makes_an_image_only_parts_of_one_are_written(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    """`fork`, `adopt` and `release` pass this last gate too."""
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, link=False)
    source = LocalStorage(str(saved))
    image = savepoint_image(source, decode_index((saved / layout.SAVEPOINT_KEY).read_bytes()))
    for key in (layout.STORAGE_KEY, "../x", layout.RESCALE_JOURNAL_KEY):
        file = StoredFile(key=key, source="metadata", size_bytes=1, crc32=None)
        for wrong in (
            replace(image, texts={**image.texts, key: b""}),
            replace(image, files=(*image.files, file)),
        ):
            with (
                pytest.raises((InternalError, FormatError)),
                building(str(tmp_path / "new")) as target,
            ):
                write_image(wrong, source, target, link=False, verify=False, damaged=damaged)
            assert not (tmp_path / "new").exists()
