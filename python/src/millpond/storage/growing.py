"""Puts of files that still grow: their bytes go to the storage before the files are complete.

A storage that can do this has the methods of `GrowsFiles`. The others take a file when it is
complete.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from millpond.storage.base import Storage
from millpond.storage.split import SplitStorage, side_of


class GrowingPut(Protocol):
    """A put of one file. Thread-safe.

    Nobody sees an object before `finish` has returned True.
    """

    def grown(self, size_bytes: int) -> None:
        """Note that the file has so many bytes. Send what will not change, in the background."""

    def finish(self) -> bool:
        """Send what is left, and make the object. The file is complete.

        Returns: False: there is no object, and the caller must put the file as a whole.
        Raises: UnavailableError: STORAGE_UNAVAILABLE: as `Storage.put_file`.
        """

    def abandon(self) -> None:
        """Throw away what was sent, in the background. After `finish` this does nothing."""


@runtime_checkable
class GrowsFiles(Protocol):
    """A storage that can put a file that still grows."""

    def growing_put(self, key: str, local_path: str, fixed_from: int) -> GrowingPut:
        """Begin a put. Nothing is sent before the file is large.

        Args:
            key: nobody else may put or delete this object until `finish` returns.
            local_path: what it has from byte `fixed_from` on never changes. It may be deleted
                only after `abandon`, or else `finish` returns False.
        """

    def drop_unfinished(self, prefix: str, begun_before_ms: int) -> int:
        """Throw away what puts of keys with this prefix left behind that nobody finished.

        Args:
            begun_before_ms: since the epoch; younger ones stay.
        Returns: how many there were.
        """


def begin_growing(
    storage: Storage, key: str, local_path: str, fixed_from: int
) -> GrowingPut | None:
    """Begin a put of a file that still grows; None if the storage cannot do this.

    Arguments: as `GrowsFiles.growing_put`.
    """
    side = side_of(storage, key)
    return side.growing_put(key, local_path, fixed_from) if isinstance(side, GrowsFiles) else None


def drop_unfinished(storage: Storage, prefix: str, begun_before_ms: int) -> int:
    """Throw away what puts that nobody finished have left: `GrowsFiles.drop_unfinished`."""
    side = storage.state if isinstance(storage, SplitStorage) else storage
    return side.drop_unfinished(prefix, begun_before_ms) if isinstance(side, GrowsFiles) else 0
