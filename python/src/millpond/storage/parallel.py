"""Runs calls side by side, in a bounded number of threads: the parts of large objects."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")


class Parallel:
    """Runs at most `workers` calls at a time. Starts no thread before the first call."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def start(self, calls: Sequence[Callable[[], T]]) -> list[Future[T]]:
        """Start the calls. The caller must `end` them."""
        # Start-up time: every agent imports this module, and few have large objects.
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    self._workers, thread_name_prefix="millpond-storage"
                )
            return [self._pool.submit(call) for call in calls]

    @staticmethod
    def end(futures: Sequence[Future[T]]) -> None:
        """Cancel the calls that have not begun, and wait for the others.

        Afterwards no call touches a file.
        """
        from concurrent.futures import wait  # start-up time

        for future in futures:
            future.cancel()
        wait(futures)

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run the calls, and return their results in order.

        Raises the error of the first call in the list that failed. All calls have ended when this
        returns or raises.
        """
        futures = self.start(calls)
        try:
            return [future.result() for future in futures]
        finally:
            self.end(futures)


_all: weakref.WeakSet[Parallel] = weakref.WeakSet()


def _forked() -> None:
    """A child has none of its parent's threads, and a pool that takes them to be there waits."""
    for one in list(_all):
        one._begin()


os.register_at_fork(after_in_child=_forked)
