"""A rescale to a number that does not divide the max parallelism.

It writes every row anew, in place, without a JVM.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import millpond
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError, UnavailableError
from millpond.format import layout, spark_names
from millpond.format.changelog import ChangelogHeader
from millpond.format.format_file import decode_format
from millpond.model.ids import StoreId, new_id
from millpond.model.json_fields import ColumnFamily, KeyGroupsInfo
from millpond.model.key_groups import KeyGroups
from millpond.operations.inspect import overview, verify
from millpond.operations.rescale import rehash, rescale, undo
from millpond.operations.rescale.new_files import state_bytes
from millpond.operations.rescale.read import read_before
from millpond.operations.rescale.write import carry_out
from millpond.query.whole import check_whole
from millpond.spark.commands import at_work
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import LocalStorage, MemoryStorage
from millpond.storage.split import SplitStorage
from millpond.store.collection.plan import plan_expiry
from millpond.store.files import StoreFiles
from tests.checkpoints import CheckpointBuilder, tree
from tests.examples import changelog_bytes
from tests.failing_storage import FailingStorage, Killed
from tests.row_checkpoints import RowsBuilder, expected


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    return RowsBuilder(tmp_path / "check point", spark_format=2).build()


def content(path: Path, batch: int | None = None) -> list[tuple[int, str]]:
    return sorted(
        (row["key"]["k"], row["value"]["n"])
        for row in millpond.read_state(path, batch=batch).to_pylist()
    )


def rows(version: int) -> list[tuple[int, str]]:
    return sorted((row["key"]["k"], row["value"]["n"]) for row in expected(version))


class _Unlike(RowsBuilder):
    """Its partitions number their column families differently, as where a variable was deleted and
    made again, before and after a snapshot.
    """

    def header(self, store: StoreId, version: int) -> ChangelogHeader:
        numbers = (("default", store.partition), ("other", 1 - store.partition))
        families = tuple(ColumnFamily(name, number, "point") for name, number in numbers)
        return replace(super().header(store, version), column_families=families)

    def key(self, store: StoreId, version: int) -> bytes:
        key = super().key(store, version)
        return key[:2] + store.partition.to_bytes(2, "big") + key[4:]


@pytest.mark.parametrize("spark_format", [1, 2])
def test_partitions_that_number_column_families_differently(
    tmp_path: Path, spark_format: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """No manifest can put them together. Their rows are written anew, in the same key groups."""
    built = _Unlike(tmp_path / "query", spark_format=spark_format).build(snapshots=())
    assert content(built.root) == rows(6)
    assert main(["rescale", str(built.root), "4"]) == 0
    said = capsys.readouterr()
    assert "rehash: every row is written anew" in said.out and "would move" not in said.out
    assert "numbered them differently" in said.err
    assert content(built.root) == rows(6)
    assert verify(built.storage, "it").problems == []
    known = decode_format((built.root / layout.FORMAT_KEY).read_bytes())
    assert known.key_groups == built.groups and not known.earlier
    report = millpond.rescale(built.root, 8)
    assert report.way == "composed" and report.near and not report.warnings
    assert content(built.root) == rows(6)
    assert verify(built.storage, "it").problems == []


def test_such_a_rescale_that_is_killed_is_taken_back(tmp_path: Path) -> None:
    built = _Unlike(tmp_path / "query").build(snapshots=())
    before = tree(built.root)
    storage = FailingStorage(str(built.root), stop_before=spark_names.commits_key(6), kills=True)
    with pytest.raises(Killed):
        rescale(storage, "it", 4)
    assert undo(built.storage, "it")
    assert tree(built.root) == before
    assert rescale(built.storage, "it", 4).way == "rehash"
    assert content(built.root) == rows(6)


@pytest.mark.parametrize("spark_format", [1, 2])
def test_rows_are_the_same_and_lie_elsewhere(tmp_path: Path, spark_format: int) -> None:
    built = RowsBuilder(tmp_path / "check point", spark_format=spark_format).build()
    before = tree(built.root)
    report = millpond.rescale(built.root, 7)
    assert (report.way, report.current, report.partitions, report.batch) == ("rehash", 2, 7, 6)
    assert (report.max_parallelism, report.stores) == (7 * 128, 7)
    after = tree(built.root)
    assert {k for k in before if after.get(k) != before[k]} == {layout.FORMAT_KEY}, (
        "the rescale changes no other file"
    )
    assert report.written_bytes == sum(len(v) for k, v in after.items() if before.get(k) != v)
    assert content(built.root) == rows(6)
    assert content(built.root, batch=4) == rows(5), "versions from before stay readable"
    assert verify(built.storage, "it").problems == []
    view = overview(built.storage, "it")
    assert (view.partitions, view.max_parallelism) == (7, 896)
    assert sum(store.keys or 0 for store in view.operators[0].stores) == len(rows(6))
    known = decode_format(after[layout.FORMAT_KEY])
    assert known.key_groups_at(6) == built.groups and known.key_groups_at(
        7
    ) == known.key_groups == KeyGroups(896, 7)
    # Then one rescale writes metadata alone, and one writes every row anew.
    assert millpond.rescale(built.root, 14).way == "composed"
    assert millpond.rescale(built.root, 1, max_parallelism=3).max_parallelism == 3
    assert [
        entry.below_version
        for entry in decode_format(built.storage.read(layout.FORMAT_KEY)).earlier
    ] == [7, 9]
    assert content(built.root) == rows(6) and verify(built.storage, "it").problems == []


def test_a_savepoint_of_a_batch_from_before(built: CheckpointBuilder, tmp_path: Path) -> None:
    millpond.rescale(built.root, 3)
    savepoint.create(built.root, tmp_path / "old", batch=4)
    savepoint.restore(tmp_path / "old", tmp_path / "old again", partitions=8)
    assert content(tmp_path / "old again") == rows(5)
    savepoint.fork(built.root, tmp_path / "new")
    assert (
        content(tmp_path / "new") == rows(6)
        and verify(LocalStorage(str(tmp_path / "new")), "new").ok
    )


def test_max_parallelism_alone_writes_anew(built: CheckpointBuilder) -> None:
    planned = millpond.rescale(built.root, 4, max_parallelism=24, dry_run=True)
    assert (planned.way, planned.max_parallelism) == ("rehash", 24)
    for wrong in (6, 0, 70_000):
        with pytest.raises(MillpondError) as caught:
            millpond.rescale(built.root, 4, max_parallelism=wrong)
        assert caught.value.kind is ErrorKind.MAX_PARALLELISM_INVALID


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "storage fails"])
def test_interrupted_at_every_step(built: CheckpointBuilder, kill: bool) -> None:
    before = tree(built.root)
    for steps in range(100):
        storage = FailingStorage(str(built.root), left=steps, kills=kill, once=not kill)
        try:
            rescale(storage, "it", 3)
        except (Killed, UnavailableError):
            switched = read_spark_metadata(built.storage).last_committed_batch == 6
            assert not (undo(built.storage, "it") and switched)
        else:
            break
        if switched:
            break
        assert tree(built.root) == before, steps
    assert switched and steps > 8, "the last step removes the journal"
    assert content(built.root) == rows(6) and verify(built.storage, "it").problems == []
    assert not (built.root / layout.RESCALE_JOURNAL_KEY).exists()


def test_the_same_again_finishes(built: CheckpointBuilder) -> None:
    storage = FailingStorage(str(built.root), left=5, kills=True)
    with pytest.raises(Killed):
        rescale(storage, "it", 3)
    assert rescale(built.storage, "it", 3).undone
    assert content(built.root) == rows(6)


def test_what_a_killed_one_left_is_removed(built: CheckpointBuilder) -> None:
    left = built.root / "millpond/.rescale-abc"
    left.mkdir()
    (left / "x.blocks").write_bytes(b"x")
    assert content(built.root) == rows(6) and verify(built.storage, "it").ok
    assert not undo(built.storage, "it")
    assert not left.exists()


class Full(LocalStorage):
    """A disk with hardly any free space."""

    def free_bytes(self) -> int:
        return 1000


def test_no_space(built: CheckpointBuilder) -> None:
    before = tree(built.root)
    for dry_run in (True, False):
        with pytest.raises(MillpondError) as caught:
            rescale(Full(str(built.root)), "it", 3, dry_run=dry_run)
        assert caught.value.kind is ErrorKind.STORAGE_FULL and "1,000 are free" in str(caught.value)
    assert tree(built.root) == before
    assert rescale(Full(str(built.root)), "it", 4).way == "composed", "this rescale needs no space"


def test_files_that_several_partitions_share_are_counted_once(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rescale(built.storage, "it", 4)
    shared = {
        info.key: info.size_bytes
        for info in built.storage.list("state/")
        if info.key.endswith((".sst", ".changelog"))
    }
    named = [
        key
        for store in range(4)
        for files in [StoreFiles(built.storage, StoreId(0, store, "default"), 2)]
        for version in files.refresh().manifests
        for manifest in [files.read_manifest(version)]
        if manifest.composed
        for key in manifest.sizes(files.store)
    ]
    assert len(named) > len(set(named)) > 0, "several partitions name a file"
    needed = sum(shared[key] for key in set(named))
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda _: 2 * needed + 1)
    assert rescale(built.storage, "it", 3, dry_run=True).state_bytes == needed


def test_no_directory_for_temporary_files(
    built: CheckpointBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deleted TMPDIR, and the state is on an object storage. It was an INTERNAL error."""
    state = MemoryStorage()
    for info in built.storage.list(""):
        state.put_bytes(info.key, built.storage.read(info.key))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    for dry_run in (True, False):
        with pytest.raises(UnavailableError, match="no directory for temporary files") as caught:
            rescale(SplitStorage(built.storage, state), str(built.root), 3, dry_run=dry_run)
        assert caught.value.kind is ErrorKind.LOCAL_FILES_LOST and "TMPDIR" in caught.value.hint


