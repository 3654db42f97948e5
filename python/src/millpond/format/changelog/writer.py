"""Writes a changelog."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterable
from typing import BinaryIO, Protocol

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format import codecs
from millpond.format.changelog.parts import (
    BLOCK,
    CRC,
    DEFAULT_BLOCK_BYTES,
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
from millpond.model.varint import encode_varint

_RECORD_HEAD_BYTES = 16  # the operation and the two lengths take at most that much


def _check_fits(block_bytes: int) -> None:
    if block_bytes > codecs.MAX_BLOCK_BYTES:
        raise InvalidInputError(
            f"nobody could read a changelog's block of {block_bytes} bytes: the limit is"
            f" {codecs.MAX_BLOCK_BYTES}",
            kind=ErrorKind.ROW_TOO_LARGE,
        )


class _Lengths(dict[int, bytes]):
    """Encoded numbers. Computes each once."""

    def __missing__(self, value: int) -> bytes:
        self[value] = encode_varint(value)
        return self[value]


class Sink(Protocol):
    """The place to which a changelog is written."""

    def write(self, data: bytes, /) -> int: ...


class ChangelogWriter:
    """Writes a changelog. `finish()` completes it: until then a reader finds it truncated.

    Args:
        fp: the writer begins at its position. It does not flush, sync or close it.
        header: None: write blocks only, for `take_blocks` of another writer.
        repeats: a key may have several records, and some may be merges. A reader that does not know
            that must not read the file.
        codec: of the blocks. The writer stores a block uncompressed if compression does not shrink
            it.
        block_bytes: the writer closes a block when it holds that much.
    """

    def __init__(
        self,
        fp: Sink,
        header: ChangelogHeader | None,
        *,
        codec: str = "zstd",
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
        head = HEAD.pack(MAGIC, FORMAT, REPEATS if repeats else 0, len(body)) + body
        fp.write(head + CRC.pack(zlib.crc32(head)))

    def put(self, key: bytes, value: bytes) -> None:
        """Append: `key` has the value `value`."""
        self._append(Op.PUT, key, value)

    def put_all(self, puts: Iterable[tuple[bytes, bytes]]) -> None:
        """Append many puts, in a third of the time of `put`."""
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
        """Append `count` puts of one size. `records` holds their encoded bytes."""
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

    def append(self, record: Record) -> None:
        """Append `record` as it is: a put, a delete or a merge."""
        if record.op is Op.DELETE_RANGE:
            raise InvalidInputError("no changelog that is written today deletes a range")
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
            stored = codecs.compress(raw)
            if len(stored) >= len(raw):
                codec, stored = Codec.NONE, raw
        head = BLOCK.pack(len(raw), len(stored), self._buffer_records, codec, b"\0\0\0")
        self._fp.write(head + CRC.pack(zlib.crc32(stored, zlib.crc32(head))) + stored)
        self._records += self._buffer_records
        self._raw_bytes += len(raw)
        self._buffer.clear()
        self._buffer_records = 0

    def end_blocks(self) -> ChangelogFooter:
        """Write the buffered records, and no footer. Return the totals so far.

        Afterwards the writer accepts no more records.
        """
        if self._finished:
            raise InvalidInputError("the changelog is finished")
        self._flush_block()
        self._finished = True
        return ChangelogFooter(self._records, self._puts, self._raw_bytes)

    def take_blocks(self, blocks: BinaryIO, totals: ChangelogFooter) -> None:
        """Append all blocks that a writer without header wrote to `blocks`.

        Args:
            totals: the answer of that writer's `end_blocks`.
        """
        self._flush_block()
        shutil.copyfileobj(blocks, self._fp, READ_BYTES)
        self._records += totals.records
        self._puts += totals.puts
        self._raw_bytes += totals.raw_bytes

    def finish(self) -> ChangelogFooter:
        """Write the buffered records and the footer. Return the footer.

        Afterwards the writer accepts no more records.
        """
        self.end_blocks()
        tail = CRC.pack(0) + FOOTER_REST.pack(END_MAGIC, self._records, self._puts, self._raw_bytes)
        self._fp.write(tail + CRC.pack(zlib.crc32(tail)))
        return ChangelogFooter(self._records, self._puts, self._raw_bytes)
