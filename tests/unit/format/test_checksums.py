"""Check sums of pieces."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from millpond.format.checksums import joined_crc32


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_sum_of_two_pieces(first: bytes, second: bytes) -> None:
    assert joined_crc32(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(
        first + second
    )


def test_the_sum_of_a_long_piece() -> None:
    zeros = bytes(9_000_000)
    assert joined_crc32(0xDEADBEEF, zlib.crc32(zeros), len(zeros)) == zlib.crc32(
        b"".join([zeros]), 0xDEADBEEF
    )
