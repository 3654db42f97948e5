"""Remove the local directories that killed executors left behind.

Every executor JVM works below its own `<spark local dir>/millpond-<uuid>/`, and holds a POSIX record lock on `owner.lock`
there (Java's `FileChannel.lock`). The kernel drops the lock with the process, however it dies: a lock that can be had
belongs to nobody. Directories without the file are left alone: their owner may be about to create it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil

log = logging.getLogger(__name__)

LOCK_NAME = "owner.lock"
_LOCAL_ROOT = re.compile(r"millpond-[0-9a-fA-F\-]{32,36}")


def sweep_abandoned(local_root: str) -> list[str]:
    """Remove the siblings of `local_root` whose owner is dead. Return their paths. Never raises for one that resists.

    Args:
        local_root: `<spark local dir>/millpond-<uuid>` of the living JVM; itself never touched.
    """
    parent, own = os.path.split(os.path.normpath(local_root))
    removed: list[str] = []
    try:
        names = sorted(os.listdir(parent))
    except OSError as e:
        log.warning("cannot look for abandoned local directories in %s: %s", parent, e)
        return removed
    for name in names:
        path = os.path.join(parent, name)
        if name == own or not _LOCAL_ROOT.fullmatch(name) or os.path.islink(path):
            continue
        try:
            if _remove_if_abandoned(path):
                removed.append(path)
                log.info("abandoned local directory removed path=%s", path)
        except OSError as e:
            # Another user's, or another agent removes it at this moment.
            log.info("cannot remove local directory %s: %s", path, e)
    return removed


def _remove_if_abandoned(path: str) -> bool:
    try:
        # Writable, because an exclusive record lock asks for it.
        descriptor = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno in (errno.EACCES, errno.EAGAIN):
                return False  # its owner lives
            raise
        # Held until everything is gone, so that only one agent removes; the lock file goes last, with its directory.
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name == LOCK_NAME:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        os.unlink(os.path.join(path, LOCK_NAME))
        os.rmdir(path)
    finally:
        os.close(descriptor)
    return True
