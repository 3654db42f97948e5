"""Reads every entry of an SST, also those that RocksDB no longer shows: older values, deletions.

Only what Millpond's SSTs use of RocksDB's table format: block-based, format versions 2 to 6, an
index of one or two levels, no dictionary. Source: the format of RocksDB 9 (table/format.h,
table/block_based).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.format import codecs
from millpond.format.codecs import Codec
from millpond.model.varint import decode_varint

_FOOTER_BYTES = 53
_MAGIC = 0x88E2_41B7_85F4_CFF7
_META_SIZE_AT = 13  # in the footer of format 6, which tells the place of the index elsewhere
_TRAILER_BYTES = 5  # kind of compression, check sum
_CODECS = {4: Codec.LZ4, 5: Codec.LZ4, 7: Codec.ZSTD}
_ONE_LEVEL, _TWO_LEVELS = 0, 2  # RocksDB's numbers of kinds of index
_HASH_INDEX = 1 << 31  # of the number of restarts: a hash index follows the entries
_INTERNAL_BYTES = 8  # sequence number and kind, behind each key

Read = Callable[[int, int], bytes]
"""Offset and length to bytes."""


@dataclass(frozen=True, slots=True)
class Block:
    """A data block.

    raw: its bytes, decompressed.
    entries: physical keys and values in their order; of a deletion the value is empty.
    """

    raw: bytes
    entries: list[tuple[bytes, bytes]]


def data_blocks(read: Read, size_bytes: int, *, name: str) -> Iterator[Block]:
    """Yield the data blocks of an SST, ascending by key.

    Args:
        size_bytes: of the file.
        name: of the file, for messages.
    Raises:
        FormatError: SST_DAMAGED.
        UnsupportedError: FORMAT_TOO_NEW: the file uses what this module does not read.
    """

    def fail(message: str) -> FormatError:
        return FormatError(f"{name}: {message}", kind=ErrorKind.SST_DAMAGED)

    try:
        index = _index(read, size_bytes, fail, name)
        for offset, length in index:
            raw = _block(read, offset, length, fail, name)
            yield Block(raw, list(_entries(raw)))
    except (IndexError, ValueError, struct.error) as e:
        raise fail(f"a block cannot be read: {e}") from e


def _index(
    read: Read, size_bytes: int, fail: Callable[[str], FormatError], name: str
) -> list[tuple[int, int]]:
    """Return offset and length of each data block."""
    if size_bytes < _FOOTER_BYTES:
        raise fail("is too short")
    footer = read(size_bytes - _FOOTER_BYTES, _FOOTER_BYTES)
    version, magic = struct.unpack_from("<IQ", footer, _FOOTER_BYTES - 12)
    if magic != _MAGIC:
        raise fail("is no SST")
    index: tuple[int, int] | None = None
    if 2 <= version <= 5:
        at = 1
        meta_at, at = decode_varint(footer, at)
        meta_bytes, at = decode_varint(footer, at)
        offset, at = decode_varint(footer, at)
        index = offset, decode_varint(footer, at)[0]
    elif version == 6:
        (meta_bytes,) = struct.unpack_from("<I", footer, _META_SIZE_AT)
        meta_at = size_bytes - _FOOTER_BYTES - _TRAILER_BYTES - meta_bytes
    else:
        raise _unknown(name, f"table format {version}")
    raw_meta = _block(read, meta_at, meta_bytes, fail, name)
    meta = {key: _handle(value) for key, value in _entries(raw_meta, 0)}
    index = index if index is not None else meta.get(b"rocksdb.index")
    if index is None:
        raise fail("has no index")
    properties: dict[bytes, bytes] = {}
    if b"rocksdb.properties" in meta:
        properties = dict(_entries(_block(read, *meta[b"rocksdb.properties"], fail, name), 0))
    if b"rocksdb.compression_dict" in meta or b"rocksdb.range_del" in meta:
        raise _unknown(name, "a dictionary, or deletions of ranges")
    kind = int.from_bytes(properties.get(b"rocksdb.block.based.table.index.type", b""), "little")
    if kind not in (_ONE_LEVEL, _TWO_LEVELS):
        raise _unknown(name, "an index of another type")
    delta = bool(_number(properties.get(b"rocksdb.index.value.is.delta.encoded", b"\0")))

    def handles(place: tuple[int, int]) -> list[tuple[int, int]]:
        raw = _block(read, *place, fail, name)
        return _delta_handles(raw) if delta else [_handle(value) for _, value in _entries(raw, 0)]

    if kind == _ONE_LEVEL:
        return handles(index)
    return [found for part in handles(index) for found in handles(part)]


def _delta_handles(raw: bytes) -> list[tuple[int, int]]:
    """Return the handles of an index whose entries tell no length of their value."""
    found: list[tuple[int, int]] = []
    at, end = 0, _entries_end(raw)
    while at < end:
        shared, at = decode_varint(raw, at)
        unshared, at = decode_varint(raw, at)
        at += unshared
        if shared == 0:  # a restart: the whole handle
            offset, at = decode_varint(raw, at)
            length, at = decode_varint(raw, at)
        else:
            change, at = decode_varint(raw, at)
            before = found[-1]
            offset = before[0] + before[1] + _TRAILER_BYTES
            length = before[1] + ((change >> 1) ^ -(change & 1))
        found.append((offset, length))
    if at > end:
        raise ValueError("an entry leads out of its block")
    return found


def _block(
    read: Read, offset: int, length: int, fail: Callable[[str], FormatError], name: str
) -> bytes:
    stored = read(offset, length + _TRAILER_BYTES)
    if len(stored) != length + _TRAILER_BYTES:
        raise fail("ends early")
    kind, body = stored[length], stored[:length]
    if kind == 0:
        return body
    codec = _CODECS.get(kind)
    if codec is None:
        raise _unknown(name, f"compression {kind}")
    raw_bytes, at = decode_varint(body, 0)
    return codecs.decompress(codec, body[at:], raw_bytes)


def _entries_end(raw: bytes) -> int:
    (restarts,) = struct.unpack_from("<I", raw, len(raw) - 4)
    end = len(raw) - 4
    if restarts & _HASH_INDEX:
        (buckets,) = struct.unpack_from("<H", raw, end - 2)
        end -= 2 + buckets
        restarts &= ~_HASH_INDEX
    end -= 4 * restarts
    if end < 0:
        raise ValueError("no entries")
    return int(end)


def _entries(raw: bytes, behind: int = _INTERNAL_BYTES) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block.

    Args:
        behind: bytes at the end of each key that are none of it.
    """
    key, at, end = b"", 0, _entries_end(raw)
    while at < end:
        shared, unshared, value_bytes = raw[at], raw[at + 1], raw[at + 2]
        if (shared | unshared | value_bytes) < 0x80:
            at += 3
        else:
            shared, at = decode_varint(raw, at)
            unshared, at = decode_varint(raw, at)
            value_bytes, at = decode_varint(raw, at)
        stop = at + unshared + value_bytes
        if shared > len(key) or stop > end:
            raise ValueError("an entry leads out of its block")
        key = key[:shared] + raw[at : at + unshared]
        yield key[: len(key) - behind], raw[at + unshared : stop]
        at = stop


def _handle(value: bytes) -> tuple[int, int]:
    offset, at = decode_varint(value, 0)
    return offset, decode_varint(value, at)[0]


def _number(value: bytes) -> int:
    return decode_varint(value, 0)[0]


def _unknown(name: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name}: {what}, which this version does not read", kind=ErrorKind.FORMAT_TOO_NEW
    )
