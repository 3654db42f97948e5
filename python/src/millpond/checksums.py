"""CRC-32 (zlib's) of local files."""

from __future__ import annotations

import zlib

_READ_BYTES = 1024 * 1024


def file_crc32(path: str) -> int:
    """Return the CRC-32 of a local file. Raises: OSError."""
    crc = 0
    with open(path, "rb") as file:
        while piece := file.read(_READ_BYTES):
            crc = zlib.crc32(piece, crc)
    return crc
