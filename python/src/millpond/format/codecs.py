"""Compression of blocks of changelogs and of SSTs: zstd frames by zstandard, imported only when a
block needs it.

SSTs also have LZ4 blocks, and so do changelogs of earlier builds. pyarrow decompresses them. The
package does not depend on pyarrow; without it, `lz4_block` decompresses them in Python (slowly).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format import lz4_block


class Codec(IntEnum):
    """Numbers as stored in changelogs."""

    NONE = 0
    LZ4 = 1  # one raw block, no frame; RocksDB writes it, and earlier builds wrote it
    ZSTD = 2  # one frame


_BY_NAME = {"none": Codec.NONE, "zstd": Codec.ZSTD}
_ZSTD_LEVEL = 1  # the shim's level
# How many raw bytes one stored byte can stand for at most, by the rules of the codec. `decompress`
# refuses a block that claims more, before it takes memory. LZ4: each further byte of a length
# stands for 255. zstd: a block of 128 KiB takes at least 4 bytes.
_MOST_OF_A_BYTE = {Codec.NONE: 1, Codec.LZ4: 255, Codec.ZSTD: 32_768}
MAX_BLOCK_BYTES = 1 << 30


def by_name(name: str) -> Codec:
    """Return the codec that the option changelog.codec calls `name`. Raises: InvalidInputError."""
    codec = _BY_NAME.get(name)
    if codec is None:
        raise InvalidInputError(
            f"no codec {name!r}: one of {', '.join(_BY_NAME)}", kind=ErrorKind.INVALID_ARGUMENT
        )
    return codec


def _arrow() -> Any | None:
    try:
        import pyarrow  # here and not above: 0.2 s that most processes never need
    except ImportError:
        return None
    return pyarrow


def _lz4(arrow: Any) -> Any:
    return arrow.Codec("lz4_raw")


def compress(raw: bytes) -> bytes:
    """Return `raw` as a zstd frame."""
    import zstandard  # start-up time

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(raw)


def _fits(arrow: Any, decoder: Any, stored: bytes, size_bytes: int) -> bool:
    # pyarrow does not say how many bytes an LZ4 block held. If it held fewer than asked for, the
    # rest of pyarrow's answer is garbage.
    try:
        decoder.decompress(stored, decompressed_size=size_bytes)
    except (OSError, arrow.ArrowException):
        return False
    return True


def decompress(codec: Codec, stored: bytes, raw_bytes: int) -> bytes:
    """Return the `raw_bytes` bytes that `stored` stands for.

    Raises: ValueError: `stored` is damaged, or stands for another number of bytes.
    """
    if raw_bytes > min(MAX_BLOCK_BYTES, _MOST_OF_A_BYTE[codec] * len(stored)):
        raise ValueError(f"{len(stored)} bytes cannot stand for {raw_bytes}")
    if codec is Codec.NONE:
        raw = stored
    elif codec is Codec.ZSTD:
        raw = _decompress_zstd(stored, raw_bytes)
    else:
        raw = _decompress_lz4(stored, raw_bytes)
    if len(raw) != raw_bytes:
        raise ValueError(f"{len(raw)} bytes instead of {raw_bytes}")
    return raw


def _decompress_zstd(stored: bytes, raw_bytes: int) -> bytes:
    import zstandard  # start-up time

    try:
        size = zstandard.frame_content_size(stored)
        # -1: the frame does not say. A frame that lies must not make Python allocate its size.
        if size not in (-1, raw_bytes):
            raise ValueError(f"a frame of {size} bytes instead of {raw_bytes}")
        return zstandard.ZstdDecompressor().decompress(
            stored, max_output_size=raw_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as e:
        raise ValueError(f"zstd: {e}") from e


def _decompress_lz4(stored: bytes, raw_bytes: int) -> bytes:
    arrow = _arrow()
    if arrow is None or raw_bytes < 2:
        return lz4_block.decompress(stored, raw_bytes)
    decoder = _lz4(arrow)
    try:
        raw = decoder.decompress(stored, decompressed_size=raw_bytes, asbytes=True)
    except (OSError, arrow.ArrowException) as e:
        raise ValueError(f"lz4: {type(e).__name__}") from e
    if _fits(arrow, decoder, stored, raw_bytes - 1):
        raise ValueError(f"fewer than {raw_bytes} bytes")
    assert isinstance(raw, bytes)
    return raw
