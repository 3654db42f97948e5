"""Storage in memory. Tests compare every other implementation with it."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator

from millpond.errors import ConflictError, ErrorKind, NotFoundError
from millpond.storage.base import Copied, ObjectInfo, Storage
from millpond.storage.keys import check_key, check_prefix, check_range, no_file


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryStorage:
    """Objects in a dict.

    Args:
        clock_ms: source of modification times, in ms since the epoch.
    """

    def __init__(self, *, clock_ms: Callable[[], int] = _now_ms) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        check_key(key)
        try:
            with open(local_path, "rb") as file:
                data = file.read()
        except (FileNotFoundError, IsADirectoryError) as e:
            raise no_file(local_path) from e
        self.put_bytes(key, data, if_absent=if_absent)

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        check_key(key)
        with self._lock:
            if if_absent and key in self._objects:
                raise ConflictError(f"{key} exists already", kind=ErrorKind.OBJECT_EXISTS)
            self._objects[key] = (bytes(data), self._clock_ms())

    def _get(self, key: str) -> tuple[bytes, int]:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise NotFoundError(f"no object {key}", kind=ErrorKind.OBJECT_NOT_FOUND)
        return found

    def read(self, key: str) -> bytes:
        return self._get(key)[0]

    def read_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        return self._get(key)[0][start : start + length]

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> None:
        data = self.read(key)
        temporary = f"{local_path}.part-{os.getpid()}-{threading.get_ident()}"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, local_path)
        except BaseException:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            raise

    def stat(self, key: str) -> ObjectInfo:
        data, modified_ms = self._get(key)
        return ObjectInfo(key, len(data), modified_ms)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            found = [(k, len(v[0]), v[1]) for k, v in self._objects.items() if k.startswith(prefix)]
        return iter([ObjectInfo(*entry) for entry in sorted(found)])

    def delete(self, keys: Iterable[str]) -> None:
        checked = [check_key(key) for key in keys]
        with self._lock:
            for key in checked:
                self._objects.pop(key, None)

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        check_key(key)
        if not isinstance(source, MemoryStorage):
            return None
        data = source.read(source_key)
        self.put_bytes(key, data)
        return Copied(len(data), zlib.crc32(data))

    def local_path(self, key: str) -> str | None:
        check_key(key)
        return None
