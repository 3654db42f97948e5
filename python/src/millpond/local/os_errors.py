"""Tells what an error of the operating system about a file means."""

from __future__ import annotations

import errno

from millpond.errors import ErrorKind

_KINDS = {
    errno.ENOSPC: ErrorKind.LOCAL_DISK_FULL,
    errno.EDQUOT: ErrorKind.LOCAL_DISK_FULL,
    errno.EACCES: ErrorKind.STORAGE_DENIED,
    errno.EPERM: ErrorKind.STORAGE_DENIED,
    errno.EROFS: ErrorKind.STORAGE_DENIED,
    # ENOTDIR: the path lies below another file. EISDIR: it is a directory. In both cases the file
    # is not there.
    errno.ENOENT: ErrorKind.LOCAL_FILES_LOST,
    errno.ENOTDIR: ErrorKind.LOCAL_FILES_LOST,
    errno.EISDIR: ErrorKind.LOCAL_FILES_LOST,
}


def kind_of(e: OSError) -> ErrorKind:
    """Return the kind of an error about a file of this machine's own, which is no stored object:
    LOCAL_DISK_FULL, STORAGE_DENIED, LOCAL_FILES_LOST: it is not there, or STORAGE_UNAVAILABLE.
    """
    return _KINDS.get(e.errno or 0, ErrorKind.STORAGE_UNAVAILABLE)
