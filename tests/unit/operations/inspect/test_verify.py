"""`verify` finds every kind of damage, and names the file.

It finds nothing where nothing is wrong.
"""

from __future__ import annotations

import errno
import io
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millpond import savepoint
from millpond.errors import ErrorKind, InvalidInputError, UnavailableError, UnsupportedError
from millpond.format import layout, spark_names
from millpond.format.format_file import CheckpointFormat, encode_format
from millpond.format.manifest import encode_manifest
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily
from millpond.operations.inspect import overview, verify
from millpond.operations.inspect.store_check import verify_store
from millpond.operations.inspect.verify import verify_logs
from millpond.query.survey import survey
from millpond.storage import LocalStorage, ObjectInfo, Storage
from millpond.storage.split import SplitStorage
from tests.checkpoints import CheckpointBuilder, state_schema, version_id
from tests.examples import changelog_bytes
from tests.objects import NoWholeReads

P0, P1 = StoreId(0, 0), StoreId(0, 1)


def changelog_key(built: CheckpointBuilder, store: StoreId, version: int) -> str:
    return layout.changelog_key(
        store, VersionId(version, version_id(store, version)), built.spark_format
    )


def manifest_key(built: CheckpointBuilder, store: StoreId, version: int) -> str:
    return layout.manifest_key(
        store, VersionId(version, version_id(store, version)), built.spark_format
    )


def problems(built: CheckpointBuilder) -> set[tuple[str, str]]:
    report = verify(built.storage, "name")
    assert report.ok == (not report.problems) and all(problem.hint for problem in report.problems)
    return {(problem.kind, problem.file) for problem in report.problems}


def test_nothing_wrong(built: CheckpointBuilder) -> None:
    report = verify(built.storage, "name")
    assert report.problems == [] and report.ok
    checked = report.checked
    assert (checked.stores, checked.changelogs, checked.records, checked.manifests) == (
        2,
        12,
        12,
        4,
    )
    assert (checked.ssts, checked.entries) == (4, 2 * (3 + 5))
    assert checked.versions == 2 * 4, "3 to 6: versions below the oldest snapshot may have expired"
    assert report.to_json()["ok"] is True


def test_a_first_batch_that_was_tried_in_the_other_format(built: CheckpointBuilder) -> None:
    """Its files stay. The query is whole, and was called destroyed."""
    other = 3 - built.spark_format
    data = built.storage.read(changelog_key(built, P0, 2))
    tried = VersionId(2, version_id(P0, 2) if other == 2 else "")
    built.storage.put_bytes(layout.changelog_key(P0, tried, other), data)
    assert problems(built) == set()
    assert survey(built.storage, "name").spark_format == built.spark_format


def test_in_memory(built: CheckpointBuilder) -> None:
    """Without local paths, `verify` copies everything."""
    elsewhere = NoWholeReads(built.storage)
    assert verify(elsewhere, "name").to_json() == verify(built.storage, "name").to_json()


def test_nothing_is_changed(built: CheckpointBuilder) -> None:
    before = list(built.storage.list(""))
    verify(built.storage, "name")
    overview(built.storage, "name")
    assert list(built.storage.list("")) == before


def damage(built: CheckpointBuilder, key: str, change: Callable[[bytes], bytes]) -> None:
    built.storage.put_bytes(key, change(built.storage.read(key)))


DAMAGE: list[Callable[[bytes], bytes]] = [
    lambda data: data[:-1],
    lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
    lambda data: data + b"x",
    lambda data: b"",
]
each_damage = pytest.mark.parametrize("change", DAMAGE, ids=["cut", "flipped", "longer", "empty"])


@each_damage
def test_damaged_changelog(built: CheckpointBuilder, change: Callable[[bytes], bytes]) -> None:
    key = changelog_key(built, P1, 6)
    damage(built, key, change)
    assert ("CHANGELOG_DAMAGED", key) in problems(built)


@each_damage
def test_damaged_manifest(built: CheckpointBuilder, change: Callable[[bytes], bytes]) -> None:
    key = manifest_key(built, P0, 5)
    damage(built, key, change)
    # A restore still finds its versions by the older manifest and the changelogs above it.
    assert problems(built) == {("MANIFEST_DAMAGED", key)}


