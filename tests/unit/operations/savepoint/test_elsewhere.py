"""Savepoints of Spark checkpoints whose state is elsewhere (option storage.uri).

Restores put state there too. It is on S3 over HTTP.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from integration.depth import quick_first
from millpond import savepoint
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout, spark_names
from millpond.operations import migrate
from millpond.operations.inspect import verify
from millpond.operations.output import atomic_target
from millpond.storage import LocalStorage, open_checkpoint, open_storage
from millpond.storage.local import sync_directory
from millpond.storage.place import read_place
from millpond.storage.s3 import S3Storage
from tests.checkpoints import CheckpointBuilder
from tests.row_checkpoints import RowsBuilder
from tests.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


@pytest.fixture
def server(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    return running


def contents(checkpoint: Path) -> dict[str, bytes]:
    """Return all files but those that name the Spark checkpoint or the query."""
    storage = open_checkpoint(str(checkpoint))
    naming = ("metadata", layout.STORAGE_KEY, layout.OWNER_KEY)
    keys = [info.key for info in storage.list("") if info.key not in naming]
    return {key: storage.read(key) for key in keys}


def test_there_and_back(server: S3Server, tmp_path: Path) -> None:
    """A Spark checkpoint goes to a savepoint on S3, and in the end comes home.

    A restore puts its state on S3. A fork of that has its state there too.
    """
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    bucket = server.bucket()
    saved = f"s3://{bucket}/saved point%20"
    savepoint.create(built.root, saved)
    assert savepoint.verify(saved).ok
    uri = f"s3://{bucket}/states/"
    one = savepoint.restore(saved, tmp_path / "one", storage_uri=uri)
    assert read_place(LocalStorage(str(tmp_path / "one"))) == f"{uri}{one.query_id}"
    assert not list((tmp_path / "one/state").rglob("*.sst")) and list(
        open_storage(f"{uri}{one.query_id}").list("")
    )
    two = savepoint.fork(tmp_path / "one", tmp_path / "two", storage_uri=uri)
    assert two.query_id != one.query_id
    home = tmp_path / "home"
    savepoint.fork(tmp_path / "two", home)
    assert not (home / "millpond/storage.json").exists()
    for place in ("one", "two", "home"):
        assert verify(open_checkpoint(str(tmp_path / place)), place).problems == []
    # Manifests name the query's store alike everywhere. Only their place differs.
    assert (
        contents(tmp_path / "one").keys()
        == contents(tmp_path / "two").keys()
        == contents(home).keys()
    )
    again = savepoint.create(tmp_path / "two", tmp_path / "again")
    assert again.size_bytes > 0 and savepoint.verify(tmp_path / "again").ok


@pytest.mark.parametrize("on", quick_first(["disk", "s3"]))
def test_a_move_that_failed_can_be_run_again(server: S3Server, tmp_path: Path, on: str) -> None:
    """Of a state on a disk empty folders were left, which refused the command."""
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    uri = f"s3://{server.bucket()}/states" if on == "s3" else str(tmp_path / "states")

    def interrupted(at: int, total: int) -> None:
        raise KeyboardInterrupt

    def move(progress: Callable[[int, int], None] | None = None) -> object:
        return savepoint.fork(
            built.root, tmp_path / "new", keep_query_id=True, storage_uri=uri, progress=progress
        )

    with pytest.raises(KeyboardInterrupt):
        move(interrupted)
    assert [info.key for info in open_storage(uri).list("")] == []
    move()
    assert verify(open_checkpoint(str(tmp_path / "new")), "new").problems == []


def test_where_state_is_copied_to_is_told_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The place has a random name. Of a command that was killed nobody knew it."""
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    uri, told = str(tmp_path / "states"), []
    made = savepoint.fork(
        built.root,
        tmp_path / "new",
        storage_uri=uri,
        progress=lambda done, total: told.append(caplog.text),
    )
    assert f"{uri}/{made.query_id}" in told[0]
    caplog.clear()
    savepoint.fork(built.root, tmp_path / "other", storage_uri=uri, dry_run=True)
    savepoint.fork(built.root, tmp_path / "other")
    assert caplog.text == ""


