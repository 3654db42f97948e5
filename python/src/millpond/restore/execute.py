"""Lay out locally what a restore plan names: SSTs, `CURRENT` and `MANIFEST-*`, ready for `RocksDB.open`."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import partial

from millpond import layout
from millpond.checksums import file_crc32
from millpond.errors import ErrorKind, FormatError, NotFoundError
from millpond.manifest import Manifest, SstRef
from millpond.restore.sst_cache import SstCache
from millpond.snapshot.local_ssts import LocalSst, identify
from millpond.storage import Storage
from millpond.storage.local import translate
from millpond.storage.parallel import Parallel


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A local RocksDB directory, and the stored SST behind each of its files."""

    directory: str
    ssts: tuple[LocalSst, ...]
    bytes: int


def lay_out(
    storage: Storage,
    manifest: Manifest,
    manifest_name: str,
    directory: str,
    *,
    verify_checksums: bool,
    parallel: Parallel | None = None,
    cache: SstCache | None = None,
) -> LaidOut:
    """Make `directory` hold the RocksDB database of `manifest`.

    Whatever was there is replaced: an earlier attempt of the same call may have left a part. SSTs share the stored file's
    blocks where the storage can; RocksDB never changes an SST in place. Copies are always checked, shared files if
    `verify_checksums`. With `parallel` SSTs are fetched side by side, which pays where they are not local;
    what `cache` has is not fetched.

    Raises:
        NotFoundError: SST_MISSING. FormatError: SST_DAMAGED. UnavailableError: LOCAL_DISK_FULL, STORAGE_*.
    """
    unfinished = directory + ".unfinished"

    def fetch(sst: SstRef) -> LocalSst:
        path = os.path.join(unfinished, sst.local_name)
        if cache is not None and cache.take(sst, path):
            return LocalSst(ref=sst, identity=identify(path), manifest=manifest_name)
        shared = _fetch(storage, layout.store_key(manifest.store, sst.key), path, sst)
        if verify_checksums or not shared:
            check_sst(path, sst)
        if cache is not None:
            cache.add(sst, path)
        return LocalSst(ref=sst, identity=identify(path), manifest=manifest_name)

    try:
        for stale in (directory, unfinished):
            if os.path.lexists(stale):
                shutil.rmtree(stale)
        os.makedirs(unfinished)
        calls = [partial(fetch, sst) for sst in manifest.ssts]
        ssts = [call() for call in calls] if parallel is None else parallel.run(calls)
        with open(os.path.join(unfinished, manifest.rocksdb_manifest_name), "xb") as file:
            file.write(manifest.rocksdb_manifest)
        with open(os.path.join(unfinished, "CURRENT"), "x", encoding="ascii", newline="") as text:
            text.write(manifest.rocksdb_manifest_name + "\n")
        os.rename(unfinished, directory)
    except OSError as e:
        raise translate(e, f"preparing {directory}", local=True) from e
    return LaidOut(directory, tuple(ssts), manifest.total_bytes)


def _fetch(storage: Storage, key: str, path: str, sst: SstRef) -> bool:
    """Fetch one SST. Return whether it shares the stored file (so that its bytes are exactly those that are stored)."""
    try:
        storage.get_to_file(key, path, link=True)
    except NotFoundError as e:
        raise NotFoundError(f"{key} is not there", kind=ErrorKind.SST_MISSING) from e
    stored = storage.local_path(key)
    shared = stored is not None and os.path.samefile(stored, path)
    size_bytes = os.path.getsize(path)
    if size_bytes != sst.size_bytes:
        raise FormatError(f"{key} has {size_bytes} bytes, expected {sst.size_bytes}", kind=ErrorKind.SST_DAMAGED)
    return shared


def check_sst(path: str, sst: SstRef) -> None:
    """Raise FormatError (SST_DAMAGED) unless the file's CRC-32 is that of `sst`."""
    if file_crc32(path) != sst.crc32:
        raise FormatError(f"{sst.key}: its check sum does not match", kind=ErrorKind.SST_DAMAGED)
