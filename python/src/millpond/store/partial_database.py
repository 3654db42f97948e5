"""A RocksDB database on a remote storage, of which only those SSTs are fetched that can hold a key
that somebody asks for. The ranges of keys in the manifest tell which.
"""

from __future__ import annotations

import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from millpond.errors import ErrorKind, FormatError, NotFoundError
from millpond.format import layout
from millpond.format.sst_ref import SstRef
from millpond.local import rocks
from millpond.local.rocks_manifest import without_files
from millpond.model.ids import StoreId
from millpond.storage import Storage
from millpond.storage.local import translate_restored
from millpond.storage.parallel import Parallel
from millpond.store.restore.execute import check_sst

# After this many times a reader that needs more SSTs gets all of them: each time the database is
# opened anew.
_TIMES = 4
FETCHES = Parallel(16)  # at once; each mostly waits for the object storage
_ONE_REQUEST_BYTES = 64 * 1024 * 1024  # larger SSTs come in parts, each by a request


@dataclass(frozen=True, slots=True)
class Part:
    """A database that holds entries of a snapshot.

    store: in whose directory the SSTs lie.
    rocksdb_manifest: name and content of that file.
    owns: whether an entry with this physical key is the store's; None: all are.
    """

    store: StoreId
    ssts: tuple[SstRef, ...]
    rocksdb_manifest: tuple[str, bytes]
    owns: Callable[[bytes], bool] | None


class PartialDatabase:
    """Reads single entries. Threads may share it.

    Args:
        directory: for the files; it must exist until `close`.
        name: the manifest, for messages.
    """

    def __init__(self, storage: Storage, part: Part, directory: str, *, name: str) -> None:
        self._storage, self._part, self._name = storage, part, name
        self._directory = directory
        self._lock = threading.Lock()
        self._fetched: set[str] = set()  # local names of SSTs
        # The last one is in use. Other threads may still read the others.
        self._readers: list[rocks.Reader] = []
        self._readable: frozenset[str] = frozenset()  # the SSTs that the last one has

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a physical key; None: there is none.

        Raises: NotFoundError: SST_MISSING. FormatError: SST_DAMAGED. UnavailableError.
        """
        reader = self._with(lambda low, high: low <= key <= high)
        return None if reader is None else reader.get(key)

    def starting_with(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries whose keys start with `prefix`, ordered by key. Raises: as `get`."""
        reader = self._with(lambda low, high: low[: len(prefix)] <= prefix <= high)
        if reader is not None:
            yield from reader.starting_with(prefix)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries, ordered by key. Fetches SSTs when it comes to them: each time as many
        as it has. Raises: as `get`.
        """
        ssts = sorted(self._part.ssts, key=_smallest)
        start: bytes | None = b""
        count = 1
        while start is not None and ssts:
            end = _smallest(ssts[count]) if count < len(ssts) else None
            for entry in self._having(ssts[:count]).starting_at(start):
                if end is not None and entry[0] >= end:
                    break  # the next SSTs may have entries before this one
                yield entry
            start, count = end, 2 * count

    def close(self) -> None:
        """Give the files back."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def _with(self, holds: Callable[[bytes, bytes], bool]) -> rocks.Reader | None:
        """Return a reader that has all SSTs with keys that are wanted; None: there are none.

        Args:
            holds: takes the smallest and the largest key of an SST.
        """
        wanted = [
            sst for sst in self._part.ssts if holds(_smallest(sst), bytes.fromhex(sst.largest_hex))
        ]
        return self._having(wanted) if wanted else None

    def _having(self, wanted: list[SstRef]) -> rocks.Reader:
        """Return a reader that has these SSTs, and maybe others."""
        ssts = self._part.ssts
        with self._lock:
            if not {sst.local_name for sst in wanted} <= self._readable:
                many = len(self._readers) >= _TIMES
                self._fetch(ssts if many else wanted)
                try:
                    self._open()
                except FormatError:
                    if len(self._fetched) == len(ssts):
                        raise
                    self._fetch(ssts)  # with all of them nothing is left to be removed
                    self._open()
            return self._readers[-1]

    def _fetch(self, wanted: tuple[SstRef, ...] | list[SstRef]) -> None:
        missing = [sst for sst in wanted if sst.local_name not in self._fetched]
        try:
            os.makedirs(self._directory, exist_ok=True)
            FETCHES.run([partial(self._fetch_one, sst) for sst in missing])
        except OSError as e:
            raise translate_restored(e, f"preparing {self._directory}") from e
        self._fetched |= {sst.local_name for sst in missing}

    def _fetch_one(self, sst: SstRef) -> None:
        key = layout.store_key(self._part.store, sst.key)
        path = os.path.join(self._directory, sst.local_name)
        try:
            if sst.size_bytes > _ONE_REQUEST_BYTES:
                crc32 = self._storage.get_to_file(key, path)
            else:
                data = self._storage.read(key)
                crc32 = zlib.crc32(data)
                with open(path, "wb") as file:
                    file.write(data)
        except NotFoundError as e:
            raise NotFoundError(f"{key} is not there", kind=ErrorKind.SST_MISSING) from e
        size_bytes = os.path.getsize(path)
        if size_bytes != sst.size_bytes:
            raise FormatError(
                f"{key} has {size_bytes} bytes, expected {sst.size_bytes}",
                kind=ErrorKind.SST_DAMAGED,
            )
        check_sst(path, sst, crc32)

    def _open(self) -> None:
        """Open a database of the SSTs that are there: from now on it is the one in use."""
        directory = f"{self._directory}-{len(self._readers)}"
        name, content = self._part.rocksdb_manifest
        absent = [
            (sst.level, int(sst.local_name.partition(".")[0]))
            for sst in self._part.ssts
            if sst.local_name not in self._fetched
        ]
        try:
            if os.path.lexists(directory):
                shutil.rmtree(directory)  # an attempt that failed left it
            os.mkdir(directory)
            for local_name in self._fetched:
                os.link(
                    os.path.join(self._directory, local_name), os.path.join(directory, local_name)
                )
            with open(os.path.join(directory, name), "xb") as file:
                file.write(without_files(content, absent))
            with open(os.path.join(directory, "CURRENT"), "xb") as file:
                file.write(f"{name}\n".encode("ascii"))
        except OSError as e:
            raise translate_restored(e, f"preparing {directory}") from e
        self._readers.append(rocks.Reader(directory, name=self._name))
        self._readable = frozenset(self._fetched)


def _smallest(sst: SstRef) -> bytes:
    return bytes.fromhex(sst.smallest_hex)
