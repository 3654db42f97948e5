"""Savepoints by a schedule: the commands of the guide, run as cron and Airflow would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millpond import savepoint
from millpond.errors import ErrorKind, InvalidInputError, UnavailableError
from millpond.local import scratch
from millpond.local.scratch import lock
from millpond.operations.savepoint import retention
from millpond.operations.savepoint.manage import SavepointList, savepoints_of
from millpond.storage import LocalStorage
from tests.row_checkpoints import RowsBuilder

_COMMAND = re.compile(r"millpond savepoint create /data/\S+ /data/\S+ --keep 7")


def test_the_recipe_of_the_guide(tmp_path: Path, repository: Path) -> None:
    guide = (repository / "docs/guides/savepoints.md").read_text()
    in_cron, in_airflow = _COMMAND.findall(guide)
    assert in_cron == in_airflow
    RowsBuilder(tmp_path / "data/checkpoints/orders").build()
    command = in_cron.replace("/data/", f"{tmp_path}/data/")
    binary = tmp_path / "bin/millpond"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m millpond.cli.main "$@"\n')
    binary.chmod(0o755)
    # cron gives a command a bare environment and its home as directory.
    environment = {"PATH": f"{binary.parent}:{os.defpath}", "HOME": str(tmp_path)}
    place = tmp_path / "data/savepoints/orders"
    made: list[str] = []
    for _ in range(9):
        subprocess.run(["/bin/sh", "-c", command], check=True, env=environment, cwd=tmp_path)
        made += [name for name in os.listdir(place) if name not in made]
    assert sorted(os.listdir(place)) == made[2:]
    assert all(savepoint.verify(place / name).ok for name in made[2:])


def test_only_savepoints_of_the_schedule_go(tmp_path: Path) -> None:
    job = RowsBuilder(tmp_path / "job").build()
    place = tmp_path / "saves"
    savepoint.create(job.root, place / "by-hand")
    other = savepoint.fork(job.root, tmp_path / "fork")
    theirs = savepoint.create(other.checkpoint, place, keep=1).savepoint
    first = savepoint.create(job.root, place, keep=2).savepoint
    second = savepoint.create(job.root, place, keep=2)
    assert second.deleted == ()
    planned = savepoint.create(job.root, place, keep=2, dry_run=True)
    assert planned.deleted == (first,) and Path(first).exists()
    third = savepoint.create(job.root, place, keep=2)
    assert third.deleted == (first,)
    left = {view.savepoint for view in savepoint.list(place).savepoints}
    assert left == {str(place / "by-hand"), theirs, second.savepoint, third.savepoint}
    with pytest.raises(InvalidInputError, match="--keep 7"):
        savepoint.create(job.root, place, keep=0)


def test_a_failed_run_deletes_nothing(tmp_path: Path) -> None:
    job = RowsBuilder(tmp_path / "job").build(snapshots=())
    kept = savepoint.create(job.root, tmp_path / "saves", keep=1).savepoint
    (job.root / "state/0/0/3.changelog").unlink()
    with pytest.raises(Exception, match="cannot be had"):
        savepoint.create(job.root, tmp_path / "saves", keep=1)
    assert savepoint.verify(kept).ok


def test_what_killed_runs_left_goes(tmp_path: Path) -> None:
    """No later run writes to the same name."""
    job = RowsBuilder(tmp_path / "job").build()
    left = tmp_path / "saves" / f".20260101T000000.000Z.staging-{'a' * 32}"
    at_work = tmp_path / "saves" / f".20260101T000000.001Z.staging-{'b' * 32}"
    others = [tmp_path / "saves" / name for name in (".git", f".mine.staging-{'c' * 32}")]
    for directory in (left, at_work, *others):
        directory.mkdir(parents=True)
        (directory / "file").write_text("x")
        os.utime(directory, (0, 0))
    young = tmp_path / "saves" / f".20260101T000000.002Z.staging-{'d' * 32}"
    (young / "below").mkdir(parents=True)
    os.utime(young, (0, 0))
    locked = lock(str(at_work))
    try:
        savepoint.create(job.root, tmp_path / "saves", keep=1, dry_run=True)
        assert left.exists()
        savepoint.create(job.root, tmp_path / "saves", keep=1)
    finally:
        os.close(locked)
    assert not left.exists() and at_work.exists() and all(other.exists() for other in others)
    assert young.exists(), "a host whose locks nobody sees here may write to it"


@pytest.mark.parametrize("old", [False, True], ids=["young", "old"])
def test_a_run_on_another_host_removes_nothing_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """On NFS no host sees another one's lock of a directory. A savepoint that was being written was
    emptied, and published with files missing.
    """
    job = RowsBuilder(tmp_path / "job").build()
    place = tmp_path / "saves"
    first = savepoint.create(job.root, place, keep=2).savepoint
    put_file, puts = LocalStorage.put_file, 0

    def put(storage: LocalStorage, *args: Any, **named: Any) -> None:
        nonlocal puts
        puts += 1
        if puts == 2:
            if old:
                for directory in place.glob(".*/**"):
                    os.utime(directory, (0, 0))
            with monkeypatch.context() as there:
                there.setattr(scratch, "_locked", lambda descriptor: descriptor)
                retention.remove_left(str(place))
        put_file(storage, *args, **named)

    monkeypatch.setattr(LocalStorage, "put_file", put)
    if old:
        with pytest.raises(UnavailableError) as told:
            savepoint.create(job.root, place, keep=1)
        assert told.value.kind is ErrorKind.LOCAL_FILES_LOST
        left = [first]
    else:
        left = [savepoint.create(job.root, place, keep=1).savepoint]
    assert puts >= 2
    assert [str(path) for path in place.iterdir()] == left
    assert all(savepoint.verify(one).ok for one in left)


@pytest.mark.parametrize("gone", ["before", "half"])
def test_two_runs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    """Both mean to delete the same savepoint; the other run is a moment earlier."""
    job = RowsBuilder(tmp_path / "job").build()
    first = savepoint.create(job.root, tmp_path / "saves", keep=1).savepoint

    def looks(directory: str) -> SavepointList:
        found = savepoints_of(directory)
        if gone == "before":
            shutil.rmtree(first)
        else:
            (Path(first) / "savepoint.json").unlink()
        return found

    monkeypatch.setattr(retention, "savepoints_of", looks)
    report = savepoint.create(job.root, tmp_path / "saves", keep=1)
    assert savepoint.verify(report.savepoint).ok
    assert report.deleted == ()


def test_a_newer_one_of_another_run_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two runs deleted what the other one had made: none was left."""
    job = RowsBuilder(tmp_path / "job").build()
    newer: list[str] = []

    def looks(directory: str) -> SavepointList:
        monkeypatch.undo()
        newer.append(savepoint.create(job.root, tmp_path / "saves", keep=1).savepoint)
        return savepoints_of(directory)

    monkeypatch.setattr(retention, "savepoints_of", looks)
    older = savepoint.create(job.root, tmp_path / "saves", keep=1)
    assert older.deleted == ()
    assert [view.savepoint for view in savepoint.list(tmp_path / "saves").savepoints] == newer


def test_the_directory_as_a_uri(tmp_path: Path) -> None:
    """The new savepoint is told from old ones, however the directory is spelled."""
    job = RowsBuilder(tmp_path / "job").build()
    for place in (f"file:{tmp_path}/saves", f"/{tmp_path}/saves"):
        report = savepoint.create(job.root, place, keep=1)
        assert savepoint.verify(report.savepoint).ok
        assert len(os.listdir(tmp_path / "saves")) == 1
    for _ in range(3):
        savepoint.create(job.root, f"file:{tmp_path}/others", keep=2)
    assert len(os.listdir(tmp_path / "others")) == 2
