"""Changelog: the durable file of what one micro-batch changed in one store.

Its layout, little-endian:

    header   "MPCL"  u16 format  u16 flags  u32 json_bytes  json  u32 crc32(all before)
    block*   u32 raw_bytes (>0)  u32 stored_bytes  u32 records  u8 codec  u8[3]=0  u32 crc32(the 16 bytes before + stored)  stored
    footer   u32 0  u32 "MPCE"  u64 records  u64 puts  u64 raw_bytes  u32 crc32(the 32 bytes before)

Source: docs/reference/format.md.
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, BinaryIO, NamedTuple, Protocol

from millpond import codecs
from millpond.codecs import Codec
from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    MillpondError,
    UnsupportedError,
)
from millpond.ids import StoreId, VersionId, valid_id
from millpond.json_fields import ColumnFamily, JsonFields, KeyGroupsInfo, group_keys_from_json

FORMAT = 1
REPEATS = 1  # flag of a header: keys may repeat, and merges occur. Files of earlier versions have such records without it.
MAGIC = b"MPCL"
END_MAGIC = b"MPCE"
DEFAULT_BLOCK_BYTES = 256 * 1024

_HEAD = struct.Struct("<4sHHI")
_BLOCK = struct.Struct("<IIIB3s")
_FOOTER_REST = struct.Struct("<4sQQQ")
_CRC = struct.Struct("<I")
_RECORD_HEAD_BYTES = 16  # at most: the operation and the two lengths
_MAX_HEADER_JSON_BYTES = 64 * 1024 * 1024
_READ_BYTES = 4 * 1024 * 1024


class Op(IntEnum):
    """What a record does."""

    PUT = 1  # key := value
    DELETE = 2  # key removed; no value
    MERGE = 3  # value appended to the values of key
    DELETE_RANGE = 4  # [key, value) removed


class Record(NamedTuple):
    """One change. `value` is None for DELETE, the exclusive end key for DELETE_RANGE."""

    op: Op
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogHeader:
    """What a changelog says about itself."""

    version: int  # the version that it makes, >= 1
    id: str  # of the attempt that wrote it
    lineage_base: int  # newest snapshot on the lineage that the writer knew; 0 if none
    lineage: tuple[str, ...]  # ids of the versions lineage_base..version-1; "" for version 0
    empty_base: bool = False  # the state before it is empty, whatever its version
    run_id: str  # of the query's run
    store: StoreId
    key_groups: KeyGroupsInfo
    column_families: tuple[ColumnFamily, ...]
    keys: int  # live keys after this version; -1: not counted
    group_keys: tuple[int, ...] | None = (
        None  # of the partition's key groups, ascending; None: not told
    )
    created_by: str

    @property
    def version_id(self) -> VersionId:
        return VersionId(self.version, self.id)

    @property
    def parent(self) -> VersionId:
        """The version on which this one builds (id "" if it is version 0, or empty)."""
        return VersionId(self.version - 1, self.lineage[-1] if self.version > 1 else "")

    def to_json(self) -> dict[str, Any]:
        value = {
            "version": self.version,
            "id": self.id,
            "lineage_base": self.lineage_base,
            "lineage": list(self.lineage),
            "empty_base": self.empty_base,
            "run_id": self.run_id,
            "store": {
                "operator": self.store.operator,
                "partition": self.store.partition,
                "name": self.store.name,
            },
            "key_groups": self.key_groups.to_json(),
            "column_families": [family.to_json() for family in self.column_families],
            "keys": self.keys,
            "created_by": self.created_by,
        }
        if self.group_keys is not None:
            value["group_keys"] = list(self.group_keys)
        return value

    @staticmethod
    def from_json(fields: JsonFields) -> ChangelogHeader:
        store = fields.child("store")
        try:
            store_id = StoreId(
                store.integer("operator"), store.integer("partition"), store.string("name")
            )
        except InvalidInputError as e:
            raise fields.fail("field store names no store") from e
        header = ChangelogHeader(
            version=fields.integer("version", 1),
            id=fields.string("id"),
            lineage_base=fields.integer("lineage_base"),
            lineage=fields.strings("lineage"),
            empty_base=fields.boolean("empty_base"),
            run_id=fields.string("run_id"),
            store=store_id,
            key_groups=KeyGroupsInfo.from_json(fields.child("key_groups")),
            column_families=tuple(
                ColumnFamily.from_json(entry) for entry in fields.children("column_families")
            ),
            keys=fields.integer("keys", -1),
            group_keys=group_keys_from_json(fields),
            created_by=fields.string("created_by"),
        )
        if not valid_id(header.id) or not all(
            text == "" or valid_id(text) for text in header.lineage
        ):
            raise fields.fail("an id in the header is no id")
        if not header.lineage or len(header.lineage) != header.version - header.lineage_base:
            raise fields.fail("field lineage does not lead from lineage_base to version - 1")
        return header


@dataclass(frozen=True, slots=True)
class ChangelogFooter:
    """Totals at the end of a changelog."""

    records: int
    puts: int  # of the records, those with Op.PUT
    raw_bytes: int  # of all blocks, uncompressed


def _damaged(name: str) -> Callable[[str], MillpondError]:
    return lambda message: FormatError(f"{name}: {message}", kind=ErrorKind.CHANGELOG_DAMAGED)


def _read_exactly(fp: BinaryIO, count: int, fail: Callable[[str], MillpondError]) -> bytes:
    # In pieces: a damaged length must not make Python allocate gigabytes before the end of the file is noticed.
    pieces: list[bytes] = []
    missing = count
    while missing:
        piece = fp.read(min(missing, _READ_BYTES))
        if not piece:
            raise fail("ends early: truncated")
        pieces.append(piece)
        missing -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_header(fp: BinaryIO, *, name: str = "changelog") -> ChangelogHeader:
    """Read the header at the position of `fp`, and leave `fp` at the first block.

    Args:
        name: of the file, for messages.
    Raises:
        FormatError: CHANGELOG_DAMAGED.
        UnsupportedError: FORMAT_TOO_NEW.
    """
    fail = _damaged(name)
    head = _read_exactly(fp, _HEAD.size, fail)
    magic, file_format, flags, json_bytes = _HEAD.unpack(head)
    if magic != MAGIC:
        raise fail("is no changelog")
    if file_format > FORMAT:
        raise UnsupportedError(
            f"{name}: changelog of format {file_format}, this version reads {FORMAT}",
            kind=ErrorKind.FORMAT_TOO_NEW,
        )
    if file_format != FORMAT or json_bytes > _MAX_HEADER_JSON_BYTES:
        raise fail("its header is damaged")
    body = _read_exactly(fp, json_bytes, fail)
    (crc,) = _CRC.unpack(_read_exactly(fp, _CRC.size, fail))
    if zlib.crc32(body, zlib.crc32(head)) != crc:
        raise fail("the check sum of its header does not match")
    if flags & ~REPEATS:
        raise UnsupportedError(
            f"{name}: changelog with flags {flags & ~REPEATS:#x}, which this version does not know",
            kind=ErrorKind.FORMAT_TOO_NEW,
        )
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise fail("its header is no JSON") from e
    return ChangelogHeader.from_json(JsonFields(value, fail, "header"))


def _check_fits(block_bytes: int) -> None:
    if block_bytes > codecs.MAX_BLOCK_BYTES:
        raise InvalidInputError(
            f"a changelog's block of {block_bytes} bytes could never be read, the most is {codecs.MAX_BLOCK_BYTES}",
            kind=ErrorKind.ROW_TOO_LARGE,
        )


class ChangelogReader:
    """Iterates over the records of a changelog, in the order in which they apply, checking every byte.

    Records of a block come once the block's own check sum was found right. Only when the iteration ends without an error is the
    file known to be whole (footer, totals, nothing behind it): whoever may not act on a part collects first.

    Args:
        fp: positioned at the start; stays open. Can be iterated once.
        name: of the file, for messages.
    Raises (constructor and iteration):
        FormatError: CHANGELOG_DAMAGED.
        UnsupportedError: FORMAT_TOO_NEW; UNSUPPORTED: zstd, and pyarrow is not installed.
    """

    def __init__(self, fp: BinaryIO, *, name: str = "changelog") -> None:
        self._fp = fp
        self._fail = _damaged(name)
        self._name = name
        self.header = read_header(fp, name=name)
        self.footer: ChangelogFooter | None = None  # set once everything was read and found right

    def blocks(self) -> Iterator[tuple[bytes, int]]:
        """Yield the raw bytes of each block and the number of records in it; check the footer at the end.

        The footer's count of puts is checked only by iterating over the records.
        """
        fp, fail = self._fp, self._fail
        records = raw_total = 0
        while True:
            start = _read_exactly(fp, 4, fail)
            (raw_bytes,) = _CRC.unpack(start)
            if raw_bytes == 0:
                break
            head = start + _read_exactly(fp, _BLOCK.size - 4, fail)
            _, stored_bytes, count, codec_number, reserved = _BLOCK.unpack(head)
            (crc,) = _CRC.unpack(_read_exactly(fp, _CRC.size, fail))
            stored = _read_exactly(fp, stored_bytes, fail)
            if zlib.crc32(stored, zlib.crc32(head)) != crc:
                raise fail("the check sum of a block does not match")
            if reserved != b"\0\0\0":
                raise fail("reserved bytes of a block are not zero")
            try:
                codec = Codec(codec_number)
            except ValueError:
                raise UnsupportedError(
                    f"{self._name}: codec {codec_number}, which this version does not know",
                    kind=ErrorKind.FORMAT_TOO_NEW,
                ) from None
            try:
                raw = codecs.decompress(codec, stored, raw_bytes)
            except ValueError as e:
                raise fail(f"a block cannot be decompressed: {e}") from e
            records += count
            raw_total += raw_bytes
            yield raw, count
        rest = _read_exactly(fp, _FOOTER_REST.size, fail)
        magic, footer_records, puts, footer_raw = _FOOTER_REST.unpack(rest)
        (crc,) = _CRC.unpack(_read_exactly(fp, _CRC.size, fail))
        if magic != END_MAGIC or zlib.crc32(rest, zlib.crc32(start)) != crc:
            raise fail("its footer is damaged")
        if footer_records != records or footer_raw != raw_total:
            raise fail("its footer does not match its blocks")
        if fp.read(1):
            raise fail("something follows its footer")
        self.footer = ChangelogFooter(footer_records, puts, footer_raw)

    def __iter__(self) -> Iterator[Record]:
        for run in self.runs():
            if isinstance(run, Puts):
                yield from (
                    Record(Op.PUT, key, value)
                    for key, value in zip(run.keys, run.values, strict=True)
                )
            else:
                yield from run

    def runs(self) -> Iterator[Puts | list[Record]]:
        """Yield the records of each block, those of one that holds puts of one size alone as such, which takes a fifth of the time."""
        puts = 0
        for raw, count in self.blocks():
            same = parse_puts(raw, count)
            if same is not None:
                puts += count
                yield same
                continue
            block_records = parse_records(raw, self._fail)
            if len(block_records) != count:
                raise self._fail("a block holds another number of records than it says")
            puts += sum(1 for record in block_records if record.op is Op.PUT)
            yield block_records
        if self.footer is None or self.footer.puts != puts:
            self.footer = None
            raise self._fail("its footer counts other puts than there are")


_OPS = {op.value: op for op in Op}


@dataclass(frozen=True, slots=True)
class Puts:
    """Records of which each is a put, in their order."""

    keys: list[bytes]
    values: list[bytes]


def parse_puts(raw: bytes, count: int) -> Puts | None:
    """Return the records of one uncompressed block if they are `count` puts whose keys have one size, and whose values; else None."""
    if count < 2 or len(raw) % count or raw[0] != Op.PUT:
        return None
    try:
        key_bytes, key_at = _varint(raw, 1)
        value_bytes, value_at = _varint(raw, key_at + key_bytes)
    except (IndexError, ValueError):
        return None
    step = value_at + value_bytes
    if step * count != len(raw):
        return None
    # Where the first record begins and its lengths stand, all others have the same bytes: then each is as long as the first.
    for place in (*range(key_at), *range(key_at + key_bytes, value_at)):
        if raw[place::step] != raw[place : place + 1] * count:
            return None
    return Puts(
        [raw[at : at + key_bytes] for at in range(key_at, len(raw), step)],
        [raw[at : at + value_bytes] for at in range(value_at, len(raw) + 1, step)],
    )


def parse_records(raw: bytes, fail: Callable[[str], MillpondError]) -> list[Record]:
    """Return the records of one uncompressed block. Raises what `fail` makes if they do not fill it exactly."""
    records: list[Record] = []
    position, end = 0, len(raw)
    try:
        while position < end:
            op = _OPS.get(raw[position])
            if op is None:
                raise fail(f"unknown operation {raw[position]}")
            length, position = _varint(raw, position + 1)
            key = raw[position : position + length]
            position += length
            value: bytes | None = None
            if op is not Op.DELETE:
                length, position = _varint(raw, position)
                value = raw[position : position + length]
                position += length
            if position > end:
                raise fail("a record exceeds its block")
            records.append(Record(op, key, value))
    except (IndexError, ValueError) as e:
        raise fail("a record exceeds its block") from e
    return records


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    byte = raw[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift > 35:
            raise ValueError("varint too long")


def encode_varint(value: int) -> bytes:
    """Return `value` (>= 0) as an unsigned LEB128."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Lengths(dict[int, bytes]):
    """Numbers as they are encoded, each computed once."""

    def __missing__(self, value: int) -> bytes:
        self[value] = encode_varint(value)
        return self[value]


