"""Erasures beside other commands, and beside a query that was just started."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import rocksdict

import millpond
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ConflictError, ErrorKind, MillpondError
from millpond.format import layout
from millpond.model.ids import VersionId
from millpond.operations.erase import places, run
from millpond.operations.erase.places import plan_place
from millpond.operations.erase.proof import prove
from millpond.operations.erase.write import rewrite_all
from millpond.operations.inspect import verify
from millpond.query.row_source import NativeRows
from millpond.spark import heartbeats
from millpond.state import tables
from millpond.storage import LocalStorage, ObjectInfo
from millpond.store import entries
from tests.checkpoints import version_id
from tests.erase_scenes import (
    Deleting,
    Lineage,
    check_counts,
    erase_killed,
    keys_of,
    uncompressed,
    unheld,
)
from tests.failing_storage import Killed
from tests.refusals import refused
from tests.rescale_scenes import beat
from tests.row_checkpoints import HashedBuilder, RowsBuilder


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


@pytest.mark.parametrize("key", [1, 12345])
def test_files_that_a_query_is_writing_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: int
) -> None:
    """Its batch failed. An erasure that found the key in no store did not even say that it runs."""
    built = RowsBuilder(tmp_path / "query").build(snapshots=())
    writing = layout.store_key(built.stores()[0], layout.new_staging_name())

    def plan(*arguments: Any) -> Any:
        planned = plan_place(*arguments)
        beat(built, 1, host=f"not {socket.gethostname()}")
        built.storage.put_bytes(writing, b"half a file")
        return planned

    monkeypatch.setattr(run, "plan_place", plan)
    monkeypatch.setattr(heartbeats, "_ENDING_S", 0.0)
    refused(ErrorKind.QUERY_RUNNING, millpond.erase, [built.root], key={"k": key})
    assert built.storage.read(writing) == b"half a file"
    (built.root / "millpond/running/run-1.json").unlink()
    monkeypatch.undo()
    (done,) = millpond.erase([built.root], key={"k": key}).places
    assert done.rows == (1 if key == 1 else 0)
    assert writing not in unheld(built), "no query writes it any more"


@pytest.mark.parametrize("when", ["plan_place", "prove"])
def test_a_batch_that_is_committed_while_a_key_is_found_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """By a query without a heartbeat. "No rows have it" was the answer, and the batch had it."""
    built = HashedBuilder(tmp_path / "query")
    built.build(batches=7, snapshots=())
    keys = keys_of(built)
    batch = {
        layout.changelog_key(store, VersionId(7, version_id(store, 7)), 1): b""
        for store in built.stores()
    }
    batch |= {"offsets/6": b"", "commits/6": b""}
    batch = {key: built.storage.read(key) for key in batch}
    built.storage.delete(batch)
    key = min(set(keys) - set(keys_of(built)))
    writing = layout.store_key(built.stores()[0], layout.new_staging_name())
    built.storage.put_bytes(writing, b"half a file")
    usual = getattr(run, when)

    def meanwhile(*arguments: Any) -> Any:
        answer = usual(*arguments)
        built.show(batch)
        return answer

    monkeypatch.setattr(run, when, meanwhile)
    refused(ErrorKind.QUERY_RUNNING, millpond.erase, [built.root], key={"k": key})
    assert keys_of(built) == keys
    assert (writing in unheld(built)) is (when == "plan_place"), "a query may write it"
    monkeypatch.undo()
    (done,) = millpond.erase([built.root], key={"k": key}).places
    assert done.rows == 1 and keys_of(built) == [k for k in keys if k != key]


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

    monkeypatch.setattr(places, "refuse_started", killed)
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


@pytest.mark.parametrize("how", ["read_state", "table", "json"])
def test_a_reader_of_the_first_rows_that_an_erasure_overtakes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
) -> None:
    """It did not look, because it did not read to the end."""
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = Deleting(tmp_path / "query")
    built.build(7, snapshots=(3,))
    deleted, schema_of = min(keys_of(built, 0)), tables.schema_of

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        erase_killed(monkeypatch, built.root, deleted, files=3)
        return schema_of(*arguments)

    monkeypatch.setattr(tables, "schema_of", meanwhile)
    if how == "read_state":
        refused(ErrorKind.ERASE_UNFINISHED, millpond.read_state, built.root, limit=1)
        return
    assert main(["state", "read", str(built.root), "--format", how, "--limit", "1"]) != 0
    assert "ERASE_UNFINISHED" in capsys.readouterr().err


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_lookup_that_opens_a_store_beside_an_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    """It had the value of the snapshot: the changelog that deletes the key was written anew."""
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = Deleting(tmp_path / "query", spark_format=spark_format)
    built.build(7, snapshots=(3,))
    deleted = min(keys_of(built, 0))
    store = next(s for s in built.stores() if deleted in built._numbers(s))
    others = [k for k in keys_of(built) if k not in built._numbers(store)]
    with millpond.lookup(built.root) as before, millpond.lookup(built.root) as state:
        assert before.get({"k": deleted}) == []
        assert len(state.get({"k": others[0]})) == 1
        erase_killed(monkeypatch, built.root, deleted, files=3)
        refused(ErrorKind.ERASE_UNFINISHED, state.get, {"k": deleted})
        assert before.get({"k": deleted}) == []  # its store is open since
        assert len(state.get({"k": others[0]})) == 1
        millpond.erase([built.root], key={"k": deleted})
        refused(ErrorKind.ERASE_UNFINISHED, state.get, {"k": deleted})
    with millpond.lookup(built.root) as state:
        assert state.get({"k": deleted}) == []


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("what", ["diff", "skew"])
def test_what_goes_through_all_rows_beside_an_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int, what: str
) -> None:
    """A store that is opened after its changelogs were written anew has the key of the snapshot."""
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = Deleting(tmp_path / "query", spark_format=spark_format)
    built.build(7, snapshots=(3,))
    deleted = min(keys_of(built, 0))
    stores = NativeRows.stores

    def beside(rows: NativeRows) -> Any:
        monkeypatch.setattr(NativeRows, "stores", stores)
        erase_killed(monkeypatch, built.root, deleted, files=3)
        return stores(rows)

    monkeypatch.setattr(NativeRows, "stores", beside)
    if what == "diff":
        both: dict[str, Any] = {"batches": (5, 6), "rows": True}
        refused(ErrorKind.ERASE_UNFINISHED, millpond.savepoint.diff, built.root, **both)
    else:
        refused(ErrorKind.ERASE_UNFINISHED, millpond.checkpoint.skew, built.root)


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_half_done_erasure_keeps_its_mark_if_the_query_has_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    """Its deletion was not in the files any more, its row still was. Erasing another key took the
    mark away, and the row was there again.
    """
    built = Deleting(tmp_path / "query", spark_format=spark_format)
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


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("deleted", range(1, 6))
def test_a_query_commits_when_an_erasure_has_begun_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int, deleted: int
) -> None:
    """What it committed names versions whose files are deleted, and a newer one has all rows."""
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = Lineage(tmp_path / "query", spark_format=spark_format)
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


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_late_snapshot_whose_publisher_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    """An executor that had not noticed the end of its query published it while all was proved, and
    died before it took it back. The key was there again.
    """
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = HashedBuilder(tmp_path / "query", spark_format=spark_format).build(7, snapshots=(5,))
    before = keys_of(built)
    late = {k: v for k, v in unheld(built).items() if k.endswith((".manifest", ".sst"))}

    def proving(*arguments: Any) -> Any:
        proof = prove(*arguments)
        for key, data in late.items():
            built.storage.put_bytes(key, data)
        return proof

    monkeypatch.setattr(run, "prove", proving)
    (done,) = millpond.erase([built.root], key={"k": before[0]}).places
    for batch in (4, 5, 6):
        assert before[0] not in keys_of(built, batch)
    assert keys_of(built) == before[1:]
    left = {key for key in unheld(built) if key.endswith((".manifest", ".sst"))}
    erased = tuple(f"state/{operator}/{partition}/" for operator, partition, _ in done.stores)
    assert erased and left and not any(key.startswith(erased) for key in left)
    assert verify(built.storage, "it").problems == []
