"""Check sums of stored files, read piece by piece."""

from __future__ import annotations

import zlib

from millpond.storage.base import Storage

_PIECE_BYTES = 4 * 1024 * 1024


def size_and_crc32(storage: Storage, key: str) -> tuple[int, int]:
    """Return the number of bytes of a stored file, and their CRC-32. Memory holds one piece.

    Raises: NotFoundError. UnavailableError: the storage.
    """
    size_bytes = storage.stat(key).size_bytes
    crc32 = at = 0
    while at < size_bytes:
        piece = storage.read_range(key, at, _PIECE_BYTES)
        if not piece:
            break
        crc32, at = zlib.crc32(piece, crc32), at + len(piece)
    return at, crc32
