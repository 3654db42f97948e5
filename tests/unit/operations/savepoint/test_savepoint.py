"""Savepoints of Spark checkpoints that were built without a JVM.

The tests check what is in them, what a restore makes of them, lists and kills.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import stat
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from integration.depth import quick_first
from millpond import savepoint
from millpond.errors import ErrorKind, UnavailableError
from millpond.format import layout
from millpond.format.format_file import decode_format
from millpond.model.ids import StoreId, VersionId
from millpond.operations.inspect import overview, verify
from millpond.operations.savepoint import planned_image
from millpond.query.image import renumbering
from millpond.spark.job import JobOperator
from millpond.storage import LocalStorage
from millpond.store.files import StoreFiles
from millpond.store.restore.plan import plan_restore
from tests.checkpoints import CheckpointBuilder, tree, version_id
from tests.refusals import refused

P0 = StoreId(0, 0)


def same_state(a: Path, b: Path, version: int, *, operator: int = 0, spark_format: int) -> None:
    """Check that both restore `version` of every store from the same bytes."""
    for partition in range(2):
        plans = []
        for root, number in ((a, 0), (b, operator)):
            store = StoreId(number, partition)
            files = StoreFiles(LocalStorage(str(root)), store, spark_format)
            files.refresh()
            target = VersionId(
                version, version_id(StoreId(0, partition), version) if spark_format == 2 else ""
            )
            plan = plan_restore(files, target)
            ssts = (
                [(sst.crc32, sst.size_bytes, sst.local_name) for sst in plan.manifest.ssts]
                if plan.manifest
                else []
            )
            changelogs = [
                (root / layout.changelog_key(store, h.version_id, spark_format)).read_bytes()
                for h in plan.headers
            ]
            plans.append((plan.lineage, ssts, changelogs))
        assert plans[0] == plans[1]


def test_a_savepoint_is_a_part_of_the_checkpoint_and_says_what_it_holds(
    built: CheckpointBuilder, saved: Path
) -> None:
    view = savepoint.show(saved)
    image = view.index.image
    assert (image.batch, image.planned_batch, image.partitions, image.max_parallelism) == (
        5,
        None,
        2,
        16,
    )
    assert [(op.operator, op.name, op.keys) for op in image.operators] == [
        (0, "stateStoreSave", 12)
    ]
    original = tree(built.root)
    files = tree(saved)
    assert set(files) - {layout.SAVEPOINT_KEY} < set(original)
    assert {"metadata", "offsets/4", "offsets/5", "commits/5", "millpond/format.json"} < set(files)
    assert not any(name.startswith(("offsets/3", "commits/4")) for name in files)
    for key, entry in view.index.files.items():
        assert (len(files[key]), zlib.crc32(files[key])) == (entry.size_bytes, entry.crc32)
        assert files[key] == original[key]
    assert savepoint.verify(saved).ok
    assert not list((built.root / "millpond").glob("pins/*")), "`create` releases its pin"


def test_no_bytes_of_state_are_moved_on_one_file_system(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    report = savepoint.create(built.root, tmp_path / "linked")
    assert report.bytes_linked == savepoint.show(tmp_path / "linked").index.state_bytes(0)
    copied = savepoint.create(built.root, tmp_path / "copied", link=False)
    assert (copied.bytes_linked, copied.bytes_written) == (
        0,
        report.bytes_linked + report.bytes_written,
    )
    assert all(
        path.stat().st_nlink == 1 for path in (tmp_path / "copied").rglob("*") if path.is_file()
    )


def test_what_is_linked_is_synced_too(
    built: CheckpointBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query with commit.fsync=false has not synced it: a power cut took it from a savepoint."""
    synced: set[int] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    saved = tmp_path / "new" / "saved"
    assert savepoint.create(built.root, saved).bytes_linked > 0
    written = [tmp_path, tmp_path / "new", saved, *saved.rglob("*")]
    assert [path for path in written if path.stat().st_ino not in synced] == []


