"""Keeps fetched and uploaded SSTs on the local disk, for the next restore on this host.

    <directory>/<uuid>-<crc32>.sst      hard links to the files that stores use: they cost no space

Executors share the directory without locks. An entry gets its name when it is complete (link(2)).
Its checksum is compared with the manifest's before it is used. It may vanish at any moment. A
killed process leaves nothing half done. The cache uses only a directory that belongs to this user
and that nobody else can read.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import threading
import time
from contextlib import suppress

from millpond.format.checksums import file_crc32
from millpond.format.manifest import SstRef

log = logging.getLogger(__name__)

_NAME = "millpond-cache"
_PARTS = 8


def cache_directory(parent: str) -> str:
    """Return the directory of the cache; it differs by user.

    Args:
        parent: where executors keep their local files.
    """
    return os.path.join(parent, f"{_NAME}-{os.geteuid()}")


class SstCache:
    """Thread-safe, and safe between processes.

    Args:
        directory: made if it is not there.
        limit_bytes: above it the entries go that were unused longest; 0: nothing is kept.
    """

    def __init__(self, directory: str, limit_bytes: int) -> None:
        self.directory = directory
        self._limit_bytes = limit_bytes
        self._usable: bool | None = None
        self._lock = threading.Lock()
        self._room_bytes = 0  # before the next look into the directory

    def take(self, sst: SstRef, path: str) -> bool:
        """Give the cached file the name `path` too.

        Returns: False, with nothing at `path`, if the cache has no whole copy.
        """
        if not self._is_usable():
            return False
        entry = self._entry(sst)
        try:
            _link_or_copy(entry, path)
            if os.path.getsize(path) == sst.size_bytes and file_crc32(path) == sst.crc32:
                # Note that it was used. Its modification time must stay: local files are recognised
                # by it.
                os.utime(entry, ns=(time.time_ns(), os.stat(entry).st_mtime_ns))
                return True
            log.warning("cached SST is damaged, it is fetched again path=%s", entry)
            os.unlink(entry)
        except FileNotFoundError:
            pass  # the cache never had it, or another executor has evicted it
        except OSError as e:
            log.info("cannot use cached SST %s: %s", entry, e)
        with suppress(FileNotFoundError):
            os.unlink(path)
        return False

    def add(self, sst: SstRef, path: str) -> None:
        """Keep the file at `path`, whose checksum was compared.

        Never raises: this is only a cache.
        """
        if not self._is_usable() or sst.size_bytes > self._limit_bytes:
            return
        try:
            # A link to another device fails. A copy would cost space, so the cache then keeps
            # nothing that stores use from elsewhere.
            os.link(path, self._entry(sst))
        except FileExistsError:
            return
        except OSError as e:
            log.info("cannot keep SST %s in %s: %s", path, self.directory, e)
            if isinstance(e, FileNotFoundError):
                self._usable = None  # if somebody removed the directory, make it again
            return
        with self._lock:
            self._room_bytes -= sst.size_bytes
            is_full = self._room_bytes < 0
        if is_full:
            self._evict()

    def _entry(self, sst: SstRef) -> str:
        uuid = sst.key.rpartition("/")[2].removesuffix(".sst")
        return os.path.join(self.directory, f"{uuid}-{sst.crc32:08x}.sst")

    def _evict(self) -> None:
        """Look into the directory, and remove entries if it is too full.

        A look takes as long as there are entries, which may be a hundred thousand small ones. So
        it makes room for a part of the cache, and the next one comes when that is filled.
        """
        entries: list[tuple[int, int, str]] = []
        try:
            with os.scandir(self.directory) as found:
                for entry in found:
                    with suppress(FileNotFoundError):
                        info = entry.stat(follow_symlinks=False)
                        entries.append((info.st_atime_ns, info.st_size, entry.path))
        except OSError as e:
            log.info("cannot look into %s: %s", self.directory, e)
            return
        total = sum(size_bytes for _, size_bytes, _ in entries)
        part_bytes = self._limit_bytes // _PARTS
        if total > self._limit_bytes:
            for _, size_bytes, path in sorted(entries):
                if total <= self._limit_bytes - part_bytes:
                    break
                with suppress(FileNotFoundError):
                    os.unlink(path)
                total -= size_bytes
        with self._lock:
            # Other executors fill the cache, too.
            self._room_bytes = min(part_bytes, self._limit_bytes - total)

    def _is_usable(self) -> bool:
        if self._usable is None:
            self._usable = self._limit_bytes > 0 and self._prepare()
        return self._usable

    def _prepare(self) -> bool:
        try:
            with suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            info = os.lstat(self.directory)
        except OSError as e:
            log.warning("cannot use %s as a cache of SSTs: %s", self.directory, e)
            return False
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            log.warning(
                "cannot use %s as a cache of SSTs: it must be a directory that only this user can"
                " read",
                self.directory,
            )
            return False
        return True


def _link_or_copy(entry: str, path: str) -> None:
    try:
        os.link(entry, path)
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        shutil.copyfile(entry, path)
