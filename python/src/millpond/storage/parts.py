"""How a large object is cut (pure)."""

from __future__ import annotations

MAX_PARTS = 10_000  # of one multipart upload, by S3's rules


def plan_parts(size_bytes: int, part_bytes: int) -> list[tuple[int, int]]:
    """Return the parts `(start, length)` of an object of `size_bytes`, ascending, at most `MAX_PARTS`.

    All but the last have one length, `part_bytes` or as much more as the limit asks for. Nothing for an empty object.
    """
    length = max(part_bytes, -(-size_bytes // MAX_PARTS))
    return [(start, min(length, size_bytes - start)) for start in range(0, size_bytes, length)]
