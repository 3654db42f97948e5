"""Erasures from places whose files hang together."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import rocksdict

import millpond
from integration.depth import quick_first
from millpond import savepoint
from millpond.errors import ErrorKind
from millpond.format import layout, spark_names
from millpond.format.manifest import decode_manifest
from millpond.model.ids import StoreId, VersionId
from millpond.model.key_groups import KeyGroups
from millpond.operations.erase import retained
from millpond.operations.erase.places import made_of, open_place
from millpond.operations.inspect import verify
from millpond.query.survey import survey
from millpond.storage import LocalStorage
from tests.checkpoints import version_id
from tests.erase_scenes import keys_of, uncompressed, unheld
from tests.refusals import refused
from tests.row_checkpoints import HashedBuilder, RowsBuilder


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
    (tmp_path / "link").symlink_to(built.root)
    twice = [built.root, saved, f"file:{built.root}", f"file://{saved}", tmp_path / "link"]
    done = millpond.erase(twice, key={"k": 2}).places
    assert [place.path for place in done] == [str(built.root), str(saved)]


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


class Compacted(HashedBuilder):
    """Each store had the keys of versions 41 to 43 once, in SSTs that are long gone."""

    def history(self, db: Any, store: StoreId) -> None:
        gone = sorted(self.key(store, version) for version in (41, 43))
        for key in gone:
            db[key] = self.value(store, 1)
        db.flush()
        for key in gone:
            del db[key]
        db.delete_range(b"\xff\xfe", b"\xff\xff\0\1")  # as a rescale deletes slots
        db.flush()
        db.compact_range(None, None)
        assert not db.live_files()


@pytest.mark.parametrize("partitions", [2, 4])
def test_a_key_in_what_rocksdb_remembers_of_files_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Its rows had expired, and only the manifests of snapshots had its bytes: also those that a
    rescale put together of them, and those of a savepoint.
    """
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = Compacted(tmp_path / "query", partitions=2)
    built.build(snapshots=(3, 6))
    store, other = built.stores()
    number, beside = built._number(store, 41), built._number(other, 41)
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved)
    if partitions != 2:
        millpond.rescale(built.root, partitions)
    before = millpond.read_state(built.root).to_pylist()
    needles = [built.key(one, 41)[5:] for one in (store, other)]
    assert all(_manifests_with(one, needle) for one in (built.root, saved) for needle in needles)
    report = millpond.erase([built.root, saved], key={"k": number})
    for done in report.places:
        assert (done.rows, done.entries) == (0, 0) and (0, 0, "default") in done.stores
        assert done.proof is not None and done.proof.needles
    for root in (built.root, saved):
        assert not _manifests_with(root, needles[0]), "the key's"
        assert _manifests_with(root, needles[1]) or partitions != 2, "another key's"
    assert sorted(map(repr, millpond.read_state(built.root).to_pylist())) == sorted(
        map(repr, before)
    )
    assert verify(built.storage, "it").problems == [] and savepoint.verify(saved).ok
    again = millpond.erase([built.root, saved], key={"k": number})
    assert [done.files for done in again.places] == [0, 0]
    assert any(done.files for done in millpond.erase([saved], key={"k": beside}).places)


def _manifests_with(root: Path, needle: bytes) -> list[str]:
    """Return the manifests whose RocksDB manifests have the needle."""
    found = []
    for path in root.rglob("*.manifest"):
        manifest = decode_manifest(path.read_bytes())
        texts = [manifest.rocksdb_manifest, *(s.rocksdb_manifest for s in manifest.sources)]
        found += [str(path) for text in texts if needle in text]
    return found


def test_a_store_with_a_damaged_manifest_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell whether it has the key."""
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = HashedBuilder(tmp_path / "query").build(snapshots=(3,))
    before, key = keys_of(built), 199
    assert key not in before
    manifest = built.root / "state/0/1/3.manifest"
    data = bytearray(manifest.read_bytes())
    data[-9] ^= 1
    manifest.write_bytes(data)
    (done,) = millpond.erase([built.root], key={"k": key}).places
    assert done.stores == ((0, 1, "default"),)
    assert not manifest.exists() and (built.root / "state/0/0/3.manifest").exists()
    assert keys_of(built) == before and verify(built.storage, "it").problems == []


class TwoOperators(HashedBuilder):
    """A query with two aggregations that have the same rows."""

    def stores(self) -> list[StoreId]:
        return [StoreId(n, partition) for n in range(2) for partition in range(self.partitions)]

    def spark_logs(self, batches: int) -> None:
        super().spark_logs(batches)
        text = self.storage.read(spark_names.operator_metadata_v1_key(0))
        told = text.replace(b'"operatorId": 0', b'"operatorId": 1')
        assert told != text
        self.storage.put_bytes(spark_names.operator_metadata_v1_key(1), told)
        self.storage.put_bytes("state/1/0/_metadata/schema", self.schema())
        self.storage.put_bytes(layout.operator_record_key(1), b"")


def test_earlier_batches_are_looked_at_by_one_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each store of the query was listed for each retained batch, and its manifests were read."""
    asked: Counter[str] = Counter()
    for name in ("list", "read", "read_range"):
        plain = getattr(LocalStorage, name)

        def noted(self: Any, key: str, *more: Any, plain: Any = plain, **named: Any) -> Any:
            asked[key] += 1
            return plain(self, key, *more, **named)

        monkeypatch.setattr(LocalStorage, name, noted)
    lists, others = [], []
    for batches in (3, 8):
        built = TwoOperators(tmp_path / f"query-{batches}").build(batches, (2,))
        asked.clear()
        with ExitStack() as until_end:
            place = open_place(built.root, until_end, dry_run=True, operator=1)
        assert [image.batch for image in place.images] == list(range(batches))
        assert [len(image.operators) for image in place.images] == [1] * (batches - 1) + [2]
        lists.append([asked[layout.store_prefix(store)] for store in built.stores()])
        others.append(sum(n for key, n in asked.items() if key.startswith("state/0/0/2.")))
    assert lists == [[1] * 4] * 2
    assert others[0] == others[1]  # files of the other operator


@pytest.mark.parametrize("spark_format", quick_first([2, 1]))
def test_the_damage_of_an_earlier_batch_is_told(tmp_path: Path, spark_format: int) -> None:
    built = HashedBuilder(tmp_path / "query", spark_format=spark_format)
    built.build(6, (1, 5))
    id = VersionId(3, version_id(StoreId(0, 1), 3))
    built.storage.delete([layout.changelog_key(StoreId(0, 1), id, spark_format)])
    told = refused(ErrorKind.CHANGELOG_MISSING, millpond.erase, [built.root], key={"k": 1})
    assert "store 0/1" in told.message


def test_a_batch_of_which_something_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a dry run the query goes on: what was listed is gone, and the batch has expired."""
    built = HashedBuilder(tmp_path / "query").build(6, (1, 5))

    def overtaken(*arguments: Any, **named: Any) -> Any:
        found = survey(*arguments, **named)
        for store in built.stores():
            gone = [f"{n}.changelog" for n in range(1, 6)] + ["1.manifest"]
            built.storage.delete([layout.store_key(store, name) for name in gone])
        return found

    monkeypatch.setattr(retained, "survey", overtaken)
    with ExitStack() as until_end:
        place = open_place(built.root, until_end, dry_run=True)
    assert [image.batch for image in place.images] == [4, 5]
