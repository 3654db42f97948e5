"""Reads all that the files of a store hold: also values that later ones replaced, and deletions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from millpond.errors import ErrorKind, FormatError, NotFoundError, UnsupportedError
from millpond.format.changelog import ChangelogReader, Record, parse_records
from millpond.format.checksums import stream_crc32
from millpond.format.manifest import Manifest
from millpond.format.sst_blocks import data_blocks
from millpond.local.rocks_manifest import key_bounds
from millpond.model.json_fields import ColumnFamily
from millpond.model.physical_key import PHYSICAL_PREFIX_BYTES, bare
from millpond.operations.erase.matching import Mask, Matcher
from millpond.storage import ObjectInfo, Storage
from millpond.storage.stored_file import stored_file
from millpond.store.files import Listing, StoreFiles

Families = Mapping[int, ColumnFamily]
Places = npt.NDArray[np.intp]

_MOST_NEEDLES = 1000  # each block is searched for each of them
_NEEDLE_BYTES = 16 * 1024  # of a longer key or value the beginning is looked for


@dataclass(slots=True)
class Found:
    """What was found of a key.

    keys, values: their bytes, of the first ones in their order, and up to `_NEEDLE_BYTES` of each;
    keys without their places. rows: entries in files. live: keys of the newest versions.
    """

    keys: set[bytes] = field(default_factory=set)
    values: set[bytes] = field(default_factory=set)
    rows: int = 0
    live: int = 0

    def add(self, key: bytes, family: ColumnFamily, value: bytes | None) -> None:
        """Note an entry of the key."""
        self.rows += 1
        self.note(bare(key, family), value)

    def note(self, key: bytes, value: bytes | None) -> None:
        """Note what to look for. Args: key: without its place."""
        _keep(self.keys, key)
        if value:
            _keep(self.values, value)

    def needles(self) -> list[bytes]:
        """Return what to look for: of keys, then of values."""
        return [*sorted(self.keys), *sorted(self.values)][:_MOST_NEEDLES]


def _keep(kept: set[bytes], needle: bytes) -> None:
    kept.add(needle[:_NEEDLE_BYTES])
    if len(kept) >= 2 * _MOST_NEEDLES:
        kept.difference_update(sorted(kept)[_MOST_NEEDLES:])


def mask_of(matcher: Matcher, store: str, families: Families, keys: Sequence[bytes]) -> Mask:
    """Return for each physical key whether its row is to go.

    Raises: UnsupportedError: a column family is not known.
    """
    result: Mask = np.zeros(len(keys), np.bool_)
    for number, places in _by_family(keys):
        result[places] = _mask_of_family(matcher, store, families, number, keys, places)
    return result


def _by_family(keys: Sequence[bytes]) -> Iterator[tuple[int, Places]]:
    """Yield the number of each column family, and which of the physical keys are its own."""
    numbers = np.array([key[2] << 8 | key[3] for key in keys], np.int64)
    for number in np.unique(numbers).tolist():
        yield number, np.flatnonzero(numbers == number)


def _mask_of_family(
    matcher: Matcher,
    store: str,
    families: Families,
    number: int,
    keys: Sequence[bytes],
    places: Places,
) -> Mask:
    family = families.get(number)
    if family is None:
        raise UnsupportedError(
            f"store {store} has rows of column family {number}, which nothing describes"
        )
    return matcher.mask(store, family, [bare(keys[n], family) for n in places.tolist()])


def changelog_blocks(storage: Storage, key: str) -> Iterator[tuple[Families, bytes, list[Record]]]:
    """Yield the blocks of a changelog: its column families, raw bytes, records.

    Raises: as `ChangelogReader`; NotFoundError.
    """

    def fail(message: str) -> FormatError:
        return FormatError(f"{key}: {message}", kind=ErrorKind.CHANGELOG_DAMAGED)

    with stored_file(storage, key) as file:
        reader = ChangelogReader(file, name=key)
        families = {family.id: family for family in reader.header.column_families}
        for raw, _ in reader.blocks():
            yield families, raw, parse_records(raw, fail)


def sst_raw_blocks(
    storage: Storage, info: ObjectInfo, crc32: int | None
) -> Iterator[tuple[bytes, list[tuple[bytes, bytes]]]]:
    """Yield the blocks of an SST: raw bytes, physical keys and values.

    Args:
        crc32: what a manifest says of the file; None: no manifest names it.
    Raises: FormatError: SST_DAMAGED.
    """
    with stored_file(storage, info.key) as file:
        if crc32 is not None and stream_crc32(file) != crc32:
            raise FormatError(
                f"{info.key}: its check sum does not match", kind=ErrorKind.SST_DAMAGED
            )

        def read(at: int, count: int) -> bytes:
            file.seek(at)
            return file.read(count)

        for block in data_blocks(read, file.seek(0, os.SEEK_END), name=info.key):
            yield block.raw, block.entries


@dataclass(frozen=True, slots=True)
class Described:
    """What the manifests of a store say: check sums of SSTs, column families, files of others."""

    sums: Mapping[str, int]  # by key in storage
    families: Families
    others: frozenset[int]  # partitions whose files a composed manifest names


def described(files: StoreFiles, listing: Listing) -> Described:
    """Read the manifests of a store. A damaged one is left out: whoever needs it finds that."""
    sums: dict[str, int] = {}
    families: dict[int, ColumnFamily] = {}
    others: set[int] = set()
    for version in sorted(listing.manifests):
        try:
            manifest = files.read_manifest(version)
        except (FormatError, NotFoundError):
            continue
        families |= {family.id: family for family in manifest.column_families}
        for sst in manifest.ssts:
            info = listing.ssts.get(sst.key)
            if info is not None:
                sums[info.key] = sst.crc32
        others |= {source.partition for source in manifest.sources}
        others |= {source.partition for source in manifest.changelogs}
    for version in sorted(listing.changelogs):
        try:
            header = files.header(version)
        except (FormatError, NotFoundError):
            continue
        families |= {family.id: family for family in header.column_families}
    return Described(sums, families, frozenset(others - {files.store.partition}))


def rocksdb_texts(manifest: Manifest) -> list[bytes]:
    """Return RocksDB's own manifests of a snapshot: one, or those of its sources."""
    return [manifest.rocksdb_manifest, *(one.rocksdb_manifest for one in manifest.sources)]


