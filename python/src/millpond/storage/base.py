"""What Millpond needs from a storage: whole objects under keys, durable on return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from millpond.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object."""

    key: str  # relative to the Spark checkpoint
    size_bytes: int
    modified_ms: int  # since the epoch, by the storage's clock
    tag: str = ""  # changes when the object is replaced; "" if the storage has no such tag


@dataclass(frozen=True, slots=True)
class Copied:
    """An object that the server copied."""

    size_bytes: int
    crc32: int  # of its bytes, as the first put computed it


class Storage(Protocol):
    """Objects under keys relative to one Spark checkpoint (`state/0/3/12.changelog`).

    Every put is atomic: a reader sees the old object, the new one or none, never a part. Every put
    is durable on return. All methods are thread-safe.

    All methods raise:
        InvalidInputError: INVALID_ARGUMENT: a key that is empty, absolute, or has empty, `.` or
            `..` segments.
        NotFoundError: OBJECT_NOT_FOUND: the object to read does not exist.
        UnavailableError: STORAGE_DENIED, STORAGE_FULL, STORAGE_UNAVAILABLE; LOCAL_DISK_FULL: a
            local file cannot be written.
    """

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        """Store the bytes of the local file `local_path`. The file stays where it is.

        Args:
            key: the object is replaced if it exists, unless `if_absent`.
            local_path: a complete file. It must not change during the call; with `link`, never.
            if_absent: if the object exists, raise ConflictError (OBJECT_EXISTS) and change nothing.
            link: the storage may share the file's blocks instead of copying them.
        Raises: InvalidInputError: INVALID_ARGUMENT: no file at `local_path`.
        """

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """Store `data`; `if_absent` as for `put_file`."""

    def read(self, key: str) -> bytes:
        """Return the whole object."""

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return the bytes `[start, start + length)`; fewer if the object ends before.

        Raises: InvalidInputError: `start` or `length` is negative.
        """

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> int | None:
        """Write the object to the local file `local_path`, and replace a file that is there.

        The file is a cache, so it is not made durable. After an error there is no half file.

        Args:
            local_path: its directory must exist.
            link: the file may share blocks with the object. Then nobody may change it in place.
        Returns: the CRC-32 of the bytes if the storage computed it on the way, else None.
        """

    def stat(self, key: str) -> ObjectInfo:
        """Return the object's size, time and tag."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`, in ascending order of keys.

        Staging files are included. To list a directory, end the prefix with a slash. "" lists
        everything. Objects that come or go meanwhile may or may not be in the list. If there is no
        object, the list is empty.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects. Skips those that do not exist.

        After an error some may be left. The caller may repeat the call.
        """

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        """Copy the object `source_key` of another storage on the server, replacing `key`.

        No byte of it comes to this machine. Returns None and does nothing if these storages cannot.

        Raises: NotFoundError: OBJECT_NOT_FOUND: no such object in `source`.
        """

    def local_path(self, key: str) -> str | None:
        """Return the absolute path at which processes of this machine can open the object.

        None if there is no such path. Does not look whether the object exists.
        """


def read_if_there(storage: Storage, key: str) -> bytes | None:
    """Return an object's bytes, or None. Raises: UnavailableError: the storage fails."""
    try:
        return storage.read(key)
    except NotFoundError:
        return None


def is_there(storage: Storage, key: str) -> bool:
    """Return whether there is an object. Raises: UnavailableError: the storage fails."""
    try:
        storage.stat(key)
    except NotFoundError:
        return False
    return True
