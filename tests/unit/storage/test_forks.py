"""A fork of a process that has used a storage: it has none of its threads and connections."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable

from millpond.storage.parallel import Parallel
from millpond.storage.s3_client import shared_client
from millpond.storage.settings import S3Settings

_SETTINGS = S3Settings(endpoint="http://127.0.0.1:1", region="us-east-1")


def _in_a_fork(call: Callable[[], None]) -> int | None:
    """Return the exit code of a fork that calls; None: it hangs, and was killed."""
    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    process.join(30)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    return code


def test_calls_run_side_by_side_in_a_fork() -> None:
    """The child waited for ever: its pool took the parent's idle threads to be its own."""
    calls, all_at_once = Parallel(4), threading.Barrier(4)
    assert len(calls.run([all_at_once.wait] * 4)) == 4

    def again() -> None:
        assert calls.run([lambda: 2]) == [2]

    assert _in_a_fork(again) == 0
    assert calls.run([lambda: 3]) == [3]


def test_a_fork_has_connections_of_its_own() -> None:
    """Two children that share one read each other's answers."""
    parents = shared_client("bucket", _SETTINGS)

    def other() -> None:
        assert shared_client("bucket", _SETTINGS) is not parents

    assert _in_a_fork(other) == 0
    assert shared_client("bucket", _SETTINGS) is parents
