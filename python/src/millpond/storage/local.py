"""Storage on a file system that this process can reach (`file:`), local or mounted."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnsupportedError,
    error,
)
from millpond.format.layout import new_staging_name
from millpond.local.os_errors import kind_of
from millpond.storage.base import Copied, ObjectInfo, Storage
from millpond.storage.keys import check_is_file, check_key, check_prefix, check_range

# What link(2) answers if it cannot give the file a second name: another device, no hard links
# there, too many names.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}


# An error about a stored object has another kind than one about a file of this machine's own.
_OF_STORED = {
    ErrorKind.LOCAL_DISK_FULL: ErrorKind.STORAGE_FULL,
    ErrorKind.LOCAL_FILES_LOST: ErrorKind.OBJECT_NOT_FOUND,
}


def translate(e: OSError, what: str) -> MillpondError:
    """Return the Millpond error for an error of the operating system about a stored object.

    Args:
        what: what was done to which object or file, for the message.
    """
    kind = kind_of(e)
    return error(_OF_STORED.get(kind, kind), f"{what}: {e.strerror or e}")


def translate_restored(e: OSError, what: str, *, hint: str = "") -> MillpondError:
    """Return the Millpond error for an error of the operating system about a file of the executor's
    own disk: mostly, of a fetched object.

    If the local file or its directory is gone, that says nothing about a stored object. So this
    never returns OBJECT_NOT_FOUND.

    Args:
        hint: what helps if they are gone; "": that of LOCAL_FILES_LOST.
    """
    kind = kind_of(e)
    return error(
        kind,
        f"{what}: {e.strerror or e}",
        hint=hint if kind is ErrorKind.LOCAL_FILES_LOST else "",
    )


def sync_directory(path: str) -> None:
    """Make the names in a directory durable.

    Some mounted file systems cannot fsync a directory. There a rename is as durable as the file
    system makes it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_empty_directories(path: str) -> None:
    """Remove the directory at `path`, and those below it, as far as they hold nothing."""
    for directory, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):  # it holds something, or another process was first
            os.rmdir(directory)


