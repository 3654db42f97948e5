"""Reads a changelog, checking every byte."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from millpond.errors import ErrorKind, FormatError, MillpondError, UnsupportedError
from millpond.format import codecs
from millpond.format.changelog.parts import (
    BLOCK,
    CRC,
    END_MAGIC,
    FOOTER_REST,
    FORMAT,
    HEAD,
    MAGIC,
    READ_BYTES,
    REPEATS,
    ChangelogFooter,
    ChangelogHeader,
    Op,
    Record,
)
from millpond.format.codecs import Codec
from millpond.model.json_fields import JsonFields
from millpond.model.varint import decode_varint

_MAX_HEADER_JSON_BYTES = 64 * 1024 * 1024
_MOST_LENGTH_BYTES = 6  # of the number that says how long a key or a value is


def _damaged(name: str) -> Callable[[str], MillpondError]:
    return lambda message: FormatError(f"{name}: {message}", kind=ErrorKind.CHANGELOG_DAMAGED)


def _read_exactly(fp: BinaryIO, count: int, fail: Callable[[str], MillpondError]) -> bytes:
    # Read in pieces: a damaged length must not make Python allocate gigabytes before this notices
    # the end of the file.
    pieces: list[bytes] = []
    missing = count
    while missing:
        piece = fp.read(min(missing, READ_BYTES))
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
    head = _read_exactly(fp, HEAD.size, fail)
    magic, file_format, flags, json_bytes = HEAD.unpack(head)
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
    (crc,) = CRC.unpack(_read_exactly(fp, CRC.size, fail))
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


def has_repeats(data: bytes) -> bool:
    """Whether keys may repeat in a changelog. `data` begins with its first bytes."""
    return bool(HEAD.unpack_from(data)[2] & REPEATS)


class ChangelogReader:
    """Iterates once over the records of a changelog, in the order in which they apply.

    The iteration checks every byte. It yields the records of a block after it has checked the
    block's sum. At the end it checks the footer, the totals, and that nothing follows. So the file
    is whole only if the iteration ends without an error: a caller that must not act on a part
    collects all records first.

    Args:
        fp: positioned at the start; stays open.
        name: of the file, for messages.
    Raises (constructor and iteration):
        FormatError: CHANGELOG_DAMAGED.
        UnsupportedError: FORMAT_TOO_NEW.
    """

    def __init__(self, fp: BinaryIO, *, name: str = "changelog") -> None:
        self._fp = fp
        self._fail = _damaged(name)
        self._name = name
        self.header = read_header(fp, name=name)
        self.footer: ChangelogFooter | None = None  # set when all is read and right

    def blocks(self) -> Iterator[tuple[bytes, int]]:
        """Yield the raw bytes of each block, and its number of records. Check the footer last.

        Only an iteration over the records checks the footer's count of puts.
        """
        fp, fail = self._fp, self._fail
        records = raw_total = 0
        while True:
            start = _read_exactly(fp, 4, fail)
            (raw_bytes,) = CRC.unpack(start)
            if raw_bytes == 0:
                break
            head = start + _read_exactly(fp, BLOCK.size - 4, fail)
            _, stored_bytes, count, codec_number, reserved = BLOCK.unpack(head)
            (crc,) = CRC.unpack(_read_exactly(fp, CRC.size, fail))
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
        rest = _read_exactly(fp, FOOTER_REST.size, fail)
        magic, footer_records, puts, footer_raw = FOOTER_REST.unpack(rest)
        (crc,) = CRC.unpack(_read_exactly(fp, CRC.size, fail))
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
        """Yield the records of each block.

        A block of puts of one size comes as `Puts`, which takes a fifth of the time.
        """
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
            raise self._fail("its footer has another count of puts than its blocks")


_OPS = {op.value: op for op in Op}


@dataclass(frozen=True, slots=True)
class Puts:
    """Records that are all puts, in their order."""

    keys: list[bytes]
    values: list[bytes]


def parse_puts(raw: bytes, count: int) -> Puts | None:
    """Return the records of one uncompressed block, if they are `count` puts of one size.

    All keys must have one size, and all values. None if not.
    """
    if count < 2 or len(raw) % count or raw[0] != Op.PUT:
        return None
    try:
        key_bytes, key_at = decode_varint(raw, 1, _MOST_LENGTH_BYTES)
        value_bytes, value_at = decode_varint(raw, key_at + key_bytes, _MOST_LENGTH_BYTES)
    except (IndexError, ValueError):
        return None
    step = value_at + value_bytes
    if step * count != len(raw):
        return None
    # All records must have the first record's operation and lengths, byte for byte. Then each is as
    # long as the first.
    for place in (*range(key_at), *range(key_at + key_bytes, value_at)):
        if raw[place::step] != raw[place : place + 1] * count:
            return None
    return Puts(
        [raw[at : at + key_bytes] for at in range(key_at, len(raw), step)],
        [raw[at : at + value_bytes] for at in range(value_at, len(raw) + 1, step)],
    )


def parse_records(raw: bytes, fail: Callable[[str], MillpondError]) -> list[Record]:
    """Return the records of one uncompressed block.

    Raises the error of `fail` if they do not fill the block exactly.
    """
    records: list[Record] = []
    position, end = 0, len(raw)
    try:
        while position < end:
            op = _OPS.get(raw[position])
            if op is None:
                raise fail(f"unknown operation {raw[position]}")
            length, position = decode_varint(raw, position + 1, _MOST_LENGTH_BYTES)
            key = raw[position : position + length]
            position += length
            value: bytes | None = None
            if op is not Op.DELETE:
                length, position = decode_varint(raw, position, _MOST_LENGTH_BYTES)
                value = raw[position : position + length]
                position += length
            if position > end:
                raise fail("a record exceeds its block")
            records.append(Record(op, key, value))
    except (IndexError, ValueError) as e:
        raise fail("a record exceeds its block") from e
    return records
