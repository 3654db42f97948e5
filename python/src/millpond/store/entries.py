"""The live entries of one store at one version, ascending by key: the entries of its snapshot,
changed by the changelogs above it.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import MappingProxyType

from millpond.errors import ErrorKind, FormatError, NotFoundError
from millpond.format import layout
from millpond.format.changelog import ChangelogHeader, ChangelogReader
from millpond.format.checksums import file_crc32
from millpond.format.composed import SlotRanges, contains
from millpond.format.manifest import Manifest
from millpond.local import rocks
from millpond.local.scratch import scratch_directory
from millpond.model.ids import VersionId
from millpond.model.json_fields import ColumnFamily
from millpond.rows.chunks import chunks_of, pair_bytes
from millpond.storage import ObjectInfo
from millpond.storage.stored_file import stored_path
from millpond.store.files import StoreFiles, is_local, read_changelog_header
from millpond.store.overlay import Overlay, laid_over
from millpond.store.partial_database import Part, PartialDatabase
from millpond.store.restore.execute import Fetching, lay_out, lay_out_sources
from millpond.store.restore.plan import RestorePlan, check_header, plan_restore

Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class StoreVersion:
    """One store at one version: its column families, and where its entries come from.

    sums: key -> CRC-32 of the files that are compared when they are read. Other files are checked
    only by the checksums that they contain.
    """

    files: StoreFiles
    plan: RestorePlan
    sums: Mapping[str, int] = field(default_factory=dict)

    @property
    def families(self) -> tuple[ColumnFamily, ...]:
        """Its column families, without those that the job has dropped."""
        last = self.plan.newest
        return (
            tuple(family for family in last.column_families if not family.removed)
            if last is not None
            else ()
        )


def open_version(
    files: StoreFiles, target: VersionId, sums: Mapping[str, int] = MappingProxyType({})
) -> StoreVersion:
    """Plan how to read `target`. Raises: as `restore.plan.plan_restore`."""
    files.refresh()
    return StoreVersion(files, plan_restore(files, target), sums)


def newest_by_name(files: StoreFiles, version: VersionId) -> ChangelogHeader | Manifest | None:
    """Return what describes a store at a version, without a listing; None: it is empty. Reads the
    head of the changelog, or where there is none the manifest.

    Raises: FormatError, NotFoundError, UnsupportedError.
    """
    if version.version == 0:
        return None
    key = layout.changelog_key(files.store, version, files.spark_format)
    try:
        header = read_changelog_header(files.storage, key)
    except NotFoundError:
        return files.read_manifest(version)
    return check_header(files, version, header)


@contextmanager
def entries(version: StoreVersion, *, few: bool = False) -> Iterator[Iterator[Entry]]:
    """Yield an iterator over all entries (physical key, value), ascending by key.

    Args, Raises: as `entry_chunks`.
    """
    with entry_chunks(version, few=few) as chunks:
        yield chain.from_iterable(chunks)


@contextmanager
def entry_chunks(version: StoreVersion, *, few: bool = False) -> Iterator[Iterator[list[Entry]]]:
    """Yield an iterator over all entries (physical key, value), ascending by key, in lists of
    thousands.

    SSTs are read as a stream. Changes by the changelogs are held in memory up to a limit, beyond it
    in temporary files.

    Args:
        few: maybe only the first entries are wanted: from a remote storage fetch SSTs when the
            iteration comes to them.
    Raises: FormatError: a file is damaged. NotFoundError: it is gone. UnsupportedError: rocksdict
    is not installed.
    """
    with scratch_directory("read") as directory, ExitStack() as stack:
        changes = changes_of(version, directory).chunks()
        partly = few and not is_local(version.files.storage, version.files.store)
        scans = (
            _partly(version, f"{directory}/db", stack)
            if partly
            else _wholly(version, f"{directory}/db")
        )
        # No key is in two databases, so the merge yields every key once, in order.
        below = heapq.merge(*scans)
        yield laid_over(chunks_of(below, pair_bytes), changes)


@dataclass(frozen=True, slots=True)
class Database:
    """A local RocksDB database that holds entries of a snapshot.

    name: the manifest, for messages.
    owns: whether an entry with this physical key is the store's; None: all are. After a rescale a
        database has entries of other stores, too.
    """

    directory: str
    name: str
    owns: Callable[[bytes], bool] | None


def name_of_snapshot(version: StoreVersion) -> str:
    """Return the name of the snapshot for messages. There must be one."""
    assert version.plan.manifest is not None
    name = version.files.manifest_name(version.plan.manifest.version_id)
    return f"store {version.files.store}: {name}"


def databases_of(version: StoreVersion, directory: str, fetching: Fetching) -> list[Database]:
    """Lay out the databases of the snapshot at `directory`. No key of the store is in two of them.

    Raises: as `entry_chunks`.
    """
    manifest = version.plan.manifest
    if manifest is None:
        return []
    of_manifest = version.files.manifest_name(manifest.version_id)
    name = name_of_snapshot(version)
    storage = version.files.storage
    if not manifest.composed:
        lay_out(storage, manifest, of_manifest, directory, fetching)
        return [Database(directory, name, None)]
    families = {family.id: family for family in manifest.column_families}
    laid_out = lay_out_sources(storage, manifest, directory, fetching)
    return [
        Database(place, name, partial(_owned, families=families, slots=source.slots))
        for place, source in zip(laid_out.directories, manifest.sources, strict=True)
    ]


def parts_of(version: StoreVersion) -> list[Part]:
    """Return the databases of the snapshot, of which nothing is fetched. No key of the store is in
    two of them.
    """
    manifest = version.plan.manifest
    if manifest is None:
        return []
    if not manifest.composed:
        content = (manifest.rocksdb_manifest_name, manifest.rocksdb_manifest)
        return [Part(manifest.store, manifest.ssts, content, None)]
    families = {family.id: family for family in manifest.column_families}
    return [
        Part(
            manifest.sibling(source.partition),
            source.ssts,
            (source.rocksdb_manifest_name, source.rocksdb_manifest),
            partial(_owned, families=families, slots=source.slots),
        )
        for source in manifest.sources
    ]


def changes_of(version: StoreVersion, directory: str, *, in_memory: bool = False) -> Overlay:
    """Return what the changelogs above the snapshot change.

    Args:
        directory: for temporary files. It must be there until the changes are used up.
        in_memory: keep all changes in memory, however many there are.
    Raises: as `entry_chunks`.
    """
    overlay = Overlay(directory, sys.maxsize) if in_memory else Overlay(directory)
    manifest = version.plan.manifest
    if manifest is not None:
        for changelog, key in zip(manifest.changelogs, manifest.changelog_keys(), strict=True):
            info = ObjectInfo(key, changelog.size_bytes, 0)
            _apply(version, info, changelog.version.id, overlay, changelog.slots, directory)
    for header in version.plan.headers:
        info = version.files.changelog_info(header.version_id)
        copy = version.files.local_copy(header.version_id)
        _apply(version, info, header.id, overlay, None, directory, copy)
    return overlay


def _wholly(version: StoreVersion, directory: str) -> Iterator[Iterator[Entry]]:
    """Yield the entries of each database of the snapshot. All of it is laid out at `directory`."""
    fetching = Fetching(verify_checksums=bool(version.sums))
    for database in databases_of(version, directory, fetching):
        yield _owned_of(rocks.scan(database.directory, name=database.name), database.owns)


def _partly(
    version: StoreVersion, directory: str, until_end: ExitStack
) -> Iterator[Iterator[Entry]]:
    """As `_wholly`, but fetch SSTs when an iteration comes to them."""
    for number, part in enumerate(parts_of(version)):
        place, name = f"{directory}-part-{number}", name_of_snapshot(version)
        database = PartialDatabase(version.files.storage, part, place, name=name)
        until_end.callback(database.close)
        yield _owned_of(database.scan(), part.owns)


def _owned_of(found: Iterator[Entry], owns: Callable[[bytes], bool] | None) -> Iterator[Entry]:
    return found if owns is None else (entry for entry in found if owns(entry[0]))


def _apply(
    version: StoreVersion,
    info: ObjectInfo,
    id: str,
    overlay: Overlay,
    slots: SlotRanges | None,
    directory: str,
    copy: str | None = None,
) -> None:
    """Apply the records of a changelog; with `slots` only theirs (another partition wrote it).

    Args:
        info: its key and size, as the plan knows them.
        id: of its version. An erasure keeps it when it writes the file anew: then only the size
            tells.
        copy: path of a local copy that is there already.
    """
    name = info.key
    path = copy if copy is not None else os.path.join(directory, "changelog")
    storage, fetched = version.files.storage, copy is not None
    with stored_path(storage, name, path, fetched=fetched) as path:
        if name in version.sums and file_crc32(path) != version.sums[name]:
            raise FormatError(
                f"{name}: its check sum does not match", kind=ErrorKind.CHANGELOG_DAMAGED
            )
        with open(path, "rb") as file:
            reader = ChangelogReader(file, name=name)
            if reader.header.id != id or os.fstat(file.fileno()).st_size != info.size_bytes:
                raise FormatError(
                    f"{name} was replaced while it was read", kind=ErrorKind.CHANGELOG_DAMAGED
                )
            families = {family.id: family for family in reader.header.column_families}
            if slots is None:
                overlay.apply_runs(reader.header, reader.runs(), name=name)
            else:
                records = (record for record in reader if _owned(record.key, families, slots))
                overlay.apply(reader.header, records, name=name)


def _owned(key: bytes, families: Mapping[int, ColumnFamily], slots: SlotRanges) -> bool:
    family = families.get(key[2] << 8 | key[3])  # where `physical_key.FAMILY` is
    return family is not None and contains(slots, family.slot_of(key))
