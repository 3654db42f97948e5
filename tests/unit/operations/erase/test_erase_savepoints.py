"""Erasures from savepoints, and savepoints beside an erasure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import rocksdict

import millpond
from millpond import savepoint
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout
from millpond.operations.erase import places, run, tables
from millpond.operations.erase.places import plan_place
from millpond.operations.savepoint import create as create_module
from millpond.query.from_checkpoint import look
from millpond.spark import heartbeats
from millpond.storage import LocalStorage
from tests.checkpoints import tree
from tests.erase_scenes import Deleting, erase_killed, keys_of, uncompressed
from tests.failing_storage import Killed
from tests.refusals import refused
from tests.row_checkpoints import RowsBuilder


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
    monkeypatch.setattr(rocksdict, "Options", uncompressed)
    built = Deleting(tmp_path / "query", spark_format=spark_format)
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
