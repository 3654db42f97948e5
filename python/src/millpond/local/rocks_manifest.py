"""Reads the manifest of a RocksDB database, and edits it, so that the database opens without some
of its SSTs.

A manifest is a log of changes. Sources: RocksDB's `db/log_format.h` and `db/version_edit.h`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millpond.model.varint import decode_varint, encode_varint

_BLOCK_BYTES = 32 * 1024
_HEADER_BYTES = 7  # checksum, length, kind of record
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_DELETED_FILE = 6  # the tag of such a change
_CURSOR = 5  # where a compaction ended: level, internal key
_NEW_FILE = 103  # level, number, size, first and last internal key, two sequence numbers, more
_LAST_PART = 1  # of what more there is of a new file: tags, each with bytes
# By tag: how many numbers follow, and how many times a length with its bytes.
_OTHERS = {
    1: (0, 1),  # comparator
    2: (1, 0),  # number of the log
    3: (1, 0),  # next number of a file
    4: (1, 0),  # last sequence number
    _DELETED_FILE: (2, 0),
    9: (1, 0),  # number of the log before
    10: (1, 0),  # oldest log to keep
    200: (1, 0),  # column family
    201: (0, 1),  # a new one
    202: (0, 0),  # it is dropped
    203: (1, 0),  # largest number of one
    300: (1, 0),  # changes of this group that are to come
}
_IGNORED = 1 << 13  # a tag with this bit has one length with its bytes
_INTERNAL_BYTES = 8  # sequence number and kind, behind each key
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reversed
_MASK = 0xA282EAD8


def key_bounds(manifest: bytes) -> set[bytes]:
    """Return the smallest and the largest key of each SST that the manifest has ever named. Those
    that are long gone are among them.

    Raises: ValueError: it is damaged, or has what this module does not read.
    """
    found: set[bytes] = set()
    try:
        for change in _changes(manifest):
            found.update(_bounds_of(change))
    except IndexError as e:
        raise ValueError("a record ends early") from e
    return found


def _changes(manifest: bytes) -> Iterator[bytes]:
    """Yield the payloads of the log."""
    at, parts = 0, b""
    while at < len(manifest):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            at += left
            continue
        size, kind = int.from_bytes(manifest[at + 4 : at + 6], "little"), manifest[at + 6]
        part = manifest[at + _HEADER_BYTES : at + _HEADER_BYTES + size]
        if len(part) < size or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            raise ValueError(f"no whole record at {at}")
        at += _HEADER_BYTES + size
        parts = part if kind in (_FULL, _FIRST) else parts + part
        if kind in (_FULL, _LAST):
            yield parts


def _bounds_of(change: bytes) -> Iterator[bytes]:
    """Yield the keys in a change."""
    at = 0
    while at < len(change):
        tag, at = decode_varint(change, at)
        if tag == _CURSOR:
            _, at = decode_varint(change, at)
            key, at = _bytes(change, at)
            yield key[:-_INTERNAL_BYTES]
        elif tag == _NEW_FILE:
            at = _after_numbers(change, at, 3)
            for _ in range(2):
                key, at = _bytes(change, at)
                yield key[:-_INTERNAL_BYTES]
            at = _after_numbers(change, at, 2)
            part = 0
            while part != _LAST_PART:
                part, at = decode_varint(change, at)
                if part != _LAST_PART:
                    _, at = _bytes(change, at)
        else:
            numbers, texts = (0, 1) if tag & _IGNORED else _OTHERS.get(tag, (-1, 0))
            if numbers < 0:
                raise ValueError(f"a change of kind {tag}")
            at = _after_numbers(change, at, numbers)
            for _ in range(texts):
                _, at = _bytes(change, at)


def _after_numbers(data: bytes, at: int, count: int) -> int:
    for _ in range(count):
        _, at = decode_varint(data, at)
    return at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes after their length, and the place behind them."""
    size, at = decode_varint(data, at)
    if at + size > len(data):
        raise ValueError("a text leads out of its record")
    return data[at : at + size], at + size


def without_files(manifest: bytes, files: Iterable[tuple[int, int]]) -> bytes:
    """Return `manifest` with a change at its end that removes files.

    Args:
        manifest: whole; it ends with a whole record.
        files: level and number of each, as the manifest has them. RocksDB does not open the
            database if one is not there.
    """
    edit = b"".join(
        encode_varint(number) for level, n in files for number in (_DELETED_FILE, level, n)
    )
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
