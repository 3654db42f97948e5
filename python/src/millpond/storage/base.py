"""What Millpond needs from the storage of a Spark checkpoint: whole objects under keys, durable on return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object."""

    key: str  # relative to the Spark checkpoint
    size_bytes: int
    modified_ms: int  # since the epoch, by the storage's clock
    tag: str = (
        ""  # changes whenever the object is replaced; "" where the storage has nothing of the kind
    )


@dataclass(frozen=True, slots=True)
class Copied:
    """An object that was copied where it is kept. crc32: of its bytes, as they were when they were stored."""

    size_bytes: int
    crc32: int


class Storage(Protocol):
    """Objects under keys relative to one Spark checkpoint (`state/0/3/12.changelog`).

    Every put is atomic (a reader sees the old object, the new one or none, never a part) and durable on return. All methods
    are thread-safe. All raise:
        InvalidInputError: INVALID_ARGUMENT: a key that is empty, absolute, or has empty, `.` or `..` segments.
        NotFoundError: OBJECT_NOT_FOUND: no such object, where one is read.
        UnavailableError: STORAGE_DENIED, STORAGE_FULL, STORAGE_UNAVAILABLE, LOCAL_DISK_FULL (writing a local file).
    """

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        """Store the bytes of the local file `local_path`, which stays where it is.

        Args:
            key: replaced if it exists, unless `if_absent`.
            local_path: complete; must not change during the call, nor ever after if `link`.
            if_absent: raise ConflictError (OBJECT_EXISTS), and change nothing, if the object exists.
            link: may share the file's blocks instead of copying them, where the storage can.
        Raises: InvalidInputError: INVALID_ARGUMENT: no file at `local_path`.
        """

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """Store `data`; `if_absent` as for `put_file`."""

    def read(self, key: str) -> bytes:
        """Return the whole object."""

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return the bytes `[start, start + length)`, fewer where the object ends before.

        Raises: InvalidInputError: `start` or `length` is negative.
        """

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> int | None:
        """Write the object to the local file `local_path`, replacing one that is there. Not durable: it is a cache.

        Return the CRC-32 of its bytes where it was made while they came, None where not.

        With `link` it may share blocks with the object: then the local file must never be changed in place. Its
        directory must exist. After an error there is no half file at `local_path`.
        """

    def stat(self, key: str) -> ObjectInfo:
        """Return size and time of the object."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return all objects whose key starts with `prefix`, in ascending order of keys, staging files included.

        A directory is listed with a slash at its end; "" lists everything. Objects that come or go meanwhile may or may not be
        there. No object: nothing, no error.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; those that do not exist are skipped. After an error some may be left: repeat it."""

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        """Make the object `key`, replacing one that is there, of the object `source_key` of another storage, within what keeps both: no
        byte of it comes to this machine. None, and nothing is done, where that cannot be. Raises: NotFoundError: OBJECT_NOT_FOUND: no
        such object in `source`."""

    def local_path(self, key: str) -> str | None:
        """Return the absolute path under which this machine's processes can open the object, or None if there is none.

        Does not look whether the object exists.
        """
