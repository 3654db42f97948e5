"""The live entries of one store at one version, in the order of keys: its snapshot, with the changelogs above it laid over."""

from __future__ import annotations

import heapq
import io
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from millpond.changelog import ChangelogReader, Op, Puts
from millpond.composed import SlotRanges, contains
from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.ids import VersionId
from millpond.json_fields import ColumnFamily
from millpond.local import rocks
from millpond.manifest import Manifest
from millpond.restore.execute import Fetching, lay_out, lay_out_sources
from millpond.restore.plan import RestorePlan, plan_restore
from millpond.store_files import StoreFiles

Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class StoreVersion:
    """One store at one version: which column families it has, and where its entries come from."""

    files: StoreFiles
    plan: RestorePlan

    @property
    def families(self) -> tuple[ColumnFamily, ...]:
        """Its column families, without those that the job dropped."""
        last = self.plan.headers[-1] if self.plan.headers else self.plan.manifest
        return tuple(family for family in last.column_families if not family.removed) if last is not None else ()


def open_version(files: StoreFiles, target: VersionId) -> StoreVersion:
    """Plan how to read `target`. Raises: as `restore.plan.plan_restore`."""
    files.refresh()
    return StoreVersion(files, plan_restore(files, target))


@contextmanager
def entries(version: StoreVersion, *, ordered: bool = True) -> Iterator[Iterator[Entry]]:
    """Yield an iterator over all entries (physical key, value), ascending by key.

    SSTs are read as a stream; what changelogs above the snapshot say is held in memory.

    Args:
        ordered: False: in any order, which takes less time where much changed since the snapshot.
    Raises: FormatError: a file is damaged. NotFoundError: it is gone. UnsupportedError: rocksdict is not installed.
    """
    overlay = _overlay(version)
    merged = _merged if ordered else _replaced
    manifest = version.plan.manifest
    if manifest is None:
        yield merged(iter(()), overlay)
        return
    name = version.files.manifest_name(manifest.version_id)
    with tempfile.TemporaryDirectory(prefix="millpond-read-") as directory:
        database = f"{directory}/db"
        if manifest.composed:
            laid_out = lay_out_sources(version.files.storage, manifest, database, Fetching(verify_checksums=False))
            scans = [
                _of_slots(rocks.scan(place, name=f"store {version.files.store}: {name}"), source.slots, manifest)
                for place, source in zip(laid_out.directories, manifest.sources, strict=True)
            ]
            # Sources share no row: what comes out is in the order of keys, and every key comes once.
            yield merged(heapq.merge(*scans) if ordered else chain(*scans), overlay)
            return
        lay_out(version.files.storage, manifest, name, database, Fetching(verify_checksums=False))
        below = rocks.scan(database, name=f"store {version.files.store}: {name}")
        yield merged(below, overlay) if overlay else below


@dataclass(frozen=True, slots=True)
class _Appended:
    """Bytes that follow the value that the snapshot has."""

    value: bytes


_Change = bytes | _Appended | None  # the value; what follows the snapshot's; deleted


def _overlay(version: StoreVersion) -> dict[bytes, _Change]:
    """What the changelogs above the snapshot change."""
    overlay: dict[bytes, _Change] = {}
    manifest = version.plan.manifest
    if manifest is not None:
        for changelog, key in zip(manifest.changelogs, manifest.changelog_keys(), strict=True):
            _apply(version, key, changelog.version.id, overlay, changelog.slots)
    for header in version.plan.headers:
        _apply(version, version.files.changelog_info(header.version_id).key, header.id, overlay, None)
    return overlay


def _apply(version: StoreVersion, name: str, id: str, overlay: dict[bytes, _Change], slots: SlotRanges | None) -> None:
    """Apply the records of a changelog; of one of another partition, those of some slots."""
    reader = ChangelogReader(io.BytesIO(version.files.storage.read(name)), name=name)
    if reader.header.id != id:
        raise FormatError(f"{name} was replaced while it was read", kind=ErrorKind.CHANGELOG_DAMAGED)
    families = {family.id: family for family in reader.header.column_families}
    for run in reader.runs():
        if isinstance(run, Puts):
            puts = zip(run.keys, run.values, strict=True)
            overlay.update(puts if slots is None else (put for put in puts if _owned(put[0], families, slots)))
            continue
        for op, key, value in run:
            if slots is not None and not _owned(key, families, slots):
                continue
            if op is Op.DELETE:
                overlay[key] = None
            elif op is Op.PUT:
                overlay[key] = value
            elif op is Op.MERGE and value is not None:
                overlay[key] = _after(overlay[key], value) if key in overlay else _Appended(value)
            else:
                raise UnsupportedError(f"{name}: operation {op.name}, which this version does not read")


def _owned(key: bytes, families: Mapping[int, ColumnFamily], slots: SlotRanges) -> bool:
    family = families.get(key[2] << 8 | key[3])
    return family is not None and contains(slots, family.slot_of(key))


def _of_slots(found: Iterator[Entry], slots: SlotRanges, manifest: Manifest) -> Iterator[Entry]:
    families = {family.id: family for family in manifest.column_families}
    return (entry for entry in found if _owned(entry[0], families, slots))


def _after(before: _Change, value: bytes) -> _Change:
    if isinstance(before, _Appended):
        return _Appended(before.value + value)
    return (before or b"") + value


def _replaced(below: Iterator[Entry], overlay: dict[bytes, _Change]) -> Iterator[Entry]:
    """Entries in any order. The overlay is used up."""
    take = overlay.pop
    for key, value in below:
        change = take(key, value)
        if type(change) is bytes:
            yield key, change
        elif change is not None:
            yield key, value + change.value  # type: ignore[union-attr]  # no bytes: looked at above
    for key, change in overlay.items():
        if change is not None:
            yield key, change if isinstance(change, bytes) else change.value


def _merged(below: Iterator[Entry], overlay: dict[bytes, _Change]) -> Iterator[Entry]:
    above = iter(sorted(overlay))
    next_key = next(above, None)
    for key, value in below:
        while next_key is not None and next_key < key:
            change = overlay[next_key]
            if change is not None:
                yield next_key, change if isinstance(change, bytes) else change.value
            next_key = next(above, None)
        if next_key != key:
            yield key, value
            continue
        change = overlay[key]
        if change is not None:
            yield key, change if isinstance(change, bytes) else value + change.value
        next_key = next(above, None)
    while next_key is not None:
        change = overlay[next_key]
        if change is not None:
            yield next_key, change if isinstance(change, bytes) else change.value
        next_key = next(above, None)