def test_over_processes(built: CheckpointBuilder) -> None:
    image, plans = check_whole(built.storage, "it")
    assert image is not None
    before = read_before(built.storage, "it", plans)
    plan = rehash.plan_rehash(built.storage, image, 5, None, state_bytes(before))
    assert plan.processes == 1 and plan.rows == len(rows(6))
    with rehash.rehashed(built.storage, before, replace(plan, processes=2)) as writing:
        assert len(writing.made) == 5
        with at_work(built.storage, "it", "rescale") as hold:
            carry_out(built.storage, writing, hold)
    assert content(built.root) == rows(6) and verify(built.storage, "it").problems == []
    assert not [p for p in (built.root / "millpond").iterdir() if p.name.startswith(".rescale")]


def test_an_error_in_another_process_is_told(built: CheckpointBuilder) -> None:
    image, plans = check_whole(built.storage, "it")
    assert image is not None
    before = read_before(built.storage, "it", plans)
    plan = replace(rehash.plan_rehash(built.storage, image, 5, None, 0), processes=2)
    (path,) = built.root.glob("state/0/1/6*.changelog")
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)
    files = tree(built.root)
    with pytest.raises(MillpondError) as caught, rehash.rehashed(built.storage, before, plan):
        pass
    assert caught.value.kind is ErrorKind.CHANGELOG_DAMAGED and path.name in str(caught.value)
    assert tree(built.root) == files


