"""Erasures from places whose files hang together."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import rocksdict

import millpond
from millpond import savepoint
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.model.ids import StoreId
from millpond.model.key_groups import KeyGroups
from millpond.operations.erase.places import made_of, open_place
from millpond.operations.inspect import verify
from tests.erase_scenes import uncompressed, unheld
from tests.refusals import refused
from tests.row_checkpoints import RowsBuilder


def test_what_was_put_together_twice_goes_as_well(tmp_path: Path) -> None:
    """Partitions of the second rescale have files of the first one's, which have the key's."""
    groups = KeyGroups(16, 8)
    built = RowsBuilder(tmp_path / "query", partitions=8, groups=groups, spark_format=2)
    built.build(snapshots=())
    millpond.rescale(built.root, 4)
    millpond.rescale(built.root, 16)
    before = millpond.read_state(built.root).to_pylist()
    (done,) = millpond.erase([built.root], key={"k": 601}).places
    assert done.rows == 1
    assert verify(built.storage, "it").problems == []
    after = millpond.read_state(built.root).to_pylist()
    assert sorted(row["key"]["k"] for row in after) == sorted(
        row["key"]["k"] for row in before if row["key"]["k"] != 601
    )


@pytest.mark.parametrize("key", [1, 999])
def test_what_killed_processes_were_writing_goes(tmp_path: Path, key: int) -> None:
    """It may hold the key. Only those beside files with the key went."""
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    folders = ("state/0/0/", "state/0/1/", "state/0/1/sst/")
    left = {folder + layout.new_staging_name() for folder in folders}
    for name in left:
        built.storage.put_bytes(name, b"a row")
    of_rescale = built.root / "millpond/.rescale-abc"
    of_rescale.mkdir()
    (of_rescale / "x.blocks").write_bytes(b"a row")
    millpond.erase([built.root], key={"k": key}, dry_run=True)
    assert unheld(built).keys() >= left and of_rescale.exists()
    millpond.erase([built.root], key={"k": key})
    assert not unheld(built).keys() & left and not of_rescale.exists()


@pytest.mark.parametrize("key", [1, 101, 999])
def test_no_file_of_sparks_own_store_is_passed_over(tmp_path: Path, key: int) -> None:
    """Only those beside Millpond's files with the key were seen, and the rest was proved."""
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    (built.root / "state/0/1/3.zip").write_bytes(b"who knows")
    before = unheld(built)
    told = refused(ErrorKind.INVALID_ARGUMENT, millpond.erase, [built.root], key={"k": key})
    assert "3.zip" in told.message
    assert unheld(built) == before


def test_batches_that_spark_was_removing_are_no_retained_ones(tmp_path: Path) -> None:
    """A driver was killed: it had removed entries of the offset log, not yet of the commit log."""
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    for batch in range(2):
        (built.root / f"offsets/{batch}").unlink()
    (done,) = millpond.erase([built.root], key={"k": 101}).places
    assert done.rows >= 1
    assert verify(built.storage, "it").problems == []


def test_stores_are_followed_whatever_their_order() -> None:
    stores = [StoreId(0, n) for n in range(4)]
    chain = {stores[n]: {stores[n + 1]} for n in range(3)}
    assert made_of({stores[3]}, chain) == set(stores)
    assert made_of({stores[0]}, chain) == {stores[0]}


def test_a_place_that_is_named_twice_is_one(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved)
    twice: list[str | Path] = [built.root, saved, f"{saved}/", str(built.root)]
    done = millpond.erase(twice, key={"k": 1}).places
    assert [place.rows for place in done] == [1, 1]


def test_only_the_newest_batch_has_its_texts_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch had the manifest of each store: gigabytes, with many of both."""
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = RowsBuilder(tmp_path / "query").build(snapshots=(1, 3, 5))
    with ExitStack() as until_end:
        place = open_place(built.root, until_end, dry_run=True)
    assert [image.batch for image in place.images] == list(range(6))
    assert any(key.endswith(".manifest") for key in place.image.texts) and place.image.files
    assert all(not image.texts and not image.files for image in place.images[:-1])
    (done,) = millpond.erase([built.root], key={"k": 1}).places
    assert done.batches == tuple(range(6)) and done.rows == 1
    for batch in range(6):
        rows = millpond.read_state(built.root, batch=batch).to_pylist()
        assert len(rows) == 2 * built.keys(batch + 1) - 1
    assert verify(built.storage, "it").problems == []
