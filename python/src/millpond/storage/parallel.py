"""Parts of large objects move side by side, in a bounded number of threads per storage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")


class Parallel:
    """At most `workers` calls at a time. Starts no thread before the first call."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def start(self, calls: Sequence[Callable[[], T]]) -> list[Future[T]]:
        """Start the calls. Whoever starts them must `end` them."""
        from concurrent.futures import (
            ThreadPoolExecutor,
        )  # not before it is needed: every agent imports this module

        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    self._workers, thread_name_prefix="millpond-storage"
                )
            return [self._pool.submit(call) for call in calls]

    @staticmethod
    def end(futures: Sequence[Future[T]]) -> None:
        """Cancel those that have not begun and wait for the others: afterwards none touches a file any more."""
        from concurrent.futures import wait

        for future in futures:
            future.cancel()
        wait(futures)

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return what the calls return, in order. All have ended when this returns, or raises the error of the first that failed."""
        futures = self.start(calls)
        try:
            return [future.result() for future in futures]
        finally:
            self.end(futures)