@pytest.mark.parametrize("on", ["disk", "s3"])
def test_a_checkpoint_that_cannot_be_published_leaves_no_state(
    server: S3Server, tmp_path: Path, on: str
) -> None:
    """Somebody else writes to its place while the state is copied."""
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    uri = f"s3://{server.bucket()}/states" if on == "s3" else str(tmp_path / "states")

    def copying(at: int, total: int) -> None:
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new/file").write_text("x")

    with pytest.raises(MillpondError) as refused:
        savepoint.fork(built.root, tmp_path / "new", storage_uri=uri, progress=copying)
    assert refused.value.kind is ErrorKind.TARGET_NOT_EMPTY
    assert [info.key for info in open_storage(uri).list("")] == []


def test_an_error_after_a_checkpoint_got_its_name_costs_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()

    def synced(path: str) -> None:
        if path == str(tmp_path) and (tmp_path / "new").exists():
            raise OSError(5, "the disk fails")
        sync_directory(path)

    monkeypatch.setattr(atomic_target, "sync_directory", synced)
    with pytest.raises(MillpondError):
        savepoint.fork(built.root, tmp_path / "new", storage_uri=str(tmp_path / "states"))
    assert verify(open_checkpoint(str(tmp_path / "new")), "new").problems == []


@pytest.mark.deep
def test_what_stays_on_one_server_does_not_come_here(server: S3Server, tmp_path: Path) -> None:
    """The server copies from bucket to bucket.

    The test machine neither fetches nor sends the state.
    """
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    job, saved = f"s3://{server.bucket()}/job", f"s3://{server.bucket()}/saved"
    home = savepoint.fork(built.root, job)
    assert home.bytes_copied == 0 < home.bytes_written
    state = sum(
        i.size_bytes
        for i in open_storage(job).list("state/")
        if i.key.endswith((".sst", ".changelog"))
    )
    before = server.counts.copy()
    created = savepoint.create(job, saved)
    restored = savepoint.restore(saved, f"{job}-2")
    forked = savepoint.fork(job, f"{job}-3")
    for report in (created, restored, forked):
        assert report.bytes_copied == state and report.bytes_linked == 0
    assert server.counts["COPY"] - before["COPY"] == 3 * sum(
        i.key.endswith((".sst", ".changelog")) for i in open_storage(job).list("state/")
    )
    assert savepoint.verify(saved).ok and savepoint.diff(job, f"{job}-2").equal
    found = savepoint.list_savepoints(saved.rpartition("/")[0])
    assert [view.savepoint for view in found if isinstance(view, savepoint.SavepointView)] == [
        saved
    ]
    for place in (f"{job}-2", f"{job}-3"):
        assert verify(open_storage(place), place).problems == []


def test_one_of_many_writes_a_place(server: S3Server, tmp_path: Path) -> None:
    """The second writer is refused, and harms nothing."""
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    saved = f"s3://{server.bucket()}/saved"

    def create(_: int) -> bool:
        try:
            savepoint.create(built.root, saved)
        except MillpondError as e:
            assert e.kind is ErrorKind.TARGET_NOT_EMPTY
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(create, range(4))) == 1
    assert savepoint.verify(saved).ok
    assert layout.CLAIM_KEY not in {info.key for info in open_storage(saved).list("")}
    open_storage(saved).delete([layout.SAVEPOINT_KEY])  # as if its writer had died
    open_storage(saved).put_bytes(layout.CLAIM_KEY, b"")
    with pytest.raises(MillpondError) as caught:
        savepoint.create(built.root, saved)
    assert "has died" in str(caught.value)


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
@pytest.mark.parametrize("successor", ["works", "is done"])
def test_a_writer_that_stood_still_leaves_its_successor_alone(
    server: S3Server, tmp_path: Path, successor: str, fails: bool
) -> None:
    """Somebody took it for killed, deleted what it wrote, and made a savepoint there."""
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    saved, key = f"s3://{server.bucket()}/saved", spark_names.commits_key(0)
    storage = open_storage(saved)

    def resume() -> None:
        if fails:
            raise MillpondError("full", kind=ErrorKind.STORAGE_FULL)

    with ExitStack() as after:
        with pytest.raises(MillpondError) as told, atomic_target.building(saved) as first:
            first.storage.put_bytes(key, b"first")
            atomic_target.empty(storage)
            if successor == "works":
                second = after.enter_context(atomic_target.building(saved))
                second.storage.put_bytes(key, b"second")
            else:
                savepoint.create(built.root, saved)
            resume()
        assert told.value.kind is (ErrorKind.STORAGE_FULL if fails else ErrorKind.TARGET_NOT_EMPTY)
        if successor == "works":
            assert storage.read(key) == b"second"
            with pytest.raises(MillpondError, match="another process"):
                savepoint.create(built.root, saved)
        else:
            assert savepoint.verify(saved).ok


