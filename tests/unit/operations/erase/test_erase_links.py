"""Erasures from stores in folders that somebody moved, and left a symbolic link."""

from __future__ import annotations

from pathlib import Path

import pytest

import millpond
from millpond import savepoint
from millpond.errors import ErrorKind
from millpond.model.ids import StoreId
from millpond.operations.erase import run
from millpond.operations.inspect import verify
from millpond.query.survey import survey
from millpond.store.files import list_stores, read_listing
from tests.checkpoints import tree
from tests.refusals import refused
from tests.row_checkpoints import RowsBuilder

FOLDERS = ["state/0/1", "state/0", "state"]


def moved(root: Path, folder: str, to: Path) -> None:
    """Move a folder, and leave a link."""
    (root / folder).rename(to)
    (root / folder).symlink_to(to)


@pytest.mark.parametrize("folder", [*FOLDERS, "state/0/1/sst"])
def test_all_that_list_the_state_see_what_lies_behind_a_link(tmp_path: Path, folder: str) -> None:
    built = RowsBuilder(tmp_path / "query").build(snapshots=(2, 4))
    listed, one = survey(built.storage, "it").stores, StoreId(0, 1)
    moved(built.root, folder, tmp_path / "elsewhere")
    assert survey(built.storage, "it").stores == listed
    assert list_stores(built.storage, "state/") == listed
    assert read_listing(built.storage, one) == listed[one]


@pytest.mark.parametrize("folder", FOLDERS)
def test_sums_of_sparks_files_behind_a_link_are_compared(tmp_path: Path, folder: str) -> None:
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    (schema,) = (built.root / "state/0/0/_metadata").glob("schema")
    schema.with_name(".schema.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + bytes(4))
    moved(built.root, folder.replace("0/1", "0/0"), tmp_path / "elsewhere")
    (problem,) = verify(built.storage, "it").problems
    assert problem.file == "state/0/0/_metadata/schema"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_key_behind_a_link_goes(tmp_path: Path, folder: str) -> None:
    """No row was found, and the report said that no file has the key."""
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    before = millpond.read_state(built.root).to_pylist()
    moved(built.root, folder, tmp_path / "elsewhere")
    (done,) = millpond.erase([built.root], key={"k": 101}).places
    assert done.rows >= 1
    assert (built.root / folder).is_symlink()
    assert verify(built.storage, "it").problems == []
    after = [row["key"]["k"] for row in millpond.read_state(built.root).to_pylist()]
    assert sorted(after) == sorted(k for row in before if (k := row["key"]["k"]) != 101)


def test_a_rescale_reads_and_clears_what_lies_behind_a_link(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query").build(snapshots=(2, 4))
    before = millpond.read_state(built.root).to_pylist()
    moved(built.root, "state/0/1", tmp_path / "elsewhere")
    millpond.rescale(built.root, 4)
    after = millpond.read_state(built.root).to_pylist()
    assert sorted(row["key"]["k"] for row in after) == sorted(row["key"]["k"] for row in before)


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query").build(snapshots=(2, 4))
    listed = survey(built.storage, "it").stores
    (built.root / "state/0/round").symlink_to(built.root / "state")
    assert survey(built.storage, "it").stores == listed


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("form", "folder"),
    [
        ("native", "state/0/1"),
        ("native", "state"),
        ("canonical", "tables/0"),
        ("canonical", "tables"),
    ],
)
def test_a_savepoint_with_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, folder: str, begun: bool
) -> None:
    """What lies there belongs to somebody else: an erasure that goes on would delete it."""
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, format=form)
    if begun:

        def killed(*arguments: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(run, "rewrite_all", killed)
            patch.setattr(run, "_prove_tables", killed)
            with pytest.raises(KeyboardInterrupt):
                millpond.erase([saved], key={"k": 101})
    moved(saved, folder, tmp_path / "elsewhere")
    before = tree(tmp_path / "elsewhere")
    for dry_run in (True, False):
        told = refused(
            ErrorKind.UNSAFE_PATH, millpond.erase, [saved], key={"k": 101}, dry_run=dry_run
        )
        assert f"{folder} is a symbolic link" in told.message
    assert tree(tmp_path / "elsewhere") == before
