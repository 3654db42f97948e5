"""The live entries of one store at one version, ascending by key: the entries of its snapshot,
changed by the changelogs above it.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

from millpond.errors import ErrorKind, FormatError
from millpond.format.changelog import ChangelogReader
from millpond.format.checksums import file_crc32
from millpond.format.composed import SlotRanges, contains
from millpond.format.manifest import Manifest
from millpond.local import rocks
from millpond.local.scratch import scratch_directory
from millpond.model.ids import VersionId
from millpond.model.json_fields import ColumnFamily
from millpond.rows.chunks import chunks_of, pair_bytes
from millpond.storage.local import translate
from millpond.store.files import StoreFiles
from millpond.store.overlay import Overlay, laid_over
from millpond.store.restore.execute import Fetching, lay_out, lay_out_sources
from millpond.store.restore.plan import RestorePlan, plan_restore

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
        last = self.plan.headers[-1] if self.plan.headers else self.plan.manifest
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


@contextmanager
def entries(version: StoreVersion) -> Iterator[Iterator[Entry]]:
    """Yield an iterator over all entries (physical key, value), ascending by key.

    Raises: as `entry_chunks`.
    """
    with entry_chunks(version) as chunks:
        yield chain.from_iterable(chunks)


@contextmanager
def entry_chunks(version: StoreVersion) -> Iterator[Iterator[list[Entry]]]:
    """Yield an iterator over all entries (physical key, value), ascending by key, in lists of
    thousands.

    SSTs are read as a stream. Changes by the changelogs are held in memory up to a limit, beyond it
    in temporary files.

    Raises: FormatError: a file is damaged. NotFoundError: it is gone. UnsupportedError: rocksdict
    is not installed.
    """
    with scratch_directory("read") as directory:
        changes = _overlay(version, directory)
        below = _below(version, f"{directory}/db")
        yield laid_over(chunks_of(below, pair_bytes), changes.chunks())


def _below(version: StoreVersion, database: str) -> Iterator[Entry]:
    """Iterate over the entries of the snapshot."""
    manifest = version.plan.manifest
    if manifest is None:
        return iter(())
    name = version.files.manifest_name(manifest.version_id)
    fetching = Fetching(verify_checksums=bool(version.sums))
    if manifest.composed:
        laid_out = lay_out_sources(version.files.storage, manifest, database, fetching)
        scans = [
            _of_slots(
                rocks.scan(place, name=f"store {version.files.store}: {name}"),
                source.slots,
                manifest,
            )
            for place, source in zip(laid_out.directories, manifest.sources, strict=True)
        ]
        # No key is in two sources, so the merge yields every key once, in order.
        return heapq.merge(*scans)
    lay_out(version.files.storage, manifest, name, database, fetching)
    return rocks.scan(database, name=f"store {version.files.store}: {name}")


def _overlay(version: StoreVersion, directory: str) -> Overlay:
    """Read what the changelogs above the snapshot change."""
    overlay = Overlay(directory)
    manifest = version.plan.manifest
    if manifest is not None:
        for changelog, key in zip(manifest.changelogs, manifest.changelog_keys(), strict=True):
            _apply(version, key, changelog.version.id, overlay, changelog.slots, directory)
    for header in version.plan.headers:
        name = version.files.changelog_info(header.version_id).key
        _apply(version, name, header.id, overlay, None, directory)
    return overlay


def _apply(
    version: StoreVersion,
    name: str,
    id: str,
    overlay: Overlay,
    slots: SlotRanges | None,
    directory: str,
) -> None:
    """Apply the records of a changelog; with `slots` only theirs (another partition wrote it)."""
    storage = version.files.storage
    path = storage.local_path(name)
    if path is None:
        path = os.path.join(directory, "changelog")
        storage.get_to_file(name, path)
    else:
        storage.stat(name)  # raises Millpond's error if the file cannot be read
    try:
        if name in version.sums and file_crc32(path) != version.sums[name]:
            raise FormatError(
                f"{name}: its check sum does not match", kind=ErrorKind.CHANGELOG_DAMAGED
            )
        with open(path, "rb") as file:
            reader = ChangelogReader(file, name=name)
            if reader.header.id != id:
                raise FormatError(
                    f"{name} was replaced while it was read", kind=ErrorKind.CHANGELOG_DAMAGED
                )
            families = {family.id: family for family in reader.header.column_families}
            if slots is None:
                overlay.apply_runs(reader.header, reader.runs(), name=name)
            else:
                records = (record for record in reader if _owned(record.key, families, slots))
                overlay.apply(reader.header, records, name=name)
    except OSError as e:
        raise translate(e, f"reading {name}") from e


def _owned(key: bytes, families: Mapping[int, ColumnFamily], slots: SlotRanges) -> bool:
    family = families.get(key[2] << 8 | key[3])
    return family is not None and contains(slots, family.slot_of(key))


def _of_slots(found: Iterator[Entry], slots: SlotRanges, manifest: Manifest) -> Iterator[Entry]:
    families = {family.id: family for family in manifest.column_families}
    return (entry for entry in found if _owned(entry[0], families, slots))
