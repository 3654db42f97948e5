"""Checks the SSTs and changelogs that a composed manifest names.

Their rows are checked in the partitions that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.errors import ErrorKind, MillpondError, NotFoundError
from millpond.format import layout
from millpond.format.manifest import Manifest
from millpond.storage import Storage
from millpond.storage.sums import size_and_crc32
from millpond.store.files import read_changelog_header


def problems_of_sources(
    storage: Storage, manifest: Manifest
) -> Iterator[tuple[ErrorKind, str, str]]:
    """Yield kind, key and message of each problem of the files that a composed manifest names.

    Raises: UnavailableError: the storage.
    """
    for source in manifest.sources:
        for sst in source.ssts:
            key = layout.store_key(manifest.sibling(source.partition), sst.key)
            try:
                size_bytes, crc32 = size_and_crc32(storage, key)
            except NotFoundError:
                yield ErrorKind.SST_MISSING, key, "is not there, and a composed manifest names it"
                continue
            if (size_bytes, crc32) != (sst.size_bytes, sst.crc32):
                yield (
                    ErrorKind.SST_DAMAGED,
                    key,
                    (
                        f"has {size_bytes} bytes and CRC-32 {crc32:08x}, a composed manifest says"
                        f" {sst.size_bytes} and {sst.crc32:08x}"
                    ),
                )
    for changelog in manifest.changelogs:
        key = layout.store_key(manifest.sibling(changelog.partition), changelog.name)
        try:
            header = read_changelog_header(storage, key)
        except MillpondError as e:
            if e.kind not in (
                ErrorKind.CHANGELOG_MISSING,
                ErrorKind.CHANGELOG_DAMAGED,
                ErrorKind.FORMAT_TOO_NEW,
            ):
                raise
            yield e.kind, key, f"a composed manifest names it: {e.message}"
            continue
        if header.id != changelog.version.id:
            yield (
                ErrorKind.CHANGELOG_REPLACED,
                key,
                "is another attempt than the one that a composed manifest names",
            )
