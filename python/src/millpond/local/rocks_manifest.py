"""Edits the manifest of a RocksDB database, so that the database opens without some of its SSTs.

A manifest is a log of changes. This adds one change that removes files. Sources: RocksDB's
`db/log_format.h` and `db/version_edit.h`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

_BLOCK_BYTES = 32 * 1024
_HEADER_BYTES = 7  # checksum, length, kind of record
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_DELETED_FILE = 6  # the tag of such a change
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reversed
_MASK = 0xA282EAD8


def without_files(manifest: bytes, files: Iterable[tuple[int, int]]) -> bytes:
    """Return `manifest` with a change at its end that removes files.

    Args:
        manifest: whole; it ends with a whole record.
        files: level and number of each, as the manifest has them. RocksDB does not open the
            database if one is not there.
    """
    edit = b"".join(_varint(_DELETED_FILE) + _varint(level) + _varint(n) for level, n in files)
    return manifest + _records(edit, len(manifest)) if edit else manifest


def _records(payload: bytes, position: int) -> bytes:
    """Return the records of `payload` for a log that has `position` bytes."""
    found = bytearray()
    start, first = 0, True
    while first or start < len(payload):
        left = _BLOCK_BYTES - (position + len(found)) % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            found += bytes(left)
            left = _BLOCK_BYTES
        part = payload[start : start + left - _HEADER_BYTES]
        start += len(part)
        last = start == len(payload)
        kind = (_FULL if last else _FIRST) if first else (_LAST if last else _MIDDLE)
        body = bytes([kind]) + part
        found += _masked(_crc32c(body)).to_bytes(4, "little")
        found += len(part).to_bytes(2, "little") + body
        first = False
    return bytes(found)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _table()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFF_FFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFF_FFFF


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFF_FFFF
