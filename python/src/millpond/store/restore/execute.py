"""Bring the files that a restore plan names to the local disk: SSTs, `CURRENT` and `MANIFEST-*`,
ready for `RocksDB.open`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from millpond.errors import ErrorKind, FormatError, NotFoundError
from millpond.format import layout
from millpond.format.checksums import file_crc32
from millpond.format.composed import ChangelogSource
from millpond.format.manifest import Manifest
from millpond.format.sst_ref import SstRef
from millpond.model.ids import StoreId
from millpond.storage import Storage
from millpond.storage.local import translate_restored
from millpond.storage.parallel import Parallel
from millpond.store.local_ssts import LocalSst, identify
from millpond.store.sst_cache import SstCache

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A local RocksDB directory, and which stored SST each of its files is."""

    directory: str
    ssts: tuple[LocalSst, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How files come to the local disk.

    verify_checksums: also check SSTs that share the stored file's blocks. Copies are always
    checked.
    parallel: fetches files side by side, which pays on remote storage; None: one after the other.
    cache: files that it has are not fetched.
    check_wanted: is called before the folder is made, and before each file; raises if nobody wants
    the files any more.
    """

    verify_checksums: bool
    parallel: Parallel | None = None
    cache: SstCache | None = None
    check_wanted: Callable[[], None] = lambda: None

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return what the calls return, in order."""
        return [call() for call in calls] if self.parallel is None else self.parallel.run(calls)


def lay_out(
    storage: Storage, manifest: Manifest, manifest_name: str, directory: str, fetching: Fetching
) -> LaidOut:
    """Make `directory` hold the RocksDB database of `manifest`.

    An earlier attempt may have left some of it; its whole SSTs are kept. SSTs share the stored
    file's blocks where the storage can do that: RocksDB never changes an SST in place.

    Raises:
        NotFoundError: SST_MISSING. FormatError: SST_DAMAGED. UnavailableError: LOCAL_DISK_FULL,
        STORAGE_*.
    """
    paths = _lay_out_database(
        storage,
        manifest.store,
        manifest.ssts,
        (manifest.rocksdb_manifest_name, manifest.rocksdb_manifest),
        directory,
        fetching,
    )
    try:
        ssts = tuple(
            LocalSst(ref=sst, identity=identify(path), manifest=manifest_name)
            for sst, path in zip(manifest.ssts, paths, strict=True)
        )
    except OSError as e:
        raise translate_restored(e, f"preparing {directory}") from e
    return LaidOut(directory, ssts, manifest.total_bytes)


@dataclass(frozen=True, slots=True)
class LaidOutSources:
    """The local copies of what a composed manifest is made of.

    directories: of the RocksDB databases, in the order of the manifest's `sources`.
    changelogs: paths, in the order of the manifest's `changelogs`.
    """

    directories: tuple[str, ...]
    changelogs: tuple[str, ...]
    bytes: int


def lay_out_sources(
    storage: Storage, manifest: Manifest, directory: str, fetching: Fetching
) -> LaidOutSources:
    """Bring the sources of a composed manifest into `<directory>-source-<i>`. Clear `directory`.

    Raises: as `lay_out`; NotFoundError: CHANGELOG_MISSING. FormatError: CHANGELOG_DAMAGED.
    """
    try:
        if os.path.lexists(directory):
            shutil.rmtree(directory)
    except OSError as e:
        raise translate_restored(e, f"preparing {directory}") from e
    directories = []
    for i, source in enumerate(manifest.sources):
        directories.append(f"{directory}-source-{i}")
        _lay_out_database(
            storage,
            manifest.sibling(source.partition),
            source.ssts,
            (source.rocksdb_manifest_name, source.rocksdb_manifest),
            directories[-1],
            fetching,
        )
    changelogs = fetching.run(
        [
            partial(
                _fetch_changelog,
                storage,
                layout.store_key(manifest.sibling(changelog.partition), changelog.name),
                changelog,
                f"{directory}-changelog-{i}",
                fetching,
            )
            for i, changelog in enumerate(manifest.changelogs)
        ]
    )
    return LaidOutSources(tuple(directories), tuple(changelogs), manifest.total_bytes)


def _fetch_changelog(
    storage: Storage, key: str, changelog: ChangelogSource, path: str, fetching: Fetching
) -> str:
    fetching.check_wanted()
    local = storage.local_path(key)
    try:
        if local is None:
            storage.get_to_file(key, path)
            local = path
        size_bytes = os.path.getsize(local)
    except (NotFoundError, FileNotFoundError) as e:
        raise NotFoundError(f"{key} is not there", kind=ErrorKind.CHANGELOG_MISSING) from e
    except OSError as e:
        raise translate_restored(e, f"reading {local}") from e
    if size_bytes != changelog.size_bytes:
        raise FormatError(
            f"{key} has {size_bytes} bytes, expected {changelog.size_bytes}",
            kind=ErrorKind.CHANGELOG_DAMAGED,
        )
    return local


def _lay_out_database(
    storage: Storage,
    store: StoreId,
    ssts: Sequence[SstRef],
    rocksdb_manifest: tuple[str, bytes],
    directory: str,
    fetching: Fetching,
) -> list[str]:
    """Make `directory` hold a RocksDB database. Return the final paths of its SSTs."""
    unfinished = directory + ".unfinished"
    name, content = rocksdb_manifest

    def fetch(sst: SstRef) -> str:
        fetching.check_wanted()
        path = os.path.join(unfinished, sst.local_name)
        if _is_whole(path, sst):
            return path
        if fetching.cache is not None and fetching.cache.take(sst, path):
            return path
        shared, crc32 = _fetch(storage, layout.store_key(store, sst.key), path, sst)
        if fetching.verify_checksums or not shared:
            check_sst(path, sst, crc32)
        if fetching.cache is not None:
            fetching.cache.add(sst, path)
        return path

    fetching.check_wanted()
    try:
        _keep_only({sst.local_name for sst in ssts}, directory, unfinished)
        fetching.run([partial(fetch, sst) for sst in ssts])
        with open(os.path.join(unfinished, name), "xb") as file:
            file.write(content)
        with open(os.path.join(unfinished, "CURRENT"), "x", encoding="ascii", newline="") as text:
            text.write(name + "\n")
        os.rename(unfinished, directory)
    except OSError as e:
        raise translate_restored(e, f"preparing {directory}") from e
    return [os.path.join(directory, sst.local_name) for sst in ssts]


def _keep_only(names: Collection[str], directory: str, unfinished: str) -> None:
    """Move what an earlier attempt left into `unfinished`; keep only files of these names there."""
    if os.path.lexists(directory):
        # The earlier attempt finished, but its answer did not arrive.
        if os.path.lexists(unfinished):
            shutil.rmtree(unfinished)
        os.rename(directory, unfinished)
    if not os.path.isdir(unfinished):
        # Not with its parents: a store that was closed meanwhile has deleted them, for good.
        os.mkdir(unfinished)
    with os.scandir(unfinished) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name not in names:
                os.unlink(entry.path)


def _is_whole(path: str, sst: SstRef) -> bool:
    """Whether the file has the bytes of `sst`. Removes a file with other bytes."""
    try:
        if os.path.getsize(path) == sst.size_bytes and file_crc32(path) == sst.crc32:
            return True
        os.unlink(path)
    except FileNotFoundError:
        pass
    return False


def _fetch(storage: Storage, key: str, path: str, sst: SstRef) -> tuple[bool, int | None]:
    """Fetch one SST.

    Returns: whether the local file shares the stored file's blocks, so that their bytes are the
    same; its CRC-32 if that is known.
    """
    try:
        crc32 = storage.get_to_file(key, path, link=True)
    except NotFoundError as e:
        raise NotFoundError(f"{key} is not there", kind=ErrorKind.SST_MISSING) from e
    stored = storage.local_path(key)
    shared = stored is not None and os.path.samefile(stored, path)
    size_bytes = os.path.getsize(path)
    if size_bytes != sst.size_bytes:
        raise FormatError(
            f"{key} has {size_bytes} bytes, expected {sst.size_bytes}", kind=ErrorKind.SST_DAMAGED
        )
    return shared, crc32


def check_sst(path: str, sst: SstRef, crc32: int | None = None) -> None:
    """Check that the file has the CRC-32 of `sst`.

    Args:
        crc32: of the file; None: compute it.
    Raises: FormatError: SST_DAMAGED.
    """
    if (file_crc32(path) if crc32 is None else crc32) != sst.crc32:
        raise FormatError(f"{sst.key}: its check sum does not match", kind=ErrorKind.SST_DAMAGED)