class LocalStorage:
    """Objects as files below one directory.

    Args:
        root: absolute path of the Spark checkpoint; it need not exist yet.
        fsync: option commit.fsync. False: a put may be lost if the machine dies.
        make_root: False: a put fails (OBJECT_NOT_FOUND) unless the directory is there.
    """

    def __init__(self, root: str, *, fsync: bool = True, make_root: bool = True) -> None:
        if not os.path.isabs(root):
            raise InvalidInputError(
                f"not an absolute path: {root!r}",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Give the whole path, from / on.",
            )
        self.root = os.path.normpath(root)
        self._fsync = fsync
        self._make_root = make_root

    def __repr__(self) -> str:
        return f"LocalStorage({self.root!r})"

    # ---- writing

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        target = self._path(key)
        check_is_file(local_path)
        with self._storing(key, target) as directory:
            if not (link and self._put_link(target, local_path, if_absent)):
                with open(local_path, "rb") as source:
                    self._put_copy(source, directory, target, if_absent)

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        target = self._path(key)
        with self._storing(key, target) as directory:
            self._put_copy(io.BytesIO(data), directory, target, if_absent)

    @contextmanager
    def _storing(self, key: str, target: str) -> Iterator[str]:
        """Make the directory of `target`, yield it, and sync it: a new name is then durable."""
        try:
            directory = self._make_parent(target)
            yield directory
            self._sync_directory(directory)
        except FileExistsError as e:
            raise ConflictError(f"{key} exists already", kind=ErrorKind.OBJECT_EXISTS) from e
        except OSError as e:
            if kind_of(e) is ErrorKind.LOCAL_FILES_LOST:
                raise NotFoundError(
                    f"storing {key}: {e.strerror}",
                    kind=ErrorKind.OBJECT_NOT_FOUND,
                    hint=f"Check that files and directories can be made in {self.root}.",
                ) from e
            raise translate(e, f"storing {key}") from e

    def _put_copy(self, source: BinaryIO, directory: str, target: str, if_absent: bool) -> None:
        """Write all of `source` to a staging file, sync it, and give it its name."""
        staging = os.path.join(directory, new_staging_name())
        try:
            with open(staging, "xb") as copy:
                shutil.copyfileobj(source, copy, 1024 * 1024)
                copy.flush()
                self._sync_file(copy.fileno())
            self._publish(staging, target, if_absent)
        finally:
            self._remove_quietly(staging)

    def _put_link(self, target: str, local_path: str, if_absent: bool) -> bool:
        """Give the file a second name. Return False, and change nothing, if that cannot be done."""
        descriptor = os.open(local_path, os.O_RDONLY)
        try:
            self._sync_file(descriptor)
        finally:
            os.close(descriptor)
        # With `if_absent`, link(2) makes the final name. It is atomic and refuses an existing name.
        name = target if if_absent else os.path.join(os.path.dirname(target), new_staging_name())
        try:
            os.link(local_path, name)
        except OSError as e:
            if e.errno in _NO_LINK:
                return False
            raise
        if not if_absent:
            try:
                os.replace(name, target)
            finally:
                # A repeated put: if both names are of one file, rename(2) does nothing, and leaves
                # both.
                self._remove_quietly(name)
        return True

    def _publish(self, staging: str, target: str, if_absent: bool) -> None:
        if not if_absent:
            os.replace(staging, target)
            return
        try:
            os.link(staging, target)
        except OSError as e:
            if (
                e.errno in _NO_LINK
                and not os.path.lexists(target)
                and os.access(os.path.dirname(target), os.W_OK)
            ):
                raise UnsupportedError(
                    f"{target}: this file system cannot create a file atomically unless it exists"
                    " (no hard links)",
                    kind=ErrorKind.STORAGE_UNSUPPORTED,
                ) from e
            raise

    def _make_parent(self, target: str) -> str:
        directory = os.path.dirname(target)
        missing: list[str] = []
        probe = directory
        while not os.path.isdir(probe):
            if probe == self.root and not self._make_root:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), probe)
            missing.append(probe)
            parent = os.path.dirname(probe)
            if parent == probe:
                break
            probe = parent
        for path in reversed(missing):
            with suppress(FileExistsError):  # another writer made it meanwhile
                os.mkdir(path)
            self._sync_directory(os.path.dirname(path))
        return directory

    def _sync_file(self, descriptor: int) -> None:
        if self._fsync:
            os.fsync(descriptor)

    def _sync_directory(self, path: str) -> None:
        if self._fsync:
            sync_directory(path)

    @staticmethod
    def _remove_quietly(path: str) -> None:
        # Callers run this in `finally`: the first error is the one that matters. The collection
        # sweeps a staging file that stays.
        with suppress(OSError):
            os.unlink(path)

    def free_bytes(self) -> int:
        """Return how many bytes are free on the file system of the root."""
        path = self.root
        while not os.path.isdir(path) and path != os.path.dirname(path):
            path = os.path.dirname(path)
        try:
            return shutil.disk_usage(path).free
        except OSError as e:
            raise translate(e, f"looking at {path}") from e

    # ---- reading

    def read(self, key: str) -> bytes:
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as e:
            raise translate(e, f"reading {key}") from e

    def read_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        check_range(key, start, length)
        try:
            with open(path, "rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as e:
            raise translate(e, f"reading {key}") from e

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> None:
        path = self._path(key)
        temporary = os.path.join(os.path.dirname(local_path), new_staging_name())
        try:
            # Opened apart from the copy, so that an error names the right side.
            source = open(path, "rb")  # noqa: SIM115 - closed below
        except OSError as e:
            raise translate(e, f"reading {key}") from e
        try:
            with source:
                linked = False
                if link:
                    try:
                        os.link(path, temporary)
                        linked = True
                    except OSError as e:
                        if e.errno == errno.ENOENT and not os.path.exists(path):
                            raise NotFoundError(
                                f"{key} was deleted meanwhile", kind=ErrorKind.OBJECT_NOT_FOUND
                            ) from e
                        if e.errno not in _NO_LINK:
                            raise
                if not linked:
                    with open(temporary, "xb") as copy:
                        shutil.copyfileobj(source, copy, 1024 * 1024)
            os.replace(temporary, local_path)
        except OSError as e:
            raise translate_restored(e, f"fetching {key} to {local_path}") from e
        finally:
            self._remove_quietly(temporary)

    def stat(self, key: str) -> ObjectInfo:
        path = self._path(key)
        try:
            info = os.stat(path)
        except OSError as e:
            raise translate(e, f"looking at {key}") from e
        if not os.path.isfile(path):
            raise NotFoundError(f"looking at {key}: not a file", kind=ErrorKind.OBJECT_NOT_FOUND)
        return ObjectInfo(key, info.st_size, info.st_mtime_ns // 1_000_000)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._walk(prefix.rpartition("/")[0], prefix)

    def _walk(self, directory: str, prefix: str) -> Iterator[ObjectInfo]:
        path = os.path.join(self.root, directory) if directory else self.root
        try:
            with os.scandir(path) as entries:
                # What is in a folder has the folder's name and a slash at its beginning.
                found = sorted(
                    (entry.name + "/" * entry.is_dir(follow_symlinks=False), entry)
                    for entry in entries
                )
        except (FileNotFoundError, NotADirectoryError):
            return  # no such directory: no objects
        except OSError as e:
            raise translate(e, f"listing {directory or self.root}") from e
        for name, entry in found:
            key = f"{directory}/{name}" if directory else name
            if name.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._walk(key[:-1], prefix)
            elif key.startswith(prefix):
                try:
                    info = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since the directory was read
                except OSError as e:
                    raise translate(e, f"listing {directory or self.root}") from e
                yield ObjectInfo(key, info.st_size, info.st_mtime_ns // 1_000_000)

    # ---- deleting

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except IsADirectoryError:
                continue  # directories are no objects
            except OSError as e:
                raise translate(e, f"deleting {key}") from e

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        check_key(key)
        return None

    def local_path(self, key: str) -> str | None:
        return self._path(key)

    def _path(self, key: str) -> str:
        return os.path.join(self.root, check_key(key))