class Sink(Protocol):
    """What a changelog is written to."""

    def write(self, data: bytes, /) -> int: ...


class ChangelogWriter:
    """Writes a changelog. Complete only after `finish()`: until then a reader finds it truncated.

    Args:
        fp: written from its position on; stays open, and is neither flushed nor synced.
        header: None: blocks alone are written, for `take_blocks` of another writer.
        repeats: a key may have several records, of which some may be merges: who does not know that must not read the file.
        codec: of the blocks; a block that compression does not shrink is stored uncompressed.
        block_bytes: a block is closed as soon as it holds that much.
    Raises: UnsupportedError: UNSUPPORTED: compression needs pyarrow, which is not installed.
    """

    def __init__(
        self,
        fp: Sink,
        header: ChangelogHeader | None,
        *,
        codec: str = "lz4",
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        repeats: bool = False,
    ) -> None:
        self._fp = fp
        self._codec = codecs.by_name(codec)
        self._block_bytes = block_bytes
        self._buffer = bytearray()
        self._buffer_records = 0
        self._records = self._puts = self._raw_bytes = 0
        self._finished = False
        if header is None:
            return
        body = json.dumps(
            header.to_json(), ensure_ascii=True, separators=(",", ":"), allow_nan=False
        ).encode("ascii")
        head = _HEAD.pack(MAGIC, FORMAT, REPEATS if repeats else 0, len(body)) + body
        fp.write(head + _CRC.pack(zlib.crc32(head)))

    def put(self, key: bytes, value: bytes) -> None:
        """Append: `key` has the value `value`."""
        self._append(Op.PUT, key, value)

    def put_all(self, puts: Iterable[tuple[bytes, bytes]]) -> None:
        """Append many: as `put` of each key and value, in a third of the time."""
        if self._finished:
            raise InvalidInputError("the changelog is finished")
        buffer, lengths, block_bytes, before = (
            self._buffer,
            _Lengths(),
            self._block_bytes,
            self._buffer_records,
        )
        for key, value in puts:
            buffer += b"".join((b"\x01", lengths[len(key)], key, lengths[len(value)], value))
            self._buffer_records += 1
            if len(buffer) >= block_bytes:
                self._puts += self._buffer_records - before
                self._flush_block()
                before = 0
        self._puts += self._buffer_records - before

    def put_packed(self, records: memoryview, count: int) -> None:
        """Append `count` puts that are encoded already and have one size: `records` holds their bytes."""
        if self._finished:
            raise InvalidInputError("the changelog is finished")
        step, at = len(records) // count, 0
        while at < len(records):
            room = -(-(self._block_bytes - len(self._buffer)) // step)
            piece = records[at : at + room * step]
            self._buffer += piece
            self._buffer_records += len(piece) // step
            self._puts += len(piece) // step
            at += len(piece)
            if len(self._buffer) >= self._block_bytes:
                self._flush_block()

    def delete(self, key: bytes) -> None:
        """Append: `key` is removed."""
        self._append(Op.DELETE, key, None)

    def merge(self, key: bytes, value: bytes) -> None:
        """Append: `value` joins the values of `key`."""
        self._append(Op.MERGE, key, value)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Append: all keys in `[start, end)` are removed."""
        self._append(Op.DELETE_RANGE, start, end)

    def append(self, record: Record) -> None:
        """Append `record` as it is."""
        self._append(record.op, record.key, record.value)

    def _append(self, op: Op, key: bytes, value: bytes | None) -> None:
        if self._finished:
            raise InvalidInputError("the changelog is finished")
        if (value is None) != (op is Op.DELETE):
            raise InvalidInputError(
                f"operation {op.name} with{'out' if value is None else ''} a value"
            )
        buffer = self._buffer
        _check_fits(len(buffer) + len(key) + len(value or b"") + _RECORD_HEAD_BYTES)
        if op is Op.PUT:
            self._puts += 1
        buffer.append(op)
        buffer += encode_varint(len(key))
        buffer += key
        if value is not None:
            buffer += encode_varint(len(value))
            buffer += value
        self._buffer_records += 1
        if len(buffer) >= self._block_bytes:
            self._flush_block()

    def _flush_block(self) -> None:
        if not self._buffer:
            return
        _check_fits(len(self._buffer))
        raw = bytes(self._buffer)
        codec, stored = self._codec, raw
        if codec is not Codec.NONE:
            stored = codecs.compress(codec, raw)
            if len(stored) >= len(raw):
                codec, stored = Codec.NONE, raw
        head = _BLOCK.pack(len(raw), len(stored), self._buffer_records, codec, b"\0\0\0")
        self._fp.write(head + _CRC.pack(zlib.crc32(stored, zlib.crc32(head))) + stored)
        self._records += self._buffer_records
        self._raw_bytes += len(raw)
        self._buffer.clear()
        self._buffer_records = 0

    def end_blocks(self) -> ChangelogFooter:
        """Write what is buffered, and no footer; return the totals so far. Nothing can be appended afterwards."""
        if self._finished:
            raise InvalidInputError("the changelog is finished")
        self._flush_block()
        self._finished = True
        return ChangelogFooter(self._records, self._puts, self._raw_bytes)

    def take_blocks(self, blocks: BinaryIO, totals: ChangelogFooter) -> None:
        """Append all blocks that a writer without header wrote to `blocks`. `totals`: what its `end_blocks` returned."""
        self._flush_block()
        shutil.copyfileobj(blocks, self._fp, _READ_BYTES)
        self._records += totals.records
        self._puts += totals.puts
        self._raw_bytes += totals.raw_bytes

    def finish(self) -> ChangelogFooter:
        """Write what is buffered and the footer; return the footer. Nothing can be appended afterwards."""
        self.end_blocks()
        tail = _CRC.pack(0) + _FOOTER_REST.pack(
            END_MAGIC, self._records, self._puts, self._raw_bytes
        )
        self._fp.write(tail + _CRC.pack(zlib.crc32(tail)))
        return ChangelogFooter(self._records, self._puts, self._raw_bytes)
