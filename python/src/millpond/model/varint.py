"""Numbers of variable length (unsigned LEB128), as changelogs, SSTs and Avro have them. Pure."""

from __future__ import annotations


def encode_varint(value: int) -> bytes:
    """Return `value` (>= 0) as an unsigned LEB128."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(raw: bytes, position: int, most_bytes: int = 10) -> tuple[int, int]:
    """Return the unsigned LEB128 at `position`, and the position after it.

    Args:
        most_bytes: of a number; a longer one is refused. Ten have 64 bits.
    Raises: ValueError: it is too long. IndexError: it does not end.
    """
    byte = raw[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift, last = byte & 0x7F, 7, 7 * most_bytes
    while True:
        position += 1
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift >= last:
            raise ValueError("varint too long")
