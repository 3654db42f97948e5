"""Which `open` of a store is the last one that was asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from millpond.errors import ErrorKind, error


class NewestOpen:
    """A provider that loads its store again wants no earlier load any more: its task was killed, or
    a task took the store over from a follower. That load may still stand before its first file, or
    behind another one.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, int] = {}  # the provider's folder -> generation

    def asked(self, local_dir: str, generation: int) -> Callable[[], None]:
        """Note a load of this generation into its folder, `local_dir`.

        Returns: a function that raises once the provider has asked for a later one. Any thread may
            call it. UnavailableError: STORE_CLOSED.
        """
        provider = os.path.dirname(local_dir)
        with self._lock:
            self._newest[provider] = max(generation, self._newest.get(provider, generation))

        def check() -> None:
            with self._lock:
                newest = self._newest[provider]
            if newest > generation:
                raise error(
                    ErrorKind.STORE_CLOSED,
                    f"load {generation} ends, because load {newest} of the store has begun",
                )

        return check
