"""Remove the local directories that killed executors left behind.

Every executor JVM works below its own `<spark local dir>/millpond-<uuid>/`. It holds a POSIX record
lock on `owner.lock` there (Java's `FileChannel.lock`). The kernel drops the lock when the process
ends, however that happens. So a directory whose lock is free belongs to nobody. A directory without
the file is left alone: its owner may be about to create the file.

The parent may be /tmp. So each directory is opened once, and only if it is a real directory of this
user. All further steps use that descriptor: they touch nothing that takes its name meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re

from millpond.local.scratch import empty_directory, open_own

log = logging.getLogger(__name__)

LOCK_NAME = "owner.lock"
_LOCAL_ROOT = re.compile(r"millpond-[0-9a-fA-F\-]{32,36}")


def sweep_abandoned(local_root: str) -> list[str]:
    """Remove the siblings of `local_root` whose owner is dead. Never raises because one of them
    cannot be removed.

    Args:
        local_root: `<spark local dir>/millpond-<uuid>` of the living JVM; is never touched.
    Returns: the paths of the removed directories.
    """
    parent, own = os.path.split(os.path.normpath(local_root))
    removed: list[str] = []
    try:
        directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in sorted(os.listdir(directory)):
                if name != own and _LOCAL_ROOT.fullmatch(name) and _removed(directory, name):
                    removed.append(os.path.join(parent, name))
        finally:
            os.close(directory)
    except OSError as e:
        log.warning("cannot look for abandoned local directories in %s: %s", parent, e)
    return removed


def _removed(parent: int, name: str) -> bool:
    """Remove the directory if its owner is dead. Return whether it was removed."""
    try:
        removed = _remove_if_abandoned(parent, name)
    except OSError as e:
        # It is another user's, or a link, or another agent is removing it.
        log.info("cannot remove local directory %s: %s", name, e)
        return False
    if removed:
        log.info("removed an abandoned local directory name=%s", name)
    return removed


def _remove_if_abandoned(parent: int, name: str) -> bool:
    directory = open_own(parent, name)
    try:
        try:
            # Writable, because an exclusive record lock requires that.
            lock = os.open(LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
        except FileNotFoundError:
            return False
        try:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as e:
                if e.errno in (errno.EACCES, errno.EAGAIN):
                    return False  # its owner lives
                raise
            # Held until the end, so that only one agent removes the directory. The lock file goes
            # last.
            empty_directory(directory, but=LOCK_NAME)
            os.unlink(LOCK_NAME, dir_fd=directory)
            os.rmdir(name, dir_fd=parent)
        finally:
            os.close(lock)
    finally:
        os.close(directory)
    return True
