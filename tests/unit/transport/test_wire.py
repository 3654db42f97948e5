"""Frames between a worker and the JVM."""

from __future__ import annotations

import io
import os
import socket

import pytest

from millpond.transport.wire import Wire, send_at_once


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


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_the_stream_waits_whatever_a_job_says_of_new_sockets(family: int) -> None:
    """The worker of the next task read None, and failed."""
    if family == socket.AF_UNIX:
        ours, theirs = socket.socketpair(family)
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
    before = socket.getdefaulttimeout()
    with ours, theirs:
        socket.setdefaulttimeout(5)
        try:
            with os.fdopen(os.dup(ours.fileno()), "wb") as stream:
                send_at_once(stream)
        finally:
            socket.setdefaulttimeout(before)
        assert os.get_blocking(ours.fileno())