def test_a_file_system_that_cannot_sync_a_directory(
    built: CheckpointBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some that are mounted. A query commits there; it could not be saved."""
    fsync = os.fsync

    def refusing(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    savepoint.create(built.root, tmp_path / "new" / "saved")
    savepoint.restore(tmp_path / "new" / "saved", tmp_path / "restored")
    assert verify(LocalStorage(str(tmp_path / "restored")), "it").problems == []
    savepoint.delete(tmp_path / "new" / "saved")


@pytest.mark.parametrize("batch", [2, 3, 4])
def test_an_older_batch(built: CheckpointBuilder, tmp_path: Path, batch: int) -> None:
    savepoint.create(built.root, tmp_path / "saved", batch=batch)
    index = savepoint.show(tmp_path / "saved").index
    # The query had begun the next batch. The restored query reads the same input for it.
    assert (index.image.batch, index.image.planned_batch) == (batch, batch + 1)
    savepoint.restore(tmp_path / "saved", tmp_path / "new")
    same_state(built.root, tmp_path / "new", batch + 1, spark_format=built.spark_format)
    names = {path.name for path in (tmp_path / "new/offsets").iterdir()}
    assert names == {str(batch - 1), str(batch), str(batch + 1)}
    assert [path.name for path in (tmp_path / "new/commits").iterdir()] == [str(batch)]


def test_restored(built: CheckpointBuilder, saved: Path, tmp_path: Path) -> None:
    shutil.move(saved, tmp_path / "elsewhere")
    before = tree(tmp_path / "elsewhere")
    report = savepoint.restore(tmp_path / "elsewhere", tmp_path / "deep/er/new")
    new = tmp_path / "deep/er/new"
    files = tree(new)
    expected = {key: data for key, data in before.items() if key != layout.SAVEPOINT_KEY}
    if built.spark_format == 1:
        expected[layout.operator_record_key(0)] = b""
    assert files.keys() == expected.keys()
    assert {key for key in files if files[key] != expected[key]} == {"metadata"}
    assert (
        json.loads(files["metadata"]) == {"id": report.query_id}
        and files["metadata"] != before["metadata"]
    )
    assert verify(LocalStorage(str(new)), "new").ok
    assert overview(LocalStorage(str(new)), "new").last_committed_batch == 5
    same_state(built.root, new, 6, spark_format=built.spark_format)
    assert tree(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("given", [{"operator": 0}, {"store": "default"}, {"column_family": "a"}])
def test_a_column_family_without_a_change_is_refused(
    saved: Path, tmp_path: Path, given: dict[str, object]
) -> None:
    """It would have no effect, so the user meant something else."""
    new = tmp_path / "new"
    error = refused(ErrorKind.INVALID_ARGUMENT, savepoint.restore, saved, new, **given)
    assert "no change of its columns" in error.message
    assert not new.exists()


def test_executors_cannot_change_columns(saved: Path, tmp_path: Path) -> None:
    new, columns = tmp_path / "new", savepoint.ColumnChanges(drop=["v"])
    refused(
        ErrorKind.INVALID_ARGUMENT, savepoint.restore, saved, new, columns=columns, spark=object()
    )
    assert not new.exists()


def test_a_move_keeps_the_query_id(built: CheckpointBuilder, saved: Path, tmp_path: Path) -> None:
    report = savepoint.restore(saved, tmp_path / "new", keep_query_id=True)
    assert (tmp_path / "new/metadata").read_bytes() == (built.root / "metadata").read_bytes()
    assert report.query_id == json.loads((built.root / "metadata").read_bytes())["id"]


def test_fork_is_create_and_restore(built: CheckpointBuilder, saved: Path, tmp_path: Path) -> None:
    before = tree(built.root)
    report = savepoint.fork(built.root, tmp_path / "forked", keep_query_id=True)
    savepoint.restore(saved, tmp_path / "restored", keep_query_id=True)
    assert tree(tmp_path / "forked") == tree(tmp_path / "restored")
    assert report.bytes_linked > 0 and tree(built.root) == before


def test_dropped_offsets(saved: Path, tmp_path: Path) -> None:
    (saved / "sources").mkdir()
    savepoint.restore(saved, tmp_path / "new", offsets="drop")
    for batch in (4, 5):
        before = (saved / f"offsets/{batch}").read_text().split("\n")
        after = (tmp_path / f"new/offsets/{batch}").read_text().split("\n")
        assert after == [*before[:2], "-"]
    assert not (tmp_path / "new/sources").exists()


@pytest.mark.parametrize("offsets", ["drop", "keep"])
def test_the_entry_before_the_oldest_that_is_kept(
    built: CheckpointBuilder, tmp_path: Path, offsets: str
) -> None:
    """Spark reads the entry before the last one when a query starts. It purges old entries."""
    for log in ("offsets", "commits"):
        for batch in range(4):
            (built.root / log / str(batch)).unlink()
    savepoint.fork(built.root, tmp_path / "new", batch=4, offsets=offsets)
    entries = sorted(path.name for path in (tmp_path / "new/offsets").iterdir())
    assert entries == (["3", "4"] if offsets == "drop" else ["4", "5"])
    if offsets == "drop":
        before, last = ((tmp_path / "new/offsets" / name).read_bytes() for name in ("3", "4"))
        assert before == last and last.endswith(b"\n-")
    assert verify(LocalStorage(str(tmp_path / "new")), "new").ok


def test_mapped_operator(built: CheckpointBuilder, saved: Path, tmp_path: Path) -> None:
    report = savepoint.restore(saved, tmp_path / "new", map_operators={0: 3})
    assert report.operators == ((0, 3),)
    new = tmp_path / "new"
    assert [path.name for path in (new / "state").iterdir()] == ["3"]
    same_state(built.root, new, 6, operator=3, spark_format=built.spark_format)
    metadata = json.loads((new / "state/3/_metadata/metadata").read_text().partition("\n")[2])
    assert metadata["operatorInfo"] == {"operatorId": 3, "operatorName": "stateStoreSave"}
    assert verify(LocalStorage(str(new)), "new").ok
    if built.spark_format == 2:
        assert list(
            json.loads((new / "commits/5").read_text().partition("\n")[2])["stateUniqueIds"]
        ) == ["3"]


def test_dropped_operator(built: CheckpointBuilder, saved: Path, tmp_path: Path) -> None:
    savepoint.restore(saved, tmp_path / "new", drop_operators=[0])
    assert not (tmp_path / "new/state").exists()
    assert verify(LocalStorage(str(tmp_path / "new")), "new").ok, "the query has no state"
    if built.spark_format == 2:
        assert '"stateUniqueIds":{}' in (tmp_path / "new/commits/5").read_text()


def test_renumbering() -> None:
    assert renumbering([0, 1, 2], {2: 1}, [1]) == {0: 0, 2: 1}
    assert renumbering([0, 1], {0: 1, 1: 0}, []) == {0: 1, 1: 0}
    for mapped, dropped in (
        ({5: 1}, []),
        ({}, [5]),
        ({0: 1}, []),
        ({0: 2, 1: 2}, []),
        ({0: 2}, [0]),
    ):
        refused(ErrorKind.OPERATOR_UNKNOWN, lambda m=mapped, d=dropped: renumbering([0, 1], m, d))


# ---- list, delete --------------------------------------------------------------------------------


def test_list_and_delete(built: CheckpointBuilder, tmp_path: Path) -> None:
    place = tmp_path / "savepoints"
    for name, batch in (("b", 3), ("a", 4), ("c", 5)):
        savepoint.create(built.root, place / name, batch=batch)
    (place / "other").mkdir()
    (place / "broken").mkdir()
    (place / "broken" / layout.SAVEPOINT_KEY).write_bytes(b"rubbish")
    names = [
        Path(e.savepoint if isinstance(e, savepoint.SavepointView) else e[0]).name
        for e in savepoint.list_savepoints(place)
    ]
    assert names == ["b", "a", "c", "broken"]
    savepoint.restore(place / "a", tmp_path / "new")
    (place / "a/mine.txt").write_text("not the savepoint's")
    refused(ErrorKind.INVALID_ARGUMENT, lambda: savepoint.delete(place / "a"))
    assert savepoint.verify(place / "a").ok
    (place / "a/mine.txt").unlink()
    savepoint.delete(place / "a", dry_run=True)
    savepoint.delete(place / "a")
    assert sorted(path.name for path in place.iterdir()) == ["b", "broken", "c", "other"]
    for root in (built.root, tmp_path / "new"):
        assert verify(LocalStorage(str(root)), "x").ok, "neither needs the savepoint"


def test_a_directory_that_may_not_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an INTERNAL error, to be reported."""

    def denied(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("millpond.operations.savepoint.manage.os.listdir", denied)
    told = refused(ErrorKind.STORAGE_DENIED, lambda: savepoint.list(tmp_path))
    assert str(tmp_path) in str(told)


def test_a_checkpoint_that_can_only_be_read(
    built: CheckpointBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put_bytes = LocalStorage.put_bytes

    def denied(self: LocalStorage, key: str, data: bytes, *, if_absent: bool = False) -> None:
        if self.root == str(built.root):
            raise UnavailableError("denied", kind=ErrorKind.STORAGE_DENIED)
        put_bytes(self, key, data, if_absent=if_absent)

    monkeypatch.setattr(LocalStorage, "put_bytes", denied)
    savepoint.create(built.root, tmp_path / "saved")
    assert savepoint.verify(tmp_path / "saved").ok and "not pinned" in caplog.text


def test_a_pin_that_cannot_be_removed_fails_nothing(
    built: CheckpointBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The savepoint was complete, and the command said that it had failed: a role may write and not
    delete.
    """
    delete = LocalStorage.delete

    def denied(self: LocalStorage, keys: Iterable[str]) -> None:
        if self.root == str(built.root):
            raise UnavailableError("denied", kind=ErrorKind.STORAGE_DENIED)
        delete(self, keys)

    monkeypatch.setattr(LocalStorage, "delete", denied)
    assert savepoint.create(built.root, tmp_path / "saved").batch == 5
    assert savepoint.verify(tmp_path / "saved").ok
    (pin,) = built.storage.list(layout.PINS_PREFIX)
    assert pin.key in caplog.text


# ---- kill -9 -------------------------------------------------------------------------------------


def killed_at(step: int, action: Callable[[], object]) -> bool:
    """Run `action` in a child that ends with SIGKILL. Return whether it ended so.

    The kill comes at the `step`-th call that changes or opens a file.
    """
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child does not report
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event in (
                "open",
                "os.link",
                "os.rename",
                "os.mkdir",
                "os.remove",
                "os.rmdir",
                "os.listdir",
                "os.scandir",
            ):
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            action()
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("what", quick_first(["create", "delete", "restore", "fork"], 2))
def test_killed_anywhere_leaves_nothing_or_a_whole(
    template: CheckpointBuilder, tmp_path: Path, what: str
) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    built = template.copy_to(tmp_path / "check")
    saved, place = tmp_path / "saved", tmp_path / "places" / "place"
    place.parent.mkdir()
    savepoint.create(built.root, saved, link=False)
    before = {
        key: data
        for key, data in tree(tmp_path).items()
        if not key.startswith("check/millpond/pins")
    }
    actions: dict[str, Callable[[], object]] = {
        "create": lambda: savepoint.create(built.root, place),
        "restore": lambda: savepoint.restore(saved, place),
        "fork": lambda: savepoint.fork(built.root, place),
        "delete": lambda: savepoint.delete(place),
    }
    step, stride, wholes = rng.randrange(1, 6), 12, 0
    while True:
        if what == "delete" and not place.exists():
            savepoint.create(built.root, place)
        reached = killed_at(step, actions[what])
        if place.exists():
            wholes += 1
            good = (
                savepoint.verify(place)
                if what in ("create", "delete")
                else verify(LocalStorage(str(place)), "x")
            )
            assert good.ok
            if what != "delete":
                shutil.rmtree(place)
        if not reached:
            break
        step += rng.randrange(1, stride)
    assert wholes or what == "delete"
    after = tree(tmp_path)
    left = {key for key in after if key not in before}
    assert {key: after[key] for key in before} == before, "the source is untouched"
    assert all(
        key.startswith(("places/.place.staging-", "check/millpond/pins/")) for key in left
    ), left
    actions["create"]()
    assert [path.name for path in place.parent.iterdir()] == ["place"], (
        "the next command removes what killed ones left"
    )


def test_a_query_whose_operators_are_all_new_keeps_its_backend(
    built: CheckpointBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint.fork(built.root, tmp_path / "heap", backend="heap")
    texts = tree(tmp_path / "heap")
    described = {key: text for key, text in texts.items() if "_metadata/" in key}
    assert described
    fit = SimpleNamespace(
        numbers={},
        new=[JobOperator(operator=0, name="stateStoreSave", error="")],
        described={0: described},
        warnings=(),
        source_warnings=(),
        meant=None,
    )
    monkeypatch.setattr(planned_image, "fit_to_restore", lambda *_: fit)
    report = savepoint.fork(
        tmp_path / "heap",
        tmp_path / "new",
        drop_operators=[0],
        allow_new_operator=True,
        job=lambda: None,
    )
    assert report.new_operators == (0,)
    name = layout.FORMAT_KEY
    assert decode_format((tmp_path / "new" / name).read_bytes()).backend == "heap"
    assert verify(LocalStorage(str(tmp_path / "new")), "new").ok
