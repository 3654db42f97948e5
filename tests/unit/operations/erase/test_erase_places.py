"""Erasures from places whose files hang together, and beside a query that was just started."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rocksdict

import millpond
from millpond import savepoint
from millpond.errors import ConflictError, ErrorKind, MillpondError
from millpond.format import layout
from millpond.format.changelog import ChangelogHeader, Op, Record
from millpond.model.ids import StoreId, VersionId
from millpond.model.key_groups import KeyGroups
from millpond.operations.erase import places, run, tables
from millpond.operations.erase.places import made_of, plan_place
from millpond.operations.erase.write import rewrite_all
from millpond.operations.inspect import verify
from millpond.operations.savepoint import create as create_module
from millpond.query.from_checkpoint import look
from millpond.spark import heartbeats
from millpond.storage import LocalStorage, ObjectInfo
from millpond.store import entries
from millpond.store.files import StoreFiles
from tests.checkpoints import CheckpointBuilder, tree, version_id
from tests.examples import changelog_bytes
from tests.failing_storage import Killed
from tests.refusals import refused
from tests.rescale_scenes import beat
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


def unheld(built: CheckpointBuilder) -> dict[str, bytes]:
    """Return all files but the heartbeats of commands."""
    prefix = layout.RUNNING_PREFIX + layout.COMMAND_PREFIX
    return {k: v for k, v in tree(built.root).items() if not k.startswith(prefix)}


@pytest.mark.parametrize("second", ["erase", "rescale"])
def test_an_erasure_at_work_is_no_interrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    """Another command deleted its journal, or ended it and let the query start."""
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    monkeypatch.setattr(heartbeats, "_ENDING_S", 0.0)
    told: list[MillpondError] = []

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        monkeypatch.setattr(heartbeats, "_ENDING_S", 0.0)
        with pytest.raises(MillpondError) as refused:
            if second == "erase":
                millpond.erase([built.root], key={"k": 1})
            else:
                millpond.rescale(built.root, 4)
        told.append(refused.value)
        return rewrite_all(*arguments)

    monkeypatch.setattr(run, "rewrite_all", meanwhile)
    (done,) = millpond.erase([built.root], key={"k": 1}).places
    assert [error.kind for error in told] == [ErrorKind.COMMAND_RUNNING]
    assert done.files and done.proof is not None
    assert not list(built.storage.list(layout.RUNNING_PREFIX))


@pytest.mark.parametrize("format", ["native", "canonical"])
def test_two_erasures_of_one_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Each wrote anew what it had read before: the second brought back the key of the first, which
    had proved that it was gone.
    """
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, format=format)
    keys = [row["key"]["k"] for row in millpond.read_state(saved).to_pylist()]
    where, name = (run, "plan_place") if format == "native" else (tables, "plan_tables")
    plan = getattr(where, name)
    told: list[ErrorKind] = []

    def meanwhile(*arguments: Any) -> Any:
        planned = plan(*arguments)
        monkeypatch.undo()
        monkeypatch.setattr(heartbeats, "_ENDING_S", 0.0)
        with pytest.raises(MillpondError) as refused:
            millpond.erase([saved], key={"k": keys[1]})
        told.append(refused.value.kind)
        return planned

    monkeypatch.setattr(where, name, meanwhile)
    assert millpond.erase([saved], key={"k": keys[0]}).places[0].rows == 1
    assert told == [ErrorKind.COMMAND_RUNNING]
    assert millpond.erase([saved], key={"k": keys[1]}).places[0].rows == 1
    after = [row["key"]["k"] for row in millpond.read_state(saved).to_pylist()]
    assert sorted(after) == sorted(set(keys) - {*keys[:2]})
    assert savepoint.verify(saved).ok
    assert not [key for key in tree(saved) if key.startswith(layout.RUNNING_PREFIX)]


def test_a_place_that_is_named_twice_is_one(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved)
    twice: list[str | Path] = [built.root, saved, f"{saved}/", str(built.root)]
    done = millpond.erase(twice, key={"k": 1}).places
    assert [place.rows for place in done] == [1, 1]


