"""SSTs that were fetched or uploaded, kept on the local disk for whoever restores them next on this host.

    <directory>/<uuid>-<crc32>.sst      hard links to the files that stores use: what is in use costs no space

Executors share the directory without locks. An entry appears under its name when it is complete (link(2)), is compared with
the manifest's check sum before it is used, and may vanish at any moment. Processes that are killed leave nothing half done.
Only a directory that belongs to this user and to nobody else's eyes is used.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import time
from contextlib import suppress

from millpond.checksums import file_crc32
from millpond.manifest import SstRef

log = logging.getLogger(__name__)

_NAME = "millpond-cache"


def cache_directory(parent: str) -> str:
    """Return where the cache is, given the directory for the local files of executors. It differs by user."""
    return os.path.join(parent, f"{_NAME}-{os.geteuid()}")


class SstCache:
    """Thread-safe, and safe between processes.

    Args:
        directory: made if it is not there.
        limit_bytes: what is over it goes, the longest unused first; 0: nothing is kept.
    """

    def __init__(self, directory: str, limit_bytes: int) -> None:
        self.directory = directory
        self._limit_bytes = limit_bytes
        self._usable: bool | None = None

    def take(self, sst: SstRef, path: str) -> bool:
        """Give the cached file the name `path` too. Return False, with nothing at `path`, if there is none that is whole."""
        if not self._is_usable():
            return False
        entry = self._entry(sst)
        try:
            _link_or_copy(entry, path)
            if os.path.getsize(path) == sst.size_bytes and file_crc32(path) == sst.crc32:
                # Used just now. The time of modification stays: it is part of how a local file is recognised.
                os.utime(entry, ns=(time.time_ns(), os.stat(entry).st_mtime_ns))
                return True
            log.warning("cached SST is damaged, it is fetched anew path=%s", entry)
            os.unlink(entry)
        except FileNotFoundError:
            pass  # not there, or evicted meanwhile by another executor
        except OSError as e:
            log.info("cannot use cached SST %s: %s", entry, e)
        with suppress(FileNotFoundError):
            os.unlink(path)
        return False

    def add(self, sst: SstRef, path: str) -> None:
        """Keep the file at `path`, whose check sum was compared. Never raises: it is only a cache."""
        if not self._is_usable() or sst.size_bytes > self._limit_bytes:
            return
        try:
            # Another device would need a copy, and so space of its own: then only what was fetched here is kept.
            os.link(path, self._entry(sst))
        except FileExistsError:
            return
        except OSError as e:
            log.info("cannot keep SST %s in %s: %s", path, self.directory, e)
            return
        self._evict()

    def _entry(self, sst: SstRef) -> str:
        uuid = sst.key.rpartition("/")[2].removesuffix(".sst")
        return os.path.join(self.directory, f"{uuid}-{sst.crc32:08x}.sst")

    def _evict(self) -> None:
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
        for _, size_bytes, path in sorted(entries):
            if total <= self._limit_bytes:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size_bytes

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
            log.warning("no cache of SSTs in %s: %s", self.directory, e)
            return False
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            log.warning(
                "no cache of SSTs in %s: it is not a directory of this user alone", self.directory
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