@each_damage
def test_damaged_sst(built: CheckpointBuilder, change: Callable[[bytes], bytes]) -> None:
    first, second = built.manifests[P0]
    (new,) = set(second.ssts) - set(first.ssts)
    key = layout.store_key(P0, new.key)
    damage(built, key, change)
    assert problems(built) == {("SST_DAMAGED", key)}


def test_damaged_sst_that_all_snapshots_share(built: CheckpointBuilder) -> None:
    key = layout.store_key(P0, built.manifests[P0][0].ssts[0].key)
    damage(built, key, DAMAGE[1])
    assert ("SST_DAMAGED", key) in problems(built)


def test_missing_sst(built: CheckpointBuilder) -> None:
    first, second = built.manifests[P0]
    (new,) = set(second.ssts) - set(first.ssts)
    built.storage.delete([layout.store_key(P0, new.key)])
    assert problems(built) == {("SST_MISSING", layout.store_key(P0, new.key))}


def test_missing_newest_changelog(built: CheckpointBuilder) -> None:
    """Only the commit log knows that version 6 existed."""
    built.storage.delete([changelog_key(built, P1, 6)])
    assert problems(built) == {("CHANGELOG_MISSING", layout.store_dir(P1))}


def test_missing_changelog_in_the_middle(built: CheckpointBuilder) -> None:
    built.storage.delete([changelog_key(built, P0, 4)])
    found = verify(built.storage, "name").problems
    assert {(problem.kind, problem.file) for problem in found} == {
        ("CHANGELOG_MISSING", layout.store_dir(P0))
    }
    assert all("version 4 " in problem.message for problem in found)


def test_what_a_collection_leaves_is_right(built: CheckpointBuilder) -> None:
    """Versions 1 and 2 have expired. Spark removed their batches, and Millpond removed the rest."""
    for store in built.stores():
        built.storage.delete([changelog_key(built, store, version) for version in (1, 2, 3)])
    built.storage.delete(
        [spark_names.offsets_key(0), spark_names.commits_key(0), spark_names.commits_key(1)]
    )
    assert problems(built) == set()


def test_lost_oldest_snapshot(built: CheckpointBuilder) -> None:
    """After a collection there is no other way to versions 3 and 4.

    The commit log says that Spark may ask for them.
    """
    for store in built.stores():
        built.storage.delete([changelog_key(built, store, version) for version in (1, 2, 3)])
    built.storage.delete([manifest_key(built, P0, 3)])
    assert problems(built) == {("CHANGELOG_MISSING", layout.store_dir(P0))}


def test_missing_store(built: CheckpointBuilder) -> None:
    """An aggregation with a key has a store in every partition, whatever lies there."""
    built.storage.delete([info.key for info in built.storage.list(layout.store_prefix(P1))])
    assert problems(built) == {("CHANGELOG_MISSING", layout.store_dir(P1))}


def test_an_operator_without_keys_has_partition_0_alone(built: CheckpointBuilder) -> None:
    built.storage.delete([info.key for info in built.storage.list(layout.store_prefix(P1))])
    built.storage.put_bytes(spark_names.state_schema_key(P0), state_schema([], ["count"]))
    for batch in range(6):
        key = spark_names.commits_key(batch)
        text = built.storage.read(key).decode().replace(f', ["{version_id(P1, batch + 1)}"]', "")
        built.storage.put_bytes(key, text.encode())
    assert problems(built) == set()


def test_missing_and_damaged_format(built: CheckpointBuilder) -> None:
    data = built.storage.read(layout.FORMAT_KEY)
    built.storage.delete([layout.FORMAT_KEY])
    assert problems(built) == {("OBJECT_NOT_FOUND", layout.FORMAT_KEY)}
    built.storage.put_bytes(layout.FORMAT_KEY, data[:-3])
    assert problems(built) == {("FORMAT_DAMAGED", layout.FORMAT_KEY)}


def test_other_max_parallelism(built: CheckpointBuilder) -> None:
    other = CheckpointFormat(max_parallelism=32, base=2, created_by="test", created_ms=1)
    built.storage.put_bytes(layout.FORMAT_KEY, encode_format(other))
    assert ("MAX_PARALLELISM_MISMATCH", manifest_key(built, P0, 5)) in problems(built)
    assert ("MAX_PARALLELISM_MISMATCH", changelog_key(built, P0, 5)) in problems(built)