def test_a_savepoint_with_what_a_killed_erasure_left_is_deleted(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved)
    for name in ("command-1.json", "command-1.hold"):
        LocalStorage(str(saved)).put_bytes(f"{layout.RUNNING_PREFIX}{name}", b"")
        two_days_ago = time.time() - 2 * 86_400
        os.utime(saved / f"{layout.RUNNING_PREFIX}{name}", (two_days_ago, two_days_ago))
    savepoint.delete(saved)
    assert not saved.exists()


def test_a_savepoint_is_not_deleted_while_a_key_is_erased_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved)
    monkeypatch.setattr(heartbeats, "_ENDING_S", 0.0)

    def meanwhile(*arguments: Any) -> Any:
        refused(ErrorKind.COMMAND_RUNNING, savepoint.delete, saved)
        return plan_place(*arguments)

    monkeypatch.setattr(run, "plan_place", meanwhile)
    assert millpond.erase([saved], key={"k": 1}).places[0].rows == 1
    savepoint.delete(saved)
    assert not saved.exists()


@pytest.mark.parametrize("how", ["heartbeat", "commit"])
def test_a_query_that_was_started_while_the_erasure_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    seen: list[dict[str, bytes]] = []

    def plan(*arguments: Any) -> Any:
        planned = plan_place(*arguments)
        if how == "heartbeat":
            beat(built, 1, host=f"not {socket.gethostname()}")
        else:
            built.spark_logs(7)
            for store in built.stores():
                built.changelogs(store, 7)
        seen.append(unheld(built))
        return planned

    monkeypatch.setattr(run, "plan_place", plan)
    monkeypatch.setattr(heartbeats, "_ENDING_S", 0.0)
    with pytest.raises(ConflictError) as refused:
        millpond.erase([built.root], key={"k": 1})
    assert refused.value.kind is ErrorKind.QUERY_RUNNING
    now = {k: v for k, v in unheld(built).items() if not k.startswith("millpond/gc/")}
    assert now == seen[0], "nothing has changed"
    assert layout.ERASE_JOURNAL_KEY not in now
    (built.root / "millpond/running/run-1.json").unlink(missing_ok=True)
    monkeypatch.undo()
    (done,) = millpond.erase([built.root], key={"k": 1}).places
    assert done.rows == 1 and verify(built.storage, "it").problems == []


@pytest.mark.parametrize("spark_format", [1, 2])
def test_what_a_query_commits_before_a_killed_erasure_ends_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    """The erasure was killed when it looked whether the query had been started. It had, and went
    on. The next erasure deleted what it committed: a journal names no version of that.
    """
    built = HashedBuilder(tmp_path / "query", spark_format=spark_format)
    built.build(batches=7, snapshots=())
    hidden = built.hide(6, 6)
    rows = {row["key"]["k"] for row in millpond.read_state(built.root).to_pylist()}
    key = min(rows)

    def killed(place: Any) -> None:
        monkeypatch.setattr(LocalStorage, "put_bytes", _killed)
        raise Killed

    def _killed(*arguments: Any, **more: Any) -> None:
        raise Killed

    monkeypatch.setattr(places, "_refuse_started", killed)
    with pytest.raises(Killed):
        millpond.erase([built.root], key={"k": key})
    monkeypatch.undo()
    refused(ErrorKind.ERASE_UNFINISHED, millpond.read_state, built.root)
    built.show(hidden[6])
    (done,) = millpond.erase([built.root], key={"k": key}).places
    assert verify(built.storage, "it").problems == []
    assert done.batches == tuple(range(7))
    after = millpond.read_state(built.root, batch=6).to_pylist()
    twin = HashedBuilder(tmp_path / "twin", spark_format=spark_format).build(7, snapshots=())
    whole = millpond.read_state(twin.root).to_pylist()
    assert sorted(row["key"]["k"] for row in after) == sorted(
        row["key"]["k"] for row in whole if row["key"]["k"] != key
    )


