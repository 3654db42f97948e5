"""Temporary directories. Each is locked while its process lives: what a killed one left is known by the lock it lost, and removed."""

from __future__ import annotations

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
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove_abandoned(parent: str, prefix: str) -> None:
    """Remove the directories in `parent` whose names begin with `prefix` and that no living process has locked."""
    for name in os.listdir(parent):
        if not name.startswith(prefix):
            continue
        path = os.path.join(parent, name)
        try:
            descriptor = lock(path)
        except OSError:
            continue  # its process lives, or it is just gone
        try:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