@pytest.mark.parametrize("key", ["offsets/5", "commits/3", "state/0/_metadata/metadata"])
def test_damaged_logs_of_spark(built: CheckpointBuilder, key: str) -> None:
    built.storage.put_bytes(key, b"v1\n{")
    assert ("FORMAT_DAMAGED", key) in problems(built)


def test_files_that_belong_elsewhere(built: CheckpointBuilder) -> None:
    for make_key, kind in (
        (changelog_key, "CHANGELOG_DAMAGED"),
        (manifest_key, "MANIFEST_DAMAGED"),
    ):
        key = make_key(built, P0, 5)
        right = built.storage.read(key)
        built.storage.put_bytes(key, built.storage.read(make_key(built, P1, 5)))
        assert (kind, key) in problems(built)
        built.storage.put_bytes(key, built.storage.read(make_key(built, P0, 3)))
        assert (kind, key) in problems(built)
        built.storage.put_bytes(key, right)
    assert problems(built) == set()


def test_manifests_that_lie(built: CheckpointBuilder) -> None:
    manifest = built.manifests[P0][1]
    key = manifest_key(built, P0, 5)
    built.changed(manifest, keys=99)
    assert problems(built) == {("SST_DAMAGED", key)}
    built.changed(manifest, slots=((15, 16),))
    assert problems(built) == {("KEY_GROUP_MISMATCH", key)}
    built.changed(manifest, column_families=(ColumnFamily("default", 7),))
    assert problems(built) == {("KEY_GROUP_MISMATCH", key)}
    built.changed(
        manifest,
        slots=((15, 16),),
        key_groups=replace(manifest.key_groups, scalable=False, reason="x"),
    )
    assert problems(built) == set(), "a store that is not scalable may keep its rows in any slot"
    built.changed(manifest, keys=-1)
    assert problems(built) == set(), "the manifest counts no keys"
    built.changed(manifest, rocksdb_manifest=b"nonsense")
    assert problems(built) == {("SST_DAMAGED", key)}


def test_newer_files(built: CheckpointBuilder) -> None:
    key = manifest_key(built, P0, 5)
    damage(built, key, lambda data: data.replace(b" 1 ", b" 2 ", 1))
    assert ("FORMAT_TOO_NEW", key) in problems(built)


def test_sst_that_nobody_names_is_no_problem(built: CheckpointBuilder) -> None:
    built.storage.put_bytes(layout.store_key(P0, layout.new_sst_name()), b"being uploaded")
    built.storage.put_bytes(layout.store_key(P0, layout.new_staging_name()), b"half")
    assert problems(built) == set()
    (operator,) = overview(built.storage, "name").operators
    assert [store.unreferenced_bytes for store in operator.stores] == [14, 0]


class Collecting(LocalStorage):
    """A storage from which a running query collects files.

    It does so just after somebody listed them for the first time.
    """

    def __init__(self, root: str, doomed: list[str]) -> None:
        super().__init__(root, fsync=False)
        self.doomed = doomed

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = list(super().list(prefix))
        if prefix.startswith("state/0/0/"):
            self.delete(self.doomed)
            self.doomed = []
        return iter(found)


def test_a_collection_meanwhile_is_no_problem(built: CheckpointBuilder) -> None:
    batches = [
        spark_names.offsets_key(0),
        spark_names.offsets_key(1),
        *(spark_names.commits_key(batch) for batch in range(3)),
    ]
    built.storage.delete(batches)
    doomed = [
        manifest_key(built, P0, 3),
        *(changelog_key(built, P0, version) for version in (1, 2, 3, 4)),
    ]
    storage = Collecting(built.storage.root, doomed)
    assert verify(storage, "name").problems == []
    assert storage.doomed == []


def test_not_a_checkpoint(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "nothing"):
        for look in (verify, overview):
            with pytest.raises(InvalidInputError) as caught:
                look(LocalStorage(str(root)), "the name")
            assert caught.value.kind is ErrorKind.NOT_A_CHECKPOINT and "the name" in str(
                caught.value
            )


def test_foreign_checkpoint(tmp_path: Path) -> None:
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    built = CheckpointBuilder(tmp_path, provider=provider)
    built.spark_logs(3)
    built.storage.delete([layout.FORMAT_KEY])
    built.storage.put_bytes("state/0/0/1.zip", b"PK")
    for look in (verify, overview):
        with pytest.raises(UnsupportedError) as caught:
            look(built.storage, "name")
        assert caught.value.kind is ErrorKind.FOREIGN_CHECKPOINT