def test_a_query_that_commits_while_rows_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without Millpond's extension has no heartbeat before its first batch. What it committed
    was deleted.
    """
    built = HashedBuilder(tmp_path / "query")
    built.build(batches=7, snapshots=())
    hidden = built.hide(6, 6)
    key = min(row["key"]["k"] for row in millpond.read_state(built.root).to_pylist())

    def meanwhile(*arguments: Any) -> None:
        rewrite_all(*arguments)
        built.show(hidden[6])

    monkeypatch.setattr(run, "rewrite_all", meanwhile)
    refused(ErrorKind.QUERY_RUNNING, millpond.erase, [built.root], key={"k": key})
    monkeypatch.undo()
    (done,) = millpond.erase([built.root], key={"k": key}).places
    assert verify(built.storage, "it").problems == []
    assert done.batches == tuple(range(7))
    twin = HashedBuilder(tmp_path / "twin").build(7, snapshots=())
    after, whole = (
        {row["key"]["k"] for row in millpond.read_state(one.root).to_pylist()}
        for one in (built, twin)
    )
    assert after == whole - {key}


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("when", ["before it deletes", "after it deleted"])
def test_a_batch_that_is_committed_after_the_last_look_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int, when: str
) -> None:
    """Tasks had written it before that. The erasure deleted their files, and told of no error."""
    built = HashedBuilder(tmp_path / "query", spark_format=spark_format)
    built.build(batches=7, snapshots=())
    hidden = built.hide(6, 6)
    key = min(row["key"]["k"] for row in millpond.read_state(built.root).to_pylist())
    where = "replaced" if when == "before it deletes" else "prove"
    usual, calls = getattr(run, where), []

    def meanwhile(*arguments: Any) -> Any:
        calls.append(where)
        if len(calls) == (2 if where == "replaced" else 1):
            built.show(hidden[6])
        return usual(*arguments)

    monkeypatch.setattr(run, where, meanwhile)
    refused(ErrorKind.QUERY_RUNNING, millpond.erase, [built.root], key={"k": key})
    monkeypatch.undo()
    refused(ErrorKind.ERASE_UNFINISHED, millpond.read_state, built.root)
    (done,) = millpond.erase([built.root], key={"k": key}).places
    assert verify(built.storage, "it").problems == []
    assert done.batches == tuple(range(7))
    twin = HashedBuilder(tmp_path / "twin", spark_format=spark_format).build(7, snapshots=())
    after, whole = (
        {row["key"]["k"] for row in millpond.read_state(one.root).to_pylist()}
        for one in (built, twin)
    )
    assert after == whole - {key}
    check_counts(built, range(7))


def test_a_reader_that_an_erasure_overtakes_mixes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read changelogs as they were, and later ones as they were written anew, without the key.
    So the new savepoint had the value that the key had some batches before.
    """
    built = HashedBuilder(tmp_path / "query")
    built.build(batches=7, snapshots=())
    number, apply = built.key_row(built._number(built.stores()[0], 3))["k"], entries._apply

    def written(*arguments: Any) -> None:
        rewrite_all(*arguments)
        raise Killed

    def overtaken(version: Any, info: ObjectInfo, *more: Any) -> None:
        if info.key == "state/0/0/3.changelog":
            monkeypatch.undo()
            monkeypatch.setattr(run, "rewrite_all", written)
            with pytest.raises(Killed):
                millpond.erase([built.root], key={"k": number})
        apply(version, info, *more)

    monkeypatch.setattr(entries, "_apply", overtaken)
    new = tmp_path / "new"
    refused(ErrorKind.ERASE_UNFINISHED, savepoint.create, built.root, new, format="canonical")
    assert not new.exists()


class _Deleting(HashedBuilder):
    """Version 5 of each store also deletes the key of version 1."""

    def keys(self, version: int) -> int:
        return super().keys(version) - (version >= 5)

    def changelogs(self, store: StoreId, versions: int) -> None:
        super().changelogs(store, versions)
        records = [
            Record(Op.PUT, self.key(store, 5), self.value(store, 5)),
            Record(Op.DELETE, self.key(store, 1), None),
        ]
        key = layout.changelog_key(store, VersionId(5, version_id(store, 5)), self.spark_format)
        self.storage.put_bytes(key, changelog_bytes(self.header(store, 5), records))


