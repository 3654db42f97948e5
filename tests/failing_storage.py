"""A storage that fails at a change that the test chooses."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.errors import ErrorKind, UnavailableError
from millpond.storage import LocalStorage


class Killed(Exception):
    """Somebody killed the process, or switched the machine off."""


class FailingStorage(LocalStorage):
    """Puts and deletions fail for good after `left` of them, or at the key `stop_before`."""

    def __init__(
        self,
        root: str,
        *,
        left: int = -1,
        stop_before: str = "",
        kills: bool = False,
        once: bool = False,
        fsync: bool = False,
    ) -> None:
        """Args:
        left: how many changes succeed before one fails; -1: all. A test may set it anew.
        kills: a change that fails raises Killed; else STORAGE_UNAVAILABLE.
        once: only one change fails.
        """
        super().__init__(root, fsync=fsync)
        self.left, self._stop_before, self._kills, self._once = left, stop_before, kills, once

    def _step(self, key: str) -> None:
        if key == self._stop_before:
            self.left = 0
        if self.left == 0:
            if self._once:
                self.left = -1
            if self._kills:
                raise Killed
            raise UnavailableError("no answer", kind=ErrorKind.STORAGE_UNAVAILABLE)
        if self.left > 0:
            self.left -= 1

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        self._step(key)
        super().put_bytes(key, data, if_absent=if_absent)

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        self._step(key)
        super().put_file(key, local_path, if_absent=if_absent, link=link)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._step(key)
            super().delete([key])
