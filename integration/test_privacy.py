"""Other users of an executor's host can neither read its files nor make it run their code. Other
executors do not take its files for those of a dead one.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from integration.harness import Harness, Schema, millponds_own
from integration.store_cases import open_provider

pytestmark = millponds_own

SCHEMA = Schema("k string", "v string")

# What an agent does that looks for folders of dead owners, at the first moment at which it can.
_LOOKS = """
import fcntl, os, sys
lock = None
print("looking", flush=True)
while lock is None:
    for name in os.listdir(sys.argv[1]):
        try:
            lock = os.open(os.path.join(sys.argv[1], name, "owner.lock"), os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("free")
        except OSError:
            print("held")
"""


def test_local_files_are_closed_and_the_working_directory_is_no_place_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor runs with umask 0. Its working directory has modules with names of Python's."""
    work = tmp_path / "work"
    (work / "millpond" / "agent").mkdir(parents=True)
    for name in ("json.py", "logging.py", "millpond/__init__.py", "millpond/agent/__init__.py"):
        (work / name).write_text(f"open({str(tmp_path / 'taken')!r}, 'w')\n")
    monkeypatch.chdir(work)
    before = os.umask(0)
    try:
        harness = Harness(tmp_path)
    finally:
        os.umask(before)
    try:
        provider = open_provider(
            harness, tmp_path / "checkpoint", operator="stateStoreSave", schema=SCHEMA
        )
        for version in range(3):
            store = provider.store(version)
            store.put([f"key {version}"], ["value"])
            store.commit()
            provider.snapshot()
        (root,) = harness.local_dir.glob("millpond-*")
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        assert stat.S_IMODE((root / "owner.lock").stat().st_mode) == 0o600
        assert list(root.rglob("*.sst")), "the folder has no state, so the test proves nothing"
        beside = [
            p for p in harness.local_dir.iterdir() if p != root and p.name.startswith("millpond")
        ]
        assert [p for p in beside if stat.S_IMODE(p.stat().st_mode) & 0o077] == []
        assert not (tmp_path / "taken").exists()
        provider.close()
        shutil.rmtree(root)  # as a cleaner of temporary files does
        open_provider(
            harness, tmp_path / "checkpoint", operator="stateStoreSave", schema=SCHEMA
        ).close()
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
    finally:
        harness.stop()


@pytest.mark.deep
def test_the_folder_of_a_jvm_that_starts_is_nobodys_prey(tmp_path: Path) -> None:
    """The lock's file was there before its lock. Another JVM's agent that looked then deleted the
    folder.
    """
    harness = Harness(tmp_path)
    looks = subprocess.Popen(
        [sys.executable, "-c", _LOOKS, str(harness.local_dir)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert looks.stdout is not None and looks.stdout.readline() == "looking\n"
        open_provider(
            harness, tmp_path / "checkpoint", operator="stateStoreSave", schema=SCHEMA
        ).close()
        found, _ = looks.communicate(timeout=30)
        assert found == "held\n"
    finally:
        looks.kill()
        harness.stop()