def bounds_in(manifest: Manifest, name: str) -> list[bytes]:
    """Return the physical keys in RocksDB's own manifests of a snapshot: the first and the last one
    of each SST that there ever was. After a rescale some bounds are slots that it deleted, no keys.

    Args:
        name: of the manifest, for messages.
    Raises: FormatError: MANIFEST_DAMAGED.
    """
    try:
        bounds = frozenset[bytes]().union(*map(key_bounds, rocksdb_texts(manifest)))
    except ValueError as e:
        raise FormatError(
            f"{name}: RocksDB's manifest cannot be read: {e}", kind=ErrorKind.MANIFEST_DAMAGED
        ) from e
    return sorted(key for key in bounds if len(key) > PHYSICAL_PREFIX_BYTES)


def find(
    storage: Storage, files: StoreFiles, listing: Listing, matcher: Matcher, found: Found
) -> bool:
    """Note all entries of the key in the files of a store. Return whether there may be any.

    An SST may still have rows of a column family that the job dropped, whose number another one may
    have by now, and nothing may describe them. A manifest has keys of SSTs that are long gone. What
    cannot be read may be the key's.

    Raises: FormatError: a file is damaged. UnsupportedError.
    """
    known = described(files, listing)
    store, before, in_doubt = files.store.name, found.rows, False
    for info in listing.changelogs.values():
        for families, _, records in changelog_blocks(storage, info.key):
            keys = [record.key for record in records]
            for n in np.flatnonzero(mask_of(matcher, store, families, keys)).tolist():
                record = records[n]
                found.add(record.key, families[record.key[2] << 8 | record.key[3]], record.value)

    def ours(keys: Sequence[bytes]) -> Iterator[tuple[int, ColumnFamily]]:
        nonlocal in_doubt
        for number, places in _by_family(keys):
            try:
                mask = _mask_of_family(matcher, store, known.families, number, keys, places)
            except (FormatError, UnsupportedError):
                in_doubt = True
                continue
            for n in places[mask].tolist():
                yield n, known.families[number]

    for info in listing.ssts.values():
        for _, entries in sst_raw_blocks(storage, info, known.sums.get(info.key)):
            for n, family in ours([key for key, _ in entries]):
                key, value = entries[n]
                found.add(key, family, value)
    bounds: set[bytes] = set()
    for version, info in listing.manifests.items():
        try:
            bounds.update(bounds_in(files.read_manifest(version), info.key))
        except NotFoundError:
            continue
        except FormatError:
            in_doubt = True
    keys = sorted(bounds)
    hits = {bare(keys[n], family) for n, family in ours(keys)}
    for key in hits:
        found.note(key, None)
    return in_doubt or bool(hits) or found.rows > before