def _killed_deletion(saved: str, monkeypatch: pytest.MonkeyPatch, deletions: int) -> None:
    """Delete a savepoint in a process that is killed after some requests to delete."""
    delete, left = S3Storage.delete, deletions

    def killed(self: S3Storage, keys: Any) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        delete(self, keys)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(S3Storage, "delete", killed)
        savepoint.delete(saved)


@pytest.mark.parametrize("deletions", [0, 1, 2])
def test_a_killed_deletion_is_finished_by_the_next(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    saved = f"s3://{server.bucket()}/saved"
    size_bytes = savepoint.create(built.root, saved).size_bytes
    _killed_deletion(saved, monkeypatch, deletions)
    assert savepoint.list(saved.rpartition("/")[0]).unreadable == ()
    storage = open_storage(saved)
    storage.put_bytes("mine.txt", b"")
    with pytest.raises(MillpondError, match=r"mine\.txt"):
        savepoint.delete(saved)
    storage.delete(["mine.txt"])
    assert savepoint.delete(saved).size_bytes == size_bytes
    assert list(storage.list("")) == []
    with pytest.raises(MillpondError) as caught:
        savepoint.delete(saved)
    assert caught.value.kind is ErrorKind.NOT_A_SAVEPOINT


@pytest.mark.parametrize("deletions", [1, 2, 5, None])
def test_what_a_failed_command_could_not_delete_stays_claimed(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int | None
) -> None:
    """Without the claim a query would begin at batch 0 above a part of the state.

    The process is killed after some deletions, one at a time as on HDFS. None: nothing can be
    listed.
    """
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    new = f"s3://{server.bucket()}/new"
    put, delete, left = S3Storage.put_bytes, S3Storage.delete, deletions

    def failed(*_: object) -> Any:
        raise MillpondError("full", kind=ErrorKind.STORAGE_UNAVAILABLE)

    with monkeypatch.context() as patch:

        def put_bytes(self: S3Storage, key: str, data: bytes, *, if_absent: bool = False) -> None:
            if key.startswith("commits/"):
                if left is None:
                    patch.setattr(S3Storage, "list", failed)
                failed()
            put(self, key, data, if_absent=if_absent)

        def one_by_one(self: S3Storage, keys: Any) -> None:
            nonlocal left
            for key in keys:
                if left == 0:
                    raise KeyboardInterrupt
                left = None if left is None else left - 1
                delete(self, [key])

        patch.setattr(S3Storage, "put_bytes", put_bytes)
        patch.setattr(S3Storage, "delete", one_by_one)
        with pytest.raises((KeyboardInterrupt, MillpondError)):
            savepoint.fork(built.root, new)
    storage = open_storage(new)
    keys = {info.key for info in storage.list("")}
    assert any(key.startswith("state/") for key in keys) and layout.CLAIM_KEY in keys


def test_keep_finishes_what_a_killed_run_deleted(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = RowsBuilder(tmp_path / "checkpoint", spark_format=2).build()
    place = f"s3://{server.bucket()}/saves"
    first = savepoint.create(built.root, place, keep=1).savepoint
    by_hand = savepoint.create(built.root, f"{place}/by-hand").savepoint
    for saved in (first, by_hand):
        _killed_deletion(saved, monkeypatch, 1)
    second = savepoint.create(built.root, place, keep=1).savepoint
    names = {info.key.partition("/")[0] for info in open_storage(place).list("")}
    assert names == {second.rpartition("/")[2], "by-hand"}


class Executors:
    """What Millpond uses of a Spark session. Each task runs in a thread of its own.

    Executors share no disk, only a path that all of them have.

    Args:
        attempts: how often each task runs. The last attempt has the answer.
    """

    def __init__(self, attempts: int = 1) -> None:
        self._attempts = attempts

    def range(self, start: int, end: int, step: int, tasks: int) -> Executors:
        self._numbers = range(start, end, step)
        assert tasks == len(self._numbers)
        return self

    def mapInArrow(
        self, function: Callable[[Iterator[Any]], Iterator[Any]], schema: str
    ) -> Executors:
        assert schema == "job long, answer binary"

        def run(number: int) -> list[dict[str, Any]]:
            for _ in range(self._attempts):
                batches = function(iter([pa.RecordBatch.from_pydict({"id": [number]})]))
                rows = [row for batch in batches for row in batch.to_pylist()]
            return rows

        with ThreadPoolExecutor(4) as pool:
            self._rows = [
                SimpleNamespace(**row) for rows in pool.map(run, self._numbers) for row in rows
            ]
        return self

    def collect(self) -> list[SimpleNamespace]:
        return self._rows[::-1]


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("state", quick_first(["states", None]))
def test_executors_repartition_on_s3(
    server: S3Server, tmp_path: Path, state: str | None, attempts: int
) -> None:
    """Executors share no folder.

    Blocks of rows go through the storage of the target, and are gone in the end. Those of a task
    that ran twice were not.
    """
    built = RowsBuilder(tmp_path / "checkpoint", spark_format=2).build()
    bucket, spark = f"s3://{server.bucket()}", Executors(attempts)
    tables = f"{bucket}/tables"
    savepoint.create(built.root, tables, format="canonical", spark=spark)
    assert savepoint.verify(tables, spark=spark).ok
    new = str(tmp_path / "new") if state else f"{bucket}/new"
    savepoint.restore(
        tables, new, partitions=8, spark=spark, storage_uri=f"{bucket}/{state}" if state else None
    )
    assert savepoint.diff(built.root, new).equal
    storage = open_checkpoint(new)
    assert verify(storage, "x").problems == [] and not [
        i.key for i in storage.list("") if "scratch" in i.key
    ]


def test_a_failure_leaves_nothing_in_either_place(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    uri = f"s3://{server.bucket()}/states"
    put = S3Storage.put_bytes

    def refused(self: S3Storage, key: str, data: bytes, *, if_absent: bool = False) -> None:
        if key == layout.FORMAT_KEY:
            raise MillpondError("full", kind=ErrorKind.STORAGE_FULL)
        put(self, key, data, if_absent=if_absent)

    with monkeypatch.context() as patch:
        patch.setattr(S3Storage, "put_bytes", refused)
        with pytest.raises(MillpondError):
            savepoint.fork(built.root, tmp_path / "fork", storage_uri=uri)
    assert not (tmp_path / "fork").exists() and list(open_storage(uri).list("")) == []
    with pytest.raises(MillpondError) as caught:
        savepoint.fork(built.root, tmp_path / "fork", storage_uri="states")
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT
    savepoint.fork(built.root, tmp_path / "fork", storage_uri=uri)
    with pytest.raises(MillpondError) as caught:
        savepoint.fork(built.root, tmp_path / "other", keep_query_id=True, storage_uri=uri)
        savepoint.fork(built.root, tmp_path / "same", keep_query_id=True, storage_uri=uri)
    assert caught.value.kind is ErrorKind.TARGET_NOT_EMPTY


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_move_finds_the_state_of_before(tmp_path: Path, dry_run: bool) -> None:
    """The user lost the Spark checkpoint, restores it, and gives the same storage.uri.

    The hint said "name a directory", but the query's id names it.
    """
    built = CheckpointBuilder(tmp_path / "built", spark_format=2).build()
    uri, saved = str(tmp_path / "states"), tmp_path / "saved"
    made = savepoint.fork(built.root, tmp_path / "one", storage_uri=uri)
    savepoint.create(tmp_path / "one", saved)
    state = f"{uri}/{made.query_id}"

    def moved(move: Callable[..., Any], origin: Path, place: str = uri) -> Any:
        return move(
            origin, tmp_path / "two", keep_query_id=True, storage_uri=place, dry_run=dry_run
        )

    with pytest.raises(MillpondError, match="is not empty") as of_fork:
        moved(savepoint.fork, tmp_path / "one")
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(MillpondError, match="is not empty") as of_restore:
        moved(savepoint.restore, saved)
    for caught in (of_fork, of_restore):
        assert caught.value.kind is ErrorKind.TARGET_NOT_EMPTY
        assert "another --storage-uri; or leave out --keep-query-id" in caught.value.hint
    assert f"delete all that is below {state}" in of_restore.value.hint
    assert "delete" not in of_fork.value.hint, "a fork reads it"
    assert not (tmp_path / "two").exists()
    moved(savepoint.restore, saved, str(tmp_path / "others"))
    shutil.rmtree(tmp_path / "two", ignore_errors=True)
    shutil.rmtree(state)
    assert moved(savepoint.restore, saved).query_id == made.query_id


def test_nothing_lands_in_the_place_of_the_state(tmp_path: Path) -> None:
    """A collection or a restart of the query would find a savepoint there.

    Whoever deletes the savepoint would delete state.
    """
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    one, saved = tmp_path / "one", tmp_path / "saved"
    made = savepoint.fork(built.root, one, storage_uri=str(tmp_path / "states"))
    state = tmp_path / "states" / str(made.query_id)
    (tmp_path / "link").symlink_to(state)
    savepoint.create(built.root, saved)
    before = sorted(tmp_path.rglob("*"))

    def refused(call: Callable[[], object]) -> None:
        with pytest.raises(MillpondError, match="lie in each other") as caught:
            call()
        assert caught.value.kind is ErrorKind.INVALID_ARGUMENT
        assert sorted(tmp_path.rglob("*")) == before

    for place in (state / "saved", tmp_path / "link/saved", state):
        refused(lambda place=place: savepoint.create(one, place))  # type: ignore[misc]
        refused(lambda place=place: savepoint.fork(one, place))  # type: ignore[misc]
        refused(lambda place=place: savepoint.fork(one, tmp_path / "x", storage_uri=str(place)))  # type: ignore[misc]
    refused(lambda: migrate.release(one, state / "released", provider="rocksdb"))
    inside = [str(root / "states") for root in (built.root, saved)]
    refused(lambda: savepoint.fork(built.root, tmp_path / "x", storage_uri=inside[0]))
    refused(lambda: savepoint.restore(saved, tmp_path / "x", storage_uri=inside[1]))
    savepoint.create(one, tmp_path / "states/beside")


@pytest.mark.parametrize("below", ["", "/states"])
def test_the_state_of_a_new_checkpoint_is_not_put_into_it(tmp_path: Path, below: str) -> None:
    """All of it was copied. Then somebody else was said to have written there, and empty folders
    were left, which refused the command without the option.
    """
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    saved, new = tmp_path / "saved", tmp_path / "new"
    savepoint.create(built.root, saved)
    calls: tuple[Callable[[], object], ...] = (
        lambda: savepoint.fork(built.root, new, storage_uri=f"{new}{below}"),
        lambda: savepoint.restore(saved, new, storage_uri=f"{new}{below}", dry_run=True),
    )
    for call in calls:
        with pytest.raises(MillpondError) as refused:
            call()
        assert refused.value.kind is ErrorKind.INVALID_ARGUMENT
        assert "lie in each other" in refused.value.message
        assert not new.exists()
    savepoint.fork(built.root, new)


def test_other_columns_do_not_hide_where_the_savepoint_is(tmp_path: Path) -> None:
    built, saved = RowsBuilder(tmp_path / "checkpoint", spark_format=2).build(), tmp_path / "saved"
    savepoint.create(built.root, saved)
    before = sorted(tmp_path.rglob("*"))
    columns = savepoint.ColumnChanges(add={"m": ("long", 0)})
    with pytest.raises(MillpondError, match="lie in each other"):
        savepoint.restore(
            saved, tmp_path / "new", columns=columns, storage_uri=str(saved / "states")
        )
    assert sorted(tmp_path.rglob("*")) == before
    savepoint.restore(saved, tmp_path / "new", columns=columns, storage_uri=str(tmp_path))


def test_two_names_of_a_bucket_are_one(server: S3Server, tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    bucket = server.bucket()
    savepoint.create(built.root, f"s3://{bucket}/saved")
    with pytest.raises(MillpondError, match="lie in each other"):
        savepoint.restore(f"s3://{bucket}/saved", f"s3a://{bucket}/saved/new")
