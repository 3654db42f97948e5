"""Temporary directories.

A process locks each of its directories while it lives. A directory without a lock is one that a
killed process left behind: the next process removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

from millpond.errors import ErrorKind, UnavailableError
from millpond.local.os_errors import kind_of

_PREFIX = "millpond-scratch-"


@contextmanager
def scratch_directory(purpose: str) -> Iterator[str]:
    """Yield a new directory below TMPDIR; remove it when the block ends.

    Raises: UnavailableError: LOCAL_DISK_FULL, LOCAL_FILES_LOST: somebody deleted TMPDIR;
    STORAGE_DENIED: this user may not write there; STORAGE_UNAVAILABLE: the disk fails.
    """
    parent = _parent()
    try:
        _remove_abandoned_once(parent)
        directory, locked = _new(parent, f"{_PREFIX}{purpose}-")
    except OSError as e:
        raise _nowhere(e, kind_of(e)) from e
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # the next process removes the rest
        if locked >= 0:
            os.close(locked)


def scratch_space() -> tuple[str, int]:
    """Return the directory of scratch directories, and how many bytes are free there.

    Raises: as `scratch_directory`.
    """
    parent = _parent()
    try:
        return parent, shutil.disk_usage(parent).free
    except OSError as e:
        raise _nowhere(e, kind_of(e)) from e


def _parent() -> str:
    try:
        return tempfile.gettempdir()
    except OSError as e:  # it tries several, and tells no more
        raise _nowhere(e, ErrorKind.STORAGE_DENIED) from e


def _nowhere(e: OSError, kind: ErrorKind) -> UnavailableError:
    return UnavailableError(
        f"there is no directory for temporary files: {e.strerror or e}",
        kind=kind,
        hint="Free space there, or set TMPDIR to a directory that this user may write to.",
    )


def _new(parent: str, prefix: str) -> tuple[str, int]:
    """Make a directory and lock it. Return its path and the lock's descriptor.

    The descriptor is -1 if this file system has no locks.
    """

    def make() -> str:
        return tempfile.mkdtemp(prefix=prefix, dir=parent)

    try:
        return make_locked(make)
    except OSError:
        return make(), -1  # no other process can lock it either, so none removes it


def make_locked(make: Callable[[], str]) -> tuple[str, int]:
    """Make a directory and lock it. Return its path and the lock's descriptor.

    Args:
        make: makes a directory with a new name, and returns its path.
    Raises: OSError: `make` failed, or this file system has no locks. Nothing is left.
    """
    while True:
        directory = make()
        try:
            locked = lock(directory)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process took it for abandoned before this one locked it
        except OSError:
            os.rmdir(directory)
            raise
        if os.path.isdir(directory):
            return directory, locked
        os.close(locked)


@cache
def _remove_abandoned_once(parent: str) -> None:
    with suppress(OSError):  # this user may be allowed to write there, but not to list
        remove_abandoned(parent, _PREFIX)


def lock(directory: str) -> int:
    """Lock `directory` until the returned descriptor is closed.

    Raises: OSError: another process has locked it.
    """
    return _locked(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))


def _locked(descriptor: int) -> int:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_own(parent: int, name: str) -> int:
    """Open the directory `name` in the directory `parent`, a descriptor. Follows no link.

    Raises: OSError: it is absent, is no directory, is a link, or belongs to another user.
    """
    descriptor = os.open(
        name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent
    )
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)
    return descriptor


def empty_directory(descriptor: int, *, but: str | None = None) -> None:
    """Remove everything in a directory, except the file `but`. Follows no link. Raises: OSError."""
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.name == but:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, dir_fd=descriptor)
            else:
                os.unlink(entry.name, dir_fd=descriptor)


def remove_abandoned(parent: str, prefix: str, *, min_age_s: float = 0) -> None:
    """Remove this user's directories in `parent` that begin with `prefix` and that nobody locks.

    On a file system of a network no other host may see a lock. So a directory first loses its name:
    a process that still writes there finds nothing any more, and not a part.

    Args:
        min_age_s: directories in which something was made or removed since, by the clock of their
            file system, stay.
    Raises: OSError: `parent` cannot be listed.
    """
    directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(directory):
            if not name.startswith(prefix):
                continue
            try:
                descriptor = _locked(open_own(directory, name))
            except OSError:
                continue  # its process lives, or it is gone, or it is no directory of this user
            try:
                with suppress(OSError):
                    if min_age_s and _now_s(parent) - _changed_s(descriptor) < min_age_s:
                        continue
                    hidden = prefix + uuid.uuid4().hex
                    os.rename(name, hidden, src_dir_fd=directory, dst_dir_fd=directory)
                    empty_directory(descriptor)
                    os.rmdir(hidden, dir_fd=directory)
            finally:
                os.close(descriptor)
    finally:
        os.close(directory)


def _now_s(parent: str) -> float:
    """Return the time by the clock of the file system of the directory `parent`."""
    with tempfile.TemporaryFile(dir=parent) as file:
        return os.fstat(file.fileno()).st_mtime


def _changed_s(descriptor: int) -> float:
    """Return when a name was last made or removed in a directory, or below it. Follows no link."""
    return max(os.fstat(one).st_mtime for *_, one in os.fwalk(".", dir_fd=descriptor))