def keys_of(built: CheckpointBuilder, batch: int | None = None) -> list[int]:
    rows = millpond.read_state(built.root, batch=batch).to_pylist()
    return sorted(row["key"]["k"] for row in rows)


def erase_killed(monkeypatch: pytest.MonkeyPatch, root: Path, key: int, files: int) -> None:
    """Erase a key, and be killed when so many files are written anew."""
    put_file, left = LocalStorage.put_file, [files]

    def some(self: LocalStorage, *arguments: Any, **more: Any) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        put_file(self, *arguments, **more)

    monkeypatch.setattr(LocalStorage, "put_file", some)
    with pytest.raises(Killed):
        millpond.erase([root], key={"k": key})
    monkeypatch.undo()


def check_counts(built: CheckpointBuilder, batches: Iterable[int]) -> None:
    """No version says a wrong number of live keys."""
    for batch in batches:
        rows = millpond.read_state(built.root, batch=batch).to_pylist()
        for store in built.stores():
            files = StoreFiles(built.storage, store, built.spark_format)
            files.refresh()
            header = files.header(VersionId(batch + 1, version_id(store, batch + 1)))
            assert header.keys in (-1, sum(row["partition"] == store.partition for row in rows))


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_half_done_erasure_keeps_its_mark_if_the_query_has_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    """Its deletion was not in the files any more, its row still was. Erasing another key took the
    mark away, and the row was there again.
    """
    built = _Deleting(tmp_path / "query", spark_format=spark_format)
    built.build(7, snapshots=())
    before, deleted = keys_of(built), min(keys_of(built, 0))
    assert deleted not in before
    hidden = built.hide(6, 6)
    erase_killed(monkeypatch, built.root, deleted, files=3)
    built.show(hidden[6])
    for _ in range(2):
        refused(ErrorKind.ERASE_UNFINISHED, millpond.erase, [built.root], key={"k": before[0]})
        refused(ErrorKind.ERASE_UNFINISHED, millpond.read_state, built.root)
    millpond.erase([built.root], key={"k": deleted})
    assert keys_of(built) == before and deleted not in keys_of(built, 0)
    assert verify(built.storage, "it").problems == []
    check_counts(built, range(7))


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_query_is_started_while_an_erasure_is_planned_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    built = HashedBuilder(tmp_path / "query", spark_format=spark_format)
    built.build(7, snapshots=())
    before, hidden = keys_of(built), built.hide(5, 6)
    erase_killed(monkeypatch, built.root, before[0], files=3)
    built.show(hidden[5])

    def plan(*arguments: Any) -> Any:
        planned = plan_place(*arguments)
        built.show(hidden[6])
        return planned

    monkeypatch.setattr(run, "plan_place", plan)
    refused(ErrorKind.QUERY_RUNNING, millpond.erase, [built.root], key={"k": before[0]})
    monkeypatch.undo()
    refused(ErrorKind.ERASE_UNFINISHED, millpond.read_state, built.root)
    millpond.erase([built.root], key={"k": before[0]})
    assert keys_of(built) == before[1:]
    assert verify(built.storage, "it").problems == []
    check_counts(built, range(7))


class _Lineage(HashedBuilder):
    """Each changelog names all versions below it."""

    def header(self, store: StoreId, version: int) -> ChangelogHeader:
        ids = tuple(version_id(store, below) for below in range(version))
        return replace(super().header(store, version), lineage_base=0, lineage=ids)


