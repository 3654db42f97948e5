"""Compression of changelog blocks: zstd frames by zstandard, LZ4 raw blocks by pyarrow; both loaded only when needed.

pyarrow is no dependency of the package: without it, LZ4 is decompressed in Python (slowly), and not compressed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from millpond import lz4_block
from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError


class Codec(IntEnum):
    """Numbers as stored in changelogs."""

    NONE = 0
    LZ4 = 1  # one raw block, no frame
    ZSTD = 2  # one frame


_BY_NAME = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_ZSTD_LEVEL = 1  # as the shim
# What a byte can stand for at most, by the rules of the format: a block that claims more is refused before memory is taken for it.
# LZ4: 255 by a byte more of a length. zstd: a block of 128 KiB takes at least 4 bytes.
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


def compress(codec: Codec, raw: bytes) -> bytes:
    """Return `raw` compressed. Raises: UnsupportedError: LZ4, and pyarrow is not installed."""
    if codec is Codec.NONE:
        return raw
    if codec is Codec.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(raw)
    arrow = _arrow()
    if arrow is None:
        raise UnsupportedError(
            "to write changelogs with lz4 needs the package pyarrow, which is not installed",
            kind=ErrorKind.UNSUPPORTED,
            hint="Run `python -m pip install pyarrow` in the environment of this command.",
        )
    data = _lz4(arrow).compress(raw, asbytes=True)
    assert isinstance(data, bytes)
    return data


def _fits(arrow: Any, decoder: Any, stored: bytes, size_bytes: int) -> bool:
    # pyarrow does not say how many bytes an LZ4 block made: of a block that made fewer than asked for, the rest is garbage.
    try:
        decoder.decompress(stored, decompressed_size=size_bytes)
    except (OSError, arrow.ArrowException):
        return False
    return True


def decompress(codec: Codec, stored: bytes, raw_bytes: int) -> bytes:
    """Return the `raw_bytes` bytes that `stored` stands for.

    Raises:
        ValueError: it stands for something else, or is damaged.
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
    import zstandard

    try:
        size = zstandard.frame_content_size(stored)
        if size not in (
            -1,
            raw_bytes,
        ):  # -1: the frame does not say; a lie must not make us allocate
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
