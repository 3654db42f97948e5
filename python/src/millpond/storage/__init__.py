"""Where Spark checkpoints live: the only door to them."""

from __future__ import annotations

import os

from millpond.layout import local_root
from millpond.storage.base import ObjectInfo, Storage
from millpond.storage.local import LocalStorage
from millpond.storage.memory import MemoryStorage

__all__ = ["LocalStorage", "MemoryStorage", "ObjectInfo", "Storage", "open_root", "open_storage"]


def open_storage(root_uri: str, *, fsync: bool = True) -> Storage:
    """Return the storage of the Spark checkpoint at `root_uri` (`file:/x`, `file:///x` or an absolute path).

    Opens nothing and does not look whether it exists.

    Args:
        fsync: see `LocalStorage`.
    Raises:
        UnsupportedError: STORAGE_UNSUPPORTED: a scheme that this version cannot write to.
        InvalidInputError: INVALID_ARGUMENT: no absolute path or URI.
    """
    return LocalStorage(local_root(root_uri), fsync=fsync)


def open_root(location: str) -> tuple[Storage, str]:
    """Return the storage of what a user typed, a URI or a path relative to the working directory, and its absolute name.

    Raises: as `open_storage`.
    """
    root = location if ":" in location.partition("/")[0] else os.path.abspath(location)
    return open_storage(root), root
