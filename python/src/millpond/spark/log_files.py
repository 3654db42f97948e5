"""Writes and compares files of Spark: offsets, commits, operator metadata, a file sink's log."""

from __future__ import annotations

import zlib

from millpond.errors import NotFoundError
from millpond.format import spark_names
from millpond.storage import Storage


def put_log(storage: Storage, key: str, content: bytes, *, if_absent: bool = True) -> None:
    """Write an entry of a log.

    Raises:
        ConflictError: OBJECT_EXISTS, with `if_absent`.
        UnavailableError: the storage fails.
    """
    # An old sidecar would make Hadoop refuse the new file. Without one Hadoop reads it unchecked.
    storage.delete([spark_names.crc_key(key)])
    storage.put_bytes(key, content, if_absent=if_absent)


def log_crc32(storage: Storage, key: str) -> int | None:
    """Return the CRC-32 of a file; None if it is not there. Reads the whole file into memory."""
    try:
        return zlib.crc32(storage.read(key))
    except NotFoundError:
        return None