def test_query_without_a_batch(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.put_bytes("metadata", b'{"id":"x"}')
    assert verify(storage, "name").ok
    assert overview(storage, "name").operators == ()


def test_storage_that_fails_is_no_damage(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(key: str) -> bytes:
        raise UnavailableError("no", kind=ErrorKind.STORAGE_UNAVAILABLE)

    monkeypatch.setattr(built.storage, "read", refuse)
    with pytest.raises(UnavailableError) as caught:
        verify(built.storage, "name")
    assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE


@pytest.mark.parametrize("suffix", [".changelog", ".sst"])
def test_a_disk_that_cannot_read_is_named(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """It was an INTERNAL error that named no file."""

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    def opened(path: str, mode: str = "r") -> Any:
        return Failing() if path.endswith(suffix) else open(path, mode)

    monkeypatch.setattr("millpond.storage.stored_file.open", opened, raising=False)
    with pytest.raises(UnavailableError) as caught:
        verify(built.storage, "name")
    assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE
    assert "reading state/0/" in caught.value.message and suffix in caught.value.message
    assert "Input/output error" in caught.value.message


def test_sums_that_hadoop_keeps_beside_a_file(built: CheckpointBuilder) -> None:
    """Spark refuses to read a file whose sum does not fit."""

    def sums(data: bytes) -> bytes:
        pieces = [data[at : at + 512] for at in range(0, len(data), 512)]
        return b"crc\0\0\0\2\0" + b"".join(zlib.crc32(piece).to_bytes(4, "big") for piece in pieces)

    for key in (
        "metadata",
        "offsets/5",
        "commits/5",
        "state/0/_metadata/metadata",
        "state/0/0/_metadata/schema",
    ):
        data = built.storage.read(key)
        sidecar = spark_names.crc_key(key)
        built.storage.put_bytes(sidecar, sums(data))
        assert problems(built) == set()
        for stale in (sums(data + b"x"), sums(data)[:-1], sums(b"")):
            built.storage.put_bytes(sidecar, stale)
            assert problems(built) == {("FORMAT_DAMAGED", key)}
        for ignored in (b"", b"no sums, and Hadoop takes no notice"):
            built.storage.put_bytes(sidecar, ignored)
            assert problems(built) == set()


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_what_a_killed_fork_left(built: CheckpointBuilder, logs: bool, elsewhere: bool) -> None:
    """On object storage. All files that are there are whole, and no query starts there."""
    if not logs:
        for folder in (spark_names.OFFSETS_DIR, spark_names.COMMITS_DIR):
            shutil.rmtree(built.root / folder)
        built.storage.delete([spark_names.QUERY_METADATA_KEY])
    storage: Storage = built.storage
    claimed = built.storage
    if elsewhere:
        claimed = LocalStorage(f"{built.root}-spark", fsync=False)
        for info in built.storage.list(""):
            if spark_names.is_sparks(info.key):
                claimed.put_bytes(info.key, built.storage.read(info.key))
        storage = SplitStorage(claimed, built.storage)
    assert verify(storage, "name").ok
    claimed.put_bytes(layout.CLAIM_KEY, b"somebody")
    (problem,) = verify(storage, "name").problems
    assert (problem.kind, problem.file) == ("CHECKPOINT_UNFINISHED", layout.CLAIM_KEY)
    assert "delete all that is below" in problem.hint
    (told,) = overview(storage, "name").problems
    assert told.startswith(f"{layout.CLAIM_KEY}: a command makes this Spark checkpoint")


def test_half_a_rescale(built: CheckpointBuilder) -> None:
    """`checkpoint show`, which a user runs first, said nothing of it."""
    built.storage.put_bytes(layout.RESCALE_JOURNAL_KEY, b"{}")
    assert problems(built) == {("RESCALE_UNFINISHED", layout.RESCALE_JOURNAL_KEY)}
    (told,) = overview(built.storage, "name").problems
    assert told.startswith(f"{layout.RESCALE_JOURNAL_KEY}: a rescale is under way")
    assert "its journal cannot be read" in told


def test_changelogs_of_two_operators_exchanged(built: CheckpointBuilder) -> None:
    if built.spark_format == 2:
        pytest.skip("their names tell the ids")
    right = {
        version: built.storage.read(changelog_key(built, P0, version)) for version in range(1, 7)
    }

    def of_operator_1(*versions: int) -> None:
        for version, data in right.items():
            if version in versions:
                header = replace(built.header(StoreId(1, 0), version), id=version_id(P0, version))
                data = changelog_bytes(header, [])
            built.storage.put_bytes(changelog_key(built, P0, version), data)

    of_operator_1(5)
    assert problems(built) == {("CHANGELOG_DAMAGED", changelog_key(built, P0, 5))}
    of_operator_1(1, 2, 3)
    assert problems(built) == set(), (
        "a restore gave the operator another number, and the query went on"
    )
    of_operator_1(4, 6)
    assert {file for _, file in problems(built)} == {
        changelog_key(built, P0, version) for version in (4, 6)
    }


def test_an_operator_that_got_another_number_twice(built: CheckpointBuilder) -> None:
    """Two restores gave it two numbers, and no snapshot has come between. The last one may be the
    first again.
    """
    for numbers in ((7, 7, 5, 5, 0, 0), (0, 0, 5, 5, 0, 0)):
        for version, operator in enumerate(numbers, 1):
            run = f"run {(version - 1) // 2}"
            header = replace(built.header(P0, version), store=StoreId(operator, 0), run_id=run)
            built.storage.put_bytes(changelog_key(built, P0, version), changelog_bytes(header, []))
        assert problems(built) == set()


def test_manifest_of_another_operator(built: CheckpointBuilder) -> None:
    built.changed(built.manifests[P0][1], keys=5)
    manifest = replace(built.manifests[P0][1], store=StoreId(1, 0))
    built.storage.put_bytes(manifest_key(built, P0, 5), encode_manifest(manifest))
    assert problems(built) == {("MANIFEST_DAMAGED", manifest_key(built, P0, 5))}


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_query_without_state_may_log_some_batches_alone(
    tmp_path: Path, spark_format: int
) -> None:
    """With asynchronous progress tracking Spark logs a batch now and then, in both logs."""
    built = CheckpointBuilder(tmp_path / "job", spark_format=spark_format)
    built.spark_logs(7)
    for folder in (layout.STATE_DIR, layout.MILLPOND_DIR):
        shutil.rmtree(built.root / folder)
    for batch in range(7):
        if spark_format == 2:
            text = b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}'
            built.storage.put_bytes(spark_names.commits_key(batch), text)
    for batch in (1, 2, 4):
        built.storage.delete([spark_names.offsets_key(batch), spark_names.commits_key(batch)])
    assert problems(built) == set()
    savepoint.fork(built.root, tmp_path / "fork")
    for key in (spark_names.commits_key(3), spark_names.offsets_key(5)):
        text = built.storage.read(key)
        built.storage.delete([key])
        assert problems(built) == {("FORMAT_DAMAGED", key)}
        built.storage.put_bytes(key, text)


def test_batches_that_expire_meanwhile_are_no_problem(tmp_path: Path) -> None:
    """A store is checked long after Spark's logs were read: its query has gone on."""
    for spark_format in (1, 2):
        built = CheckpointBuilder(tmp_path / str(spark_format), spark_format=spark_format)
        built.build(batches=12, snapshots=(3, 6, 9))
        hidden = {
            key: built.storage.read(key)
            for batch in range(7, 12)
            for key in (spark_names.offsets_key(batch), spark_names.commits_key(batch))
        }
        built.storage.delete(hidden)
        found, wrong = verify_logs(built.storage, "name")
        assert wrong == []
        for key, text in hidden.items():
            built.storage.put_bytes(key, text)
        gone = [manifest_key(built, P0, 3), manifest_key(built, P0, 6)]
        gone += [changelog_key(built, P0, version) for version in range(1, 10)]
        built.storage.delete(gone)
        # The log goes back one batch further than the state.
        old = [
            name(n) for n in range(7) for name in (spark_names.offsets_key, spark_names.commits_key)
        ]
        built.storage.delete(old)
        part = verify_store(built.storage, found, P0)
        assert (part.checked.manifests, part.problems) == (1, [])
        # What the log has now must be there.
        built.storage.delete([manifest_key(built, P0, 9)])
        assert {p.kind for p in verify(built.storage, "name").problems} == {"CHANGELOG_MISSING"}
