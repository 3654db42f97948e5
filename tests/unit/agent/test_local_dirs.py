"""An agent removes local directories of dead executors. Those of living executors stay."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.agent import local_dirs
from millpond.agent.__main__ import _look_at
from millpond.agent.local_dirs import LOCK_NAME, sweep_abandoned

HOLDER = """
import fcntl, sys
f = open(sys.argv[1], "w")
fcntl.lockf(f, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def local_root(parent: Path, *, lock: bool = True) -> Path:
    path = parent / f"millpond-{uuid.uuid4()}"
    (path / "0-0-default-1" / "g1" / "db-1").mkdir(parents=True)
    (path / "0-0-default-1" / "g1" / "db-1" / "000001.sst").write_bytes(b"x")
    if lock:
        (path / LOCK_NAME).touch()
    return path


class Owner:
    """Another process that holds the lock, as a living JVM does."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(root / LOCK_NAME)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"locked\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return local_root(tmp_path)


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[tuple[Path, Owner]]:
    root = local_root(tmp_path)
    owner = Owner(root)
    yield root, owner
    owner.kill()


def test_an_agent_removes_them_whatever_becomes_of_its_measurement(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(directory: str) -> None:
        raise ValueError("as the test wants it")

    monkeypatch.setattr("millpond.agent.local_speed.check_speed", fails)
    abandoned = local_root(own.parent)
    with pytest.raises(ValueError, match="as the test wants it"):
        _look_at(str(own))
    assert own.is_dir() and not abandoned.exists()


def test_a_living_owner_keeps_its_directory_and_a_dead_one_loses_it(
    own: Path, owned: tuple[Path, Owner]
) -> None:
    root, owner = owned
    assert sweep_abandoned(str(own)) == []
    assert (root / "0-0-default-1" / "g1" / "db-1" / "000001.sst").exists()
    owner.kill()
    assert sweep_abandoned(str(own)) == [str(root)]
    assert not root.exists() and own.is_dir()


def test_what_is_not_ours_stays(own: Path, tmp_path: Path) -> None:
    no_lock = local_root(tmp_path, lock=False)
    other = tmp_path / "blockmgr-x"
    other.mkdir()
    (other / LOCK_NAME).touch()
    short = tmp_path / "millpond-data"
    short.mkdir()
    (short / LOCK_NAME).touch()
    link = tmp_path / f"millpond-{uuid.uuid4()}"
    link.symlink_to(other)
    assert sweep_abandoned(str(own)) == []
    assert no_lock.is_dir() and other.is_dir() and short.is_dir() and link.is_symlink()


def test_links_inside_are_not_followed(own: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"x")
    dead = local_root(tmp_path)
    (dead / "link").symlink_to(precious)
    assert sweep_abandoned(str(own)) == [str(dead)]
    assert (precious / "file").exists()


def test_a_parent_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert sweep_abandoned(str(tmp_path / "no" / "millpond-x")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_another_users_directory_is_passed_over(own: Path, tmp_path: Path) -> None:
    dead = local_root(tmp_path)
    (dead / LOCK_NAME).chmod(0)
    assert sweep_abandoned(str(own)) == [] and dead.is_dir()


@pytest.mark.parametrize("swapped", ["directory", "content"])
def test_what_takes_its_name_meanwhile_is_not_touched(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """In /tmp another user may put a link in the place of what the sweep looks at."""
    precious = tmp_path / "precious"
    (precious / "g1").mkdir(parents=True)
    (precious / "g1" / "file").write_bytes(b"x")
    (precious / LOCK_NAME).touch()
    dead = local_root(tmp_path)

    def lock_and_swap(descriptor: int, command: int) -> None:
        fcntl.lockf(descriptor, command)
        if swapped == "directory":
            dead.rename(tmp_path / "elsewhere")
            dead.symlink_to(precious)
        else:
            (dead / "0-0-default-1").rename(tmp_path / "elsewhere")
            (dead / "0-0-default-1").symlink_to(precious)

    monkeypatch.setattr(local_dirs, "fcntl", Locks(lock_and_swap))
    sweep_abandoned(str(own))
    assert (precious / "g1" / "file").read_bytes() == b"x" and (precious / LOCK_NAME).exists()


class Locks:
    """The module `fcntl` with another `lockf`."""

    LOCK_EX, LOCK_NB = fcntl.LOCK_EX, fcntl.LOCK_NB

    def __init__(self, lockf: Callable[[int, int], None]) -> None:
        self.lockf = lockf


def test_a_directory_of_another_user_stays(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to the parent may have put it there. What is in it is theirs."""
    dead = local_root(tmp_path)
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert (
        sweep_abandoned(str(own)) == []
        and (dead / "0-0-default-1" / "g1" / "db-1" / "000001.sst").exists()
    )