def _uncompressed(raw_mode: bool, options: Any = rocksdict.Options) -> Any:
    made = options(raw_mode=raw_mode)
    made.set_compression_type(rocksdict.DBCompressionType.none())
    return made


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("deleted", range(1, 6))
def test_a_query_commits_when_an_erasure_has_begun_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int, deleted: int
) -> None:
    """What it committed names versions whose files are deleted, and a newer one has all rows."""
    monkeypatch.setattr(rocksdict, "Options", _uncompressed)
    built = _Lineage(tmp_path / "query", spark_format=spark_format)
    built.build(7, snapshots=(3,))
    before = keys_of(built)
    built.hide(0, 3)  # Spark has removed them
    hidden = built.hide(6, 6)
    last = {}
    for store in built.stores():
        key = layout.changelog_key(store, VersionId(7, version_id(store, 7)), spark_format)
        last[key] = built.storage.read(key)
    built.storage.delete(last)
    delete = LocalStorage.delete

    def some(self: LocalStorage, keys: Iterable[str]) -> None:
        for n, key in enumerate(keys):
            if n == deleted:
                raise Killed
            delete(self, [key])

    monkeypatch.setattr(LocalStorage, "delete", some)
    try:
        with pytest.raises(Killed):
            millpond.erase([built.root], key={"k": before[0]})
    finally:
        monkeypatch.undo()
    refused(ErrorKind.ERASE_UNFINISHED, millpond.read_state, built.root)
    for key, data in last.items():
        built.storage.put_bytes(key, data)
    built.show(hidden[6])
    millpond.erase([built.root], key={"k": before[0]})
    assert keys_of(built) == before[1:]
    assert verify(built.storage, "it").problems == []
    check_counts(built, range(4, 7))


@pytest.mark.parametrize("format", ["native", "canonical"])
@pytest.mark.parametrize("when", ["before the mark", "after the mark"])
def test_a_savepoint_with_the_journal_of_a_killed_erasure_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, when: str
) -> None:
    """The file was taken for somebody else's. With `keep`, each new savepoint ended with that."""
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, format=format)
    delete = LocalStorage.delete

    def all_but_the_journal(self: LocalStorage, keys: Iterable[str]) -> None:
        keys = list(keys)
        if keys == [layout.ERASE_JOURNAL_KEY] and (saved / layout.ERASE_JOURNAL_KEY).exists():
            raise Killed
        delete(self, keys)

    def killed(*arguments: Any, **more: Any) -> bytes:
        raise Killed

    if when == "before the mark":
        monkeypatch.setattr(places, "encode_index", killed)
    else:
        monkeypatch.setattr(LocalStorage, "delete", all_but_the_journal)
    with pytest.raises(Killed):
        millpond.erase([saved], key={"k": 1})
    monkeypatch.undo()
    assert (saved / layout.ERASE_JOURNAL_KEY).exists() and savepoint.verify(saved).ok
    savepoint.delete(saved)
    assert not saved.exists()


@pytest.mark.parametrize("how", ["native", "canonical", "fork", "fork to other key groups"])
@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("ends", [False, True])
def test_no_copy_is_made_while_a_key_is_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, spark_format: int, ends: bool
) -> None:
    """It had files of before and of afterwards, and a row in it that the query had deleted."""
    monkeypatch.setattr(rocksdict, "Options", _uncompressed)
    built = _Deleting(tmp_path / "query", spark_format=spark_format)
    built.build(7, snapshots=(3,))
    deleted = min(keys_of(built, 0))
    monkeypatch.undo()
    begun: list[bool] = []

    def look_before(*arguments: Any, **more: Any) -> Any:
        found = look(*arguments, **more)
        if not begun:
            begun.append(True)
            if ends:
                millpond.erase([built.root], key={"k": deleted})
            else:
                with monkeypatch.context() as context:
                    erase_killed(context, built.root, deleted, files=3)
        return found

    monkeypatch.setattr(create_module, "look", look_before)
    new = tmp_path / "new"
    if how.startswith("fork"):
        partitions = None if how == "fork" else 3
        refused(ErrorKind.ERASE_UNFINISHED, millpond.fork, built.root, new, partitions=partitions)
    else:
        refused(ErrorKind.ERASE_UNFINISHED, savepoint.create, built.root, new, format=how)
    assert begun and not new.exists()
    millpond.erase([built.root], key={"k": deleted})
    savepoint.create(built.root, new)
    assert deleted not in {row["key"]["k"] for row in millpond.read_state(new).to_pylist()}
