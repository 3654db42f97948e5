"""CRC-32 (zlib's) of local files, and of data that came in pieces."""

from __future__ import annotations

import zlib
from typing import BinaryIO

_READ_BYTES = 1024 * 1024
# The polynomial, and the polynomials 1 and x. The lowest bit is the highest power, as in the sum
# itself.
_POLYNOMIAL, _ONE, _X = 0xEDB88320, 1 << 31, 1 << 30


def file_crc32(path: str) -> int:
    """Return the CRC-32 of a local file. Raises: OSError."""
    with open(path, "rb") as file:
        return stream_crc32(file)


def stream_crc32(stream: BinaryIO) -> int:
    """Return the CRC-32 of what is left to read. Raises: OSError."""
    crc = 0
    while piece := stream.read(_READ_BYTES):
        crc = zlib.crc32(piece, crc)
    return crc


def joined_crc32(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32 of two pieces, one behind the other, from the CRC-32 of each.

    Source: zlib's `crc32_combine`.
    """
    shift, square, power = _ONE, _X, second_bytes * 8
    while power:
        if power & 1:
            shift = _multiplied(square, shift)
        square = _multiplied(square, square)
        power >>= 1
    return _multiplied(shift, first) ^ second


def _multiplied(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product