def test_state_that_is_kept_elsewhere(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "ckpt").build()
    state = MemoryStorage()
    for info in list(built.storage.list("")):
        if not spark_names.is_sparks(info.key):
            state.put_bytes(info.key, built.storage.read(info.key))
            built.storage.delete([info.key])
    split = SplitStorage(built.storage, state)
    assert rescale(split, str(built.root), 3).way == "rehash"
    assert verify(split, "it").problems == []
    assert not [info.key for info in built.storage.list("") if not spark_names.is_sparks(info.key)]


def test_command(built: CheckpointBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescale", str(built.root), "--partitions", "3", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert (
        "rehash: every row is written anew" in text
        and "no row would move with 1, 2, 4, 8, 16" in text
    )
    assert (
        main(["rescale", str(built.root), "--partitions", "3", "--max-parallelism", "6", "--json"])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert (report["way"], report["max_parallelism"]) == ("rehash", 6)


def goes_on(built: CheckpointBuilder, partitions: int, groups: KeyGroups, versions: range) -> None:
    """Write changelogs without a record, as a query does that has nothing to do."""
    for partition in range(partitions):
        store = StoreId(0, partition)
        files = StoreFiles(built.storage, store, built.spark_format)
        for version in versions:
            (parent,) = {
                v.id or files.header(v).id
                for v in files.refresh().changelogs
                if v.version == version - 1
            }
            header = replace(
                built.header(store, version),
                id=new_id(),
                lineage=(parent,),
                key_groups=KeyGroupsInfo(
                    max_parallelism=groups.max_parallelism, base=groups.base, partitions=partitions
                ),
            )
            key = layout.changelog_key(store, header.version_id, built.spark_format)
            built.storage.put_bytes(key, changelog_bytes(header, []))


@pytest.mark.parametrize("spark_format", [1, 2])
def test_collection_leaves_what_is_from_before_as_long_as_it_is_retained(
    tmp_path: Path, spark_format: int
) -> None:
    built = RowsBuilder(tmp_path / "ckpt", spark_format=spark_format).build()
    rescale(built.storage, "it", 3)
    groups = decode_format(built.storage.read(layout.FORMAT_KEY)).key_groups
    goes_on(built, 3, groups, range(8, 12))
    store = StoreId(0, 0)
    files = StoreFiles(built.storage, store, built.spark_format)
    versions = {v.version: v for v in files.refresh().changelogs}
    far = 10**15

    def expired(anchor: int, retain: int) -> set[int]:
        expiry = plan_expiry(
            files, versions[anchor], retain_versions=retain, grace_ms=0, now_ms=far
        )
        assert expiry.problem is None
        return {
            parsed.file.version.version
            for key in expiry.keys
            if (parsed := layout.parse_key(key))
            and isinstance(parsed.file, layout.ChangelogFile | layout.ManifestFile)
        }

    assert expired(7, 3) == expired(9, 4) == expired(11, 6) == set(), (
        "version 6 is retained, and so is all that it needs"
    )
    assert expired(11, 5) == {1, 2, 3, 4, 5, 6}, "version 7 begins with an empty state"
