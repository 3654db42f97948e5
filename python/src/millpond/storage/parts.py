"""How to cut a large object into parts (pure)."""

from __future__ import annotations

MAX_PARTS = 10_000  # S3's limit for one multipart upload


def plan_parts(size_bytes: int, part_bytes: int) -> list[tuple[int, int]]:
    """Return the parts `(start, length)` of an object, in bytes, ascending.

    There are at most `MAX_PARTS`; an empty object has none. All but the last have the same length:
    `part_bytes`, or more if the limit needs it.
    """
    length = max(part_bytes, -(-size_bytes // MAX_PARTS))
    return [(start, min(length, size_bytes - start)) for start in range(0, size_bytes, length)]
