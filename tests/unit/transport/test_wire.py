"""Frames between a worker and the JVM."""

from __future__ import annotations

import io

import pytest

from millpond.transport.wire import Wire


@pytest.mark.parametrize("part", ["changes", "rows"])
def test_a_frame_that_the_jvm_cannot_take_is_refused(part: str) -> None:
    """Its length has 31 bits. The error of the module `struct` said nothing of that."""
    out = io.BytesIO()
    large = bytes(1 << 31)  # nobody touches these pages
    with pytest.raises(ValueError, match=r"2048 MiB at once.*below 2 GiB.*fewer or smaller"):
        Wire(io.BytesIO(), out).result(
            consumed=False,
            phase_over=False,
            keys_done=0,
            changes=large if part == "changes" else b"",
            rows=large if part == "rows" else b"",
        )
    assert out.getvalue() == b""
