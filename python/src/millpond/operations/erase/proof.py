"""Proves that a key is gone: reads all files that are left, and looks for its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial

import numpy as np

from millpond.errors import FormatError, InternalError, NotFoundError, UnsupportedError
from millpond.format import layout
from millpond.model.ids import StoreId
from millpond.operations.erase.journal import Journal
from millpond.operations.erase.late import refuse_written
from millpond.operations.erase.matching import Mask, Matcher
from millpond.operations.erase.places import Place
from millpond.operations.erase.plan import Rewrite
from millpond.operations.erase.report import Proof
from millpond.operations.erase.scan import (
    Described,
    Found,
    bounds_in,
    changelog_blocks,
    described,
    mask_of,
    rocksdb_texts,
    sst_raw_blocks,
)
from millpond.storage import ObjectInfo, Storage
from millpond.storage.sums import size_and_crc32
from millpond.store.files import StoreFiles, list_stores


class Search:
    """Searches bytes for those of a key and of its values."""

    def __init__(self, found: Found) -> None:
        self._needles = found.needles()
        self.files = self.raw_bytes = 0
        self.unread: list[str] = []
        self._hits: dict[str, set[bytes]] = {}

    def look(self, file: str, raw: bytes) -> None:
        """Search some bytes of a file."""
        self.raw_bytes += len(raw)
        for needle in self._needles:
            if needle in raw:
                self._hits.setdefault(file, set()).add(needle)

    def proof(self) -> Proof:
        """Return what was found so far."""
        return Proof(
            files=self.files,
            raw_bytes=self.raw_bytes,
            needles=len(self._needles),
            elsewhere=tuple((file, len(hits)) for file, hits in sorted(self._hits.items())),
            unread=tuple(self.unread),
        )


def prove(
    place: Place, journal: Journal, late: Sequence[Rewrite], matcher: Matcher, found: Found
) -> Proof:
    """Read all changelogs, SSTs and manifests of a place. No row of the operator may have the key.

    A file of a store that is written anew, which the erasure did not write, is of an executor that
    has not noticed the end of its query, and takes it back.

    Args:
        late: changelogs above the newest batch, which have lost the key as well.
    Raises: InternalError: a row has the key. ConflictError: QUERY_RUNNING: a query wrote it.
        FormatError: a file of the operator is damaged.
    """
    search = Search(found)
    storage = place.storage
    new = {rewrite.key(place.spark_format) for rewrite in (*journal.rewrites, *late)}
    for store, listing in list_stores(storage).items():
        files = StoreFiles(storage, store, place.spark_format)
        files.refresh()
        known = cache(partial(described, files, listing))
        for info in (
            *listing.changelogs.values(),
            *listing.ssts.values(),
            *listing.manifests.values(),
        ):
            if store in journal.stores and info.key not in new:
                continue
            try:
                for raw, mask in _masked(storage, files, known, info, matcher):
                    search.look(info.key, raw)
                    if mask.any():
                        refuse_written(place, info.key)
                    check_gone(info.key, mask)
            except (FormatError, NotFoundError, UnsupportedError):
                if store.operator == matcher.operator:
                    raise
                search.unread.append(info.key)
            else:
                search.files += 1
    return search.proof()


def _masked(
    storage: Storage,
    files: StoreFiles,
    known: Callable[[], Described],
    info: ObjectInfo,
    matcher: Matcher,
) -> Iterator[tuple[bytes, Mask]]:
    """Yield the blocks of a file: raw bytes, and which rows are of the key. Of a manifest, what
    RocksDB's own manifest says.
    """
    mine, name = files.store.operator == matcher.operator, files.store.name
    none: Mask = np.zeros(0, np.bool_)
    match layout.file_of(info.key):
        case layout.ChangelogFile():
            for families, raw, records in changelog_blocks(storage, info.key):
                keys = [record.key for record in records]
                yield raw, mask_of(matcher, name, families, keys) if mine else none
        case layout.ManifestFile(version):
            try:
                manifest = files.read_manifest(version)
            except NotFoundError:
                return  # an executor has taken it back
            keys = bounds_in(manifest, info.key)
            raw = b"".join(rocksdb_texts(manifest))
            yield raw, mask_of(matcher, name, known().families, keys) if mine else none
        case _:
            try:
                for raw, entries in sst_raw_blocks(storage, info, known().sums.get(info.key)):
                    keys = [key for key, _ in entries]
                    yield raw, mask_of(matcher, name, known().families, keys) if mine else none
            except NotFoundError:
                return  # an executor has taken its snapshot back


def check_gone(file: str, mask: Mask) -> None:
    """Raise InternalError if a row of `file` is of the key."""
    if mask.any():
        raise InternalError(f"{file} still has the key after it was erased")


def digest(storage: Storage, stores: Iterable[StoreId]) -> str:
    """Return a SHA-256 over names, sizes and check sums of the files of some stores."""
    wanted = set(stores)
    lines = []
    for store, listing in list_stores(storage).items():
        if store in wanted:
            for info in (
                *listing.changelogs.values(),
                *listing.manifests.values(),
                *listing.ssts.values(),
            ):
                size_bytes, crc32 = size_and_crc32(storage, info.key)
                lines.append(f"{info.key} {size_bytes} {crc32:08x}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
