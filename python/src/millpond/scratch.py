"""Temporary directories. Each is locked while its process lives: what a killed one left is known by the lock it lost, and removed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

_PREFIX = "millpond-scratch-"


@contextmanager
def scratch_directory(purpose: str) -> Iterator[str]:
    """Yield a new directory below TMPDIR; it is removed when the block ends. Raises: OSError."""
    parent = tempfile.gettempdir()
    _remove_abandoned_once(parent)
    directory, locked = _new(parent, f"{_PREFIX}{purpose}-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # the next process removes the rest
        if locked >= 0:
            os.close(locked)


def _new(parent: str, prefix: str) -> tuple[str, int]:
    """Make a directory and lock it: its path and the descriptor, -1 where nothing can be locked."""
    while True:
        directory = tempfile.mkdtemp(prefix=prefix, dir=parent)
        try:
            locked = lock(directory)
        except (BlockingIOError, FileNotFoundError):
            continue  # somebody took it for abandoned before it was locked
        except OSError:
            return directory, -1  # nobody else can lock it either, so nobody removes it
        if os.path.isdir(directory):
            return directory, locked
        os.close(locked)


@cache
def _remove_abandoned_once(parent: str) -> None:
    with suppress(OSError):  # one may write there without seeing what is there
        remove_abandoned(parent, _PREFIX)


def lock(directory: str) -> int:
    """Lock `directory` for as long as the descriptor that is returned is open. Raises: OSError: another process has."""
    return _locked(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))


def _locked(descriptor: int) -> int:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_own(parent: int, name: str) -> int:
    """Open the directory `name` in the directory that the descriptor `parent` is of: itself, and not what a link of that name leads
    to. Raises: OSError: no such directory, a link, or another user's."""
    descriptor = os.open(
        name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent
    )
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)
    return descriptor


def empty_directory(descriptor: int, *, but: str | None = None) -> None:
    """Remove all that is in a directory, but the file `but`. No link is followed. Raises: OSError."""
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.name == but:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, dir_fd=descriptor)
            else:
                os.unlink(entry.name, dir_fd=descriptor)


def remove_abandoned(parent: str, prefix: str) -> None:
    """Remove the directories of this user in `parent` whose names begin with `prefix` and that no living process has locked."""
    directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(directory):
            if not name.startswith(prefix):
                continue
            try:
                descriptor = _locked(open_own(directory, name))
            except OSError:
                continue  # its process lives, it is just gone, or it is no directory of this user's
            try:
                with suppress(OSError):
                    empty_directory(descriptor)
                    os.rmdir(name, dir_fd=directory)
            finally:
                os.close(descriptor)
    finally:
        os.close(directory)
