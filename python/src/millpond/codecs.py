"""Compression of changelog blocks: LZ4 raw blocks and zstd frames, by pyarrow, which is loaded only when it is needed.

Without pyarrow, LZ4 is decompressed in Python (slowly); the rest asks for pyarrow.
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
_ARROW_NAMES = {Codec.LZ4: "lz4_raw", Codec.ZSTD: "zstd"}


def by_name(name: str) -> Codec:
    """Return the codec that the option changelog.codec calls `name`. Raises: InvalidInputError."""
    codec = _BY_NAME.get(name)
    if codec is None:
        raise InvalidInputError(f"no codec {name!r}: one of {', '.join(_BY_NAME)}", kind=ErrorKind.INVALID_ARGUMENT)
    return codec


def _arrow() -> Any | None:
    try:
        import pyarrow  # here and not above: 0.2 s that most processes never need
    except ImportError:
        return None
    return pyarrow


def _need_arrow(codec: Codec) -> UnsupportedError:
    return UnsupportedError(
        f"changelogs with {codec.name.lower()} need the package pyarrow, which is not installed",
        kind=ErrorKind.UNSUPPORTED,
        hint="Run `python -m pip install pyarrow` in the environment of this command.",
    )


def compress(codec: Codec, raw: bytes) -> bytes:
    """Return `raw` compressed. Raises: UnsupportedError: pyarrow is not installed."""
    if codec is Codec.NONE:
        return raw
    arrow = _arrow()
    if arrow is None:
        raise _need_arrow(codec)
    data = arrow.Codec(_ARROW_NAMES[codec]).compress(raw, asbytes=True)
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
        UnsupportedError: UNSUPPORTED: zstd, and pyarrow is not installed.
    """
    if codec is Codec.NONE:
        raw = stored
    else:
        arrow = _arrow()
        if arrow is not None and not (codec is Codec.LZ4 and raw_bytes < 2):
            decoder = arrow.Codec(_ARROW_NAMES[codec])
            try:
                raw = decoder.decompress(stored, decompressed_size=raw_bytes, asbytes=True)
            except (OSError, arrow.ArrowException) as e:
                raise ValueError(f"{codec.name.lower()}: {type(e).__name__}") from e
            if codec is Codec.LZ4 and _fits(arrow, decoder, stored, raw_bytes - 1):
                raise ValueError(f"fewer than {raw_bytes} bytes")
        elif codec is Codec.LZ4:
            raw = lz4_block.decompress(stored, raw_bytes)
        else:
            raise _need_arrow(codec)
    if len(raw) != raw_bytes:
        raise ValueError(f"{len(raw)} bytes instead of {raw_bytes}")
    return raw
